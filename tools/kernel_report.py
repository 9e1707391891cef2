#!/usr/bin/env python3
"""Registers, shared memory and stack of every GPU kernel in a built library.

Reads the finished binary, so what is reported is what ships. Local memory (a stack frame, and every
register spill lives in one) is a failure: each kernel is meant to keep its row in registers.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path


def find_cuobjdump(native_file):
    """On PATH, or beside the nvcc that the native file names."""
    found = shutil.which("cuobjdump")
    if found or not native_file:
        return found
    nvcc = re.search(r"^cuda = '(.*)'", native_file.read_text(), re.M)
    beside = Path(nvcc[1]).with_name("cuobjdump") if nvcc else Path()
    return str(beside) if beside.is_file() else None


def read_kernels(cuobjdump, library):
    """(arch, mangled name, {resource: number}) of every kernel."""
    text = subprocess.run([cuobjdump, "-res-usage", str(library)], capture_output=True, text=True, check=True).stdout
    kernels, arch, name = [], None, None
    for line in text.splitlines():
        if match := re.match(r"arch = (\w+)", line):
            arch = match[1]
        elif match := re.match(r"\s*Function (\S+):", line):
            name = match[1]
        elif name and "REG:" in line:
            kernels.append((arch, name, {k: int(v) for k, v in re.findall(r"([A-Z]+)(?:\[\d+\])?:(\d+)", line)}))
            name = None
    return kernels


def demangle(names):
    result = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return [re.sub(r"fastnorm::|cuda::|\(anonymous namespace\)::", "", name) for name in result.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=Path)
    parser.add_argument("--output", type=Path, required=True, help="file for the table")
    parser.add_argument("--native-file", type=Path, help="Meson native file that names nvcc")
    options = parser.parse_args()
    cuobjdump = find_cuobjdump(options.native_file)
    if cuobjdump is None:
        sys.exit("no cuobjdump: it comes with a CUDA toolkit, and with tools/setup where there is none")

    kernels = read_kernels(cuobjdump, options.library)
    failed = 0
    rows = []
    for (arch, _, use), name in zip(kernels, demangle([k[1] for k in kernels])):
        bad = use["STACK"] > 0 or use["LOCAL"] > 0
        failed += bad
        rows.append((arch, use["REG"], use["SHARED"], use["STACK"], use["LOCAL"], name))
        if bad:
            print(f"FAIL {arch} {name}: stack {use['STACK']} bytes, local {use['LOCAL']} bytes")
    rows.sort(key=lambda r: (r[0], -r[1], r[5]))
    table = ["arch     registers  shared  stack  local  kernel"]
    table += [f"{a:8} {r:9} {sh:7} {st:6} {lo:6}  {n}" for a, r, sh, st, lo, n in rows]
    options.output.write_text("\n".join(table) + "\n")

    for arch in sorted({r[0] for r in rows}):
        registers = [r[1] for r in rows if r[0] == arch]
        print(f"{arch}: {len(registers)} kernels, {min(registers)} to {max(registers)} registers")
    if not rows:
        print("FAIL no kernel found in the library")
        failed = 1
    print(f"{max(len(rows) - failed, 0)} passed, {failed} failed, 0 skipped")
    return failed != 0


sys.exit(main())
