#!/usr/bin/env python3
"""The table of every field of a call: fields.csv.

  schema.py --check       compare the table with the headers, which needs SWIG
  schema.py --cpp FILE    write the table and the enums of the headers as constexpr data of C++

read() gives the table as plain values for other generators. Its words are the closed lists below;
the head of fields.csv says what they mean.
"""

import argparse
import csv
import re
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TABLE = HERE / "fields.csv"
LAYOUT = ROOT / "tests" / "abi" / "layout.txt"

COLUMNS = (
    "struct", "field", "role", "dtypes", "shape",
    "overlap", "needs", "excludes", "neutral", "since",
)  # fmt: skip
HOST_ROLES = (
    "size", "user", "handle", "struct", "enum", "flags", "switch", "number", "reserved",
)  # fmt: skip
TENSOR_ROLES = (
    "rows-in", "rows-out", "weight-in", "weight-out", "stat-in", "stat-out", "index-in",
    "scalar-in", "scalar-inout", "table-in", "codes-out", "scales", "bytes-in", "bytes-out",
)  # fmt: skip
DTYPES = ("T", "any", "own", "codes", "scales", "f32", "f16", "bf16", "i32", "i64", "u8")
NUMBERS = {"f32": "float", "f64": "double", "i32": "int32_t", "i64": "int64_t"}
SHAPES = (
    "x", "x2", "own", "one", "codes", "scales", "row", "groups", "sums", "weight", "group_weight",
    "spread", "add", "signs", "heads", "heads_weight", "heads_stat", "heads_sums", "heads_each",
    "cache", "cache_tail", "rope", "positions", "slots", "columns", "columns_weight", "latent", "nope", "pe",
    "ckv", "kpe", "mla_cache", "requests", "offsets", "page_table", "topk", "topk_length",
    "heads_row", "each_head", "bytes",
)  # fmt: skip
PREFIX = "fastnorm_"


class SchemaError(Exception):
    """The table has something that its words do not allow, or differs from the headers."""


@dataclass(frozen=True)
class Term:
    """One condition on a field of the same struct: it is there (op ""), or it has a value ("="), or
    a bit of it is set ("&")."""

    field: str
    op: str = ""
    value: str = ""  # an enumerator without FASTNORM_


@dataclass(frozen=True)
class Field:
    struct: str  # without fastnorm_, as are enums and handles
    name: str
    role: str
    dtypes: tuple[str, ...]  # of enums and flags: the enums that they hold
    refused: tuple[str, ...]  # enumerators that the field refuses, without FASTNORM_
    shape: str
    overlap: tuple[str, ...]  # inputs that an output may be the same view as
    apart: tuple[str, ...]  # inputs that this input must not overlap
    needs: tuple[tuple[Term, ...], ...]  # all of them; of each, one of its terms
    excludes: tuple[Term, ...]
    neutral: str
    since: str

    @property
    def is_tensor(self):
        return self.role in TENSOR_ROLES

    @property
    def is_output(self):
        """Also of one whose old value counts. quant.scale is, but for PER_TENSOR."""
        return self.role.endswith("out") or self.role == "scales"

    @property
    def is_required(self):
        return self.neutral == "required"

    @property
    def path(self):
        """As error texts have it: a struct that calls point to is named before its field."""
        called = self.struct.endswith(("_args", "_part"))
        return self.name if called else f"{self.struct}.{self.name}"


def parse_term(text):
    match = re.fullmatch(r"(\w+)(?:([=&])([A-Z]\w*))?", text)
    if not match:
        raise SchemaError(f"no condition: {text}")
    return Term(match[1], match[2] or "", match[3] or "")


def parse_row(row, enums):
    where = f"{row['struct']}.{row['field']}"

    def require(ok, what):
        if not ok:
            raise SchemaError(f"{where}: {what}")

    role = row["role"]
    require(role in HOST_ROLES + TENSOR_ROLES, f"role {role!r}")
    words = row["dtypes"].split()
    dtypes = tuple(w for w in words if not w.startswith("!"))
    refused = tuple(w[1:] for w in words if w.startswith("!"))
    if role in TENSOR_ROLES:
        require(dtypes and set(dtypes) <= set(DTYPES) and not refused, f"dtypes {words}")
        require(row["shape"] in SHAPES, f"shape {row['shape']!r}")
        require(row["neutral"] in ("NULL", "required"), f"neutral {row['neutral']!r}")
    else:
        require(not row["shape"] and not row["overlap"], "a shape or an overlap, and no tensor")
        of_pointer = role in ("user", "handle", "struct")
        require(
            row["neutral"] in ("NULL" if of_pointer else "0", "required"),
            f"neutral {row['neutral']!r}",
        )
    if role in ("enum", "flags"):
        require(len(dtypes) >= 1 and all(d in enums for d in dtypes), f"enum {words}")
        values = {v for d in dtypes for v in enums[d]}
        require(set(refused) <= values, f"refused {refused}")
    if role in ("number", "switch", "reserved"):
        require(len(dtypes) == 1 and dtypes[0] in NUMBERS, f"number {words}")
    require(re.fullmatch(r"\d+\.\d+", row["since"]), f"since {row['since']!r}")
    overlap = row["overlap"].split()
    same = tuple(w for w in overlap if not w.startswith("!"))
    require(not same or role.endswith("out"), "an input that may be the same view")
    return Field(
        struct=row["struct"],
        name=row["field"],
        role=role,
        dtypes=dtypes,
        refused=refused,
        shape=row["shape"],
        overlap=same,
        apart=tuple(w[1:] for w in overlap if w.startswith("!")),
        needs=tuple(tuple(map(parse_term, n.split("|"))) for n in row["needs"].split()),
        excludes=tuple(map(parse_term, row["excludes"].split())),
        neutral=row["neutral"],
        since=row["since"],
    )


