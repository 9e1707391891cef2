"""Runs the stages and prints the sum. Called by tools/test, which sets the machine up before."""

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import slices
import times
from build import BUILDS
from report import Report
from stages import STAGES

def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="tools/test",
        description="Builds and tests what the last commit can break, and a part of the rest that "
        "follows from the date. Eight dates in a row have everything.",
    )
    parser.add_argument("--list", action="store_true", help="print the names of the stages")
    parser.add_argument("--all", action="store_true", help="everything, as for a release")
    parser.add_argument("--stage", nargs="+", action="extend", choices=STAGES, metavar="NAME",
                        help="run these stages, and those they need; may be given several times")
    parser.add_argument(
        "--slice",
        type=datetime.date.fromisoformat,
        metavar="DATE",
        help="the parts of this date, such as 2026-11-29 (default: those of today)",
    )
    parser.add_argument(
        "--since",
        metavar="COMMIT",
        help="files that differ from this commit are the changed ones (default: HEAD~1)",
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="write the times of the stages to tools/stages.csv, after a start without build-test "
        "and with an empty compiler cache",
    )
    parser.add_argument(
        "--fuzz-seconds", type=int, default=60, help="time for new fuzz inputs (default 60)"
    )
    # tools/test gives the seconds of its set-up. A run that starts another one beside it gives the
    # plan, and the file for the counts.
    parser.add_argument("--setup", nargs=3, type=float, help=argparse.SUPPRESS)
    parser.add_argument("--plan", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--counts", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.all and (options.slice or options.stage):
        parser.error("--all has every stage and every part: it goes without --slice and --stage")
    return options


def with_needs(names):
    """The stages and those that they build on, in order."""
    wanted = set(names)
    for name in names:
        wanted.update(STAGES[name][1])
    return [name for name in STAGES if name in wanted]


class Options:
    """What stages know of the run."""

    def __init__(self, modes, part, fuzz_seconds, fuzz_seed):
        self.modes, self.part = modes, part
        self.fuzz_seconds, self.fuzz_seed = fuzz_seconds, fuzz_seed

    def part_of(self, stage):
        """Which part of a stage runs, from 0; None for all of it."""
        return self.part if self.modes.get(stage) == slices.PART else None


def plan(options, report):
    """Names of the stages; {stage: WHOLE or PART}, of others, too; the part. The report gets the
    skips of what is left out."""
    date = options.slice or datetime.date.today()
    if options.all or (options.stage and not options.slice):
        names = with_needs(options.stage or STAGES)
        return names, dict.fromkeys(STAGES, slices.WHOLE), None
    changed = slices.changed_files(options.since)
    report.stage_name = "slices"
    if changed is None:
        report.add_skipped("changed files", f"git has no {options.since or 'HEAD~1'} here")
    broken = slices.broken_by(changed or [], slices.read_changes())
    modes = slices.modes_of(date, broken)
    print(f"part {slices.part_of(date)} of {slices.COUNT}: tools/test --slice {date} repeats it")
    for stage, name in broken.items():
        print(f"{stage} runs whole: {name} may break it")
    if options.stage:
        return with_needs(options.stage), modes, slices.part_of(date)
    for stage, count, why in slices.left_out(date, modes):
        report.add_skipped(stage, why, count)
    return [name for name in STAGES if name in modes], modes, slices.part_of(date)


@contextmanager
def beside(names, options, report):
    """These stages in a process of their own while the caller runs others: what a single test of
    one leaves idle, the others use. What it printed comes when both have ended."""
    if not names:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        counts, log, plan_file = (Path(folder) / name for name in ("counts.json", "log", "plan"))
        plan_file.write_text(json.dumps([names, options.modes, options.part, options.fuzz_seed]))
        command = [
            sys.executable,
            Path(__file__).parent,
            "--fuzz-seconds",
            options.fuzz_seconds,
            "--counts",
            counts,
            "--plan",
            plan_file,
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


def run_beside(options):
    """What beside() has called."""
    names, modes, part, seed = json.loads(options.plan.read_text())
    report = Report()
    run_stages(names, Options(modes, part, options.fuzz_seconds, seed), report, set())
    report.write_counts(options.counts)
    return report


def check_times(report, modes, unit, record):
    """Keeps the times, and compares them with the budgets; `record`: makes them the budgets. The
    build compiles the kernels of the sweeps, all or a part."""
    modes = {**modes, "build": modes["sweeps"]}
    measured, budgets = report.times, times.read_budgets()
    if record:
        budgets = times.recorded(measured, modes, budgets, unit)
        times.write_budgets(budgets)
    kept = BUILDS / "times.csv"
    times.write_times(kept, measured, modes, budgets, unit)
    faults = dict(times.over_budget(measured, modes, budgets, unit))
    report.stage_name = "times"
    report.add_passed(len(measured) - len(faults))
    for stage, text in faults.items():
        report.add_failed(f"{stage}: {text}")
    print(f"\nyardstick {unit:.2f} s; times of the stages: {kept}")


def main():
    options = parse_arguments()
    if options.list:
        for name, (function, _) in STAGES.items():
            print(f"{name:13} {' '.join((function.__doc__ or '').split())}")
        return 0
    if options.plan:
        report = run_beside(options)
        return 1 if report.failed or report.passed == 0 else 0
    report, start, broken = Report(), time.monotonic(), set()
    if options.record:  # budgets are those of cold caches
        shutil.rmtree(BUILDS, ignore_errors=True)
        os.environ["CCACHE_DIR"] = str(BUILDS / "ccache")
    wall, user, system = options.setup or (0, 0, 0)
    if options.setup:
        report.times.append(("setup", wall, user + system))
    unit = times.yardstick(BUILDS)
    names, modes, part = plan(options, report)
    # New inputs of fuzzing follow from the date, too, so that --slice repeats a failure. 0:
    # libFuzzer draws a seed, for a run of everything.
    seed = 0 if options.all else (options.slice or datetime.date.today()).toordinal()
    run = Options(modes, part, options.fuzz_seconds, seed)
    # The build leaves no processor idle. After it, what works in its folder, and beside that what
    # has folders of its own.
    first = names[:names.index("build") + 1] if "build" in names else []
    rest = names[len(first):]
    own = [n for n in rest if first and not STAGES[n][1]]
    run_stages(first, run, report, broken)
    with beside(own, run, report):
        run_stages([n for n in rest if n not in own], run, report, broken)
    unit = (unit + times.yardstick(BUILDS)) / 2
    check_times(report, modes, unit, options.record)
    report.print_summary(time.monotonic() - start + wall, modes)
    return 1 if report.failed or report.passed == 0 else 0


sys.exit(main())
