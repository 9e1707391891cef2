#!/usr/bin/env python3
"""One hash of the machine code of every GPU kernel of an object or a library, and the comparison of
two.

    tools/sass_hash.py OBJECT... --output FILE     one line a kernel: its name, its registers, its
    hash
    tools/sass_hash.py --compare BEFORE AFTER      tells apart equal, different and missing kernels

A kernel's name is what it is made for (bf16 add rms once store vector 128x4), so that mangled names
may change. Hashed are the instructions and the launch bounds' registers, not addresses in the
listing or encodings of names.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

from kernel_report import demangle, find_cuobjdump, numbers_of, read_kernels

# What the numbers of a name stand for, as in src/core/norm/key.h.
WORDS = {
    "dtype": ("f32", "f16", "bf16"),
    "source": ("plain", "add"),
    "stat": ("rms", "layer"),
    "affine": ("once", "f32", "any"),
    "sink": ("store", "static", "quant"),
    "access": ("vector", "unaligned", "any"),
    "beside": ("general", "bare", "bare-cs", "rounded", "rounded-cs", "bare-sm"),
}


def readable(demangled):
    """The entry's name, and the form of the grid where it is not one of rows; the demangled name of
    other kernels."""
    numbers = numbers_of(demangled)
    if not numbers:
        return demangled
    words = [names[numbers[what]] for what, names in WORDS.items()]
    tile = f"{numbers['threads']}x{numbers['vectors']}x{numbers['blocks']}"
    form = re.search(r"GridForm\)(\d)", demangled)
    return " ".join(
        [f"arch {numbers['arch']}", *words, tile, *([f"form {form[1]}"] if form else [])]
    )


def instructions(cuobjdump, path):
    """{mangled name: hash of its instructions}."""
    # It calls nvdisasm, which lies beside it where neither is on PATH.
    search = os.pathsep.join([os.path.dirname(cuobjdump), os.environ["PATH"]])
    hashes, of = {}, None
    with subprocess.Popen([cuobjdump, "-sass", str(path)], stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "PATH": search}) as listing:
        for line in listing.stdout:
            if match := re.match(r"\s*Function : (\S+)", line):
                of = hashes.setdefault(match[1], hashlib.sha256())
            elif of is not None and (
                match := re.match(
                    r"\s*(?:/\*[0-9a-f]{4,}\*/\s+(.*?;))?\s*/\* (0x[0-9a-f]+) \*/", line
                )
            ):
                of.update(f"{match[1] or ''} {match[2]}\n".encode())
    if listing.returncode != 0:
        sys.exit(f"{cuobjdump} -sass {path}: exit code {listing.returncode}")
    return {name: digest.hexdigest()[:16] for name, digest in hashes.items()}


def list_kernels(cuobjdump, paths):
    lines = []
    for path in paths:
        uses = {name: use for _, name, use in read_kernels(cuobjdump, path)}
        hashes = instructions(cuobjdump, path)
        for mangled, name in zip(hashes, demangle(hashes)):
            lines.append(f"{readable(name)}|{uses[mangled]['REG']}|{hashes[mangled]}")
    return sorted(lines)


def compare(before, after, sample):
    """Prints what differs, and counts. Returns whether nothing does; of a sample, nothing that both
    have."""
    old, new = (
        {line.split("|")[0]: line.split("|")[1:] for line in path.read_text().splitlines()}
        for path in (before, after)
    )
    both = sorted(old.keys() & new.keys())
    different = [name for name in both if old[name] != new[name]]
    for name in different:
        print(f"different: {name}: registers {old[name][0]} -> {new[name][0]}")
    for what, names in (("before", old.keys() - new.keys()), ("after", new.keys() - old.keys())):
        for name in [] if sample else sorted(names):
            print(f"{what} alone: {name}")
    print(
        f"{len(both) - len(different)} equal, {len(different)} different, {len(old) - len(both)} before alone, "
        f"{len(new) - len(both)} after alone"
    )
    return bool(both) and not different and (sample or len(old) == len(new) == len(both))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("objects", type=Path, nargs="*")
    parser.add_argument("--output", type=Path, help="file for the hashes")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"))
    parser.add_argument(
        "--sample",
        action="store_true",
        help="one of the two has a part of the kernels (FASTNORM_SAMPLE)",
    )
    parser.add_argument("--native-file", type=Path, help="Meson native file that names nvcc")
    options = parser.parse_args()
    if options.compare:
        return not compare(*options.compare, options.sample)
    if not options.objects or not options.output:
        parser.error("objects and --output, or --compare")
    cuobjdump = find_cuobjdump(options.native_file)
    if cuobjdump is None:
        sys.exit(
            "no cuobjdump: it comes with a CUDA toolkit, and with tools/setup where there is none"
        )
    lines = list_kernels(cuobjdump, options.objects)
    options.output.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} kernels")
    return not lines


if __name__ == "__main__":
    sys.exit(main())
