#!/usr/bin/env python3
"""Registers, shared memory and stack of every GPU kernel in a built library.

Reads the finished binary, so what is reported is what ships. Local memory (a stack frame, and every
register spill lives in one) is a failure: each kernel is meant to keep its row in registers.
Attention kernels may spill where they load, up to 64 bytes, but not where they compute, and their
tensor-core products must not be serialised.
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
    text = subprocess.run(
        [cuobjdump, "-res-usage", str(library)], capture_output=True, text=True, check=True
    ).stdout
    kernels, arch, name = [], None, None
    for line in text.splitlines():
        if match := re.match(r"arch = (\w+)", line):
            arch = match[1]
        elif match := re.match(r"\s*Function (\S+):", line):
            name = match[1]
        elif name and "REG:" in line:
            kernels.append(
                (
                    arch,
                    name,
                    {k: int(v) for k, v in re.findall(r"([A-Z]+)(?:\[\d+\])?:(\d+)", line)},
                )
            )
            name = None
    return kernels


# What a kernel's name stands for: an architecture, and packed() of a key and a tile
# (src/core/norm/key.h), here with the shift and the bits of each number.
FIELDS = {
    "dtype": (52, 4),
    "source": (48, 4),
    "stat": (44, 4),
    "affine": (40, 4),
    "sink": (38, 2),
    "access": (32, 3),
    "beside": (35, 3),
    "threads": (16, 16),
    "vectors": (8, 8),
    "blocks": (0, 8),
}
NUMBERS = ("arch", *FIELDS)


def numbers_of(name):
    """{what: number} of a demangled kernel, empty for others."""
    match = re.search(r"norm_(?:pair_)?kernel<(\d+), (\d+)ul[,>]", name)
    if not match:
        return {}
    order = int(match[2])
    return {"arch": int(match[1])} | {
        what: order >> shift & (1 << bits) - 1 for what, (shift, bits) in FIELDS.items()
    }


def shown(name):
    numbers = numbers_of(name)
    return re.sub("<.*", f"<{', '.join(map(str, numbers.values()))}>", name) if numbers else name


# Bytes of stack of the warpgroup that loads: it has 24 registers and no arithmetic to speak of.
LOADER_STACK = 64
# These bytes where the kernel records a profile, which takes three registers of every thread, and
# its accesses of local memory where it computes then, all of them once a piece.
PROFILE_STACK, PROFILE_SPILLS = 96, 40


def read_warpgroups(cuobjdump, library, mangled):
    """Of a kernel whose warpgroups have roles: what it does with few registers and with many.

    {"loads" or "computes": {"spills": n, "products": n, "waits": n}}; a role begins where it sets
    its registers.
    """
    path = os.pathsep.join([os.path.dirname(cuobjdump), os.environ["PATH"]])
    text = subprocess.run(
        [cuobjdump, "-sass", "-fun", mangled, str(library)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": path},
    ).stdout
    roles = {role: {"spills": 0, "products": 0, "waits": 0} for role in ("loads", "computes")}
    role = None
    for line in text.splitlines():
        if match := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?\w+ )?([A-Z]\S*)", line):
            op = match[1]
            if op.startswith("USETMAXREG"):
                role = "loads" if "DEALLOC" in op else "computes"
            elif role:
                roles[role]["spills"] += op.startswith(("LDL", "STL"))
                roles[role]["products"] += op.startswith("HGMMA")
                roles[role]["waits"] += op.startswith("WARPGROUP.DEPBAR")
    return roles


def complaint_about_roles(roles, spills):
    """Of read_warpgroups()'s numbers, where `spills` accesses of local memory are allowed; or
    None."""
    computes = roles["computes"]
    if computes["products"] == 0:
        return "has no tensor-core products where it computes"
    if computes["spills"] > spills:
        return f"spills where it computes: {computes['spills']} accesses of local memory"
    # ptxas waits behind each product where it cannot prove that the accumulators are left alone.
    if computes["waits"] * 4 > computes["products"]:
        return f"waits {computes['waits']} times for {computes['products']} products: they are serialised"
    return None


def demangle(names):
    result = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    )
    return [
        re.sub(r"fastnorm::|cuda::|\(anonymous namespace\)::", "", name)
        for name in result.stdout.splitlines()
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=Path)
    parser.add_argument("--output", type=Path, required=True, help="file for the table")
    parser.add_argument("--native-file", type=Path, help="Meson native file that names nvcc")
    options = parser.parse_args()
    cuobjdump = find_cuobjdump(options.native_file)
    if cuobjdump is None:
        sys.exit(
            "no cuobjdump: it comes with a CUDA toolkit, and with tools/setup where there is none"
        )

    kernels = read_kernels(cuobjdump, options.library)
    bad_names = set()
    rows = []
    names = demangle([k[1] for k in kernels])
    for (arch, mangled, use), name in zip(kernels, names):
        has_roles = "mla_decode_kernel<" in name
        profiles = has_roles and "true>" in name
        stack = PROFILE_STACK if profiles else LOADER_STACK if has_roles else 0
        bad = use["STACK"] > stack or use["LOCAL"] > 0
        if bad:
            bad_names.add(mangled)
        rows.append((arch, use["REG"], use["SHARED"], use["STACK"], use["LOCAL"], name))
        if bad:
            print(
                f"FAIL {arch} {shown(name)}: stack {use['STACK']} bytes, local {use['LOCAL']} bytes"
            )
        if has_roles:
            roles = read_warpgroups(cuobjdump, options.library, mangled)
            print(f"{arch} {shown(name)}: computes {roles['computes']}, loads {roles['loads']}")
            if complaint := complaint_about_roles(roles, PROFILE_SPILLS if profiles else 0):
                bad_names.add(mangled)
                print(f"FAIL {arch} {shown(name)}: {complaint}")
    rows.sort(key=lambda r: (r[0], -r[1], r[5]))
    table = [
        "A kernel's numbers: " + ", ".join(NUMBERS),
        "arch     registers  shared  stack  local  kernel",
    ]
    table += [f"{a:8} {r:9} {sh:7} {st:6} {lo:6}  {shown(n)}" for a, r, sh, st, lo, n in rows]
    options.output.write_text("\n".join(table) + "\n")

    for arch in sorted({r[0] for r in rows}):
        registers = [r[1] for r in rows if r[0] == arch]
        print(f"{arch}: {len(registers)} kernels, {min(registers)} to {max(registers)} registers")
    failed = len(bad_names)
    if not rows:
        print("FAIL no kernel found in the library")
        failed += 1
    print(f"{max(len(rows) - failed, 0)} passed, {failed} failed, 0 skipped")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
