#!/usr/bin/env python3
"""What the GPU kernels of a build cost, beside their budget (budget.csv).

    tools/budget.py BUILD            compares; ends with 1 where something is above its budget
    tools/budget.py BUILD --update   writes what was found as the budget of the families and
    architectures of the build

A line of the budget is a family and an architecture:

    kernels   entry points of the library, by cuobjdump: forms for two calls and for heads count
    bytes     of compressed code in the objects of the family; of the line "library", of the
    stripped library
    seconds   that the compiler took, of one core each, by ninja's log; up to 1.5 times as much
    passes, since other programs
              and other machines take more
    goal_*    what the line is meant to come down to; nothing fails above it

An empty field has no budget yet: what was found is printed and counted as skipped. So are seconds
where a cache may have answered in place of the compiler.
"""

import argparse
import csv
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from kernel_report import demangle, find_cuobjdump, read_kernels

BUDGET = Path(__file__).with_name("budget.csv")
MEASURES = ("kernels", "bytes", "seconds")
COLUMNS = ("family", "arch", *MEASURES, *(f"goal_{m}" for m in MEASURES))
SLACK = {"kernels": 1.0, "bytes": 1.0, "seconds": 1.5}
LIBRARY = "library"
# The object of a part of a family: src/cuda/libnorm_sm90_bf16_plain.a.p/norm_instances.cu.o
OBJECT = re.compile(r"src/cuda/lib([a-z][a-z0-9_]*)_(sm\d+[af]?|ptx)_[a-z0-9_]+\.a\.p/.*\.o$")


def family_names():
    """What names of kernels contain -> their family, one that budget.csv has lines of."""
    families = {family for family, _ in read_budget(BUDGET)} - {LIBRARY}
    return {f: f for f in families} | {"heads": "norm_heads"}  # held_heads_kernel


def family_of(name, families):
    """Of a demangled kernel; "other" where it is nobody's. `families`: what family_names() gives.
    The longest name counts, and of two the first: peer_norm_kernel is of peers."""
    kernel = re.search(r"\w+_kernel\b", name)
    words = f"_{kernel[0]}" if kernel else ""
    found = [f for f in families if f"_{f}_" in words]
    return families[max(found, key=lambda f: (len(f), -words.index(f)))] if found else "other"


def arch_of(part):
    """sm90a -> sm_90a"""
    return part.replace("sm", "sm_", 1)


def count_kernels(kernels):
    """{(family, arch): entry points} of (arch, demangled name) of every kernel."""
    found, families = defaultdict(int), family_names()
    for arch, name in kernels:
        found[family_of(name, families), arch] += 1
    return dict(found)


def object_of(path):
    """(family, arch) of an object's path in the build folder, or None."""
    match = OBJECT.search(path)
    return (match[1], arch_of(match[2])) if match else None


def code_bytes(listing):
    """Bytes of GPU code that `size -A` lists."""
    return sum(
        int(line.split()[1]) for line in listing.splitlines() if line.startswith(".nv_fatbin")
    )


def compile_seconds(log):
    """{(family, arch): seconds} of the objects in ninja's log; of each object the last time that it
    was made."""
    last = {}
    for line in log.splitlines():
        fields = line.split("\t")
        if len(fields) == 5 and (key := object_of(fields[3])):
            last[fields[3]] = key, (int(fields[1]) - int(fields[0])) / 1000
    found = defaultdict(float)
    for key, seconds in last.values():
        found[key] += seconds
    return dict(found)


def is_cached(build_ninja):
    """Whether kernels are compiled through a cache, which may answer in place of the compiler."""
    rule = re.search(r"^rule cuda_COMPILER\n((?: .*\n)+)", build_ninja, re.M)
    return bool(rule and re.search(r"command = .*\b(ccache|sccache)\b", rule[1]))