def check_names(fields, enums):
    """What a field says about others of its struct is about fields that there are."""
    by_name = {(f.struct, f.name): f for f in fields}
    if len(by_name) != len(fields):
        raise SchemaError("a field is there twice")
    for f in fields:
        for name in f.overlap + f.apart:
            other = by_name.get((f.struct, name))
            if other is None or not other.is_tensor or other.is_output:
                raise SchemaError(f"{f.struct}.{f.name}: no input {name}")
        for term in [t for one_of in f.needs for t in one_of] + list(f.excludes):
            other = by_name.get((f.struct, term.field))
            if other is None or other is f:
                raise SchemaError(f"{f.struct}.{f.name}: no field {term.field}")
            values = {v for d in other.dtypes for v in enums.get(d, ())}
            if term.value and (
                term.value not in values or (term.op == "&") != (other.role == "flags")
            ):
                raise SchemaError(f"{f.struct}.{f.name}: {term.field} has no {term.value}")
        of_other = f.shape == "own" or "own" in f.dtypes
        if of_other and (f.struct, f.name[1:]) not in by_name:
            raise SchemaError(f"{f.struct}.{f.name}: no field {f.name[1:]}")


def parse(text, enums):
    """The table, from its text. `enums`: what read_enums() gives."""
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    if tuple(rows.fieldnames or ()) != COLUMNS:
        raise SchemaError(f"the columns are {rows.fieldnames}")
    fields = []
    for row in rows:
        if None in row or None in row.values():
            raise SchemaError(f"{row['struct']}.{row['field']}: not {len(COLUMNS)} columns")
        fields.append(parse_row(row, enums))
    check_names(fields, enums)
    return fields


def read_enums(layout=LAYOUT):
    """Enum, without fastnorm_ -> {enumerator without FASTNORM_: value}, without the _MAX_ENUM ones;
    from the record of the ABI, which tests/abi compares with the headers."""
    enums = {}
    for line in layout.read_text().splitlines():
        words = line.split()
        if words and words[0] == "enum" and not words[2].endswith("_MAX_ENUM"):
            values = enums.setdefault(words[1].removeprefix(PREFIX), {})
            values[words[2].removeprefix(PREFIX.upper())] = int(words[3])
    return enums


def read(table=TABLE):
    """The table: a Field for each line, in the order of the headers."""
    return parse(table.read_text(), read_enums())


def structs_of(fields):
    """struct -> its fields, in the order of the table."""
    found = {}
    for f in fields:
        found.setdefault(f.struct, []).append(f)
    return found


# --- the headers ---


def is_call_struct(name):
    return name.endswith(("_args", "_part")) or name == "fastnorm_quant"


def wanted_type(f):
    """The C type that a role has."""
    if f.is_tensor:
        return "const fastnorm_tensor*"
    if f.role in ("size", "user", "flags"):
        return {"size": "size_t", "user": "void*", "flags": "uint32_t"}[f.role]
    if f.role == "struct":
        return f"const {PREFIX}{f.dtypes[0]}*"
    if f.role in ("enum", "handle"):
        return PREFIX + f.dtypes[0] + ("*" if f.role == "handle" else "")
    return NUMBERS[f.dtypes[0]]


def type_text(headers, type):
    if isinstance(type, headers.Pointer):
        return f"{'const ' if type.const else ''}{type_text(headers, type.to)}*"
    return type.name if isinstance(type, headers.Named) else str(type)


def differences(fields, headers, tree):
    """What the table and the headers do not have alike, a text each. `headers` is the module
    bindings/swig/tree.py, `tree` what its load() gave."""
    found = []
    declared = [
        (s.name.removeprefix(PREFIX), m)
        for s in tree.structs
        if is_call_struct(s.name)
        for m in s.fields
    ]
    types = {(struct, m.name): type_text(headers, m.type) for struct, m in declared}
    listed = [(f.struct, f.name) for f in fields]
    found += [
        f"{s}.{n} is in the headers and not in fields.csv" for s, n in types if (s, n) not in listed
    ]
    found += [
        f"{s}.{n} is in fields.csv and not in the headers" for s, n in listed if (s, n) not in types
    ]
    for struct, members in structs_of(fields).items():
        order = [name for s, name in types if s == struct]
        if not found and [f.name for f in members] != order:
            found.append(f"{struct}: the fields have another order in the headers")
    for f in fields:
        type = types.get((f.struct, f.name))
        if type is not None and type != wanted_type(f):
            found.append(f"{f.struct}.{f.name} is {type}, and a {f.role} is {wanted_type(f)}")
    values = {
        e.name.removeprefix(PREFIX): {
            v.name.removeprefix(PREFIX.upper()): v.value for v in e.values
        }
        for e in tree.enums
    }
    if values != read_enums():
        found.append("the enums of the headers and of tests/abi/layout.txt differ")
    return found


