#!/usr/bin/env python3
"""fastnorm_nccl_bench over a library that pretends to be NCCL, on CPU ranks: its checks pass, they
see a faulty library, and its times become a result file. bench_test.py PROGRAM LIBRARY"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "abi"))
sys.path.insert(0, str(ROOT / "bench"))
from cases import Cases  # noqa: E402
from compare import lines  # noqa: E402

SHAPES = ("1x64", "6x512")
CHECKS_OF_A_DTYPE = 150


class Program:
    def __init__(self, path, library):
        self.path, self.library = path, library

    def run(self, *arguments, device="cpu", library=None, fault=""):
        """The exit code, and all that the program prints."""
        ran = subprocess.run(
            [self.path, "--device", device, "--nccl", library or self.library, *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "FAKE_NCCL_FAULT": fault},
        )
        return ran.returncode, ran.stdout + ran.stderr


def check_bits(cases, program):
    # One dtype where a sanitizer makes each take long.
    few = "FASTNORM_TEST_SHARE" in os.environ
    for arguments, dtypes in (
        (("--dtypes", "bf16"), 1) if few else (("--dtypes", "bf16,f16"), 2),
        (("--dtypes", "f32", "--ranks", "3"), 1),
    ):
        code, text = program.run("--no-times", *arguments)
        last = re.fullmatch(r"(\d+) passed, 0 failed, 0 skipped", text.splitlines()[-1])
        name = " ".join(arguments)
        cases.check(f"{name}: the bits are right", code == 0 and last, text[-600:])
        passed = int(last[1]) if last else 0
        cases.check(f"{name}: all was checked", passed > dtypes * CHECKS_OF_A_DTYPE, passed)


def check_faults(cases, program):
    arguments = ("--no-times", "--dtypes", "bf16")
    code, text = program.run(*arguments, fault="sum")
    failed = [line for line in text.splitlines() if line.startswith("FAIL")]
    many = len(failed) > CHECKS_OF_A_DTYPE / 2
    cases.check("a wrong sum is seen", code == 1 and many, text[:300])
    cases.check(
        "where NCCL adds alone", not any("by peers" in line for line in failed), failed[:3]
    )
    cases.check("the output is named", any("differs from byte" in line for line in failed))
    code, text = program.run(*arguments, fault="beyond")
    cases.check(
        "a byte too many is seen", code == 1 and "bytes around a tensor" in text, text[-300:]
    )
    code, text = program.run(*arguments, "--seconds", "1", fault="hang")
    cases.check("a hang is ended", code == 3 and "communicators: no end after 1 s" in text, text)


def check_times(cases, program, file):
    code, text = program.run(
        "--no-checks", "--shapes", ",".join(SHAPES), "--rounds", "2", "--csv", str(file)
    )
    if not cases.check("times", code == 0, text[-600:]):
        return
    document = lines.parse(file.read_text(), file)
    cases.equal("ranks", document["ranks"], 2)
    cases.equal("version of NCCL", document["nccl"], 22809)
    rows = document["results"]
    found = [(r["op"], r["dtype"], f"{r['rows']}x{r['n']}") for r in rows]
    wanted = [("allreduce_norm", "bf16", shape) for shape in SHAPES]
    cases.equal("cases", found, [*wanted, ("sequence_norm", "bf16", SHAPES[1])])
    for r in rows:
        allreduce = r["op"] == "allreduce_norm"
        cases.equal(f"{r['op']}: its way", r["way"], "peers" if allreduce else "nccl")
        cases.equal(f"{r['op']}: on NCCL too", "nccl_us" in r, allreduce)
        ratio = r["us"] / r["by_hand_us"]
        cases.check(f"{r['op']}: the ratio", abs(r["ratio"] / ratio - 1) < 2e-3, (r, ratio))
    code, text = program.run("--no-checks", "--shapes", "6x64", "--rounds", "1", fault="sum")
    cases.check("wrong results have no time", code == 1 and "failed: rank 0" in text, text)


def check_refusals(cases, program):
    for says, arguments, options in (
        ("--ranks", ("--ranks", "1"), {}),
        ("--nccl needs none.so", (), {"library": "none.so"}),
        ("a shape is ROWSxN", ("--no-checks", "--shapes", "8"), {}),
        ("required: at least 2", (), {"device": "cuda"}),
    ):
        if "device" in options and Path("/dev/nvidiactl").exists():
            cases.skip("no GPUs", "there are some")
            continue
        code, text = program.run(*arguments, **options)
        told = code not in (0, -6, -11) and says in text
        cases.check(f"refused: {arguments} {options}", told, text[-300:])


def main():
    cases, program = Cases(), Program(*sys.argv[1:3])
    check_bits(cases, program)
    check_faults(cases, program)
    with tempfile.TemporaryDirectory() as folder:
        check_times(cases, program, Path(folder) / "out.csv")
    check_refusals(cases, program)
    cases.finish()


main()
