#!/usr/bin/env python3
"""Tests of tree.py, rust.py, rust_safe.py and python.py.

A family that does not exist yet needs nothing by hand, and its layout is that of a C compiler. What
the bindings have no rule for stops the generator instead of being half bound.
"""

import ctypes
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests" / "abi")]
import python  # noqa: E402
import rust  # noqa: E402
import rust_safe  # noqa: E402
import tree as headers  # noqa: E402
from cases import Cases  # noqa: E402

FAMILY = """\
/** @file mix.h
 *  A family for tests. */
#ifndef FASTNORM_MIX_H_
#define FASTNORM_MIX_H_

#include "context.h"

/** A number with an expression. */
#define FASTNORM_MIX_LIMIT (1 << 5)

/** How it is mixed. */
typedef enum fastnorm_mix_kind {
  FASTNORM_MIX_PLAIN = 1 << 3, /**< As it is. */
  FASTNORM_MIX_KIND_MAX_ENUM = 0x7fffffff
} fastnorm_mix_kind;

/** A table, known to the library alone. */
typedef struct fastnorm_mix_table fastnorm_mix_table;

/** One mix. */
typedef struct fastnorm_mix_args {
  size_t struct_size;          /**< sizeof(fastnorm_mix_args). */
  fastnorm_mix_kind kind;      /**< How. */
  uint8_t type;                /**< Named as a keyword. */
  uint8_t small[3];            /**< Bytes. */
  double factor;               /**< > 0 and < [2]. */
  fastnorm_mix_table* table;   /**< A handle. */
  const fastnorm_tensor* from; /**< [n] f32. */
  const fastnorm_tensor* to;   /**< [n] f32. Output. */
} fastnorm_mix_args;

/** Called for each piece. */
typedef int32_t (*fastnorm_mix_fn)(void* user, const fastnorm_mix_args* const* parts, double where);

/** Mix.
 *  @param args what
 *  @return FASTNORM_OK */
FASTNORM_API fastnorm_status fastnorm_mix(fastnorm_context* context, const fastnorm_mix_args* args,
                                          void* workspace, size_t workspace_bytes, void* stream);

/** What a mix would do. */
FASTNORM_API fastnorm_status fastnorm_mix_query(fastnorm_context* context,
                                                const fastnorm_mix_args* args, fastnorm_info* info);

/** Of no family. */
FASTNORM_API void fastnorm_mixer(fastnorm_device device, fastnorm_mix_fn fn, const char* loop);

#endif
"""
# An args struct holds no arrays; this line is for the test of layouts and is taken out for the
# others.
ARRAY = "  uint8_t small[3];            /**< Bytes. */\n"


# What a family's header includes, by itself and through others.
BASIS = ("version.h", "status.h", "tensor.h", "context.h", headers.UMBRELLA)


class Headers:
    """The public headers with mix.h beside them, in a folder of their own: all of them, or those
    that mix.h needs."""

    def __init__(self, folder, family=FAMILY, listed=True, whole=True):
        self.include = Path(folder) / "include"
        shutil.copytree(headers.INCLUDE, self.include)
        (self.include / "fastnorm" / "mix.h").write_text(family)
        interface = Path(folder) / "fastnorm.i"
        text = headers.INTERFACE.read_text() + ("%include <fastnorm/mix.h>\n" if listed else "")
        if not whole:
            for path in (self.include / "fastnorm").glob("*.h"):
                if path.name not in (*BASIS, "mix.h"):
                    path.unlink()
                    text = text.replace(f"%include <fastnorm/{path.name}>\n", "")
        interface.write_text(text)
        self.globals = {"INCLUDE": self.include, "INTERFACE": interface}

    def load(self, **others):
        """headers.load() of these."""
        kept = {name: getattr(headers, name) for name in (*self.globals, *others)}
        try:
            for name, value in (self.globals | others).items():
                setattr(headers, name, value)
            return headers.load()
        finally:
            for name, value in kept.items():
                setattr(headers, name, value)


def succeeds(cases, name, command):
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    cases.check(name, result.returncode == 0, result.stdout + result.stderr)


def check_layout(cases, tree, include, folder):
    """A C compiler agrees with every size, offset and value of the tree."""
    lines = ["#include <fastnorm/fastnorm.h>", "#include <fastnorm/mix.h>"]
    for struct in tree.structs:
        lines.append(f'_Static_assert(sizeof({struct.name}) == {struct.size}, "size");')
        for f in struct.fields:
            lines.append(
                f'_Static_assert(offsetof({struct.name}, {f.name}) == {f.offset}, "offset");'
            )
            lines.append(
                f'_Static_assert(sizeof((({struct.name}*)0)->{f.name}) == {f.size}, "size");'
            )
    for item in [v for e in tree.enums for v in [*e.values, e.max]] + tree.macros:
        lines.append(f'_Static_assert({item.name} == {item.value}, "{item.name}");')
    source = Path(folder) / "layout.c"
    source.write_text("\n".join(lines) + "\n")
    succeeds(
        cases,
        "a C compiler gives the same layout",
        ["cc", "-std=c11", f"-I{include}", "-c", source, "-o", source.with_suffix(".o")],
    )


