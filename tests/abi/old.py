#!/usr/bin/env python3
"""The public headers of each released version in one file without comments,
old/VERSION/fastnorm.h. Clients of that version are tested with this library.

  old.py --include DIR --version V           tests that this version's file equals the headers, if
                                             it is released, and that the headers keep every field
                                             and function of the others
  old.py --include DIR --version V --update  writes it, with the release; it never changes
  old.py --include DIR --now FILE            the headers as they are, for a client of this version
  old.py --include DIR --grow FILE           headers of a future version: every growable struct has
"""

import argparse
import re
import subprocess
from pathlib import Path

from cases import Cases

HERE = Path(__file__).parent
CHANGES = HERE.parents[1] / "CHANGELOG.md"
HEAD = "/* The public headers of libfastnorm {}, written by old.py: a promise, never changed after its release. */\n"
GROWN = "  uint64_t grown[2];\n"
STRUCT = re.compile(r"(typedef struct (\w+) \{\s*size_t struct_size;.*?)(\}\s*\2;)", re.S)


def in_order(folder):
    """Names of all headers except fastnorm.h. Each stands behind those that it includes. context.h
    with what it includes is first, then come families by name."""
    names = []

    def visit(name):
        if name not in names:
            for included in re.findall(r'^#include "(\w+\.h)"', (folder / name).read_text(), re.M):
                visit(included)
            names.append(name)

    for name in ("context.h", *sorted(p.name for p in folder.glob("*.h"))):
        if name != "fastnorm.h":
            visit(name)
    return names


def one_header(include):
    """All headers in the order in which they include each other."""
    folder = include / "fastnorm"
    texts = []
    for name in in_order(folder):
        text = re.sub(r"[ \t]*/\*.*?\*/", "", (folder / name).read_text(), flags=re.S)
        texts.append(re.sub(r'^#include "\w+\.h"\n', "", text, flags=re.M))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(texts))


def declarations(text):
    """The fields of each struct and the functions, with their types: name -> words."""
    text = re.sub(r"/\*.*?\*/|^\s*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.S | re.M)
    found = {}
    for name, body in re.findall(r"typedef struct (\w+)\s*\{(.*?)\}\s*\1\s*;", text, re.S):
        for field in filter(str.strip, body.split(";")):
            last = re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", field)[1]
            found[f"{name}.{last}"] = re.findall(r"\w+|[^\w\s]", field)
    function = r"^(FASTNORM_API\b[^;]*?\b(fastnorm_\w+)\s*\([^;]*);"
    for whole, name in re.findall(function, text, re.M):
        found[name] = re.findall(r"\w+|[^\w\s]", whole)
    return found


def check_promises(cases, text, version):
    """A field and a function keep their type from version to version. layout.py has their places
    and sizes. A reserved field may get a name."""
    now = declarations(text)
    functions = [name for name in now if "." not in name]
    cases.equal("functions found", len(functions), len(re.findall(r"^FASTNORM_API\b", text, re.M)))
    others = [path for path in sorted(HERE.glob("old/*/fastnorm.h")) if path.parent.name != version]
    for path in others:
        then = declarations(path.read_text())
        cases.check(f"{path.parent.name}: declarations were found", len(then) > 20)
        for name, words in then.items():
            if not name.endswith(".reserved"):
                cases.equal(f"{path.parent.name}: {name}", now.get(name), words)


def formatted(text):
    formatter = HERE.parents[1] / ".venv" / "bin" / "clang-format"
    result = subprocess.run(
        [formatter, "--assume-filename", HERE / "old.h"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--include", type=Path, required=True)
    parser.add_argument("--version")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--now", type=Path)
    parser.add_argument("--grow", type=Path)
    options = parser.parse_args()
    text = one_header(options.include)
    if options.grow:
        text, count = STRUCT.subn(lambda m: m[1] + GROWN + m[3], text)
        if count != text.count("size_t struct_size;"):
            raise SystemExit("a struct with struct_size has not grown")
        options.grow.write_text(f"#define CLIENT_GROWN 1\n{text}")
        return
    if options.now:
        options.now.write_text(text)
        return
    path = HERE / "old" / options.version / "fastnorm.h"
    if options.update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(formatted(HEAD.format(options.version) + text))
        return
    cases = Cases()
    waits = f"## {options.version}, not released" in CHANGES.read_text().splitlines()
    there = f"old/{options.version} is there if the version is released, and only then"
    cases.equal(there, path.exists(), not waits)
    if path.exists():
        frozen = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S)
        cases.check(
            f"old/{options.version} is what the headers are",
            frozen.split() == text.split(),
            "raise the version: this one is released",
        )
    check_promises(cases, text, options.version)
    cases.finish()


main()
