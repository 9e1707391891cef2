#!/usr/bin/env python3
"""Tests of go_public.py: a new field needs nothing by hand, comments get Go's names, and what has
no rule stops the generator.

  go_test.py"""

import copy
import sys
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests" / "abi")]
import go  # noqa: E402
import go_public  # noqa: E402
import tree as headers  # noqa: E402
from cases import Cases  # noqa: E402

TENSOR = headers.Pointer(headers.Named("fastnorm_tensor"), True)
# A field of fastnorm_norm_backward_args, and what Go has of it.
FIELDS = [
    (
        headers.Field("dextra_in", TENSOR, "As dx, f32. Not with ACCUMULATE_DBIAS. NULL = none."),
        "// As DX, F32. Not with NormBackwardAccumulateDBias. Not given: none.\n"
        "\tDextraIn Tensor\n",
        "q.tensor(part, raw.NormBackwardBitDextraIn, &d.DextraIn)",
    ),
    (
        headers.Field("turns", headers.Named("int32_t"), "How often; 0 = never."),
        "// How often; 0 = never.\n\tTurns int\n",
        "w[raw.NormBackwardTurns] = uint64(clip(d.Turns))",
    ),
    (
        headers.Field("speed", headers.Named("double"), "Of `x`: see fastnorm_norm_args.gate_act."),
        "// Of X: see [Norm].GateAct.\n\tSpeed float64\n",
        "w[raw.NormBackwardSpeed] = math.Float64bits(d.Speed)",
    ),
    (
        headers.Field("more_act", headers.Named("fastnorm_activation"), "Default: IDENTITY."),
        "// Default: ActivationIdentity.\n\tMoreAct Activation\n",
        "w[raw.NormBackwardMoreAct] = uint64(d.MoreAct)",
    ),
]
NO_RULE = [
    (
        headers.Field("odd", headers.Named("float"), "As fastnorm_nothing says."),
        "no name in Go for fastnorm_nothing",
    ),
    (
        headers.Field("flags", headers.Named("uint32_t"), "Bits of something."),
        "names no enum: Bits of something.",
    ),
]


def with_field(tree, field):
    tree = copy.deepcopy(tree)
    tree.find("fastnorm_norm_backward_args").fields.append(field)
    return tree


def args_of(tree):
    return go.gofmt(go_public.texts(tree, go.GENERATED)["args.go"])


def main():
    cases, tree = Cases(), headers.load()
    if go.gofmt("package a\n") is None:
        cases.skip("go_public.py", "there is no gofmt")
        cases.finish()
    before = args_of(tree).splitlines()
    for field, declared, encoded in FIELDS:
        text = args_of(with_field(tree, field))
        cases.check(f"{field.name} is declared", declared in text, text)
        cases.check(f"{field.name} is encoded", f"\t{encoded}\n" in text, text)
        cases.check(
            f"{field.name}: the rest is the same", not set(before) - set(text.splitlines())
        )
    for field, wanted in NO_RULE:
        error = None
        try:
            args_of(with_field(tree, field))
        except headers.TreeError as stop:
            error = str(stop)
        cases.check(f"stops at: {field.doc}", error is not None and wanted in error, error)
    scope = go_public.Scope(tree, "norm", tree.find("fastnorm_norm_args"))
    for c, go_text in (
        ("x's shape, T or bf16. NULL = 1.", "X's shape, T or BF16. Not given: 1."),
        ("Input; NULL = 1. y may be NULL.", "Input; not given: 1. Y need not be given."),
        ("x.shape[:-1] or f8_e4m3fn", "X's shape without its last extent or F8E4M3FN"),
        ("quant.quantized, and a scale of PER_ROW", "Quant.Out, and a scale of QuantPerRow"),
        ("more are FASTNORM_ERROR_LAYOUT.", "more are [ErrLayout]."),
        ("FASTNORM_GATE_FROM_F32 on CUDA", "GateFromF32 on CUDA"),
    ):
        cases.equal(c, scope.say(c), go_text)
    cases.finish()


main()
