#!/usr/bin/env python3
"""Runs every measurement that the docs show, in parts, and writes a result file for each. Parts
that have their file are left out, so that the command is repeated until all are there: a machine
that is lent for ten minutes takes --seconds 540.

  bench/campaign.py --build build --out results                 all that this machine can run
  bench/campaign.py --build build --out results --seconds 540   what these seconds are enough for
  bench/campaign.py --parts decode,large --fresh                these, again, in this order
  bench/campaign.py --list                                      parts, and which are there
  bench/campaign.py --dry-run                                   what each part would run

campaign.csv has the parts. Files are named CARD_PART.csv, such as h200_large.csv; each names the
library's build, the card, the driver and the versions of packages. The exit code is 0 when all
parts are there, 75 when some are left, and 1 when one failed. bench/tables.py then makes the pages
from the files."""

import argparse
import csv
import importlib.metadata
import importlib.util
import itertools
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from compare import lines  # noqa: E402

PROGRAMS = {
    "BENCH": "fastnorm_bench",
    "NCCL_BENCH": "fastnorm_nccl_bench",
    "FASTNORM": "fastnorm",
    "LIBRARY": "libfastnorm.so.1",
}  # files of a build folder, or of one that tests/gpu/pack made
MARGIN = 5  # seconds that a program needs after its last case
# Packages whose versions count for what is timed beside the library.
PACKAGES = (
    "torch", "triton", "flashinfer-python", "quack-kernels", "liger-kernel", "fla-core",
    "transformer-engine", "nvidia-cudnn-frontend", "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "vllm",
    "flash-mla", "sgl-kernel", "transformers",
)
PATIENCE = 120  # seconds that a part may take beyond three times what its line says


@dataclass
class Part:
    name: str
    gpus: int
    seconds: int
    more: bool
    needs: str
    command: str

    def words(self, build, device):
        """The command, without the file that it writes."""
        found = []
        for word in shlex.split(self.command):
            if word in PROGRAMS:
                found.append(file_of(build, PROGRAMS[word]))
                found += ["--device", device] if word == "BENCH" and self.gpus else []
            elif word == "PYTHON":
                found.append(sys.executable)
            elif word.endswith(".py"):
                found.append(str(HERE / word))
            else:
                found.append(str(build) if word == "BUILD" else word)
        return [pairs_of(word) if "{" in word else word for word in found]


def file_of(build, name):
    """The path of a file, or where it should be."""
    found = [p for p in sorted(build.rglob(name)) if p.is_file()]
    return str(found[0] if found else build / name)


def pairs_of(word):
    """What a shell makes of braces, but with commas between."""
    lists = re.sub(r"\{[^}]*\}", lambda found: found[0].replace(",", ";"), word).split(",")
    made = []
    for text in lists:
        pieces = re.split(r"\{([^}]*)\}", text)
        choices = [p.split(";") if i % 2 else [p] for i, p in enumerate(pieces)]
        made += ["".join(chosen) for chosen in itertools.product(*choices)]
    return ",".join(made)


def read_parts(path):
    with open(path, newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    parts = [
        Part(
            r["part"], int(r["gpus"]), int(r["seconds"]), r["more"] == "1", r["needs"], r["command"]
        )
        for r in rows
    ]
    names = [part.name for part in parts]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"{path}: part {min(twice)} stands twice; required: each name once")
    return parts


def lacks(needs):
    """What a part needs and this machine has not, or an empty text."""
    words = [word for word in needs.split() if word != "or"]
    for word in words:
        there = word in os.environ if word.isupper() else importlib.util.find_spec(word) is not None
        if there:
            return ""
    return needs


def nvidia_smi(field):
    """A line for each GPU."""
    asked = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []


def commit():
    """Of this checkout, or an empty text."""
    asked = ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def place(part, given_commit):
    """What every file says beside its program's own words: commit, driver, versions of packages."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    found = {"part": part.name, "commit": given_commit or commit(), "packages": versions}
    drivers = nvidia_smi("driver_version")
    if part.gpus and drivers:
        found["driver_version"] = drivers[0]
    return found


def gpus():
    """Names of this machine's GPUs."""
    return nvidia_smi("name")


def card_of(names):
    """h200 of NVIDIA H200, h100 of NVIDIA H100 80GB HBM3; host without a GPU."""
    found = re.search(r"\b([A-Z]+\d+\w*)\b", names[0]) if names else None
    return found[1].lower() if found else "host"


