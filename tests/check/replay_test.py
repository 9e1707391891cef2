#!/usr/bin/env python3
"""A failing case of fastnorm_check prints a command that finds the same failure again. Sums that
are expected in a wrong order make cases fail.

  replay_test.py PROGRAM FAMILY..."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "abi"))
sys.dont_write_bytecode = True
from cases import Cases  # noqa: E402

MOST = 5  # failures of each that run again


def run(program, *options):
    env = {k: v for k, v in os.environ.items() if k != "FASTNORM_CHECK_PART"}
    result = subprocess.run([program, *options], capture_output=True, text=True, env=env)
    return result.returncode, result.stdout, result.stderr


def failures(text):
    """What was found, and the options that the line below has."""
    found = re.findall(r"^FAIL [^:\n]*: (.*)\n  (fastnorm_check .*)$", text, re.M)
    return [(finding, shlex.split(command)[1:]) for finding, command in found]


def main():
    cases, program = Cases(), sys.argv[1]
    only = ["--device", "cpu", "--isa", "scalar"]
    for name in sys.argv[2:]:
        few = ["--reduced", "--every", "5", "--filter", f"{name} "]
        code, text, _ = run(program, *only, *few, "--wrong-order")
        found = failures(text)
        cases.check(f"{name}: a wrong order fails", code == 1 and found, text[-500:])
        for number, (finding, options) in enumerate(found[:MOST]):
            cases.equal(f"{name} {number}: the same target", options[: len(only)], only)
            code, text, _ = run(program, *options, "--wrong-order")
            again = failures(text)
            cases.equal(f"{name} {number}: the same finding", again, [(finding, options)])
            cases.equal(f"{name} {number}: its exit code", code, 1)
            code, text, _ = run(program, *options)
            cases.equal(f"{name} {number}: the right order passes", code, 0)
            cases.check(f"{name} {number}: one case", text.startswith("1 passed, 0 failed"), text)
    line = "norm seed=1 eps=1e-5 x=f32[3,40] y=f32[3,40]"
    code, text, _ = run(program, *only, "--call", line + " fill.x=one_NaN")
    cases.check("a line by hand", code == 0 and text.startswith("1 passed"), text)
    for wrong, why in (
        ("norm x=f32[3] z=f32[3]", "fastnorm_norm_args has no field `z`"),
        ("norm x=f32[3] y=f32[3] fill.x=odd", "`odd` is no pattern and no number"),
        ("norm x=f32[3] y=f32[3] fill.bias=1", "`fill.bias` has no tensor of its own"),
        ("norm x=f32[3] y=f32[3] y.address=x+4", "neither beside its own nor another tensor's"),
        ("peer_sharded_norm x=f32[3]", "`peer_sharded_norm` has no model of a line"),
        ("norms", "`norms` is no family"),
    ):
        code, _, text = run(program, *only, "--call", wrong)
        cases.check(f"{wrong}: refused", code == 2 and why in text, text)
    code, text, _ = run(program, *only, "--call", "norm eps=1e-5 x=f32[3]")
    cases.check("a call that the library refuses", code == 1 and "refused: " in text, text)
    code, _, text = run(program, *only, "--kernel", "odd", "--call", line)
    cases.check("an unknown kernel", code == 2 and "has no kernel `odd`" in text, text)
    cases.finish()


main()
