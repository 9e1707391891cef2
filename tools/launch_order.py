#!/usr/bin/env python3
"""Whether the GPU kernels of a built library keep the order of programmatic dependent launch.

A kernel may start before the stream's previous one has ended. So each of its threads waits
(ACQBULK) before it reads or writes global memory, before it lets the next kernel start (PREEXIT),
and before it ends: the next kernel takes it that everything before this one has ended. The program
follows every path through the finished code. A wait under a predicate counts as one, because the
predicate says whether the call waits at all. Kernels of architectures that have no dependent launch
are skipped.

  launch_order.py BINARY [BINARY ..]   the kernels of libraries, archives or object files
"""

import argparse
import re
import sys
from pathlib import Path

from kernel_report import demangle, find_cuobjdump
from loops import disassembly, opcode, successors_of

LEAST_ARCH = 90
WAIT, TRIGGER = "ACQBULK", "PREEXIT"
GLOBAL = {"LD", "LDG", "LDGSTS", "ST", "STG", "RED", "REDG", "ATOM", "ATOMG", "UBLKCP", "UBLKRED",
          "UTMALDG", "UTMASTG", "UTMAREDG"}
# What may be read ahead of the wait, by kernel. The merge of MLA decode reads the plan, which was
# complete when the attention kernel before it let it start.
MAY_READ = re.compile(r"mla_decode_merge_kernel")
READS = {"LD", "LDG"}


def kernels_of(text):
    """[(arch, mangled name, [(address, instruction)])] of a disassembly."""
    kernels, arch = [], 0
    for line in text.splitlines():
        if match := re.search(r"code for sm_(\d+)", line):
            arch = int(match[1])
        elif match := re.search(r"Function : (\S+)", line):
            kernels.append((arch, match[1], []))
        elif kernels and (
            match := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", line)
        ):
            kernels[-1][2].append((int(match[1], 16), match[2]))
    return kernels


def jumped_waits(code, after):
    """Places of branches that skip a wait and nothing else: the call does not wait there."""
    found = set()
    for i, places in enumerate(after):
        if len(places) == 2 and opcode(code[i][1]) == "BRA":
            target, following = places
            skipped = range(following, target) if target > following else ()
            names = [opcode(code[k][1]) for k in skipped]
            if WAIT in names and len(names) <= 4 and not {"BRA", "EXIT", "RET"} & set(names):
                found.add(i)
    return found


def faults_of(name, code):
    """What a kernel does ahead of its wait, in words."""
    after = successors_of(code)
    waits = jumped_waits(code, after)
    found, seen, todo = [], set(), [0] if code else []
    while todo:
        place = todo.pop()
        if place in seen:
            continue
        seen.add(place)
        address, instruction = code[place]
        what = opcode(instruction)
        if what == WAIT or place in waits:
            continue
        if what == TRIGGER:
            found.append(f"lets the next kernel start at 0x{address:x}")
        elif what == "EXIT":
            found.append(f"ends at 0x{address:x}")
        elif what in GLOBAL and not (what in READS and MAY_READ.search(name)):
            found.append(f"{instruction.split(' ;')[0]} at 0x{address:x}")
        todo += after[place]
    return sorted(found)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("binary", type=Path, nargs="+")
    parser.add_argument("--native-file", type=Path, help="names an nvcc; cuobjdump is beside it")
    options = parser.parse_args()
    cuobjdump = find_cuobjdump(options.native_file)
    if not cuobjdump:
        sys.exit("no cuobjdump on PATH, and none beside the nvcc of --native-file")
    kernels = [k for path in options.binary for k in kernels_of(disassembly(cuobjdump, path))]
    checked = triggers = failed = 0
    for arch, name, code in kernels:
        if arch < LEAST_ARCH:
            continue
        checked += 1
        triggers += any(opcode(instruction) == TRIGGER for _, instruction in code)
        if faults := faults_of(name, code):
            failed += 1
            print(f"FAIL {demangle([name])[0]}: ahead of the wait: {'; '.join(faults[:4])}")
    print(f"{triggers} of {checked} kernels let the next one start")
    print(f"{checked - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
