#!/usr/bin/env python3
"""Tests of tools/testing. Eight dates in a row have everything. The table of what a change can
break covers the tree. A stage that takes longer than its budget is found."""

import datetime
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / "testing"), str(ROOT / "tests" / "abi")]
sys.dont_write_bytecode = True
import slices  # noqa: E402
import times  # noqa: E402
from cases import Cases  # noqa: E402
from stages import STAGES  # noqa: E402

# What the date leaves out may never come up: these need a word of the caller, or a change.
ONLY_WITH_ALL = {"cuda"}


def units_of(date):
    """(stage, part) that a date's run has; the part of a whole stage is any."""
    found = set()
    for stage, mode in slices.modes_of(date).items():
        parts = [slices.part_of(date)] if mode == slices.PART else range(slices.COUNT)
        found |= {(stage, part) for part in parts}
    return found


def check_rotation(cases):
    wanted = {(s, p) for s in STAGES if s not in ONLY_WITH_ALL for p in range(slices.COUNT)}
    missing = []
    # Over the ends of months and years, a leap year's too.
    first = datetime.date(2027, 11, 1)
    for day in range(500):
        dates = [first + datetime.timedelta(days=day + i) for i in range(8)]
        seen = set().union(*map(units_of, dates))
        if seen != wanted:
            missing.append((dates[0].isoformat(), sorted(wanted - seen)[:3]))
    cases.equal("eight dates in a row have every stage and every part", missing[:3], [])
    known = {*slices.DAILY, *slices.PARTS, *slices.ROTATING, *slices.SELDOM}
    cases.equal("each stage has its place", known, set(STAGES))
    date = datetime.date(2026, 11, 29)
    cases.equal("the same date has the same run", slices.modes_of(date), slices.modes_of(date))
    for stage, part in slices.ROTATING.items():
        then = slices.next_date(date, part)
        cases.check(
            f"the date that a skip of {stage} names has it",
            0 <= (then - date).days < 8 and slices.modes_of(then).get(stage) == slices.WHOLE,
            then,
        )


def check_skips(cases):
    """What a run leaves out is counted, and nothing else is."""
    for day in range(8):
        date = datetime.date(2026, 11, 29) + datetime.timedelta(days=day)
        modes = slices.modes_of(date, ["cuda", "kernels"])
        skipped = {stage: count for stage, count, _ in slices.left_out(date, modes)}
        wanted = {s: 1 for s in STAGES if s not in modes}
        wanted |= {s: 7 for s, mode in modes.items() if mode == slices.PART}
        cases.equal(f"skips of {date}", skipped, wanted)
    cases.check("a changed stage runs whole", modes["kernels"] == slices.WHOLE and "cuda" in modes)


def check_table(cases):
    changes = slices.read_changes()
    unknown = {s for stages in changes.values() for s in stages} - set(STAGES)
    cases.equal("the table names stages", sorted(unknown), [])
    names = slices.git("ls-files")
    if names is None:
        cases.skip("files of the tree", "git has no list of them here")
        return
    homeless = [name for name in names if slices.row_of(name, changes) is None]
    cases.equal("every file has a row", homeless[:5], [])
    tracked = set(names) | {str(folder) for name in names for folder in Path(name).parents}
    cases.equal("every row has a file", [row for row in changes if row not in tracked], [])


