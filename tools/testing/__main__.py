"""Runs the stages and prints the sum. Called by tools/test, which sets the machine up before."""

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from report import Report
from stages import STAGES


def parse_arguments():
    parser = argparse.ArgumentParser(prog="tools/test", description="Builds and tests everything.")
    parser.add_argument("--list", action="store_true", help="print the names of the stages")
    parser.add_argument("--stage", nargs="+", action="extend", choices=STAGES, metavar="NAME",
                        help="run these stages, and those they need; may be given several times")
    parser.add_argument(
        "--fuzz-seconds", type=int, default=60, help="time for new fuzz inputs (default 60)"
    )
    parser.add_argument(
        "--counts", type=Path, help=argparse.SUPPRESS
    )  # of the stages beside: where they go
    options = parser.parse_args()
    options.stage = options.stage or list(STAGES)
    return options


def selected(names):
    wanted = set(names)
    for name in names:
        wanted.update(STAGES[name][1])
    return [name for name in STAGES if name in wanted]


@contextmanager
def beside(names, options, report):
    """These stages in a process of their own while the caller runs others: what a single test of
    one leaves idle, the others use. What it printed comes when both have ended."""
    if not names:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        counts, log = Path(folder) / "counts.json", Path(folder) / "log"
        command = [
            sys.executable,
            Path(__file__).parent,
            "--fuzz-seconds",
            options.fuzz_seconds,
            "--counts",
            counts,
            "--stage",
            *names,
        ]
        with open(log, "w") as out:
            process = subprocess.Popen(
                [str(c) for c in command], stdout=out, stderr=subprocess.STDOUT
            )
        try:
            yield
            process.wait()
        finally:
            process.kill()
        print(log.read_text(errors="replace"), end="", flush=True)
        report.stage_name = names[0]
        report.add_counts(counts, process.returncode)


def run_stages(names, options, report, broken):
    for name in names:
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


def main():
    options = parse_arguments()
    if options.list:
        for name, (function, _) in STAGES.items():
            print(f"{name:10} {' '.join((function.__doc__ or '').split())}")
        return 0
    report, start, broken = Report(), time.monotonic(), set()
    names = selected(options.stage)
    # The build leaves no processor idle. After it, what works in its folder, and beside that what
    # has folders of its own.
    first = names[:names.index("build") + 1] if "build" in names else []
    rest = names[len(first):]
    own = [n for n in rest if first and not STAGES[n][1]]
    run_stages(first, options, report, broken)
    with beside(own, options, report):
        run_stages([n for n in rest if n not in own], options, report, broken)
    if options.counts:
        report.write_counts(options.counts)
    else:
        report.print_summary(time.monotonic() - start)
    return 1 if report.failed or report.passed == 0 else 0


sys.exit(main())