def load_headers():
    """bindings/swig/tree.py and what its load() gives."""
    sys.path.insert(0, str(ROOT / "bindings" / "swig"))
    import tree as headers

    return headers, headers.load()


# --- C++ ---


def camel(word):
    return "k" + "".join(p[:1].upper() + p[1:] for p in re.split(r"[-_]", word))


def enum_class(name, words):
    return f"enum class {name} : uint8_t {{ {', '.join(map(camel, words))} }};"


def mask(bits):
    return f"0x{sum(1 << b for b in bits):x}"


def cpp_terms(struct_fields, terms):
    """Conditions as fields of the struct, by number."""
    number = {f.name: i for i, f in enumerate(struct_fields)}
    ops = {"": "kGiven", "=": "kIs", "&": "kHas"}
    return ", ".join(
        f"{{{number[t.field]}, Op::{ops[t.op]}"
        + (f', FASTNORM_{t.value}, "FASTNORM_{t.value}"}}' if t.value else "}")
        for t in terms
    )


def cpp_field(struct_fields, f):
    number = {g.name: i for i, g in enumerate(struct_fields)}
    member = f"{PREFIX}{f.struct}::{f.name}"
    dtypes = mask(DTYPES.index(d) for d in f.dtypes) if f.is_tensor else "0"
    refused = " | ".join(f"1u << FASTNORM_{v}" for v in f.refused) if f.role == "enum" else ""
    needs = ", ".join(f"{{{{{cpp_terms(struct_fields, n)}}}}}" for n in f.needs)
    lines = [
        f"template <> inline constexpr Field field<&{member}> = {{",
        f'    "{f.name}", "{f.path}", offsetof({PREFIX}{f.struct}, {f.name}), sizeof({member}),',
        f"    kind_of<decltype({member})>(), values_of<decltype({member})>(),",
        f"    Role::{camel(f.role)},",
        f"    {'Shape::' + camel(f.shape) if f.shape else 'Shape::kNone'}, {dtypes},",
        f"    {mask(number[n] for n in f.overlap)}, {mask(number[n] for n in f.apart)},",
        f"    {'true' if f.is_required else 'false'}, {refused or 0},",
        f"    {{{needs}}}, {{{cpp_terms(struct_fields, f.excludes)}}}}};",
    ]
    return lines


def cpp(fields, enums):
    """The lines that src/core/common/schema.h, which has the types, includes."""
    lines = [
        "// Written by src/schema/schema.py from fields.csv and tests/abi/layout.txt.",
        enum_class("Role", HOST_ROLES + TENSOR_ROLES),
        enum_class("Shape", ("none",) + SHAPES),
        *(f"inline constexpr uint16_t {camel(d)}Bit = {1 << i};" for i, d in enumerate(DTYPES)),
    ]
    for name, values in enums.items():
        lines += [
            f"template <> struct Enum<{PREFIX}{name}> {{",
            f'  static constexpr const char* kName = "{PREFIX}{name}";',
            "  static constexpr Enumerator kAll[] = {",
            *(f'      {{FASTNORM_{v}, "FASTNORM_{v}"}},' for v in values),
            "  };",
            "};",
        ]
    for struct, members in structs_of(fields).items():
        for f in members:
            lines += cpp_field(members, f)
        first = min((f.since for f in members), key=lambda v: [int(n) for n in v.split(".")])
        last = [f.name for f in members if f.since == first][-1]
        lines += [
            f"template <> struct Fields<{PREFIX}{struct}> {{",
            f'  static constexpr const char* kName = "{PREFIX}{struct}";',
            "  // In its first version.",
            f"  static constexpr size_t kFirstSize = field<&{PREFIX}{struct}::{last}>.end();",
            "  static constexpr Field kAll[] = {",
            *(f"      field<&{PREFIX}{struct}::{f.name}>," for f in members),
            "  };",
            "  static constexpr auto kMembers = std::make_tuple(",
            ",\n".join(f"      &{PREFIX}{struct}::{f.name}" for f in members) + ");",
            "};",
            f'static_assert(is_complete<{PREFIX}{struct}>, "fields.csv lacks a field");',
        ]
    return lines


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--cpp", type=Path)
    options = parser.parse_args()
    try:
        fields = read()
        if options.cpp:
            options.cpp.write_text("\n".join(cpp(fields, read_enums())) + "\n")
        found = differences(fields, *load_headers()) if options.check else []
    except SchemaError as error:
        found = [str(error)]
    for text in found:
        print(f"FAIL {text}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