def check_choice(cases):
    """Rows by hand, of a table by hand."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "changes.csv"
        path.write_text("# text\npath,stages\nsrc,neon tsan\nsrc/cuda,cuda\nsrc/a.h,\ndocs,\n")
        table = slices.read_changes(path)
    cases.equal("the table is read", table["src"], ["neon", "tsan"])
    for name, row in (
        ("src/core/x.h", "src"),
        ("src/cuda/x.h", "src/cuda"),
        ("src/cudax/x.h", "src"),
        ("src/a.h", "src/a.h"),
        ("src/a.h2", "src"),
        ("docs/x.md", "docs"),
        ("srcx", None),
    ):
        cases.equal(f"the row of {name}", slices.row_of(name, table), row)
    found = slices.broken_by(["docs/x.md", "src/cuda/x.h", "src/x.h", "src/y.h", "srcx"], table)
    wanted = {"cuda": "src/cuda/x.h", "neon": "src/x.h", "tsan": "src/x.h"}
    cases.equal("stages by the first file that may break them", found, wanted)


def check_parts_of_kernels(cases):
    costs = {"a": 9.0, "b": 1.0, "c": 5.0, "d": 4.0, "e": 4.0, "f": 3.0}
    wanted = [["a"], ["b", "c", "f"], ["d", "e"]]
    cases.equal("the dearest first", slices.balanced(costs, 3), wanted)
    dtypes = ("bf16", "f16", "f32")
    names = [f"norm_sm90_{dtype}_{source}" for dtype in dtypes for source in ("plain", "add")]
    names += [f"{family}_sm90_{dtype}" for family in ("norm_stages", "peer") for dtype in dtypes]
    names += ["mla_decode_sm90a_bf16"]
    sizes = slices.read_sizes(names)
    cases.equal("archives of a family share its budget", len(set(sizes.values())), 4)
    parts = slices.balanced(sizes)
    found = sorted(name for part in parts for name in part)
    cases.equal("every archive is in one part", found, sorted(names))
    sums = [sum(sizes[name] for name in part) for part in parts]
    most = sum(sums) / len(sums) + max(sizes.values()) / 2
    cases.check("parts are about as large", max(sums) <= most, sums)


def check_budgets(cases):
    budgets = times.read_budgets()
    wanted = {s: s in (*slices.PARTS, "build") for s in (*STAGES, "setup")}
    cases.equal(
        "stages with budgets, and those with a budget of a part",
        {stage: of["part"] is not None for stage, of in budgets.items()},
        wanted,
    )
    cases.check("each has a budget of the whole", all(of["whole"] for of in budgets.values()))
    own = {"a": {"part": 2.0, "whole": 10.0}, "b": {"part": None, "whole": 4.0}}
    modes = {"a": "part", "b": "whole", "c": "whole"}
    # A yardstick of 2 s: 2 of them with 30 % of room are 5.2 s, and 4 are 10.4 s.
    fine = [("a", 99.0, 5.1), ("b", 99.0, 10.3)]
    cases.equal("within the budgets", times.over_budget(fine, modes, own, 2.0), [])
    late = [("a", 1.0, 5.3), ("b", 1.0, 10.5), ("c", 1.0, 0.1)]
    faults = times.over_budget(late, modes, own, 2.0)
    cases.equal("over the budgets, and without one", [s for s, _ in faults], ["a", "b", "c"])
    cases.check("the text has both numbers", "2.6" in faults[0][1] and "is 2," in faults[0][1])
    run = [("setup", 1.0, 9.0), ("a", 1.0, 6.0), ("c", 1.0, 1.0)]
    new = times.recorded(run, modes, own, 2.0)
    cases.equal(
        "recorded",
        new,
        {
            "a": {"part": 3.0, "whole": 10.0},
            "b": {"part": None, "whole": 4.0},
            "c": {"part": None, "whole": 1.0},
        },
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stages.csv"
        path.write_text("# what\nstage,part,whole\n")
        times.write_budgets(new, path)
        cases.equal("written and read", times.read_budgets(path), new)
        cases.check("the comment stays", path.read_text().startswith("# what\n"))
        kept = Path(folder) / "folder" / "times.csv"
        times.write_times(kept, fine, modes, own, 2.0)
        lines = kept.read_text().splitlines()
        cases.equal("the times are kept", lines[1:], ["a,part,99.0,5.1,2.5,2", "b,whole,99.0,10.3,5.2,4"])
        unit = times.yardstick(Path(folder))
        cases.check("the yardstick takes time", 0.2 < unit < 120, unit)


def main():
    cases = Cases()
    check_rotation(cases)
    check_skips(cases)
    check_choice(cases)
    check_table(cases)
    check_parts_of_kernels(cases)
    check_budgets(cases)
    cases.finish()


main()
