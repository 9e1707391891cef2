#!/usr/bin/env python3
"""Runs the example on the CPU in each dtype and looks at what it prints; then a wrong attention,
and its ways to fail."""

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

HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}  # no GPU, where there is one
REQUESTS, BLOCKS = 4, 3


def example(build, *options):
    """Exit code, stdout and stderr."""
    result = subprocess.run(
        [sys.executable, Path(__file__).parent, "--build", build, *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **HIDDEN},
    )
    return result.returncode, result.stdout, result.stderr


def check_run(cases, build, dtype, steps, tokens, *options, fp8=False):
    name = " ".join((dtype, *options))
    code, text, errors = example(
        build, "--dtype", dtype, "--steps", str(steps), "--tokens", str(tokens), *options
    )
    if not cases.equal(f"{name}: exit code", (code, errors), (0, "")):
        print(text)
        return
    passes = 1 + steps + tokens - 1  # of the model: the prompts first
    rows = re.findall(
        r"^ *(prompt|forced|generated) +(\d+)((?: +[\d.]+ [=~!]){4}) +(\S+)$", text, re.M
    )
    cases.equal(
        f"{name}: a row for each step",
        [(row[0], int(row[1])) for row in rows],
        [
            ("prompt" if s == 0 else "forced" if s <= steps else "generated", s)
            for s in range(passes)
        ],
    )
    cases.check(
        f"{name}: no token is another though the margin is larger",
        "!" not in "".join(row[2] for row in rows),
    )
    found = re.search(r"largest error of a logit (\S+), .*; bound (\S+); largest logit (\S+)", text)
    error, bound, largest = (float(value) for value in found.groups())
    unit = 2.0 ** -6 if fp8 else {"f32": 2.0 ** -24, "bf16": 2.0 ** -8, "f16": 2.0 ** -11}[dtype]
    cases.check(f"{name}: the error is there, and within the bound", 0 < error <= bound, found[0])
    cases.check(f"{name}: the bound is the stated one",
                abs(bound / largest / (8 * unit + 128 * 2.0 ** -24) - 1) < 0.01, found[0])
    counts = re.search(
        r"(\d+) of (\d+) steps have a margin above the bound: (\d+) with the same token, 0 with another",
        text,
    )
    cases.check(
        f"{name}: margins decide some tokens, which are the same",
        counts
        and int(counts[2]) == passes * REQUESTS
        and int(counts[3]) == int(counts[1]) > passes * REQUESTS / (10 if fp8 else 4),
        text[-600:],
    )
    beside = re.search(
        r"beside a cache of bf16: (\d+) of (\d+) generated tokens are the same before the first other "
        r"one; largest difference of a logit in the forced steps (\S+)\n",
        text,
    )
    cases.equal(f"{name}: it is compared with a cache of bf16", beside is not None, fp8)
    if beside:
        cases.equal(f"{name}: generated tokens", int(beside[2]), REQUESTS * tokens)
        cases.check(
            f"{name}: some of them are the same, and logits differ by less than the bound",
            int(beside[1]) > 0 and 0 < float(beside[3]) <= bound,
            beside[0],
        )
    calls = re.search(r"(\d+) norms and (\d+) attentions by the library", text)
    cases.equal(
        f"{name}: the library did every norm and attention",
        [int(n) for n in calls.groups()],
        [passes * (4 * BLOCKS + 1), passes * BLOCKS],
    )
    made = re.findall(r"^request \d generated: ((?: ?\d+)+)$", text, re.M)
    cases.equal(f"{name}: tokens", [len(line.split()) for line in made], [tokens] * REQUESTS)


def check_failures(cases, build):
    with tempfile.TemporaryDirectory() as empty:
        for name, code, wanted, options in (
            (
                "a wrong scale",
                1,
                "mla_decode: an error of .* is larger than the bound",
                ["--scale-error", "0.001", "--steps", "4", "--tokens", "1"],
            ),
            (
                "a wrong scale in bf16",
                1,
                "mla_decode: an error of .* is larger than the bound",
                ["--dtype", "bf16", "--scale-error", "0.25", "--steps", "4", "--tokens", "1"],
            ),
            (
                "a device that does not exist",
                2,
                "--device: invalid choice: 'tpu'",
                ["--device", "tpu"],
            ),
            (
                "no steps",
                2,
                "--steps, --tokens, --page and --threads must be at least 1",
                ["--steps", "0"],
            ),
            (
                "an FP8 cache in f32",
                2,
                "--cache 656 needs --dtype bf16 and --device cpu",
                ["--cache", "656"],
            ),
            ("no GPU", 1, "mla_decode: FASTNORM_ERROR_DEVICE: ", ["--device", "cuda"]),
            ("no library", 1, "mla_decode: .*libfastnorm.so: cannot open", ["--build", empty]),
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
check_run(cases, options.build, "f32", 64, 16)
check_run(cases, options.build, "bf16", 64, 16, "--page", "64")
check_run(cases, options.build, "bf16", 64, 16, "--cache", "656", fp8=True)
check_run(cases, options.build, "f16", 8, 8, "--page", "5", "--seed", "3", "--threads", "2")
check_failures(cases, options.build)
cases.finish()
