#!/usr/bin/env python3
"""The parts of fastnorm_check, FASTNORM_CHECK_PART=K/N, together run every case once.

  parts_test.py PROGRAM"""

import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "abi"))
sys.dont_write_bytecode = True
from cases import Cases  # noqa: E402

PARTS = 8
# Kernels and options whose cases are told apart by the part alone. Every kernel runs a case,
# however few there are, so these have many.
RUNS = [
    ("^f32 plain rms", []),
    ("^bf16 add layer", ["--every", "3"]),
    ("norm_stages", []),
    ("norm_stages", ["--every", "2"]),
]


def run(program, name, options, part=None):
    """Exit code, and the cases that ran."""
    env = {k: v for k, v in os.environ.items() if k != "FASTNORM_CHECK_PART"}
    if part is not None:
        env["FASTNORM_CHECK_PART"] = part
    command = [program, "--device", "cpu", "--isa", "scalar", "--reduced", "--filter", name]
    result = subprocess.run([*command, *options], capture_output=True, text=True, env=env)
    counts = re.findall(r"(\d+) cases", result.stdout)
    return result.returncode, sum(map(int, counts)), result.stdout + result.stderr


def main():
    cases, program = Cases(), sys.argv[1]
    for name, options in RUNS:
        title = " ".join([name, *options])
        code, whole, _ = run(program, name, options)
        cases.check(f"{title}: all cases", code == 0 and whole > 2 * PARTS, whole)
        parts = [run(program, name, options, f"{k}/{PARTS}") for k in range(PARTS)]
        cases.check(f"{title}: every part passes", all(code == 0 for code, _, _ in parts))
        cases.equal(f"{title}: cases of all parts", sum(count for _, count, _ in parts), whole)
        cases.check(f"{title}: no part has most", max(n for _, n, _ in parts) < whole / 2)
    for wrong in ("8/8", "-1/8", "1", "1/8x", "0/0"):
        code, _, text = run(program, "^f32", [], wrong)
        cases.check(f"{wrong} is refused", code == 2 and f"0 <= K < N <= 1000, not {wrong}" in text)
    cases.finish()


main()
