"""Result files for pages, and the line that says where a table was measured."""

import functools
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
sys.path.insert(0, str(ROOT / "packages"))
from compare import lines  # noqa: E402
from version import version as project_version  # noqa: E402

CARDS = ("h200", "h100")  # the first that has a file of the newest version counts
COLUMNS = 100


class Missing(Exception):
    """A page wants what no file has."""


def minor(version):
    return version.split(".")[:2]


class File:
    def __init__(self, path):
        self.path, self.name = path, path.name
        self.content = lines.read(path)
        self.results = self.content["results"]
        run = (self.content.get("runs") or [{}])[-1]
        self.date = str(self.content.get("date") or run.get("date", ""))[:10]
        library = self.content.get("library", {})
        found = re.search(r"\d+\.\d+\.\d+", str(library.get("version", library)))
        self.version = found[0] if found else None
        self.packages = {
            name: v
            for name, v in {**self.content.get("versions", {}), **run.get("versions", {})}.items()
            if v
        }
        self.device = re.sub(r"NVIDIA |,.*| \d+GB.*", "", str(self.content.get("device", "")))

    def timed(self, *key, dtype="bf16"):
        """Results that have a time, by their values of these names."""
        return {
            tuple(r.get(name) for name in key): r
            for r in self.results
            if r.get("dtype") == dtype and "us" in r
        }

    def by_case(self, dtype="bf16"):
        return self.timed("op", "rows", "n", dtype=dtype)


@functools.lru_cache(maxsize=None)
def _read(path, _time, _size):
    return File(path)


def read(path):
    """A result file, which is parsed once."""
    found = path.stat()
    return _read(path, found.st_mtime_ns, found.st_size)


class Shelf:
    """Files by name, and which of them were asked for."""

    def __init__(self, folder=RESULTS):
        self.folder, self.files, self.used = folder, {}, {}

    def file(self, name):
        path = self.folder / f"{name}.csv"
        if not path.exists():
            raise Missing(f"{path.name} is not in bench/results; bench/campaign.py measures it")
        if name not in self.files:
            self.files[name] = read(path)
        self.used[name] = self.files[name]
        return self.files[name]

    def part(self, name):
        """The file of a part of bench/campaign.py: of the newest version, and of these the first
        card's."""
        there = [card for card in CARDS if (self.folder / f"{card}_{name}.csv").exists()]
        if not there:
            raise Missing(f"no card has {name}.csv in bench/results; bench/campaign.py measures it")
        found = [read(self.folder / f"{card}_{name}.csv") for card in there]
        best = max(found, key=lambda f: ([int(n) for n in (f.version or "0").split(".")],
                                         -CARDS.index(f.name.split("_")[0])))
        return self.file(best.path.stem)

    def matching(self, pattern):
        return [self.file(path.stem) for path in sorted(self.folder.glob(pattern))]


def an(word):
    return f"an {word}" if word[:1] in "AEHIO" and not word.startswith("Intel") else f"a {word}"


def files_of(files):
    return ", ".join(f"`bench/results/{file.name}`" for file in files)


def and_of(words):
    words = list(words)
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def measured(*files, what="Measured"):
    """Lines that say where these files were measured, all of one device and version."""
    versions = sorted({file.version for file in files if file.version})
    dates = sorted({file.date for file in files})
    older = [v for v in versions if minor(v) != minor(project_version())]
    word = "the older version" if older else "version"
    device = an(files[0].device)
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    text = (
        f"{what} on {device} with {word} {and_of(versions)}, {when} ({files_of(files)})."
    )
    return wrapped(text)


def wrapped(text, columns=COLUMNS):
    return textwrap.wrap(text, columns, break_long_words=False, break_on_hyphens=False)


def table(head, rows):
    found = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return found + ["| " + " | ".join(row) + " |" for row in rows]


def pick(found, key, file):
    if key not in found:
        case = " ".join(map(str, key))
        raise Missing(f"{file.name} has no time of {case}; bench/campaign.csv has the shapes")
    return found[key]


def ranged(values, digits=2):
    """1.00 to 1.03; one number where both are the same."""
    low, high = (f"{value:.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
