#!/usr/bin/env python3
"""Each public header alone, in every dialect promised, with every warning an error."""

import argparse
import concurrent.futures
import os
import shutil
import subprocess
from pathlib import Path

from cases import Cases

C_DIALECTS = ("c99", "c11", "c17", "c2x")
CPP_DIALECTS = ("c++11", "c++14", "c++17", "c++20")
STRICT = ["-pedantic-errors", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wshadow"]
STRICT_C = ["-Wc++-compat", "-Wstrict-prototypes", "-Wmissing-prototypes"]


def jobs(headers):
    """(compiler, flags, header) of the whole matrix."""
    for header in headers:
        dialects = [("g++", d, STRICT) for d in CPP_DIALECTS] + [
            ("clang++", d, STRICT) for d in CPP_DIALECTS
        ]
        if header.suffix == ".h":
            dialects += [(c, d, STRICT + STRICT_C) for c in ("gcc", "clang") for d in C_DIALECTS]
        for compiler, dialect, flags in dialects:
            yield compiler, [f"-std={dialect}", *flags], header


def compile_one(job, include, folder):
    """An empty string, or what the compiler says. The header is included twice: its guard must hold."""
    compiler, flags, header = job
    suffix = ".cpp" if compiler.endswith("++") else ".c"
    stem = f"{header.stem}_{header.suffix[1:]}-{compiler}-{flags[0][5:]}"
    source = folder / (stem + suffix)
    source.write_text(
        f'#include "fastnorm/{header.name}"\n' * 2 + "int header_matrix_unit(void);\n"
        "int header_matrix_unit(void) { return 0; }\n"
    )
    command = [
        compiler,
        *flags,
        f"-I{include}",
        "-c",
        str(source),
        "-o",
        str(folder / (stem + ".o")),
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    return "" if result.returncode == 0 else result.stderr or "failed silently"


def check_includes(cases, header):
    """Only stddef.h, stdint.h and each other; the C++ header may use the standard library."""
    for line in header.read_text().splitlines():
        words = line.split()
        if words[:1] != ["#include"]:
            continue
        ok = (
            words[1] in ("<stddef.h>", "<stdint.h>")
            or (header.parent / words[1].strip('"')).exists()
            or (header.suffix == ".hpp" and words[1].startswith("<") and ".h" not in words[1])
        )
        cases.check(f"{header.name}: {line}", ok, "not allowed in a public header")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--include", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder for generated files")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    headers = sorted(
        p for p in (options.include / "fastnorm").iterdir() if p.suffix in (".h", ".hpp")
    )

    cases = Cases()
    matrix = []
    for job in jobs(headers):
        if shutil.which(job[0]):
            matrix.append(job)
        else:
            cases.skip(f"{job[2].name} with {job[0]} {job[1][0]}", f"{job[0]} is not installed")
    for header in headers:
        check_includes(cases, header)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for job, error in zip(
            matrix, pool.map(lambda j: compile_one(j, options.include, options.work), matrix)
        ):
            cases.check(f"{job[2].name} with {job[0]} {job[1][0]}", not error, error)
    cases.finish()


main()
