#!/usr/bin/env python3
"""Tests of java.py and java_api.py. A family that does not exist yet needs nothing by hand in the
raw layer, and a short class beside its setters. What Java has no rule for stops the generator.

  java_test.py --work DIR"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests" / "abi")]
import java  # noqa: E402
import java_api  # noqa: E402
import tree as headers  # noqa: E402
from cases import Cases  # noqa: E402

FAMILY = """\
#ifndef FASTNORM_STIR_H_
#define FASTNORM_STIR_H_

#include "context.h"

/** A spoon, known to the library alone. */
typedef struct fastnorm_spoon fastnorm_spoon;

/** How. */
typedef enum fastnorm_stir_kind {
  FASTNORM_STIR_SLOWLY = 3, /**< Slowly. */
  FASTNORM_STIR_KIND_MAX_ENUM = 0x7fffffff
} fastnorm_stir_kind;

/** Bits. */
typedef enum fastnorm_stir_flags {
  FASTNORM_STIR_BACKWARDS = 2, /**< Against the clock. */
  FASTNORM_STIR_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_stir_flags;

/** One stirring. */
typedef struct fastnorm_stir_args {
  size_t struct_size;           /**< sizeof(fastnorm_stir_args). */
  fastnorm_stir_kind kind;      /**< How. */
  uint32_t flags;               /**< fastnorm_stir_flags. */
  uint32_t turns_a_day;         /**< How often; NULL < 2 with FASTNORM_STIR_BACKWARDS. */
  double speed;                 /**< How fast. */
  int32_t hot;                  /**< 1: it is. */
  fastnorm_spoon* spoon;        /**< With what. */
  const fastnorm_tensor* soup;  /**< [n]. */
  const fastnorm_tensor* taste; /**< [n], as turns_a_day. Output. */
  const fastnorm_tensor* smell; /**< [n]. Output. */
} fastnorm_stir_args;

/** What came of it. */
typedef struct fastnorm_stir_info {
  size_t struct_size; /**< In: its size. */
  uint64_t splashes;  /**< How many. */
  char cook[16];      /**< Who. */
  const char* where;  /**< Static. */
} fastnorm_stir_info;

/** Stir. */
FASTNORM_API fastnorm_status fastnorm_stir(fastnorm_context* context,
                                           const fastnorm_stir_args* args, void* workspace,
                                           size_t workspace_bytes, void* stream);

/** What would come of it. */
FASTNORM_API fastnorm_status fastnorm_stir_query(fastnorm_context* context,
                                                 const fastnorm_stir_args* args,
                                                 fastnorm_stir_info* info);

/** Of no family. */
FASTNORM_API fastnorm_status fastnorm_spoon_wash(fastnorm_spoon* spoon, int32_t times,
                                                 const char* how);

#endif
"""
STRANGE = "FASTNORM_API void fastnorm_spoon_throw(fastnorm_device where);\n"
# What src/schema/fields.csv would say of its fields.
ROLES = {
    **{"struct_size": "size", "kind": "enum", "flags": "flags", "turns_a_day": "number"},
    **{"speed": "number", "hot": "switch", "spoon": "handle"},
    **{"soup": "rows-in", "taste": "rows-out", "smell": "rows-out"},
}
# What is written by hand of a family, beside its place in Call's `permits`.
CLASS = """\
package dev.fastnorm;

/** One stirring. */
public final class Stir extends StirFields {
    /**
     * Begins one.
     *
     * @param spoon an address
     */
    public Stir(long spoon) {
        description.set(Words.STIR_SPOON, spoon);
    }

    @Override
    Description.Encoded encoded() {
        return description.encoded();
    }

    @Override
    void run(long context, long[] words, long workspace, long workspaceBytes, long stream) {
        Raw.fnb_stir(context, words, workspace, workspaceBytes, stream);
    }

    @Override
    void query(long context, long[] words, fastnorm_info info) {}

    @Override
    void prepare(long context, long[] words) {}
}
"""


def generate(folder, family, by_hand):
    """What java.py writes for the public headers with that family beside them, of whose fields some
    are set by hand."""
    shutil.rmtree(folder, ignore_errors=True)
    include = folder / "include"
    shutil.copytree(headers.INCLUDE, include)
    (include / "fastnorm" / "stir.h").write_text(family)
    interface = folder / "fastnorm.i"
    interface.write_text(
        headers.INTERFACE.read_text().replace(
            "<fastnorm/fastnorm.h>\n", "<fastnorm/fastnorm.h>\n#include <fastnorm/stir.h>\n"
        )
        + "%include <fastnorm/stir.h>\n"
    )
    kept = headers.INCLUDE, headers.INTERFACE, headers.check_layout
    headers.INCLUDE, headers.INTERFACE = include, interface
    headers.check_layout = lambda tree: None  # the promises of tests/abi do not have this family
    java_api.BY_HAND["stir"] = by_hand
    own = java_api.roles
    java_api.roles = lambda: own() | {("fastnorm_stir_args", f): r for f, r in ROLES.items()}
    try:
        return {p.name: p for p in java.generate(headers.load(), folder / "out")}
    finally:
        del java_api.BY_HAND["stir"]
        java_api.roles = own
        headers.INCLUDE, headers.INTERFACE, headers.check_layout = kept


def succeeds(cases, name, command):
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    cases.check(name, result.returncode == 0, (result.stdout + result.stderr)[-3000:])


def check_texts(cases, files):
    raw, native, words = (
        files[name].read_text() for name in ("Raw.java", "RawJNI.java", "Words.java")
    )
    setters = files["StirFields.java"].read_text()
    for text, wanted in (
        (
            raw,
            "int fnb_stir(long context, long[] words, long workspace, long workspace_bytes, long stream)",
        ),
        (raw, "int fnb_stir_query(long context, long[] words, fastnorm_stir_info info)"),
        (raw, "int fastnorm_spoon_wash(long spoon, int times, String how)"),
        (native, "byte[] fastnorm_stir_info_cook_get"),
        (words, "STIR_SPEED = 3;"),
        (words, "STIR_SPOON = 5;"),
        (words, "STIR_BIT_TASTE = 1;"),
        (files["StirKind.java"].read_text(), "SLOWLY(fastnorm_stir_kind.FASTNORM_STIR_SLOWLY);"),
        (setters, "public Stir kind(StirKind kind) {"),
        (setters, "description.set(Words.STIR_KIND, kind.id);"),
        (
            setters,
            "How often; null &lt; 2 with {@link Stir#backwards backwards}.\n     *\n"
            "     * @param turnsADay {@code turns_a_day}: the value; the default is 0\n",
        ),
        (setters, "description.set(Words.STIR_TURNS_A_DAY, Integer.toUnsignedLong(turnsADay));"),
        (setters, "description.set(Words.STIR_SPEED, Double.doubleToRawLongBits(speed));"),
        (setters, "fastnorm_stir_flags.FASTNORM_STIR_BACKWARDS, backwards);"),
        (setters, "description.input(Words.STIR_BIT_SOUP, soup);"),
        (setters, "     * true: it is.\n"),
        (setters, "description.set(Words.STIR_HOT, hot ? 1 : 0);"),
        (setters, "[n], as {@link Stir#turnsADay turnsADay}. Output."),
        (setters, 'description.output(Words.STIR_BIT_TASTE, "taste", taste);'),
        (setters, 'description.output(Words.STIR_BIT_SMELL, "smell", smell);'),
        (files["fastnorm_stir_kind.java"].read_text(), "FASTNORM_STIR_SLOWLY = 3;"),
        (files["fastnorm_stir_info.java"].read_text(), "public long getSplashes()"),
    ):
        cases.check(f"generated: {wanted}", wanted in text)
    cases.check(
        "no setter",
        not any("void set" in p.read_text() for p in files.values() if p.suffix == ".java"),
    )
    cases.check("no setter of what is set by hand", "spoon(" not in setters)
    cases.equal("no wrapped pointer", [name for name in files if name.startswith("SWIGTYPE")], [])


def check_compiles(cases, folder, files):
    if shutil.which("javac") is None:
        cases.skip("compiling the invented family", "no javac")
        return
    home = Path(os.path.realpath(shutil.which("javac"))).parents[1]
    succeeds(
        cases,
        "the C code compiles",
        [
            "cc",
            "-std=gnu99",
            "-O1",
            "-c",
            "-fno-strict-aliasing",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{home}/include",
            f"-I{home}/include/linux",
            f"-I{folder}/include",
            "-include",
            "fastnorm/fastnorm.h",
            "-include",
            "fastnorm/stir.h",
            files["wrap.c"],
            "-o",
            folder / "wrap.o",
        ],
    )
    own = [
        p
        for p in sorted((HERE.parent / "java" / "src" / "main" / "java").rglob("*.java"))
        if p.name != "Call.java"
    ]
    call = next((HERE.parent / "java" / "src" / "main" / "java").rglob("Call.java")).read_text()
    for name, text in (
        ("Call.java", call.replace(", PeerCall {", ", PeerCall, StirFields {")),
        ("Stir.java", CLASS),
    ):
        (folder / name).write_text(text)
        own.append(folder / name)
    succeeds(
        cases,
        "the classes compile beside the handwritten ones",
        [
            "javac",
            "-Xlint:all",
            "-Werror",
            "-d",
            folder / "classes",
            *own,
            *(p for p in files.values() if p.suffix == ".java"),
        ],
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for what is built")
    work = parser.parse_args().work.resolve()
    cases = Cases()
    try:
        headers.swig()
    except (headers.TreeError, OSError) as error:
        cases.skip("the generator for Java", f"SWIG is needed: {str(error).splitlines()[0]}")
        cases.finish()
    files = generate(work / "stir", FAMILY, {"spoon": None})
    check_texts(cases, files)
    check_compiles(cases, work / "stir", files)
    for name, family, by_hand, wanted in (
        (
            "a function without a rule",
            FAMILY.replace("#endif\n", STRANGE + "\n#endif\n"),
            {"spoon": None},
            "fastnorm_spoon_throw: no rule for Java",
        ),
        (
            "a field without a rule",
            FAMILY,
            {},
            "fastnorm_stir_args.spoon: no rule for a setter of Java",
        ),
        (
            "a list of fields with one that is gone",
            FAMILY,
            {"spoon": None, "ladle": None},
            "fastnorm_stir_args has no ladle",
        ),
        (
            "a name of C in a comment",
            FAMILY.replace("How fast", "As fastnorm_norm_many"),
            {"spoon": None},
            "no name of Java for fastnorm_norm_many",
        ),
    ):
        try:
            generate(work / "strange", family, by_hand)
            error = "nothing stopped it"
        except headers.TreeError as stop:
            error = str(stop)
        cases.check(name, wanted in error, error[:300])
    cases.finish()


main()
