"""Result files. The first line is "# " and a JSON object: what was measured, and where. Then comes
a table of comma-separated values: a line of names, and one line a case.

A name with points is a path: contenders.quack.us. An empty cell is an absent value. A cell that is
JSON (a number, true, null) is that value, any other cell is text. Numbers that are not whole have
four significant digits. fastnorm_bench writes the same form (bench/report.cpp).
"""

import csv
import functools
import io
import json
import os
from pathlib import Path

FORMAT = 2
MARK = "# "
DIGITS = 4
EXIT_LEFT = 75  # of a program whose time is over before its cases are; called again, it goes on
FIRST = ("op", "shape", "dtype", "rows", "tokens", "n")  # of the columns


class Mismatch(Exception):
    """The file holds something that these results cannot be added to."""


def rounded(value):
    """A JSON value with its numbers of DIGITS significant digits, but for whole ones."""
    if isinstance(value, dict):
        return {name: rounded(v) for name, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    if isinstance(value, float) and not _whole(value):
        value = float(f"{value:.{DIGITS}g}")
    return int(value) if isinstance(value, float) and _whole(value) else value


def text_of(content):
    """The file of a document."""
    head = {name: value for name, value in content.items() if name != "results"}
    rows = [dict(_flat(result)) for result in content["results"]]
    found = {name for row in rows for name in row}
    names = [n for n in FIRST if n in found] + sorted(found - set(FIRST))
    out = io.StringIO()
    out.write(MARK + json.dumps(rounded({**head, "format": FORMAT}), sort_keys=True) + "\n")
    writer = csv.writer(out, lineterminator="\n")
    if names:
        writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(row[name]) if name in row else "" for name in names])
    return out.getvalue()


def parse(text, name="the file"):
    """The document of a file's text."""
    head, _, table = text.partition("\n")
    content = _json(head[len(MARK):]) if head.startswith(MARK) else None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise Mismatch(f"{name} is not a result file of format {FORMAT}; required: one that "
                       "compare.py or fastnorm_bench wrote; compare.py convert reads older ones")
    lines = list(csv.reader(io.StringIO(table, newline="")))
    names, rows = (lines[0], lines[1:]) if lines else ([], [])
    places = [name.split(".") for name in names]
    content["results"] = []
    for number, row in enumerate(rows, 3):
        if len(row) != len(names):
            raise Mismatch(f"{name}:{number}: {len(row)} cells; required: {len(names)}")
        content["results"].append(_nested(zip(places, row)))
    return content


def read(path):
    return parse(Path(path).read_text(), path)


def write(path, content):
    """All of it or nothing: a reader never sees half a file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.write_text(text_of(content))
    os.replace(draft, path)


def go_on(path, document, fresh=False):
    """Gives the document the results that the file of a run before it has, if there is one."""
    if fresh or path is None or not Path(path).exists():
        return
    found = read(path)
    for name in ("device", "library"):
        if found.get(name) != rounded(document[name]):
            raise Mismatch(f"{path} is of another {name}; required: the same one, or --fresh")
    document["results"] = found["results"]


def convert(path):
    """Writes the result file of a JSON document of format 1 beside it, as .csv; its path."""
    path = Path(path)
    content = _json(path.read_text())
    if not isinstance(content, dict) or not isinstance(content.get("results"), list):
        raise Mismatch(f"{path} is not a document of results; required: JSON with a list 'results'")
    made = path.with_suffix(".csv")
    if made.exists():
        raise Mismatch(f"{made} is there already; required: a name that is free")
    write(made, content)
    return made


def _whole(value):
    return value.is_integer() and abs(value) < 1e15


def _json(text):
    """The value, or None where the text is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _flat(value, path=""):
    for name, v in value.items():
        if not name or "." in name:
            raise ValueError(f"the name '{name}' of a value; required: one without a point")
        if isinstance(v, dict) and v:
            yield from _flat(v, f"{path}{name}.")
        else:
            yield path + name, v


def _nested(cells):
    """The result of a line. cells: (names of the value and what it is in, text)"""
    result = {}
    for (*parents, last), cell in cells:
        if cell == "":
            continue
        place = result
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = _value(cell) if cell[0] in "[{" else _scalar(cell)
    return result


def _value(cell):
    try:
        return json.loads(cell)
    except ValueError:
        return cell


# Files repeat few texts many times.
_scalar = functools.lru_cache(maxsize=1 << 16)(_value)


def _cell(value):
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value or '""'
        return json.dumps(value)
    return json.dumps(rounded(value))