def run_part(part, words, draft, seconds, log):
    """The exit code of a part, whose result file is the draft. seconds: what is left for it."""
    words = [*words, "--csv", str(draft)]
    limit = 3 * part.seconds + PATIENCE
    if part.more and seconds is not None:
        words += ["--seconds", str(max(1, int(seconds - MARGIN)))]
        limit = seconds + PATIENCE
    elif part.more:
        words += ["--seconds", "36000"]
        limit = None
    with open(log, "a") as file:
        file.write(f"$ {shlex.join(words)}\n")
        file.flush()
        try:
            return subprocess.run(words, stdout=file, stderr=file, timeout=limit).returncode
        except subprocess.TimeoutExpired:
            file.write(f"stopped after {limit:.0f} s\n")
            return 1
        except OSError as why:
            file.write(f"{why}\n")
            return 1


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, default=HERE.parent / "build", help="(%(default)s)")
    parser.add_argument("--out", type=Path, default=HERE / "results",
                        help="folder of the result files (%(default)s)")
    parser.add_argument("--card", help="first word of the files' names (default: of the GPU)")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument(
        "--parts", type=lambda text: text.split(","), help="only these, in this order"
    )
    parser.add_argument(
        "--seconds", type=float, help="begin nothing that takes longer than is left"
    )
    parser.add_argument(
        "--most", type=float, help="seconds that a part of several pieces may have of them"
    )
    parser.add_argument(
        "--commit", help="of the library, where the folder is no checkout (default: git's)"
    )
    parser.add_argument("--fresh", action="store_true", help="measure again what is there")
    parser.add_argument("--list", action="store_true", help="run nothing")
    parser.add_argument("--dry-run", action="store_true", help="print commands and run nothing")
    parser.add_argument("--table", type=Path, default=HERE / "campaign.csv", help=argparse.SUPPRESS)
    return parser


def main():
    parser = arguments()
    options = parser.parse_args()
    parts = read_parts(options.table)
    unknown = [n for n in options.parts or [] if n not in {part.name for part in parts}]
    if unknown:
        parser.error(f"--parts has {unknown[0]}; required: names of {options.table.name}")
    if options.parts:
        parts = sorted(
            (part for part in parts if part.name in options.parts),
            key=lambda part: options.parts.index(part.name),
        )
    found = gpus()
    card = options.card or card_of(found)
    start = time.monotonic()
    if options.dry_run:
        for part in parts:
            words = part.words(options.build.resolve(), options.device)
            print(f"{part.name:20} {shlex.join(words)}")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    states = {}
    for part in parts:
        path = options.out / f"{card}_{part.name}.csv"
        draft = path.with_suffix(".csv.draft")
        left = None if options.seconds is None else options.seconds - (time.monotonic() - start)
        if path.exists() and not options.fresh:
            states[part.name] = "there"
        elif part.gpus > len(found):
            states[part.name] = f"needs {part.gpus} GPUs, here are {len(found)}"
        elif lacks(part.needs):
            states[part.name] = f"needs {part.needs}"
        elif options.list:
            states[part.name] = f"{part.seconds} s{' or more' if part.more else ''}"
        elif left is not None and left < part.seconds:
            states[part.name] = "left: no time"
        else:
            if options.fresh:
                draft.unlink(missing_ok=True)
            words = part.words(options.build.resolve(), options.device)
            log = options.out / f"{card}_{part.name}.log"
            begun = time.monotonic()
            given = min(filter(None, (left, options.most)), default=None)
            code = run_part(part, words, draft, given, log)
            took = time.monotonic() - begun
            if code == 0 and draft.exists():
                found_here = {**lines.read(draft), "campaign": place(part, options.commit)}
                lines.write(path, found_here)
                draft.unlink()
                states[part.name] = f"made in {took:.0f} s"
            elif code == lines.EXIT_LEFT:
                states[part.name] = f"left: {took:.0f} s were not enough"
            else:
                states[part.name] = f"failed with exit code {code}: {log}"
        print(f"{part.name:20} {states[part.name]}", flush=True)
    if any(state.startswith("failed") for state in states.values()):
        return 1
    return lines.EXIT_LEFT if any(s.startswith("left") for s in states.values()) else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    sys.exit(main())
