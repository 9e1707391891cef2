#!/usr/bin/env python3
"""The gate of the ABI: every struct's fields (offset, size) and every enumerator's value.

A generated C program prints them. layout.txt holds what was promised: lines are added to it, never
changed or removed; only a struct's size may grow. A `reserved` field may get a name: 0 in its place
keeps its meaning. A field or value that the file does not have yet fails too, until
`layout.py --update` has recorded it.
"""

import argparse
import re
import sys
from pathlib import Path

from cases import Cases, output_of
from headers import Headers

COMMITTED = Path(__file__).with_name("layout.txt")

PROGRAM = """#include <stddef.h>
#include <stdio.h>
#include "fastnorm/fastnorm.h"
#define STRUCT(s) printf("struct " #s " %zu\\n", sizeof(s));
#define FIELD(s, f) printf("field " #s "." #f " %zu %zu\\n", offsetof(s, f), sizeof(((s*)0)->f));
#define ENUM(t, e) printf("enum " #t " " #e " %ld\\n", (long)(e));
int main(void) {
BODY
  return 0;
}
"""


def measure(headers, include, compiler, wrapper, folder):
    """Compiles and runs the printing program; its lines."""
    lines = []
    for name, fields in headers.structs.items():
        lines.append(f"  STRUCT({name})")
        lines += [f"  FIELD({name}, {field})" for field in fields]
    for name, values in headers.enums.items():
        lines += [f"  ENUM({name}, {value})" for value in values]
    folder.mkdir(parents=True, exist_ok=True)
    source, program = folder / "layout.c", folder / "layout"
    source.write_text(PROGRAM.replace("BODY", "\n".join(lines)))
    output_of(
        [*compiler, "-std=c99", "-Wall", "-Werror", f"-I{include}", str(source), "-o", str(program)]
    )
    return output_of([*wrapper, str(program)]).splitlines()


def parse(lines):
    """Key (all but the numbers) -> numbers."""
    table = {}
    for line in lines:
        if line and not line.startswith("#"):
            kind, *words = line.split()
            count = {"struct": 1, "field": 1, "enum": 2}[kind]
            table[(kind, *words[:count])] = tuple(map(int, words[count:]))
    return table


def check_padding(cases, now, headers):
    """No struct has bytes that belong to no field: they would be part of the ABI, unnamed."""
    for struct, fields in headers.structs.items():
        end = 0
        for field in fields:
            offset, size = now[("field", f"{struct}.{field}")]
            cases.equal(f"{struct}.{field} follows the field before it", offset, end)
            end = offset + size
        cases.equal(f"{struct} ends with its last field", now[("struct", struct)], (end,))


def is_named_now(key, numbers, now):
    """A reserved field, whose place another field has."""
    struct, _, field = key[1].partition(".")
    return (
        key[0] == "field"
        and field == "reserved"
        and key not in now
        and any(
            other[0] == "field" and other[1].startswith(struct + ".") and now[other] == numbers
            for other in now
        )
    )


def check_promises(cases, now, then):
    for key, numbers in then.items():
        name = " ".join(key)
        if is_named_now(key, numbers, now):
            continue
        if not cases.check(name, key in now, "promised, and gone"):
            continue
        if key[0] == "struct":
            cases.check(name, now[key] >= numbers, f"shrank from {numbers} to {now[key]}")
        else:
            cases.equal(name, now[key], numbers)
    for key in now.keys() - then.keys():
        cases.check(" ".join(key), False, "not recorded: run layout.py --update if it is meant")
    grown = [k for k in then if k[0] == "struct" and now.get(k, then[k]) > then[k]]
    for key in grown:
        cases.check(" ".join(key), False, "grew: run layout.py --update if it is meant")


def check_growable(cases, now, headers):
    for struct, fields in headers.structs.items():
        if "struct_size" in fields:
            cases.equal(
                f"{struct}.struct_size comes first", now[("field", f"{struct}.struct_size")], (0, 8)
            )
    for name, values in headers.enums.items():
        last = ("enum", name, values[-1])
        cases.check(
            f"{name} is 32 bits wide for good",
            re.search("MAX_ENUM$", values[-1]) and now[last] == (0x7FFFFFFF,),
            f"its last value is {values[-1]}",
        )


# A field's comment says what its 0 stands for; not in what the library fills in.
STANDS_FOR = re.compile(r"(?<![\w.])0 = ")
FILLED_IN = {"fastnorm_info"}
BODY = re.compile(r"typedef struct (\w+) \{(.*?)\n\} \1;", re.S)
PIECE = re.compile(r"/\*\*<(?P<after>.*?)\*/|/\*\*(?P<before>.*?)\*/|(?P<field>[^/;]+);", re.S)


def fields_with_a_default(header):
    """struct.field where a comment says that 0 stands for another value."""
    for struct, body in BODY.findall(header):
        field, next_too = "", False
        for piece in PIECE.finditer(body):
            if piece["field"]:
                field = re.split(r"[\s*]+", piece["field"].strip())[-1]
            text = piece["after"] or piece["before"] or ""
            if next_too or (piece["after"] and STANDS_FOR.search(text)):
                yield f"{struct}.{field}"
            next_too = bool(piece["before"] and STANDS_FOR.search(text))


def check_zeros(cases, now, include):
    """The list in fastnorm.h, of fields where 0 stands for another value, is that of comments."""
    headers = [path.read_text() for path in sorted((Path(include) / "fastnorm").glob("*.h"))]
    row = re.compile(r"^ \*  \| (fastnorm_\w+\.\w+) ", re.M)
    listed = {name for header in headers for name in row.findall(header)}
    found = {name for header in headers for name in fields_with_a_default(header)}
    found = {name for name in found if name.partition(".")[0] not in FILLED_IN}
    cases.check("fields are listed whose 0 stands for another value", len(listed) > 5, listed)
    for name in sorted(listed | found):
        if not name.startswith("fastnorm_nccl_"):  # of another library
            cases.check(f"{name} is a field", ("field", name) in now, "there is none")
            cases.check(f"{name} is in the list of fastnorm.h", name in listed, "it is not")
            cases.check(f"{name} says what 0 stands for", name in found, "its comment does not")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--include", required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder for generated files")
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--wrapper", default="", help="runs a program of another architecture")
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    compiler, wrapper = options.cc.split(), options.wrapper.split()

    headers = Headers(options.include, compiler)
    lines = measure(headers, options.include, compiler, wrapper, options.work)
    now, then = parse(lines), parse(
        COMMITTED.read_text().splitlines() if COMMITTED.exists() else []
    )
    if options.update:
        lost = [
            k
            for k in then
            if not is_named_now(k, then[k], now)
            and (k not in now or (k[0] != "struct" and now[k] != then[k]))
        ]
        if lost:
            sys.exit(f"not updated, promises would be broken: {lost}")
        head = "# Promised layout of the public structs and enums; see layout.py. Lines are only added.\n"
        COMMITTED.write_text(head + "\n".join(lines) + "\n")
        return
    cases = Cases()
    headers.check_complete(cases)
    cases.check("layout.txt is there", then)
    check_promises(cases, now, then)
    check_padding(cases, now, headers)
    check_growable(cases, now, headers)
    check_zeros(cases, now, options.include)
    cases.finish()


main()