def check_rust(cases, tree, folder):
    path = rust.generate(tree, Path(folder))[0]
    text = path.read_text()
    for wanted in (
        "pub const FASTNORM_MIX_LIMIT: i32 = 32;",
        "pub const FASTNORM_MIX_PLAIN: fastnorm_mix_kind = 8;",
        "    pub r#type: u8,",
        "    pub small: [u8; 3],",
        "    pub table: *mut fastnorm_mix_table,",
        "/// \\> 0 and \\< \\[2\\].",
        "r#loop: *const c_char",
        "    /// - `args`: what",
        "            factor: 0.0,",
        "            small: [0; 3],",
    ):
        cases.check(f"ffi.rs has {wanted.strip()}", wanted in text)
    for tool, command in (
        ("rustfmt", ["rustfmt", "--check", "--edition", "2021", path]),
        (
            "rustc",
            [
                "rustc",
                "--crate-type",
                "lib",
                "--edition",
                "2021",
                "--emit=metadata",
                "-A",
                "non_camel_case_types",
                "-D",
                "warnings",
                "--out-dir",
                folder,
                path,
            ],
        ),
    ):
        if shutil.which(tool) is None:
            cases.skip(f"{tool} of the generated file", "not installed")
        else:
            succeeds(cases, f"{tool} of the generated file", command)


def check_rust_safe(cases, tree):
    """The setters of a family follow from its header."""
    comments = rust_safe.Comments(tree, [tree.find("fastnorm_mix_kind")])

    def printed(by_hand):
        return rust_safe.Printer(
            tree,
            comments,
            {("fastnorm_mix_args", "to"): "rows-out"},
            rust_safe.Description("Mix", "fastnorm_mix_args", "Mix::new()", by_hand=by_hand),
        ).print()

    text = "\n".join(printed("table small"))
    for wanted in (
        "pub(crate) type MixViews = Views<2>;",
        "    pub fn kind(mut self, kind: MixKind) -> Self {",
        "        self.args.kind = kind.raw();",
        "    pub fn r#type(mut self, r#type: u8) -> Self {",
        "        self.args.r#type = r#type;",
        "    /// \\> 0 and \\< `[2]`.",
        "    pub fn from(mut self, from: Tensor<'a>) -> Self {",
        "    pub fn to(mut self, to: TensorMut<'a>) -> Self {",
        "        self.views.put(1, to.view);",
        "        self.views.link(1, &mut self.args.to);",
    ):
        cases.check(f"fields.rs has {wanted.strip()}", wanted in text, text)
    for by_hand, wanted in (
        ("small", "fastnorm_mix_args.table: no rule for a setter"),
        ("table", "fastnorm_mix_args.small: no rule for a setter"),
        ("table small gone", "fastnorm_mix_args has no ['gone']"),
    ):
        try:
            printed(by_hand)
            error = "nothing stopped it"
        except headers.TreeError as stop:
            error = str(stop)
        cases.check(f"a description is refused: {wanted}", wanted in error, error)
    enum = "\n".join(rust_safe.print_enum(comments, tree.find("fastnorm_mix_kind")))
    cases.check("an enum", "Self::Plain => sys::FASTNORM_MIX_PLAIN," in enum, enum)


def check_python(cases, tree):
    """ctypes lays the structs out as the tree does."""
    made = {}
    roles = {**headers.roles(), ("fastnorm_mix_args", "to"): "rows-out"}
    roles["fastnorm_mix_args", "from"] = "rows-in"
    exec(compile(python.text(tree, roles), "headers.py", "exec"), made)
    for struct in tree.structs:
        found = made[python.camel(struct.name)]
        here = [(f.name, getattr(found, f.name).offset, getattr(found, f.name).size)
                for f in struct.fields]
        cases.equal(
            f"ctypes, {struct.name}",
            (ctypes.sizeof(found), here),
            (struct.size, [(f.name, f.offset, f.size) for f in struct.fields]),
        )
    cases.equal("ctypes, an enum", made["MixKind"].PLAIN, 8)
    cases.equal("ctypes, what is written", made["OUTPUTS"][made["MixArgs"]], {"to"})
    cases.equal("ctypes, a family", made["FAMILIES"]["mix"], (made["MixArgs"], None))
    returns, takes = made["FUNCTIONS"]["fastnorm_mixer"]
    cases.equal("ctypes, a function", (returns, takes[0]), (None, made["Device"]))
    cases.equal("ctypes, a text", takes[2], ctypes.c_char_p)


