#!/usr/bin/env python3
"""Writes the header cuda/wgmma.h: a function for each form of wgmma that MLA decode uses.

  make_wgmma.py FILE"""

import sys
from pathlib import Path

HEAD = """\
// Written by tools/make_wgmma.py. Products of a warpgroup on tensor cores, one instruction a
// function. sm_90a.
//
// d is the f32 accumulator of a 64 x n tile. a and b have 16-bit elements and 16 of the inner
// dimension. ss: a is a descriptor of shared memory; rs: a is in registers. t: b has its columns
// contiguous; at: a has its columns contiguous. With accumulate 0 the product replaces d.
#pragma once

#include <cstdint>

#include "core/common/dtype.h"

// clang-format off
namespace fastnorm::ptx {
"""

# Columns of the tile, a's place, and which operands have their columns contiguous.
FORMS = (
    (16, "ss", ""),
    (16, "ss", "at"),
    (64, "ss", ""),
    (64, "rs", ""),
    (128, "ss", "t"),
    (128, "rs", "t"),
    (256, "ss", "t"),
    (256, "rs", "t"),
)


def wrapped(words, indent, width=96):
    """The words with commas between, in lines."""
    lines, line = [], indent
    for i, word in enumerate(words):
        piece = word + ("," if i + 1 < len(words) else "")
        if len(line) + len(piece) > width:
            lines.append(line)
            line = indent
        line += piece
    return "\n".join([*lines, line])


def statement(n, place, contiguous, dtype):
    count, in_registers = n // 2, place == "rs"
    a = "{" + ",".join(f"%{count + i}" for i in range(4)) + "}" if in_registers else f"%{count}"
    b = count + (4 if in_registers else 1)
    of_a = "" if in_registers else f"{int(contiguous == 'at')}, "
    layout = of_a + f"{int(contiguous == 't')}"
    places = wrapped([f"%{i}" for i in range(count)], "").split("\n")
    listed = "\n".join(f'        "{line}"' for line in places)
    inputs = ['"r"(a[0])', '"r"(a[1])', '"r"(a[2])', '"r"(a[3])'] if in_registers else ['"l"(a)']
    outputs = wrapped([f'"+f"(d[{i}])' for i in range(count)], " " * 10).lstrip()
    return f"""    asm volatile(
        "{{\\n.reg .pred accumulate;\\nsetp.ne.b32 accumulate, %{b + 1}, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{dtype}.{dtype} {{"
{listed}
        "}}, {a}, %{b}, accumulate, 1, 1, {layout};\\n}}"
        : {outputs}
        : {", ".join(inputs)}, "l"(b), "r"(accumulate));
"""


def function(n, place, contiguous):
    name = "_".join(filter(None, (f"wgmma_n{n}", place, contiguous)))
    a = "const uint32_t* a" if place == "rs" else "uint64_t a"
    return f"""
template <Dtype kDtype>
__device__ __forceinline__ void {name}(float (&d)[{n // 2}], {a}, uint64_t b, int accumulate) {{
  if constexpr (kDtype == Dtype::kBF16) {{
{statement(n, place, contiguous, "bf16")}  }} else {{
    static_assert(kDtype == Dtype::kF16);
{statement(n, place, contiguous, "f16")}  }}
}}
"""


def main():
    text = (
        HEAD
        + "".join(function(*form) for form in FORMS)
        + "\n}  // namespace fastnorm::ptx\n// clang-format on\n"
    )
    if len(sys.argv) != 2:
        sys.exit(f"make_wgmma.py: {len(sys.argv) - 1} arguments; required: the file to write")
    Path(sys.argv[1]).write_text(text)


main()
