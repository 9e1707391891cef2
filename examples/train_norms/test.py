#!/usr/bin/env python3
"""Runs the example on the CPU and looks at what it prints: a whole training, its first steps once
more for the bits, two wrong gradients, and its ways to fail. Run with a Python that has PyTorch."""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.append(str(Path(__file__).resolve().parents[1]))
from norm_testing import Cases, missing  # noqa: E402

HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}  # no GPU, where there is one
STEPS, AGAIN, NORMS = 200, 20, 13
GRADIENTS = 2 * NORMS + 4  # dx and dweight of each, dbias of the LayerNorms
STEP = r"^step +(\d+): loss ([\d.]+), gradients of the norms ([0-9a-f]{16})"


def example(build, *options):
    """Exit code, stdout and stderr."""
    result = subprocess.run(
        [sys.executable, Path(__file__).parent, "--build", build, *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **HIDDEN},
    )
    return result.returncode, result.stdout, result.stderr


def check_training(cases, build):
    code, text, errors = example(build, "--steps", str(STEPS))
    if not cases.equal("a training: exit code", (code, errors), (0, "")):
        print(text[-3000:])
        return []
    first = re.search(r"^(\d+) parameters, (\d+) norms, (\d+) characters", text)
    parameters, norms, characters = (int(n) for n in first.groups())
    cases.check(
        "a training: a few hundred thousand parameters, all norms, the docs",
        200_000 <= parameters <= 500_000 and norms == NORMS and characters > 10_000,
        first[0],
    )
    steps = re.findall(STEP + r", PyTorch's norms ([\d.]+)$", text, re.M)
    cases.equal(
        "a training: a line for each step", [int(s[0]) for s in steps], list(range(1, STEPS + 1))
    )
    losses = [float(s[1]) for s in steps]
    cases.check(
        "a training: the model learns",
        sum(losses[-10:]) / 10 < 0.65 * losses[0],
        (losses[0], losses[-10:]),
    )
    cases.check(
        "a training: every step has gradients of its own", len({s[2] for s in steps}) == STEPS
    )
    difference = re.search(r"largest difference of the loss (\S+); bound 1e-03", text)
    cases.check(
        "a training: the loss is PyTorch's",
        float(difference[1]) <= 1e-3
        and all(abs(float(s[1]) - float(s[3])) <= 1e-3 + 1e-5 for s in steps),
        difference[0],
    )
    found = re.findall(r"(dx|dweight|dbias) (\d\.\de[-+]\d+)", text)
    cases.equal("a training: gradients that were compared", len(found), GRADIENTS)
    cases.check(
        "a training: gradients of step 1", all(float(error) <= 1e-4 for _, error in found), found
    )
    calls = re.search(r"(\d+) norms forward and (\d+) backward by the library", text)
    cases.equal(
        "a training: the library did every norm",
        [int(n) for n in calls.groups()],
        2 * [STEPS * NORMS],
    )
    return steps


def check_bits(cases, build, steps):
    """Another process, without PyTorch's model: the same gradients."""
    code, text, errors = example(build, "--steps", str(AGAIN), "--only-fastnorm")
    cases.equal("a second run: exit code", (code, errors), (0, ""))
    again = re.findall(STEP + "$", text, re.M)
    cases.equal(
        "a second run: the bits of the norms' gradients",
        [s[2] for s in again],
        [s[2] for s in steps[:AGAIN]],
    )
    code, text, _ = example(build, "--steps", "1", "--only-fastnorm", "--seed", "1")
    other = re.findall(STEP + "$", text, re.M)
    cases.check(
        "another seed: other bits",
        code == 0 and len(other) == 1 and other[0][2] != again[0][2],
        other,
    )


def check_failures(cases, build):
    with tempfile.TemporaryDirectory() as empty:
        for name, code, wanted, options in (
            (
                "a wrong dx",
                1,
                r"train_norms: blocks.1.mlp_norm's dx differs by 1\.0e-02",
                ["--fault", "dx:blocks.1.mlp_norm"],
            ),
            (
                "a wrong dx of a sum",
                1,
                r"train_norms: blocks.2.attention_norm's dx differs by 1\.0e-02",
                ["--fault", "dx:blocks.2.attention_norm"],
            ),
            (
                "a wrong dweight",
                1,
                r"^train_norms: blocks.0.attention.key_norm's dweight differs by 1\.0e-02$",
                ["--fault", "dweight:blocks.0.attention.key_norm"],
            ),
            (
                "a fault that is none",
                1,
                "required: dx or dweight, a colon, and one of blocks.0.attention_norm",
                ["--fault", "dx:nowhere"],
            ),
            (
                "a device that does not exist",
                2,
                "--device: invalid choice: 'tpu'",
                ["--device", "tpu"],
            ),
            ("no steps", 2, "--steps, --batch and --threads must be at least 1", ["--steps", "0"]),
            ("no library", 1, "train_norms: .*libfastnorm.so.1: cannot open", ["--build", empty]),
        ):
            found, _, errors = example(build, "--steps", "1", *options)
            cases.check(
                f"{name}: exit code {code} and the reason",
                found == code and re.search(wanted, errors, re.M) and "Traceback" not in errors,
                f"{found}\n{errors}",
            )


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--build", type=Path, required=True, help="Meson's build folder")
options = parser.parse_args()
cases = Cases()
why = missing("torch", "numpy")
if why:
    cases.skip("training with libfastnorm's norms", why)
else:
    check_bits(cases, options.build, check_training(cases, options.build))
    check_failures(cases, options.build)
cases.finish()
