#!/usr/bin/env python3
"""Tests of tools/loops.py on a disassembly and names that were written by hand."""

import contextlib
import io
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "abi"), str(ROOT / "tools")]
import loops  # noqa: E402
from cases import Cases  # noqa: E402

# Two kernels. The first has a step of 9 instructions with a loop of 3 inside. One of the step's
# instructions lies behind the kernel's end. The last branch, to itself, is no loop.
TEXT = """
	code for sm_90
		Function : _Zfirst
	.headerflags	@"EF_CUDA_SM90"
        /*0000*/  LDC R1, c[0x0][0x28] ;  /* 0x00000a00ff017b82 */
                                        /* 0x000fe20000000800 */
        /*0010*/  FADD.FTZ R2, R3, R4 ;  /* 0x0000000403027221 */
        /*0020*/  @!P0 BRA 0xb0 ;  /* 0x0000000000d87947 */
        /*0030*/  FFMA R2, R3, R4, R5 ;  /* 0x0000000403027221 */
        /*0040*/  @!UP1 IMAD.WIDE R6, R7, 0x8, R8 ;  /* 0x0000000807067825 */
        /*0050*/  BRA P2, 0x30 ;  /* 0x0000000000d87947 */
        /*0060*/  FADD R2, R3, R4 ;  /* 0x0000000403027221 */
        /*0070*/  @P0 BRA 0x10 ;  /* 0xfffffffc00947947 */
        /*0080*/  BRA 0x90 ;  /* 0xfffffffc00947947 */
        /*0090*/  STG R2 ;  /* 0xfffffffc00947947 */
        /*00a0*/  EXIT ;  /* 0x000000000000794d */
        /*00b0*/  MUFU R2, R3 ;  /* 0x0000000403027221 */
        /*00c0*/  BRA 0x30 ;  /* 0xfffffffc00947947 */
        /*00d0*/  BRA 0xd0;  /* 0xfffffffc00fc7947 */
		Function : _Zsecond
        /*0000*/  BSSY B0, 0x50 ;  /* 0x000000000000794d */
        /*0010*/  @P0 BRA 0x60 ;  /* 0x000000000000794d */
        /*0020*/  FFMA R2, R3, R4, R5 ;  /* 0x000000000000794d */
        /*0030*/  BSYNC B0 ;  /* 0x000000000000794d */
        /*0040*/  STG R2 ;  /* 0x000000000000794d */
        /*0050*/  EXIT ;  /* 0x000000000000794d */
        /*0060*/  BRA 0x30 ;  /* 0x000000000000794d */
"""

# A word of 2 + 2 + 3 bits.
HEADER = """
enum class Form : uint8_t {
  kFold,  // kNothing of this
  kPersistent,
};
  static constexpr void numbers(auto& v, auto use) {
    use(v.dtype, 2), use(v.form, 2);
    use(v.threads, 3);
  }
"""

LAB_NAMES = {
    "void lab::long_rows_kernel<(lab::Norm)0, 640, 1, 1, 2, (lab::Input)0, 1, false, false, "
    "false>(lab::Params)": "rms 640x1 1x2 registers",
    "void lab::long_rows_kernel<(lab::Norm)1, 256, 2, 2, 1, (lab::Input)1, 3, true, false, "
    "true>(lab::Params)": "layer 256x2 2x1 ring3 rereads cs",
    "void lab::long_rows_kernel<(lab::Norm)0, 512, 2, 1, 1, (lab::Input)2, 2, false, true, "
    "false>(lab::Params)": "rms 512x2 1x1 bulk2 one-warp",
    "void lab::short_rows_kernel<(lab::Norm)1, 8, 2, 512, 1>(lab::Params)":
        "layer 8x2 64x1 registers",
    "lab::fold_kernel(lab::Params, int)": None,
}


def word(header, **numbers):
    """A word of the product, by the fields' bits in the order in which they are put."""
    value = 0
    for name, bits in loops.layout_of(header):
        value = value << bits | numbers.pop(name, 0)
    assert not numbers, numbers
    return f"void norm_backward_kernel<90, {value}ul>(NormBackwardParams)"


