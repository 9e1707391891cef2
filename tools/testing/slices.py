"""What a run does: everything, or the stages and parts of one date.

Without --all a run has the stages of DAILY whole. A part of those in PARTS, and some of ROTATING,
follow from the date: eight dates in a row have all of them. What the changed files can break is run
whole: changes.csv has a line for each folder."""

import collections
import csv
import datetime
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHANGES = Path(__file__).with_name("changes.csv")
BUDGET = ROOT / "tools" / "budget.csv"
COUNT = 8
DAILY = ("style", "docs", "build", "tests", "consumers", "generated", "asan")
PARTS = ("sweeps", "kernels", "fuzz")
# The place of a date among eight whose run has the stage whole.
ROTATING = {
    "neon": 0,
    "tsan": 1,
    "packages": 2,
    "static": 2,
    "integrations": 3,
    "go": 4,
    "java": 4,
    "isa": 5,
    "engines": 5,
    "asan-cli": 6,
    "rust": 6,
    "architectures": 7,
    "neon-sweep": 7,
}
WHOLE = "whole"
PART = "part"
# With --all alone, or after a change.
SELDOM = ("cuda",)


def part_of(date):
    """Which of eight parts a date has."""
    return date.toordinal() % COUNT


def read_sizes(names, path=BUDGET):
    """What archives of kernels may take, by their names: what the budget has for the bytes of a
    family is for all of its archives."""
    with open(path, newline="") as file:
        lines = [line for line in file if not line.startswith("#")]
    budget = {(row["family"], row["arch"].replace("_", "")): row for row in csv.DictReader(lines)}
    keys = {name: re.match(r"(\w+?)_(sm\d+[af]?)_", name).groups() for name in names}
    count = collections.Counter(keys.values())
    return {name: int(budget[key]["bytes"] or 0) // count[key] for name, key in keys.items()}


def balanced(costs, count=COUNT):
    """Names by their costs in so many lists, whose sums are close: the dearest first, each to the
    list that has the least so far."""
    parts = [[] for _ in range(count)]
    for name in sorted(costs, key=lambda name: (-costs[name], name)):
        least = min(parts, key=lambda part: sum(costs[n] for n in part))
        least.append(name)
    return [sorted(part) for part in parts]


def next_date(date, part):
    """The first date, from this one on, that has a part."""
    return date + datetime.timedelta(days=(part - part_of(date)) % COUNT)


def git(*arguments):
    """Lines; None where git cannot tell."""
    result = subprocess.run(
        ["git", "-C", ROOT, *arguments], capture_output=True, text=True, errors="replace"
    )
    return result.stdout.splitlines() if result.returncode == 0 else None


def changed_files(since=None):
    """Files that differ from a commit, from the last but one if none is named: those of the last
    commit and those that are not committed. None where git does not have that commit."""
    committed = git("diff", "--name-only", "--no-renames", since or "HEAD~1", "HEAD")
    loose = git("status", "--porcelain", "--no-renames", "--untracked-files=all")
    if committed is None or loose is None:
        return None
    return sorted({*committed, *(line[3:] for line in loose)})


def read_changes(path=CHANGES):
    """Stages by folder or file."""
    with open(path, newline="") as file:
        rows = [row for row in csv.reader(file) if row and not row[0].startswith("#")]
    return {folder: stages.split() for folder, stages in rows[1:]}


def row_of(name, changes):
    """The longest folder, or the file itself, of the table that a file is in; None without one."""
    fitting = [f for f in changes if name == f or name.startswith(f.rstrip("/") + "/")]
    return max(fitting, key=len, default=None)


def broken_by(names, changes):
    """Stages by why: {stage: the first file that may break it}."""
    found = {}
    for name in names:
        row = row_of(name, changes)
        for stage in changes[row] if row is not None else ():
            found.setdefault(stage, name)
    return found


def modes_of(date, changed=()):
    """{stage: WHOLE or PART} of a date's run; `changed`: the stages that changed files may break."""
    modes = dict.fromkeys(DAILY, WHOLE) | dict.fromkeys(PARTS, PART)
    modes |= {stage: WHOLE for stage, part in ROTATING.items() if part == part_of(date)}
    return modes | dict.fromkeys(changed, WHOLE)


def left_out(date, modes):
    """[(stage, how many parts of it, why)] of what a run does not have."""
    skips = []
    for stage, mode in modes.items():
        if mode == PART:
            why = f"this run has part {part_of(date)} of {COUNT}, other dates have the others"
            skips.append((stage, COUNT - 1, why))
    for stage, part in ROTATING.items():
        if stage not in modes:
            skips.append((stage, 1, f"tools/test --slice {next_date(date, part)} runs it"))
    for stage in SELDOM:
        if stage not in modes:
            skips.append((stage, 1, "tools/test --all runs it"))
    return skips
