#!/usr/bin/env python3
"""Tests of java.py: a family that does not exist yet needs nothing by hand in the raw layer, which
compiles; a function that Java has no rule for stops the generator.

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

/** One stirring. */
typedef struct fastnorm_stir_args {
  size_t struct_size;           /**< sizeof(fastnorm_stir_args). */
  fastnorm_stir_kind kind;      /**< How. */
  uint32_t turns;               /**< How often. */
  double speed;                 /**< How fast. */
  fastnorm_spoon* spoon;        /**< With what. */
  const fastnorm_tensor* soup;  /**< [n]. */
  const fastnorm_tensor* taste; /**< [n]. Output. */
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


def generate(folder, family):
    """What java.py writes for the public headers with that family beside them."""
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
    try:
        return {p.name: p for p in java.generate(headers.load(), folder / "out")}
    finally:
        headers.INCLUDE, headers.INTERFACE, headers.check_layout = kept


def succeeds(cases, name, command):
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    cases.check(name, result.returncode == 0, (result.stdout + result.stderr)[-3000:])


def check_texts(cases, files):
    raw, native, words = (
        files[name].read_text() for name in ("Raw.java", "RawJNI.java", "Words.java")
    )
    for text, wanted in (
        (
            raw,
            "int fnb_stir(long context, long[] words, long workspace, long workspace_bytes, long stream)",
        ),
        (raw, "int fnb_stir_query(long context, long[] words, fastnorm_stir_info info)"),
        (raw, "int fastnorm_spoon_wash(long spoon, int times, String how)"),
        (native, "byte[] fastnorm_stir_info_cook_get"),
        (words, "STIR_SPEED = 2;"),
        (words, "STIR_SPOON = 3;"),
        (words, "STIR_BIT_TASTE = 1;"),
        (files["fastnorm_stir_kind.java"].read_text(), "FASTNORM_STIR_SLOWLY = 3;"),
        (files["fastnorm_stir_info.java"].read_text(), "public long getSplashes()"),
    ):
        cases.check(f"generated: {wanted}", wanted in text)
    cases.check(
        "no setter",
        not any("void set" in p.read_text() for p in files.values() if p.suffix == ".java"),
    )
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
    own = sorted((HERE.parent / "java" / "src" / "main" / "java").rglob("*.java"))
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
    files = generate(work / "stir", FAMILY)
    check_texts(cases, files)
    check_compiles(cases, work / "stir", files)
    try:
        generate(work / "strange", FAMILY.replace("#endif\n", STRANGE + "\n#endif\n"))
        error = "nothing stopped it"
    except headers.TreeError as stop:
        error = str(stop)
    cases.check(
        "a function without a rule", "fastnorm_spoon_throw: no rule for Java" in error, error[:300]
    )
    cases.finish()


main()
