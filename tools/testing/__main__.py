"""Runs the stages and prints the sum. Called by tools/test, which sets the machine up before."""

import argparse
import sys
import time

from report import Report
from stages import STAGES


def parse_arguments():
    parser = argparse.ArgumentParser(prog="tools/test", description="Builds and tests everything.")
    parser.add_argument("--list", action="store_true", help="print the names of the stages")
    parser.add_argument("--stage", nargs="+", choices=STAGES, default=list(STAGES), metavar="NAME",
                        help="run these stages, and those they need")
    parser.add_argument("--fuzz-seconds", type=int, default=60, help="time for new fuzz inputs (default 60)")
    return parser.parse_args()


def selected(names):
    wanted = set(names)
    for name in names:
        wanted.update(STAGES[name][1])
    return [name for name in STAGES if name in wanted]


def main():
    options = parse_arguments()
    if options.list:
        for name, (function, _) in STAGES.items():
            print(f"{name:10} {(function.__doc__ or '').splitlines()[0] if function.__doc__ else ''}")
        return 0
    report, start, broken = Report(), time.monotonic(), set()
    for name in selected(options.stage):
        function, needs = STAGES[name]
        with report.stage(name):
            missing = [n for n in needs if n in broken]
            if missing:
                report.add_failed(f"not run: stage {missing[0]} failed")
                continue
            before = report.failed
            broken.add(name)  # until it comes to its end
            function(report, options)
            if report.failed == before or name != "build":
                broken.discard(name)
    report.print_summary(time.monotonic() - start)
    return 1 if report.failed or report.passed == 0 else 0


sys.exit(main())