def test_loops(cases):
    kernels = loops.kernels_of(TEXT)
    cases.equal("kernels and their instructions", {k: len(v) for k, v in kernels.items()},
                {"_Zfirst": 14, "_Zsecond": 7})
    cases.equal("an instruction", kernels["_Zfirst"][4], (0x40, "@!UP1 IMAD.WIDE R6, R7, 0x8, R8"))
    cases.equal("without a space before the point", kernels["_Zfirst"][-1], (0xD0, "BRA 0xd0"))
    cases.equal("the step, with the loop inside and what lies elsewhere",
                loops.loops_of(kernels["_Zfirst"]),
                [Counter(FADD=2, BRA=4, FFMA=1, IMAD=1, MUFU=1)])
    cases.equal("where the flow goes on", loops.successors_of(kernels["_Zfirst"]),
                [[1], [2], [11, 3], [4], [5], [3, 6], [7], [1, 8], [9], [10], [], [12], [3], [13]])
    cases.equal("a branch backwards without a loop", loops.loops_of(kernels["_Zsecond"]), [])
    cases.equal("threads meet", loops.successors_of(kernels["_Zsecond"])[3], [5])
    for text, wanted in (("FFMA R1, R2", "FFMA"), ("@P0 LDG.E.128 R1", "LDG"),
                         ("@!UP0 UMOV UR4, 0x1", "UMOV"), ("@!PT LDS RZ", "LDS")):
        cases.equal(f"opcode of {text}", loops.opcode(text), wanted)


def test_tiles(cases):
    layout = loops.layout_of(HEADER)
    cases.equal("the layout of a word", layout, [("dtype", 2), ("form", 2), ("threads", 3)])
    cases.equal("a word's numbers", loops.decoded(0b10_01_101, layout),
                {"dtype": 2, "form": 1, "threads": 5})
    cases.equal("names of an enum", loops.names_of(HEADER, "Form"), ["kFold", "kPersistent"])
    for name, wanted in LAB_NAMES.items():
        cases.equal(f"laboratory: {wanted}", loops.lab_tile(name), wanted)
    # With the headers as they are: a kernel of many bf16 rows that reads x and dy alone.
    files = ("common/dtype.h", "norm_backward/plan.h")
    header = "".join((loops.CORE / name).read_text() for name in files)
    form = loops.names_of(header, "BackwardForm").index("kPersistent")
    tile = {"dtype": 2, "form": form, "threads": 256, "vectors": 2, "blocks": 1, "lanes": 2,
            "stages": 3}
    for more, wanted in (({}, "rms 256x2 2x1 ring3"),
                         ({"stat": 1, "stages": 1}, "layer 256x2 2x1 registers"),
                         ({"dtype": 1}, None), ({"blocks": 2}, None), ({"input": 1}, None),
                         ({"vectors": 0}, None), ({"chains": 2}, None)):
        found = loops.product_tile(word(header, **{**tile, **more}), header)
        cases.equal(f"product: {more}", found, wanted)
    cases.equal("product: another kernel", loops.product_tile("norm_kernel<90, 5ul>", header), None)


def printed(*given):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = loops.beside(*given)
    return code, out.getvalue()


def test_beside(cases):
    lab = {"a": Counter(FFMA=80, IMAD=20), "b": Counter(FFMA=100), "c": Counter(FFMA=1)}
    product = {"a": Counter(FFMA=80, IMAD=30, BRA=5), "b": Counter(FFMA=116), "d": Counter(FADD=1)}
    wanted = """a: 115 instructions, laboratory 100: 1.15
    more by IMAD 10 BRA 5
b: 116 instructions, laboratory 100: 1.16 ABOVE
    more by FFMA 16
2 tiles of both, 1 of the product alone, 1 of the laboratory alone; 1 above 1.15
"""
    cases.equal("side by side", printed(product, lab, 1.15), (1, wanted))
    cases.equal("within the bound", printed(product, lab, 1.16)[0], 0)
    cases.equal("no bound", printed(product, lab, None)[0], 0)
    cases.equal("nothing to compare is a failure", printed({}, lab, 1.15)[0], 1)


def main():
    cases = Cases()
    for test in (test_loops, test_tiles, test_beside):
        test(cases)
    cases.finish()


main()
