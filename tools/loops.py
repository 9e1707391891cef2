#!/usr/bin/env python3
"""Instructions of GPU kernels' loops, counted from their machine code: no GPU is needed.

    tools/loops.py FILE [--match REGEX]   every kernel of a library or object: its loops, their
                                          instructions and commonest opcodes
    tools/loops.py PRODUCT --beside LAB   the step of norm_backward's persistent kernels beside the
                                          laboratory's, for the tiles that both have

A loop is what the flow can come back to, with the loops inside. The work of a norm is FMUL, FFMA
and FADD. Address arithmetic shows as IMAD, LOP3 and IADD3. Options that are asked at run time show
as BRA, ISETP and SEL.

PRODUCT is libfastnorm.so.1, or the archive of one dtype's kernels, which builds in minutes:
src/cuda/libnorm_backward_sm90_bf16.a. LAB is libfastnorm_lab.so. With --bound the exit code is 1
where a step of the product has more than so many times the laboratory's instructions.
"""

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from kernel_report import demangle, find_cuobjdump

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "src" / "core"
SHOWN_LOOPS, SHOWN_OPCODES = 3, 12


def disassembly(cuobjdump, path):
    # It calls nvdisasm, which lies beside it where neither is on PATH.
    search = os.pathsep.join([os.path.dirname(cuobjdump), os.environ["PATH"]])
    done = subprocess.run([cuobjdump, "-sass", str(path)], capture_output=True, text=True,
                          env={**os.environ, "PATH": search})
    if done.returncode != 0:
        sys.exit(f"{cuobjdump} -sass {path}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def kernels_of(text):
    """{mangled name: [(address, instruction)]} of a disassembly."""
    kernels, code = {}, None
    for line in text.splitlines():
        if match := re.search(r"Function : (\S+)", line):
            code = kernels.setdefault(match[1], [])
        elif code is not None and (match := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", line)):
            code.append((int(match[1], 16), match[2]))
    return kernels


def opcode(instruction):
    """FFMA of "@!P0 FFMA.FTZ R1, .."."""
    return re.sub(r"^@!?U?P\w+\s+", "", instruction).split()[0].split(".")[0]


def successors_of(code):
    """[places where the flow goes on] of each instruction of a kernel."""
    place = {address: i for i, (address, _) in enumerate(code)}
    meets, found = {}, []  # where the threads of a convergence barrier go on
    for i, (_, instruction) in enumerate(code):
        name, conditional = opcode(instruction), instruction.startswith("@")
        address = re.search(r"0x([0-9a-f]+)$", instruction)
        target = place.get(int(address[1], 16)) if address else None
        barrier = re.search(r"\bB\d+\b", instruction)
        after = [i + 1] if i + 1 < len(code) else []
        if name == "BSSY" and barrier:
            meets[barrier[0]] = target
        if name == "BRA" and target is not None:
            # Without a predicate the address is the only operand.
            conditional = conditional or "," in instruction
            found.append([target] + (after if conditional else []))
        elif name == "BSYNC" and barrier and meets.get(barrier[0]) is not None:
            found.append([meets[barrier[0]]] + (after if conditional else []))
        elif name in ("EXIT", "RET") and not conditional:
            found.append([])
        else:
            found.append(after)
    return found


def reached(first, edges, within):
    """All places in `within` that can be reached from one, itself included."""
    found, todo = {first}, [first]
    while todo:
        for place in edges[todo.pop()]:
            if place in within and place not in found:
                found.add(place)
                todo.append(place)
    return found


def loops_of(code):
    """Counter of opcodes of each loop that is in no other, the longest first: of instructions from
    which the flow can come back. Where they lie in memory does not matter."""
    after = successors_of(code)
    before = [[] for _ in code]
    for i, places in enumerate(after):
        for place in places:
            before[place].append(i)
    left, found = set(range(len(code))), []
    for i in range(len(code)):
        # A branch backwards is in every loop; one to itself fills the end of a kernel.
        if i in left and any(place < i for place in after[i]):
            loop = reached(i, after, left) & reached(i, before, left)
            left -= loop
            if len(loop) > 1:
                found.append(Counter(opcode(code[place][1]) for place in loop))
    return sorted(found, key=Counter.total, reverse=True)


def layout_of(header):
    """[(field, bits)] of numbers() in norm_backward/plan.h, from the word's highest bits on."""
    body = re.search(r"void numbers\(.*?}\n", header, re.S)
    return [(name, int(bits)) for name, bits in re.findall(r"use\(v\.(\w+), (\d+)\)", body[0])]


def names_of(header, enum):
    """The enumerators of an enum class, without comments and values."""
    body = re.search(rf"enum class {enum} .*?{{(.*?)}};", header, re.S)[1]
    return re.findall(r"\bk\w+", re.sub(r"//.*", "", body))


def decoded(word, layout):
    fields = {}
    for name, bits in reversed(layout):
        fields[name] = word & ((1 << bits) - 1)
        word >>= bits
    return fields


def product_tile(name, header):
    """What a kernel of the product does that takes many bf16 rows, without inputs besides x and dy;
    or None. header: the text of dtype.h and norm_backward_plan.h."""
    match = re.search(r"norm_backward\w*<\d+, (\d+)ul", name)
    if not match:
        return None
    v = decoded(int(match[1]), layout_of(header))
    for field, enum in (("dtype", "Dtype"), ("input", "BackwardInput")):
        v[field] = names_of(header, enum)[v[field]]
    if (v["dtype"], v["input"], v["blocks"]) != ("kBF16", "kPlain", 1):
        return None
    if v["vectors"] == 0 or v["chains"] != 0:  # the general forms, and the kernels of few rows
        return None
    waits = {0: "nowhere", 1: "registers"}.get(v["stages"], f"ring{v['stages']}")
    return tile_name(v["stat"], v["threads"], v["vectors"], v["lanes"], 1, waits)


def lab_tile(name):
    """The same of the laboratory's kernel; or None."""
    if match := re.search(r"long_rows_kernel<\(?[\w: ]*\)?(\d), (.*?)>", name):
        numbers = [re.sub(r"\(.*?\)", "", n).strip() for n in match[2].split(",")]
        threads, vectors, lanes, unroll, waits, stages = map(int, numbers[:6])
        rereads, one_warp, streaming = (n in ("true", "1") for n in numbers[6:])
        waits = ("registers", f"ring{stages}", f"bulk{stages}")[waits]
        return tile_name(int(match[1]), threads, vectors, lanes, unroll, waits, rereads, one_warp,
                         streaming)
    if match := re.search(r"short_rows_kernel<\(?[\w: ]*\)?(\d), (.*?)>", name):
        threads, vectors, block, unroll = (
            int(re.sub(r"\(.*?\)", "", n)) for n in match[2].split(",")
        )
        return tile_name(int(match[1]), threads, vectors, block // threads, unroll, "registers")
    return None


def tile_name(norm, threads, vectors, lanes, unroll, waits, rereads=False, one_warp_folds=False,
              streaming_stores=False):
    """As the laboratory names its kernels: "rms 64x2 8x1 ring4"."""
    words = [("rms", "layer")[norm], f"{threads}x{vectors}", f"{lanes}x{unroll}", waits]
    words += ["rereads"] * rereads + ["one-warp"] * one_warp_folds + ["cs"] * streaming_stores
    return " ".join(words)


def steps_of(kernels, tile_of):
    """{tile: opcodes of a step} of the kernels that have a tile. A step is a loop that loads and
    stores rows. Of a kernel's several loops for the same work the leanest counts: the common call
    runs on it."""
    found = {}
    for name, code in zip(demangle(kernels), kernels.values()):
        tile, loops = tile_of(name), loops_of(code)
        steps = [o for o in loops if o["STG"] and (o["LDG"] or o["LDGSTS"] or o["UBLKCP"])]
        for step in (steps or loops[:1]) if tile is not None else []:
            found[tile] = min(found.get(tile, step), step, key=Counter.total)
    return found


def shown(opcodes, count=SHOWN_OPCODES):
    return " ".join(f"{name} {n}" for name, n in opcodes.most_common(count))


def beside(product, lab, bound):
    """Prints the tiles that both have; the exit code."""
    shared = sorted(product.keys() & lab.keys())
    above = 0
    for tile in shared:
        own, other = product[tile], lab[tile]
        ratio = own.total() / other.total()
        missed = bound is not None and ratio > bound
        above += missed
        print(f"{tile}: {own.total()} instructions, laboratory {other.total()}: {ratio:.2f}"
              + (" ABOVE" if missed else ""))
        more = own - other
        if more:
            print(f"    more by {shown(more)}")
    print(f"{len(shared)} tiles of both, {len(product) - len(shared)} of the product alone, "
          f"{len(lab) - len(shared)} of the laboratory alone"
          + ("" if bound is None else f"; {above} above {bound:g}"))
    return 1 if above or not shared else 0


def listing(kernels, wanted):
    for name, code in zip(demangle(kernels), kernels.values()):
        if not re.search(wanted, name):
            continue
        print(f"{name}: {len(code)} instructions")
        for opcodes in loops_of(code)[:SHOWN_LOOPS]:
            print(f"    loop of {opcodes.total()}: {shown(opcodes)}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--match", default="", help="only kernels whose name has this expression")
    parser.add_argument("--beside", type=Path, metavar="LAB", help="libfastnorm_lab.so")
    parser.add_argument("--bound", type=float, help="most of the laboratory's instructions")
    parser.add_argument("--native-file", type=Path, help="Meson native file that names nvcc")
    options = parser.parse_args()
    for path in filter(None, (options.file, options.beside)):
        if not path.is_file():
            parser.error(f"{path} is no file; required: a library or an object with GPU kernels")
    cuobjdump = find_cuobjdump(options.native_file)
    if not cuobjdump:
        parser.error("no cuobjdump on PATH; required: that, or --native-file .venv/native.ini")
    kernels = kernels_of(disassembly(cuobjdump, options.file))
    if not options.beside:
        return listing(kernels, options.match)
    header = "".join((CORE / name).read_text() for name in ("common/dtype.h", "norm_backward/plan.h"))
    product = steps_of(kernels, lambda name: product_tile(name, header))
    return beside(product, steps_of(kernels_of(disassembly(cuobjdump, options.beside)), lab_tile),
                  options.bound)


if __name__ == "__main__":
    sys.exit(main())
