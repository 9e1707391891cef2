"""Which figures of the pages are of an older version, and which have no file at all."""

import csv
import re
import subprocess

from pages.files import RESULTS, ROOT, minor
from pages.files import read as result_file

OLDER = ROOT / "bench" / "older.csv"
QUOTED = ROOT / "bench" / "quoted.csv"
WANTED = "required: a table of bench/tables.py, or a line of bench/quoted.csv"
UNMEASURED = "not measured since"  # the reason of files that a release does not take
BLOCK = re.compile(r"<!-- bench(?:/tables)?\.py ?\w* -->\n.*?<!-- end -->", re.S)
# What only a measurement can say.
MEASURED = re.compile(
    r"\d ?(?:us|µs|ns|ms|GB/s|TB/s|TFLOP/s)\b"
    r"|\d[\d.]* times as (?:long|fast|much time)"
    r"|\d ?% (?:\w+ ){0,3}?(?:faster|slower|longer|less time|more time)"
    r"|\d ?% of (?:its|the|a call's) time"
)
# Of a table: a cell that has but a number with decimals, with its unit.
DECIMAL = re.compile(r"\d+\.\d+(?: \w+)?(?:, [\d.]+)?")


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def pages(root=ROOT):
    """Pages of users. docs/lab tells what was learnt, whenever it was; figures.md are made by the
    tests of their folders."""
    found = subprocess.run(["git", "-C", root, "ls-files", "*.md"], capture_output=True, text=True)
    names = found.stdout.split() or [str(p.relative_to(root)) for p in root.rglob("*.md")]
    for name in names:
        if not re.match(r"docs/lab/|bench/|CHANGELOG|tools/|tests/|build|\.", name) and not (
            name.endswith("figures.md") or (root / name).is_symlink()
        ):
            yield root / name


def named_files(text):
    """Result files that a page names; with * those that fit."""
    for pattern in re.findall(r"\b([\w*]+\.csv)\b", text):
        yield from sorted(RESULTS.glob(pattern))


def older(shown, version):
    """(page, file, its version) of figures that are not of this minor version. shown: {page: Files
    that its tables were made of}."""
    for page, files in shown.items():
        found = {file.name: file for file in files}
        for path in named_files(page.read_text()):
            found.setdefault(path.name, result_file(path))
        for name, file in sorted(found.items()):
            if file.version is None or minor(file.version) != minor(version):
                yield page.relative_to(ROOT), name, file.version or "no version"


def faults_of_older(shown, version, listed, release=False):
    """Lines: figures of an older version that the list does not have, and lines of the list that
    are wrong or no longer needed."""
    listed = {row["file"]: row for row in listed}
    found = {}
    for page, name, of in older(shown, version):
        found[name] = of
        row = listed.get(name)
        if row is None or row["version"] != of:
            yield f"{page}: {name} is of {of}; required: {version}, or its line in bench/older.csv"
        elif release and row["why"] == UNMEASURED:
            yield f"{page}: {name} is of {of}; required: {version}, or why not in bench/older.csv"
    for name in listed:
        if name not in found:
            yield f"bench/older.csv: no page has older figures of {name}; required: no line"


def prose(text):
    """What is neither code nor a table that bench/tables.py made, with the numbers of its lines."""
    cut = BLOCK.sub(lambda found: "\n" * found[0].count("\n"), text)
    cut = re.sub(r"^```.*?^```", lambda found: "\n" * found[0].count("\n"), cut, flags=re.S | re.M)
    return cut


def measured_tables(text):
    """(first line, where it begins) of tables with rows that have two numbers with decimals."""
    for found in re.finditer(r"^(\|.*)\n\|[-| :]+\|\n((?:\|.*\n?)*)", text, re.M):
        for row in found[2].splitlines():
            cells = [cell.strip() for cell in row.strip("|").split("|")]
            if sum(bool(DECIMAL.fullmatch(cell)) for cell in cells) > 1:
                yield found[1], found.start()
                break


def faults_of_prose(name, text, quoted):
    """Lines: figures outside of the tables that are not quoted."""
    rest = prose(text)
    for row in quoted:
        if row["page"] == name:
            words = r"\s+".join(map(re.escape, row["text"].split()))
            if not re.search(words, rest):
                yield f"bench/quoted.csv: {name} has no '{row['text']}'; required: its text"
            # A table whose first line is quoted counts as a whole.
            whole = words + (r"\n(?:\|.*\n?)*" if row["text"].startswith("|") else "")
            rest = re.sub(whole, lambda found: "\n" * found[0].count("\n"), rest)
    for head, begin in measured_tables(rest):
        line = rest.count("\n", 0, begin) + 1
        yield f"{name}:{line}: the table '{head}' is measured; {WANTED}"
    for found in MEASURED.finditer(rest):
        line = rest.count("\n", 0, found.start()) + 1
        context = " ".join(rest[max(0, found.start() - 30):found.end() + 10].split())
        yield f"{name}:{line}: '{context}' is measured; {WANTED}"