def check_family(cases):
    with tempfile.TemporaryDirectory() as folder:
        made = Headers(folder)
        # The promises of tests/abi do not have this family.
        tree = made.load(check_layout=lambda tree: None, check_args=lambda tree, struct: None)
        family = next(f for f in tree.families if f.name == "mix")
        cases.equal("the functions of the family", sorted(family.functions), ["", "query"])
        cases.equal(
            "its struct",
            [f.name for f in family.args.fields if headers.is_tensor(f.type)],
            ["from", "to"],
        )
        cases.check("an enum is one", tree.is_a(family.args.fields[1].type, headers.Enum))
        cases.equal("a comment", tree.find("fastnorm_mix_kind").doc, "How it is mixed.")
        cases.equal(
            "a callback",
            [p.name for p in tree.find("fastnorm_mix_fn").parameters],
            ["user", "parts", "where"],
        )
        check_layout(cases, tree, made.include, folder)
        check_rust(cases, tree, folder)
        check_rust_safe(cases, tree)
        check_python(cases, tree)


def stops(cases, name, wanted, edit=lambda text: text, listed=True, layout=False):
    """What `edit` makes of the family's header is refused, with a text that has `wanted`."""
    with tempfile.TemporaryDirectory() as folder:
        made = Headers(folder, edit(FAMILY.replace(ARRAY, "")), listed, whole=layout)
        others = {} if layout else {"check_layout": lambda tree: None}
        try:
            made.load(**others)
            error = "nothing stopped it"
        except headers.TreeError as stop:
            error = str(stop)
        cases.check(name, wanted in error, error[:400])


def check_stops(cases):
    def swap(old, new):
        if old not in FAMILY:
            raise ValueError(old)
        return lambda text: text.replace(old, new)

    stops(cases, "a header that the interface leaves out", "the public headers are", listed=False)
    stops(cases, "a layout that is not promised", "differs from tests/abi/layout.txt", layout=True)
    rule = "an args struct holds"
    double = "  double factor;               /**< > 0 and < [2]. */\n"
    stops(cases, "an array in an args struct", rule, swap(double, double + "  float four[4];\n"))
    stops(cases, "an int in an args struct", rule, swap(double, "  int factor;\n"))
    stops(cases, "a text in an args struct", rule, swap(double, "  const char* factor;\n"))
    stops(
        cases,
        "a writable tensor in an args struct",
        rule,
        swap("const fastnorm_tensor* to", "fastnorm_tensor* to"),
    )
    stops(
        cases,
        "a tensor by value in an args struct",
        rule,
        swap("const fastnorm_tensor* to", "fastnorm_tensor to"),
    )
    stops(
        cases,
        "an args struct without its size",
        rule,
        swap("size_t struct_size", "uint64_t struct_size"),
    )
    stops(cases, "an unknown type", "no rule for the type", swap("double factor", "long factor"))
    stops(
        cases,
        "an unknown type of a parameter",
        "no rule for the type",
        swap("const char* loop", "const short* loop"),
    )
    stops(
        cases,
        "a parameter without a name",
        "a parameter without a name",
        swap("const char* loop", "const char*"),
    )
    stops(
        cases,
        "an enum of no fixed size",
        "the last enumerator must be",
        swap("FASTNORM_MIX_KIND_MAX_ENUM", "FASTNORM_MIX_LAST"),
    )
    stops(cases, "a macro that is no number", "no rule for", swap("(1 << 5)", '"text"'))
    stops(
        cases,
        "a global variable",
        "no rule for",
        swap("/** Of no family. */", "extern int32_t fastnorm_mix_count;"),
    )
    stops(
        cases,
        "a typedef of a number",
        "no rule for the typedef",
        swap("/** Of no family. */", "typedef int32_t fastnorm_mix_number;"),
    )
    stops(cases, "an unmarked function", "functions in the tree", swap("FASTNORM_API void", "void"))
    stops(
        cases,
        "a union",
        "no rule for",
        swap("/** Of no family. */", "union fastnorm_mix_any { float f; int32_t i; };"),
    )


def main():
    cases = Cases()
    try:
        headers.swig()
    except headers.TreeError as reason:
        cases.skip("the generator", reason)
        cases.finish()
    check_family(cases)
    check_stops(cases)
    cases.finish()


main()
