#!/usr/bin/env python3
"""Makes a bundle of a build folder and runs it on the CPU as a machine without any toolchain would:
no environment, another folder. A suite that fails, and a GPU that is not there, are counted."""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "abi"))
sys.dont_write_bytecode = True
from cases import Cases  # noqa: E402

CLOSING = re.compile(r"(\d+) passed, (\d+) failed, (\d+) skipped")


def run_bundle(folder, out, *options, device="cpu"):
    """Exit code, text, and the counts of the last line or None."""
    result = subprocess.run(
        [folder / "run.sh", "--quick", *options, out],
        cwd="/",
        env={"FASTNORM_TEST_DEVICE": device},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    closing = CLOSING.fullmatch(result.stdout.rstrip().splitlines()[-1])
    return result.returncode, result.stdout, closing and tuple(map(int, closing.groups()))


def check_linkage(cases, folder):
    """Programs take the bundle's library, wherever they were linked."""
    programs = [p for name in ("api", "go", "rust/tests", "rust/other") if (folder / name).is_dir()
                for p in sorted((folder / name).iterdir()) if ".so" not in p.name]
    for program in programs:
        text = subprocess.run(
            ["ldd", program],
            capture_output=True,
            text=True,
            env={"LD_LIBRARY_PATH": str(folder / "lib")},
        ).stdout
        cases.check(f"{program.name} takes the bundle's library", "libfastnorm.so.1" not in text or
                    f"=> {folder / 'lib' / 'libfastnorm.so.1'}" in text, text)
    cases.check("there are programs", programs)


def check_run(cases, folder, out):
    """All suites, and what is written of them."""
    code, text, counts = run_bundle(folder, out)
    if not cases.check(
        "the bundle runs",
        code == 0 and counts and counts[0] > 0 and counts[1] == 0,
        f"exit code {code}\n{text[-6000:]}",
    ):
        return
    print(f"the bundle: {counts[0]} passed, {counts[2]} skipped")
    missing = (folder / "missing.txt").read_text().splitlines()
    for line in missing:
        cases.skip(*line.split(": ", 1))
    results = json.loads((out / "results.json").read_text())
    suites = results["suites"]
    sums = tuple(sum(s[key] for s in suites) for key in ("passed", "failed", "skipped"))
    cases.equal("sums of results.json", (sums[0], sums[1], sums[2] + len(missing)), counts)
    cases.equal("skips with their reason", len(re.findall(r"^SKIP .+: .+", text, re.M)), counts[2])
    cases.equal("device", results["test_device"], "cpu")
    for language in ("go", "rust", "java"):
        if not any(line.startswith(language) for line in missing):
            costs = [c for s in suites if s["name"] == f"cost-{language}" for c in s["costs"]]
            cases.check(
                f"{language}: tests and costs",
                any(s["name"].startswith(language) and s["passed"] for s in suites)
                and len(costs) >= 4
                and all(c["ns"] > 0 for c in costs),
                costs,
            )


def check_failures(cases, folder, out):
    code, text, counts = run_bundle(folder, out, "--only", "^c-|^rust-device$", device="cuda")
    gpu = json.loads((out / "results.json").read_text())["driver"] != "none"
    cases.check(
        "a GPU that is not there is a failure", gpu or code == 1 and counts and counts[1] > 0, text
    )
    broken = folder / "api" / "alloc_test"
    broken.write_text("#!/bin/sh\nkill -SEGV $$\n")
    code, text, counts = run_bundle(folder, out, "--only", "^c-")
    cases.check(
        "a crash is a failure", code == 1 and counts and counts[0] > 0 and counts[1] == 1, text
    )
    code, text, _ = run_bundle(folder, out, device="tpu")
    cases.check("an unknown device is refused", code == 2 and "required: cpu or cuda" in text, text)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, required=True, help="build folder with tests")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is made")
    options = parser.parse_args()
    work = options.work.resolve()
    folder = work / "bundle"
    cases = Cases()
    made = subprocess.run(
        [ROOT / "tools" / "bundle", options.build, folder, "--work", work / "made"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if cases.check("tools/bundle", made.returncode == 0, made.stdout[-6000:]):
        print(made.stdout.rstrip().splitlines()[-1])
        check_linkage(cases, folder)
        check_run(cases, folder, work / "results")
        check_failures(cases, folder, work / "results-failing")
    cases.finish()


main()
