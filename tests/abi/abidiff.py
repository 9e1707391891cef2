#!/usr/bin/env python3
"""Notices every change of the ABI's types since the committed baseline, with libabigail.

It notices, layout.py judges: appending a field is allowed and is still a difference here, so an
intended change regenerates the baseline (`abidiff.py --update`) in the same commit.
"""

import argparse
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from cases import Cases, output_of

BASELINE = Path(__file__).with_name("abi.xml")
DUMP = [
    "--exported-interfaces-only",
    "--drop-private-types",
    "--no-show-locs",
    "--no-comp-dir-path",
    "--no-corpus-path",
    "--no-elf-needed",
]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--include", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    if options.update:
        dump = output_of(
            ["abidw", *DUMP, "--headers-dir", f"{options.include}/fastnorm", options.library]
        )
        if "<abi-instr" not in dump:
            sys.exit(
                f"{options.library} has no debug information; required: a build with -Ddebug=true"
            )
        BASELINE.write_text(dump)
        return
    cases = Cases()
    if platform.machine() != "x86_64":
        cases.skip("abidiff", "the baseline was made on x86-64")
        cases.finish()
    if shutil.which("abidiff") is None:
        sys.exit("abidiff is not installed (Debian: abigail-tools)")
    # No --headers-dir here: libabigail 2.2 aborts on it where one side is XML.
    result = subprocess.run(
        ["abidiff", "--no-added-syms", str(BASELINE), options.library],
        capture_output=True,
        text=True,
    )
    cases.check(
        "no difference to the baseline",
        result.returncode == 0,
        f"abidiff ended with {result.returncode}\n{result.stdout}{result.stderr}",
    )
    cases.finish()


main()
