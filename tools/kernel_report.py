#!/usr/bin/env python3
"""Registers, shared memory and stack of every GPU kernel in a built library.

Reads the finished binary, so what is reported is what ships. Local memory (a stack frame, and every
register spill lives in one) is a failure: each kernel is meant to keep its row in registers. So is a kernel
for wide rows that reads or writes them by anything else than 32 bytes; its codes have half as many.
"""

import argparse
import os
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


def read_accesses(cuobjdump, library):
    """{mangled name: {(LDG or STG, bytes): number}} of every kernel, from its instructions."""
    # It calls nvdisasm, which lies beside it where neither is on PATH.
    path = os.pathsep.join([os.path.dirname(cuobjdump), os.environ["PATH"]])
    text = subprocess.run([cuobjdump, "-sass", str(library)], capture_output=True, text=True, check=True,
                          env={**os.environ, "PATH": path}).stdout
    accesses, of = {}, None
    for line in text.splitlines():
        if match := re.match(r"\s*Function : (\S+)", line):
            of = accesses.setdefault(match[1], {})
        elif match := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?\w+ )?(LDG|STG)\.(\S+)", line):
            bits = re.search(r"\.(8|16|64|128|256)\b", match[2].replace(".U8", ".8").replace(".U16", ".16"))
            use = (match[1], int(bits[1]) // 8 if bits else 4)
            of[use] = of.get(use, 0) + 1
    return accesses


def complaint_about(name, accesses):
    """Of a kernel for wide rows: what is not as it should be, or None."""
    codes = 16 if "(Sink)1" in name else 32
    wide = {("LDG", 32), ("STG", codes)}
    single = {("LDG", 4), ("STG", 4)}  # a scale, and the statistics
    if missing := wide - accesses.keys():
        return f"has no {missing}"
    if others := accesses.keys() - wide - single:
        # A residual's sum is a row beside its codes.
        others -= {("STG", 32)} if "(Source)1" in name else set()
        if others:
            return f"has {others}"
    return None


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
    names = demangle([k[1] for k in kernels])
    for (arch, _, use), name in zip(kernels, names):
        bad = use["STACK"] > 0 or use["LOCAL"] > 0
        failed += bad
        rows.append((arch, use["REG"], use["SHARED"], use["STACK"], use["LOCAL"], name))
        if bad:
            print(f"FAIL {arch} {name}: stack {use['STACK']} bytes, local {use['LOCAL']} bytes")
    # The last of a tile's numbers: vectors of an access.
    wide = {k[1]: name for k, name in zip(kernels, names) if re.search(r"RowTile<\d+, \d+, \d+, 2>", name)}
    accesses = read_accesses(cuobjdump, options.library) if wide else {}
    for mangled, name in wide.items():
        if complaint := complaint_about(name, accesses[mangled]):
            failed += 1
            print(f"FAIL {name}: {complaint}")
    if wide:
        print(f"{len(wide)} kernels for wide rows: accesses of 32 bytes")
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