def measure(build, library, cuobjdump):
    """{(family, arch): {measure: number}} of a build folder; seconds are absent where a cache was
    asked."""
    found = defaultdict(dict)
    names = read_kernels(cuobjdump, library)
    for key, count in count_kernels(
        zip((k[0] for k in names), demangle([k[1] for k in names]))
    ).items():
        found[key]["kernels"] = count
    for path in sorted(build.glob("src/cuda/*.a.p/*.o")):
        if key := object_of(str(path)):
            text = subprocess.run(
                ["size", "-A", path], capture_output=True, text=True, check=True
            ).stdout
            found[key]["bytes"] = found[key].get("bytes", 0) + code_bytes(text)
    if not is_cached((build / "build.ninja").read_text()):
        for key, seconds in compile_seconds((build / ".ninja_log").read_text()).items():
            found[key]["seconds"] = round(seconds)
    archs = "+".join(sorted({arch for _, arch in found}))
    with tempfile.TemporaryDirectory() as folder:
        stripped = Path(folder) / "stripped"
        shutil.copy(library, stripped)
        subprocess.run(["strip", stripped], check=True)
        found[LIBRARY, archs]["bytes"] = stripped.stat().st_size
    return dict(found)


def read_budget(path):
    """{(family, arch): {column: number or None}}"""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    reader = csv.DictReader(lines)
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise ValueError(f"{path}: columns are {reader.fieldnames}; required: {','.join(COLUMNS)}")
    budget = {}
    for row in reader:
        key = row["family"], row["arch"]
        if key in budget:
            raise ValueError(f"{path}: {' '.join(key)} is there twice")
        budget[key] = {c: int(row[c]) if row[c] else None for c in COLUMNS[2:]}
    return budget


def compare(found, budget):
    """[(verdict, text)] of each family and architecture of the build; a verdict is passed, failed
    or skipped."""
    verdicts = []
    for key in sorted(found):
        name, numbers = " ".join(key), found[key]
        if key not in budget and key[0] != LIBRARY:
            verdicts.append(("failed", f"{name}: has no line in the budget; required: one"))
            continue
        allowed = budget.get(key, {})
        for what in MEASURES:
            if what not in numbers:
                if what == "seconds" and key[0] != LIBRARY:
                    verdicts.append(
                        (
                            "skipped",
                            f"{name}: seconds were not measured: the objects come from a cache, or not from ninja",
                        )
                    )
                continue
            limit, value = allowed.get(what), numbers[what]
            goal = allowed.get(f"goal_{what}")
            text = f"{name}: {value} {what}" + (
                f", budget {limit}" if limit is not None else ", no budget yet"
            )
            text += f", goal {goal}" if goal is not None else ""
            verdicts.append(
                (
                    (
                        "skipped"
                        if limit is None
                        else "failed" if value > limit * SLACK[what] else "passed"
                    ),
                    text,
                )
            )
    return verdicts


def updated(text, found):
    """The budget's text with what was found in place of kernels, bytes and seconds."""
    left = {key: dict(numbers) for key, numbers in found.items()}

    def line_of(key, before):
        numbers = left.pop(key)
        fields = [
            *key,
            *(str(numbers.get(m, old)) for m, old in zip(MEASURES, before[2:5])),
            *before[5:8],
        ]
        return ",".join(fields)

    lines = []
    for line in text.splitlines():
        fields = line.split(",")
        key = tuple(fields[:2])
        lines.append(line_of(key, fields) if key in left else line)
    lines += [line_of(key, [""] * len(COLUMNS)) for key in sorted(left)]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path, help="build folder of all kernels (gpu_sample=1)")
    parser.add_argument("--budget", type=Path, default=BUDGET, help="(%(default)s)")
    parser.add_argument("--update", action="store_true", help="write what was found")
    parser.add_argument("--native-file", type=Path, help="Meson native file that names nvcc")
    options = parser.parse_args()
    cuobjdump = find_cuobjdump(options.native_file)
    if cuobjdump is None:
        sys.exit(
            "no cuobjdump: it comes with a CUDA toolkit, and with tools/setup where there is none"
        )
    found = measure(options.build, options.build / "src" / "libfastnorm.so", cuobjdump)
    if options.update:
        options.budget.write_text(updated(options.budget.read_text(), found))
        return 0
    verdicts = compare(found, read_budget(options.budget))
    for verdict, text in verdicts:
        print({"passed": "", "failed": "FAIL ", "skipped": "SKIP "}[verdict] + text)
    counts = {
        v: sum(1 for verdict, _ in verdicts if verdict == v)
        for v in ("passed", "failed", "skipped")
    }
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return counts["failed"] != 0


if __name__ == "__main__":
    sys.exit(main())
