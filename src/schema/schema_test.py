#!/usr/bin/env python3
"""Tests of schema.py: fields.csv and the headers have the same fields, and a difference in either
direction is found; words that the table does not know are refused."""

import copy
import sys
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests" / "abi")]
import schema  # noqa: E402
from cases import Cases  # noqa: E402

TEXT = schema.TABLE.read_text()
HEAD = ",".join(schema.COLUMNS) + "\n"
SMALL = """\
mix_args,struct_size,size,,,,,,required,0.2
mix_args,kind,enum,norm_kind,,,,,0,0.2
mix_args,x,rows-in,T,x,,,,required,0.2
mix_args,gate,rows-in,T f32,x,!x,kind=NORM_LAYER|x,,NULL,0.2
mix_args,y,rows-out,any,x,x gate,,,NULL,0.2
"""


def check_headers(cases):
    """The table that is there, and tables that lack something or have something more."""
    headers, tree = schema.load_headers()

    def found(text, of=tree):
        return schema.differences(schema.parse(text, schema.read_enums()), headers, of)

    cases.equal("fields.csv and the headers", found(TEXT), [])
    lines = TEXT.splitlines(keepends=True)
    scales = [i for i, line in enumerate(lines) if ",sum_scale," in line]
    cases.equal("fields named sum_scale", len(scales), 2)
    for i in scales:
        name = ".".join(lines[i].split(",")[:2])
        text = "".join(lines[:i] + lines[i + 1 :])
        wanted = [f"{name} is in the headers and not in fields.csv"]
        cases.equal(f"{name} left out", found(text), wanted)
        text = "".join(
            lines[: i + 1] + [lines[i].replace(",sum_scale,", ",sum_scales,")] + lines[i + 1 :]
        )
        wanted = [f"{name}s is in fields.csv and not in the headers"]
        cases.equal(f"{name}s added", found(text), wanted)
        text = "".join([*lines[: i - 1], lines[i], lines[i - 1], *lines[i + 1 :]])
        wanted = [f"{name.partition('.')[0]}: the fields have another order in the headers"]
        cases.equal(f"{name} a line earlier", found(text), wanted)
    text = TEXT.replace("norm_args,eps,number,f32", "norm_args,eps,number,i32", 1)
    wanted = ["norm_args.eps is float, and a number is int32_t"]
    cases.equal("another type", found(text), wanted)
    for name in ("fastnorm_quant", "fastnorm_norm_heads_part"):
        more = copy.deepcopy(tree)
        struct = more.find(name)
        member = copy.copy(struct.fields[-1])
        member.name = "another"
        struct.fields.append(member)
        short = name.removeprefix("fastnorm_")
        wanted = [f"{short}.another is in the headers and not in fields.csv"]
        cases.equal(f"a field more in {name}", found(TEXT, more), wanted)
        struct.fields[-2:] = []
        lost = schema.structs_of(schema.read())[short][-1].name
        wanted = [f"{short}.{lost} is in fields.csv and not in the headers"]
        cases.equal(f"a field less in {name}", found(TEXT, more), wanted)
    more = copy.deepcopy(tree)
    more.find("fastnorm_activation").values.pop()
    cases.check("a value less in an enum", len(found(TEXT, more)) == 1)


def check_words(cases):
    enums = schema.read_enums()
    fields = schema.parse(HEAD + SMALL, enums)
    cases.equal("fields of a small table", [f.name for f in fields][2:], ["x", "gate", "y"])
    gate, y = fields[3:]
    cases.equal("needs", gate.needs, ((schema.Term("kind", "=", "NORM_LAYER"), schema.Term("x")),))
    cases.equal("apart, and the same view", (gate.apart, y.overlap), (("x",), ("x", "gate")))
    cases.equal("outputs", [f.is_output for f in fields], [False] * 4 + [True])
    for what, old, new in (
        ("a role", "rows-out", "row-out"),
        ("a dtype", "T f32", "T f33"),
        ("a shape", "any,x,x gate", "any,z,x gate"),
        ("a neutral value", ",NULL,0.2", ",0,0.2"),
        ("a version", "required,0.2", "required,now"),
        ("an enum", "norm_kind", "norm_kinds"),
        ("a value of an enum", "NORM_LAYER", "NORM_LAYERS"),
        ("a refused value", "norm_kind", "norm_kind !NORM_BATCH"),
        ("an input of the struct", "x gate,", "x gates,"),
        ("an input for an output", "any,x,x gate", "any,x,x y"),
        ("a condition on itself", "|x", "|gate"),
        ("a flag of an enum that is none", "kind=NORM_LAYER", "kind&NORM_LAYER"),
        ("a field once", "mix_args,gate,", "mix_args,x,"),
        ("a field to be own to", "any,x,x gate", "any,own,x gate"),
        ("a column more", "NULL,0.2\n", "NULL,0.2,\n"),
        ("a column less", "NULL,0.2\n", "NULL\n"),
        ("a number", "enum,norm_kind", "number,f16"),
    ):
        cases.check(f"{what}: the small table has it", old in SMALL)
        try:
            schema.parse(HEAD + SMALL.replace(old, new, 1), enums)
            refused = False
        except schema.SchemaError:
            refused = True
        cases.check(f"{what} is looked at", refused, f"{new!r} passes")


def check_cpp(cases):
    enums = {"norm_kind": {"NORM_RMS": 0, "NORM_LAYER": 1}}
    text = "\n".join(schema.cpp(schema.parse(HEAD + SMALL, enums), enums))
    for wanted in (
        "field<&fastnorm_mix_args::gate> = {",
        "Shape::kX, 0x21,\n    0x0, 0x4,",  # T or f32; field 2 is x
        '{{{{1, Op::kIs, FASTNORM_NORM_LAYER, "FASTNORM_NORM_LAYER"}, {2, Op::kGiven}}}}, {}};',
        "Shape::kX, 0x2,\n    0xc, 0x0,",
        '{FASTNORM_NORM_LAYER, "FASTNORM_NORM_LAYER"},',
    ):
        cases.check(f"C++ has {wanted}", wanted in text, text)


def main():
    cases = Cases()
    check_words(cases)
    check_cpp(cases)
    check_headers(cases)
    cases.finish()


main()
