"""The tests of the operators and of rewrite(), inside an environment that has ONNX Runtime. The
last line is the count. test.py makes the environment."""

import copy
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [
    str(HERE), str(ROOT / "packages" / "python"), str(ROOT / "examples"), str(ROOT / "tests/abi")
]
import ml_dtypes  # noqa: E402,F401
import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime as ort  # noqa: E402
from models import DOMAIN, Maker, block, feeds, one_operator, session  # noqa: E402
from norm_testing import Cases, Exact, round_to  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

import fastnorm.onnxruntime as fn  # noqa: E402

F32 = TensorProto.FLOAT
KIND = {"float32": F32, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
# What a norm of ORT may be away from ours: of the values' magnitude, with ORT's own summation.
NEAR = {"float32": 2e-6, "float16": 2e-3}
ON_GPU = False  # suite_cuda.py says True
VERSION = tuple(int(part) for part in ort.__version__.split(".")[:2])
cases = Cases()


def normal(rng, *shape, dtype="float32", scale=1.0, offset=0.0):
    """Values of a dtype, in single precision."""
    values = rng.standard_normal(shape).astype(np.float32) * scale + offset
    return values.astype(np.dtype(dtype)).astype(np.float32)


def run(model, arrays, ours=True, threads=1):
    made = session(model, threads, ours)
    names = {i.name for i in made.get_inputs()}
    return made.run(None, {k: v for k, v in arrays.items() if k in names})


def wrong(found, wanted, near):
    """What is further away than `near` of the magnitude; ''."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    if found.shape != wanted.shape:
        return f"found {found.shape}, required {wanted.shape}"
    if found.size == 0:
        return ""
    error = np.abs(found - wanted)
    bound = near * (1 + np.abs(wanted))
    bad = int(np.sum(~(error <= bound)))
    return f"{bad} of {found.size} differ, by up to {np.max(error)}" if bad else ""


# --- rows ---

NORMS = {
    # name: (kind, ORT's domain, has a residual)
    "LayerNormalization": ("layer", "", False),
    "SimplifiedLayerNormalization": ("rms", "", False),
    "RMSNormalization": ("rms", "", False),
    "SkipLayerNormalization": ("layer", "com.microsoft", True),
    "SkipSimplifiedLayerNormalization": ("rms", "com.microsoft", True),
}
SHAPES = [(1, 1, 64), (2, 5, 37), (3, 1, 1), (1, 3, 1029), (1, 1, 4096)]


def arrays_of(op, dtype, shape, rng, weight_dtype=None):
    kind, _, skip = NORMS[op]
    weight_dtype = weight_dtype or dtype
    n = shape[-1]
    arrays = {"x": normal(rng, *shape, dtype=dtype, scale=2.0, offset=0.5)}
    if skip:
        arrays["skip"] = normal(rng, *shape, dtype=dtype)
    arrays["weight"] = normal(rng, n, dtype=weight_dtype, scale=0.3, offset=1.0)
    if kind == "layer":
        arrays["bias"] = normal(rng, n, dtype=weight_dtype)
    return arrays


def outputs_of(op, dtype, statistics):
    kind, _, skip = NORMS[op]
    outputs = {"y": KIND[dtype]}
    if skip:
        outputs["mean"] = F32 if statistics and kind == "layer" else None
        outputs["rstd"] = F32 if statistics else None
        outputs["sum"] = KIND[dtype]
    elif statistics:
        outputs.update({"mean": F32} if kind == "layer" else {})
        outputs["rstd"] = F32
    return outputs


def check_rows():
    rng = np.random.default_rng(0)
    for op, (kind, domain, skip) in NORMS.items():
        for dtype in KIND:
            for shape in SHAPES:
                name = f"{op} {dtype} {shape}"
                arrays = arrays_of(op, dtype, shape, rng)
                model = one_operator(
                    op, DOMAIN, dtype, arrays, outputs_of(op, dtype, True), epsilon=1e-5
                )
                found = dict(zip([o.name for o in model.graph.output], run(model, arrays)))
                exact = Exact(
                    kind, arrays["x"], arrays["weight"], arrays.get("bias"), arrays.get("skip"),
                    eps=1e-5, dtype=dtype,
                )
                cases.check(f"{name}: y", exact.holds(found["y"].astype(np.float64)))
                s = exact.sums
                if kind == "layer":
                    cases.equal(f"{name}: mean", wrong(
                        found["mean"], s.mean(-1, keepdims=True), 1e-6), "")
                square = s.var(-1, keepdims=True) if kind == "layer" else (s**2).mean(
                    -1, keepdims=True)
                rstd = 1 / np.sqrt(square + float(np.float32(1e-5)))
                near = 2e-6 * (1 + float(np.max(rstd)))
                cases.equal(f"{name}: rstd", wrong(found["rstd"], rstd, near), "")
                if skip:
                    cases.check(f"{name}: sum", np.array_equal(found["sum"], round_to(s, dtype)))
                compare_with_ort(op, domain, dtype, shape, arrays, found["y"], exact.z)


def compare_with_ort(op, domain, dtype, shape, arrays, y, exact):
    """ORT's own operator: ours is near it, and no further from the exact result."""
    if dtype == "bfloat16" or shape[-1] == 1:
        return  # it has no kernel of bfloat16 on a CPU; of rows of one element it makes noise
    opset = 23 if op == "RMSNormalization" else 21
    outputs = {"y": KIND[dtype]}
    model = one_operator(op, domain, dtype, arrays, outputs, opset, epsilon=1e-5)
    model.ir_version = 10
    try:
        theirs = run(model, arrays, ours=False)[0]
    except Exception as error:
        cases.skip(f"{op} {dtype} {shape} beside ORT {ort.__version__}", str(error)[:90])
        return
    cases.equal(f"{op} {dtype} {shape}: beside ORT", wrong(y, theirs, NEAR[dtype]), "")
    ours, others = (np.max(np.abs(v.astype(np.float64) - exact)) for v in (y, theirs))
    step = 2.0**-23 if dtype == "float32" else 0.0
    cases.check(f"{op} {dtype} {shape}: error beside ORT's", ours <= others + step,
                f"{ours} beside {others}")


def check_variants():
    """Axes, parameters of other dtypes and shapes, ranks, and what the skip operators add."""
    rng = np.random.default_rng(1)
    for axis in (-1, -2, 1, 0):
        x = normal(rng, 3, 4, 10)
        inner = x.shape[axis if axis >= 0 else 3 + axis:]
        arrays = {"x": x, "weight": normal(rng, *inner), "bias": normal(rng, *inner)}
        outputs = {"y": F32, "mean": F32, "rstd": F32}
        model = one_operator("LayerNormalization", DOMAIN, "float32", arrays, outputs, axis=axis)
        theirs = one_operator("LayerNormalization", "", "float32", arrays, outputs, axis=axis)
        for name, a, b in zip(outputs, run(model, arrays), run(theirs, arrays, ours=False)):
            cases.equal(f"axis {axis}: {name}", wrong(a, b, 3e-6), "")
    # Parameters that broadcast in other ways than one row.
    x = normal(rng, 3, 4, 10)
    for weight, bias, axis in (
        ((4, 1), (1, 10), 1), ((1,), (10,), 2), ((3, 1, 10), (1, 4, 10), 2), ((1, 4, 10), (10,), 1),
        ((), (1, 1, 1), 0), ((4, 10), (3, 4, 10), 2),
    ):
        w, b = np.asarray(normal(rng, *weight)), np.asarray(normal(rng, *bias))
        axes = tuple(range(axis, 3))
        mean, var = x.mean(axes, keepdims=True), x.astype(np.float64).var(axes, keepdims=True)
        wanted = (x - mean) / np.sqrt(var + 1e-5) * w + b
        arrays = {"x": x, "weight": w, "bias": b}
        model = one_operator("LayerNormalization", DOMAIN, "float32", arrays, {"y": F32}, axis=axis)
        name = f"weight {weight}, bias {bias}, axis {axis}"
        inner = [((1, 1, 1) + shape)[-3:][axis:] for shape in (weight, bias)]
        if ON_GPU and inner != [x.shape[axis:]] * 2:
            cases.check(name, *refused(model, arrays, ["on a GPU; supported: all of them"]))
            continue
        found = run(model, arrays)[0]
        cases.equal(name, wrong(found, wanted, 3e-6), "")
    # Parameters in single precision beside 16-bit rows.
    for dtype in ("float16", "bfloat16"):
        arrays = arrays_of("RMSNormalization", dtype, (2, 3, 80), rng, "float32")
        model = one_operator(
            "RMSNormalization", DOMAIN, dtype, arrays, {"y": KIND[dtype]},
            parameters={"weight": "float32"},
        )
        exact = Exact("rms", arrays["x"], arrays["weight"], eps=1e-5, dtype=dtype)
        y = run(model, arrays)[0].astype(np.float64)
        cases.check(f"{dtype} with weights in f32", exact.holds(y))
    # The normalised row is rounded before the weight, as the chain of a 16-bit model does.
    arrays = arrays_of("RMSNormalization", "float16", (4, 96), rng)
    model = one_operator(
        "RMSNormalization", DOMAIN, "float16", arrays, {"y": KIND["float16"]}, rounding=1
    )
    exact = Exact("rms", arrays["x"], arrays["weight"], eps=1e-5, dtype="float16",
                  rounding="normalized")
    cases.check("rounding 1", exact.holds(run(model, arrays)[0].astype(np.float64)))
    for rank in (1, 2, 6, 9):
        shape = (2,) * (rank - 1) + (24,)
        arrays = arrays_of("RMSNormalization", "float32", shape, rng)
        y = run(one_operator("RMSNormalization", DOMAIN, "float32", arrays, {"y": F32}), arrays)[0]
        exact = Exact("rms", arrays["x"], arrays["weight"], eps=1e-5)
        cases.check(f"rank {rank}", exact.holds(y.astype(np.float64)))


def check_skips():
    rng = np.random.default_rng(2)
    for op in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"):
        layer = op == "SkipLayerNormalization"
        for dtype in ("float32", "float16"):
            for skip in ((2, 3, 48), (1, 3, 48), (3, 48), (48,)):
                arrays = arrays_of(op, dtype, (2, 3, 48), rng)
                arrays["skip"] = normal(rng, *skip, dtype=dtype)
                arrays["row_bias"] = normal(rng, 48, dtype=dtype)
                outputs = {"y": KIND[dtype], "mean": None, "rstd": None, "sum": KIND[dtype]}
                model = one_operator(op, DOMAIN, dtype, arrays, outputs, epsilon=1e-6)
                y, total = run(model, arrays)
                s = arrays["x"].astype(np.float64) + arrays["skip"] + arrays["row_bias"]
                centre = s - s.mean(-1, keepdims=True) if layer else s
                wanted = centre / np.sqrt((centre**2).mean(-1, keepdims=True) + 1e-6)
                wanted = wanted * arrays["weight"] + arrays.get("bias", 0.0)
                near = 2e-6 if dtype == "float32" else 6e-4
                cases.equal(f"{op} {dtype}, skip {skip}, row bias: y", wrong(y, wanted, near), "")
                cases.equal(f"{op} {dtype}, skip {skip}, row bias: sum", wrong(total, s, near), "")
                if skip == (48,):
                    continue  # ORT does not take it
                model = one_operator(op, "com.microsoft", dtype, arrays, outputs, epsilon=1e-6)
                for name, a, b in zip(("y", "sum"), (y, total), run(model, arrays, ours=False)):
                    cases.equal(f"{op} {dtype}, skip {skip}: {name} beside ORT",
                                wrong(a, b, NEAR[dtype]), "")


def check_empty_and_errors():
    rng = np.random.default_rng(3)
    for op in NORMS:
        arrays = arrays_of(op, "float32", (2, 0, 8), rng)
        outputs = outputs_of(op, "float32", True)
        model = one_operator(op, DOMAIN, "float32", arrays, outputs)
        shapes = [found.shape for found in run(model, arrays)]
        cases.check(f"{op} of no rows", shapes[0] == (2, 0, 8), shapes)
        cases.check(f"{op} of no rows: statistics", (2, 0, 1) in shapes, shapes)
    x = normal(rng, 2, 3, 8)
    row = normal(rng, 8)
    for name, op, arrays, attributes, texts in (
        ("weight", "RMSNormalization", {"x": x, "weight": row[:5]}, {},
         ["fastnorm: RMSNormalization 'node_y_made'", "[5]", "[2, 3, 8]"]),
        ("axis", "LayerNormalization", {"x": x, "weight": row}, {"axis": 3},
         ["axis is 3", "[2, 3, 8]"]),
        ("eps", "RMSNormalization", {"x": x, "weight": row}, {"epsilon": -1.0},
         ["FASTNORM_ERROR_ARGUMENT", "eps"]),
        ("skip", "SkipSimplifiedLayerNormalization", {"x": x, "skip": x[:, :2], "weight": row}, {},
         ["[2, 2, 8]", "[2, 3, 8]"]),
        ("no columns", "RMSNormalization",
         {"x": np.zeros((2, 0), np.float32), "weight": row[:0]}, {}, ["FASTNORM_ERROR_SHAPE"]),
        ("stash_type", "LayerNormalization", {"x": x, "weight": row}, {"stash_type": 11},
         ["stash_type is 11", "single precision"]),
        ("rounding", "RMSNormalization", {"x": x, "weight": row}, {"rounding": 9},
         ["FASTNORM_ERROR_ARGUMENT", "rounding"]),
    ):
        model = one_operator(op, DOMAIN, "float32", arrays, {"y": F32}, **attributes)
        cases.check(f"error of {name}", *refused(model, arrays, texts))


def refused(model, arrays, texts):
    try:
        run(model, arrays)
    except Exception as error:
        missing = [text for text in texts if text not in str(error)]
        return not missing, f"{missing} not in {error}"
    return False, "nothing was reported"


# --- codes ---

CODES = {
    "int8": TensorProto.INT8,
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8_e5m2": TensorProto.FLOAT8E5M2,
}


def code_model(op, dtype, arrays, code, scale, outputs, **attributes):
    first = [k for k in arrays if k in ("x", "skip", "weight")]
    inputs = {k: arrays[k] for k in first}
    inputs["zero"] = (np.zeros(()), CODES[code])
    inputs["scale"] = None if scale is None else (np.float32(scale), F32)
    inputs.update({k: v for k, v in arrays.items() if k not in first})
    return one_operator(op, DOMAIN, dtype, inputs, outputs, **attributes)


def check_codes():
    """Against the operator and ORT's QuantizeLinear, bit for bit; scales against the formula."""
    rng = np.random.default_rng(4)
    for op, base in (
        ("LayerNormalizationQuantize", "LayerNormalization"),
        ("RMSNormalizationQuantize", "RMSNormalization"),
        ("SkipLayerNormalizationQuantize", "SkipLayerNormalization"),
        ("SkipRMSNormalizationQuantize", "SkipSimplifiedLayerNormalization"),
    ):
        for dtype in KIND:
            for code in CODES:
                check_codes_of(op, base, dtype, code, rng)
    arrays = arrays_of("RMSNormalization", "float32", (2, 64), rng)
    model = code_model("RMSNormalizationQuantize", "float32", arrays, "int8", None,
                       {"codes": CODES["int8"]})
    cases.check("codes without scales", *refused(model, arrays, ["without y_scale"]))


def check_codes_of(op, base, dtype, code, rng):
    name = f"{op} {dtype} {code}"
    arrays = arrays_of(base, dtype, (2, 3, 200), rng)
    skip = "skip" in arrays
    plain = one_operator(base, DOMAIN, dtype, arrays, outputs_of(base, dtype, False))
    y = run(plain, arrays)[0].astype(np.float32)
    scale = 0.021 if code == "int8" else 0.0063 if code == "float8_e4m3fn" else 0.0011
    outputs = {"codes": CODES[code], "scales": None, "y": KIND[dtype]}
    if skip:
        outputs["sum"] = KIND[dtype]
    model = code_model(op, dtype, arrays, code, scale, outputs)
    found = dict(zip([o.name for o in model.graph.output], run(model, arrays)))
    cases.check(f"{name}: y beside the codes", np.array_equal(found["y"], y))
    make = Maker((("", 21),))
    make.input("y", F32)
    make.constant("scale", np.float32(scale))
    make.constant("zero", np.zeros(()), CODES[code])
    make.node("QuantizeLinear", ["y", "scale", "zero"], "codes")
    if code == "int8":
        make.output("codes", CODES[code])
    else:
        make.node("Cast", ["codes"], "wide", to=F32)
        make.output("wide", F32)
    theirs = run(make.model(), {"y": y}, ours=False)[0]
    cases.check(f"{name}: codes as QuantizeLinear's", np.array_equal(found["codes"], theirs))
    greatest = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}[code]
    for block_size, width in ((0, 200), (64, 64)):
        outputs = {"codes": CODES[code], "scales": F32}
        made = code_model(op, dtype, arrays, code, None, outputs, block_size=block_size)
        codes, scales = run(made, arrays)
        padded = np.pad(np.abs(y), [(0, 0), (0, 0), (0, -200 % width)])
        wanted = padded.reshape(2, 3, -1, width).max(-1) / greatest
        cases.equal(f"{name}, blocks of {block_size}: scales", wrong(scales, wanted, 1e-7), "")
        wide = np.repeat(scales, width, -1)[..., :200]
        wanted = round_to((y / wide).astype(np.float64), code)
        # The quotient is a rounded one, so that a tie may fall the other way.
        step = np.abs(codes.astype(np.float64) - wanted)
        off = int(np.sum(step > (1 if code == "int8" else np.abs(wanted) / 4 + 1e-9)))
        cases.check(f"{name}, blocks of {block_size}: codes", off == 0 and np.mean(step > 0) < 0.01,
                    f"{off} are wrong, {np.mean(step > 0)} differ")


# --- heads ---


def rotate(x, cos, sin, interleaved):
    r = cos.shape[-1]
    turned, rest = x[..., : 2 * r], x[..., 2 * r:]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else (
        turned[..., :r], turned[..., r:])
    parts = [a * cos - b * sin, b * cos + a * sin]
    joined = np.stack(parts, -1).reshape(turned.shape) if interleaved else np.concatenate(parts, -1)
    return np.concatenate([joined, rest], -1)


def check_heads():
    """Orders of tokens and heads, tables, positions, a key beside the query."""
    rng = np.random.default_rng(5)
    op, d, tokens, table = "RMSNormalizationRotaryEmbedding", 32, 6, 20
    for dtype in KIND:
        near = {"float32": 2e-6, "float16": 6e-4, "bfloat16": 5e-3}[dtype]
        for batch, r, interleaved, layout, position in (
            (2, 16, 0, "heads", "each"), (2, 16, 0, "tokens", "each"), (1, 8, 1, "tokens", "each"),
            (3, 16, 1, "rows", "each"), (2, 16, 0, "rows", "first"), (2, 16, 0, "heads", "none"),
            (1, 16, 0, "rows", "none"), (2, 8, 0, "both", "each"), (3, 16, 0, "both", "none"),
        ):
            name = f"heads {dtype} batch {batch} r {r} interleaved {interleaved} {layout} {position}"
            heads = (4, 2)
            q, k = (normal(rng, batch, tokens, h, d, dtype=dtype) for h in heads)
            weights = [normal(rng, d, dtype=dtype, scale=0.2, offset=1.0) for _ in heads]
            cos, sin = (normal(rng, table, r, dtype=dtype) for _ in range(2))
            ids = rng.integers(0, table, (batch, tokens))
            if position == "none":
                cos, sin = (normal(rng, batch, tokens, r, dtype=dtype) for _ in range(2))
                rows = (cos, sin)
            else:
                if position == "first":
                    ids = np.array([3])
                at = 3 + np.arange(tokens)[None].repeat(batch, 0) if position == "first" else ids
                rows = (cos[at], sin[at])
            wanted = []
            for x, w in zip((q, k), weights):
                x = x.astype(np.float64)
                v = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w
                wanted.append(rotate(v, rows[0][:, :, None], rows[1][:, :, None], interleaved))
            attributes = {"interleaved": interleaved}
            if r * 2 != d:
                attributes["rotary_embedding_dim"] = 2 * r
            if layout == "rows":
                q, k = (x.reshape(batch, tokens, -1) for x in (q, k))
                wanted = [x.reshape(batch, tokens, -1) for x in wanted]
                attributes.update(num_heads=heads[0], kv_num_heads=heads[1])
            elif layout == "heads":
                q, k = (x.transpose(0, 2, 1, 3).copy() for x in (q, k))
            else:
                attributes["input_tokens_first"] = 1
            if layout == "both":
                attributes["output_tokens_first"] = 1
            elif layout != "rows":
                wanted = [x.transpose(0, 2, 1, 3) for x in wanted]
            arrays = {
                "q": q, "wq": weights[0], "cos": cos, "sin": sin,
                "ids": None if position == "none" else ids, "k": k, "wk": weights[1],
            }
            outputs = {"q_out": KIND[dtype], "k_out": KIND[dtype]}
            model = one_operator(op, DOMAIN, dtype, arrays, outputs, **attributes)
            fed = {a: v for a, v in arrays.items() if v is not None}
            if ON_GPU and position == "first":
                text = "on a GPU; supported: a position for each"
                cases.check(name, *refused(model, fed, [text]))
                continue
            found = run(model, fed)
            for part, a, b in zip("qk", found, wanted):
                cases.equal(f"{name}: {part}", wrong(a, b, near), "")
            for key in ("k", "wk"):
                arrays[key] = None
            model = one_operator(op, DOMAIN, dtype, arrays, {"q_out": KIND[dtype]}, **attributes)
            alone = run(model, {a: v for a, v in arrays.items() if v is not None})[0]
            cases.check(f"{name}: the query alone", np.array_equal(alone, found[0]))
    bad = {"q": normal(rng, 1, 2, 4, 8), "w": normal(rng, 8), "cos": normal(rng, 3, 4),
           "sin": normal(rng, 3, 4), "ids": np.array([[0, 1, 2, 3]])}
    model = one_operator(op, DOMAIN, "float32", bad, {"y": F32})
    if ON_GPU:
        cases.skip("a position out of range", "the host does not read those of a GPU")
    else:
        cases.check("a position out of range",
                    *refused(model, bad, ["the position of token 3", "0 to 2"]))
    bad["ids"] = bad["ids"][:, :3]
    model = one_operator(op, DOMAIN, "float32", bad, {"y": F32})
    cases.check("too few positions", *refused(model, bad, ["[1, 3]", "4 tokens"]))


# --- whole models ---


def kinds(model):
    return sorted({n.op_type for n in model.graph.node})


def check_blocks():
    """Transformer layers after rewrite(): all norms are ours, ORT's other fusions are there, and
    results are those of ORT."""
    has_opset_23 = VERSION >= (1, 23)
    for norm in ("layer", "rms", "chain"):
        for dtype in ("float32", "float16"):
            name = f"block {norm} {dtype}"
            if not has_opset_23:
                cases.skip(name, f"ORT {ort.__version__} has no opset 23")
                continue
            model = block(norm, dtype, layers=2)
            before = model.SerializeToString()
            found = fn.rewrite(model)
            skip = "SkipLayerNormalization" if norm == "layer" else (
                "SkipSimplifiedLayerNormalization")
            first = "LayerNormalization" if norm == "layer" else "RMSNormalization"
            cases.equal(f"{name}: ours", fn.count(found), {
                first: 1, skip: 4, "RMSNormalizationRotaryEmbedding": 2})
            cases.check(f"{name}: the argument is unchanged", model.SerializeToString() == before)
            left = [n.op_type for n in found.graph.node if n.domain != DOMAIN
                    and ("Norm" in n.op_type or n.op_type in ("ReduceMean", "RotaryEmbedding"))]
            cases.equal(f"{name}: norms that are left", left, [])
            if dtype == "float32":
                cases.check(f"{name}: ORT's other fusions", "FusedMatMul" in kinds(found),
                            kinds(found))
            fed = feeds(dtype, 2, 7, 256)
            wanted = session(model, ours=False).run(None, fed)[0]
            y = session(found).run(None, fed)[0]
            near = 4e-6 if dtype == "float32" else 4e-3
            cases.equal(f"{name}: y", wrong(y, wanted, near), "")
            some = fn.rewrite(model, everything=False)
            named = {first: 1, "RMSNormalization": 4} if norm == "layer" else {first: 5}
            if dtype == "float16":
                named = {} if norm != "chain" else {first: 1}
            cases.equal(f"{name}: not everything", fn.count(some), {**named, skip: 4})
            cases.equal(f"{name}: y of that", wrong(session(some).run(None, fed)[0], wanted,
                                                    near), "")
            plain = fn.rewrite(model, optimize=False)
            cases.equal(f"{name}: not optimized", wrong(session(plain).run(None, fed)[0], wanted,
                                                        near), "")
            for threads in (2, 4):
                again = session(found, threads).run(None, fed)[0]
                if dtype == "float32":  # matrix products may depend on the threads
                    cases.equal(f"{name}: {threads} threads", wrong(again, y, near), "")
    if has_opset_23:
        model = block("rms", "bfloat16")
        found = fn.rewrite(model)
        cases.check("block bfloat16, which ORT cannot run on a CPU, is rewritten",
                    fn.count(found).get("SkipSimplifiedLayerNormalization") == 2, fn.count(found))


def check_rewriting():
    rng = np.random.default_rng(6)
    width = 24

    def norm_model(change=None, opsets=(("", 21), ("com.microsoft", 1)), kind=F32):
        make = Maker(opsets)
        make.input("x", kind, ["rows", width])
        make.constant("w", np.ones(width), kind)
        make.constant("b", np.zeros(width), kind)
        change(make)
        return make.model()

    def plain(make):
        make.node("LayerNormalization", ["x", "w", "b"], "y")
        make.output("y", F32, ["rows", width])

    def double(make):
        make.node("LayerNormalization", ["x", "w", "b"], "y")
        make.output("y", TensorProto.DOUBLE, ["rows", width])

    cases.equal("a norm", fn.count(fn.rewrite(norm_model(plain))), {"LayerNormalization": 1})
    found = fn.rewrite(norm_model(double, kind=TensorProto.DOUBLE))
    cases.equal("double precision stays", fn.count(found), {})
    cases.check("and is no model of ours", DOMAIN not in [o.domain for o in found.opset_import])

    def fused(make):  # a model that ORT's tools have fused already
        make.input("skip", F32, ["rows", width])
        make.node("SkipLayerNormalization", ["x", "skip", "w", "b", "b"], ["y", "", "", "sum"],
                  "com.microsoft", epsilon=1e-5)
        make.node("SkipSimplifiedLayerNormalization", ["y", "sum", "w"], ["z"], "com.microsoft",
                  epsilon=1e-6)
        make.node("SimplifiedLayerNormalization", ["z", "w"], "v", axis=-1)
        make.output("v", F32, None)

    def three_dimensions(make):
        make.inputs.clear()
        make.input("x", F32, ["batch", "rows", width])
        make.input("skip", F32, ["batch", "rows", width])
        make.node("SkipLayerNormalization", ["x", "skip", "w", "b", "b"], ["y", "", "", "sum"],
                  "com.microsoft", epsilon=1e-5)
        make.node("SkipSimplifiedLayerNormalization", ["y", "sum", "w"], ["z"], "com.microsoft",
                  epsilon=1e-6)
        make.node("SimplifiedLayerNormalization", ["z", "w"], "v", axis=-1)
        make.output("v", F32, None)

    model = norm_model(three_dimensions)
    found = fn.rewrite(model)
    cases.equal("operators of com.microsoft", fn.count(found), {
        "SkipLayerNormalization": 1, "SkipSimplifiedLayerNormalization": 1,
        "SimplifiedLayerNormalization": 1})
    fed = {k: normal(rng, 2, 3, width) for k in ("x", "skip")}
    cases.equal("their results", wrong(session(found).run(None, fed)[0], session(
        model, ours=False).run(None, fed)[0], 3e-6), "")

    # The sum is used again, and by name an output; a broadcast residual comes second.
    def sums(make):
        make.input("r", F32, [1, width])
        make.node("Add", ["r", "x"], "sum")
        make.node("SimplifiedLayerNormalization", ["sum", "w"], "y", axis=-1, epsilon=1e-6)
        make.node("Mul", ["sum", "y"], "z")
        make.output("z", F32, None)
        make.output("sum", F32, None)

    model = norm_model(sums)
    found = fn.rewrite(model)
    cases.equal("an addition before", fn.count(found), {"SkipSimplifiedLayerNormalization": 1})
    fed = {"x": normal(rng, 5, width), "r": normal(rng, 1, width)}
    wanted = session(model, ours=False).run(None, fed)
    for name, a, b in zip(("z", "sum"), session(found).run(None, fed), wanted):
        cases.equal(f"an addition before: {name}", wrong(a, b, 3e-6), "")

    # Both operands broadcast: the addition stays.
    def outer(make):
        make.inputs.clear()
        make.input("x", F32, ["rows", 1, width])
        make.input("r", F32, ["others", width])
        make.node("Add", ["x", "r"], "sum")
        make.node("SimplifiedLayerNormalization", ["sum", "w"], "y", axis=-1, epsilon=1e-6)
        make.output("y", F32, None)

    model = norm_model(outer)
    found = fn.rewrite(model)
    cases.equal("two that broadcast", fn.count(found), {"SimplifiedLayerNormalization": 1})
    fed = {"x": normal(rng, 3, 1, width), "r": normal(rng, 4, width)}
    cases.equal("two that broadcast: y", wrong(session(found).run(None, fed)[0], session(
        model, ours=False).run(None, fed)[0], 3e-6), "")

    for code in ("int8", "float8_e4m3fn", "uint8"):
        check_quantized_model(code, norm_model, rng)
    check_subgraphs(rng)
    check_for_gpus(norm_model)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(norm_model(plain), str(path), save_as_external_data=True, size_threshold=0)
        x = normal(rng, 3, width)
        y = fn.session(path).run(None, {"x": x})[0]
        wanted = session(norm_model(plain), ours=False).run(None, {"x": x})[0]
        cases.equal("a path with external data", wrong(y, wanted, 3e-6), "")


def check_quantized_model(code, norm_model, rng):
    def change(make):
        kind = CODES.get(code, TensorProto.UINT8)
        make.node("LayerNormalization", ["x", "w", "b"], "y", epsilon=1e-5)
        make.constant("scale", np.float32(0.03))
        make.constant("zero", np.zeros(()), kind)
        make.node("QuantizeLinear", ["y", "scale", "zero"], "codes")
        make.node("DequantizeLinear", ["codes", "scale", "zero"], "z")
        make.node("Neg", ["y"], "n")
        make.output("z", F32, None)
        make.output("n", F32, None)

    model = norm_model(change)
    cases.equal(f"QuantizeLinear of {code}, not everything",
                fn.count(fn.rewrite(model, everything=False)), {"LayerNormalization": 1})
    found = fn.rewrite(model)
    ours = "LayerNormalization" if code == "uint8" else "LayerNormalizationQuantize"
    cases.equal(f"QuantizeLinear of {code}", fn.count(found), {ours: 1})
    fed = {"x": normal(rng, 7, 24)}
    wanted = session(model, ours=False).run(None, fed)
    found = session(found).run(None, fed)
    # A result of another rounding may fall to the next code.
    step = np.abs(found[0] - wanted[0])
    bound = 0.0301 if code != "float8_e4m3fn" else np.abs(wanted[0]) / 4 + 1e-6
    cases.check(f"QuantizeLinear of {code}: codes", np.all(step <= bound) and np.mean(
        step > 1e-6) < 0.01, f"{np.max(step)}")
    cases.equal(f"QuantizeLinear of {code}: y", wrong(found[1], wanted[1], 3e-6), "")


def check_for_gpus(norm_model):
    """What only the CPU has stays ONNX Runtime's in a model for a GPU."""
    def spread(make):
        make.inputs.clear()
        make.input("x", F32, ["rows", 4, 10])
        for name, shape in (("column", (4, 1)), ("rows_of_4", (4, 10)), ("row", (10,))):
            make.constant(name, np.ones(shape, np.float32))
        for i, (weight, axis) in enumerate((("column", 1), ("row", 1), ("row", -1), ("row", 2),
                                            ("rows_of_4", 1), ("rows_of_4", -1))):
            make.node("LayerNormalization", ["x", weight], f"y{i}", axis=axis)
            make.output(f"y{i}", F32, None)

    def one_position(make):
        make.input("heads", F32, [1, 4, 6, 32])
        make.constant("gain", np.ones(32, np.float32))
        make.constant("table", np.ones((20, 16), np.float32))
        for name, shape in (("first", [1]), ("each", [1, 6])):
            make.input(name, TensorProto.INT64, shape)
            make.node("RMSNormalization", ["heads", "gain"], f"{name}_normed")
            make.node("RotaryEmbedding", [f"{name}_normed", name, "table", "table"],
                      f"{name}_turned", "com.microsoft")
            make.output(f"{name}_turned", F32, None)

    rotary = "RMSNormalizationRotaryEmbedding"
    for name, change, for_gpu, for_cpu in (
        ("weights that broadcast", spread, {"LayerNormalization": 4}, {"LayerNormalization": 6}),
        ("one position", one_position, {rotary: 1, "RMSNormalization": 1},
         {rotary: 2}),
    ):
        model = norm_model(change, (("", 23), ("com.microsoft", 1)))
        for providers, wanted in ((["CUDAExecutionProvider"], for_gpu),
                                  ([("CUDAExecutionProvider", {})], for_gpu),
                                  (["CPUExecutionProvider"], for_cpu)):
            found = fn.rewrite(model, optimize=False, providers=providers)
            cases.equal(f"{name}, {providers[0]}", fn.count(found), wanted)


def check_subgraphs(rng):
    """A norm in the branches of an If, with a weight of the graph around it."""
    branches = []
    for factor in (1.0, 2.0):
        make = Maker()
        make.constant("factor", np.float32(factor))
        make.node("LayerNormalization", ["x", "w"], "normed", axis=-1)
        make.node("Mul", ["normed", "factor"], "branch_y")
        make.output("branch_y", F32, ["rows", 16])
        branches.append(make.model().graph)
    outer = Maker((("", 21),))
    outer.input("x", F32, ["rows", 16])
    outer.input("which", TensorProto.BOOL, [])
    outer.constant("w", np.full(16, 1.5, np.float32))
    outer.node("If", ["which"], "y", then_branch=branches[0], else_branch=branches[1])
    outer.output("y", F32, ["rows", 16])
    model = outer.model()
    found = fn.rewrite(model)
    cases.equal("subgraphs", fn.count(found), {"LayerNormalization": 2})
    x = normal(rng, 4, 16)
    for which in (True, False):
        fed = {"x": x, "which": np.array(which)}
        wanted = session(model, ours=False).run(None, fed)[0]
        cases.equal(f"subgraphs: {which}", wrong(session(found).run(None, fed)[0], wanted, 3e-6),
                    "")


# --- the process around it ---


def threads_now():
    return len(os.listdir("/proc/self/task"))


def check_threads():
    """Calls run on ONNX Runtime's threads: the library starts none, and results keep their bits."""
    rng = np.random.default_rng(7)
    arrays = arrays_of("SkipLayerNormalization", "float32", (1, 512, 768), rng)
    model = one_operator("SkipLayerNormalization", DOMAIN, "float32", arrays,
                         outputs_of("SkipLayerNormalization", "float32", False))
    results = []
    for threads in (1, 2, 4):
        before = threads_now()
        made = session(model, threads)
        held = threads_now()
        cases.equal(f"threads of a session of {threads}", held - before, threads - 1)
        results.append(made.run(None, arrays))
        cases.equal(f"threads after a call on {threads}", threads_now(), held)
        del made
    same = all(np.array_equal(a, b) for r in results[1:] for a, b in zip(results[0], r))
    cases.check("the same bits on 1, 2 and 4 threads", same)

    made, found = session(model, 2), [None] * 4

    def work(i):
        for _ in range(20):
            found[i] = made.run(None, arrays)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    cases.check("four threads run one session", all(
        np.array_equal(a, b) for f in found for a, b in zip(results[0], f)))


def check_imports():
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "import fastnorm.onnxruntime as fn\n"
        "try: fn.rewrite('model.onnx')\n"
        "except ImportError as error: print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "packages" / "python")}
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env=environment)
    cases.check("without onnx", "pip install onnx" in text.stdout, text.stdout + text.stderr)
    named = os.environ["FASTNORM_ONNXRUNTIME_LIBRARY"]
    os.environ["FASTNORM_ONNXRUNTIME_LIBRARY"] = "/absent.so"
    try:
        fn.register(ort.SessionOptions())
        cases.check("a library that is not there", False, "nothing was reported")
    except ImportError as error:
        cases.check("a library that is not there", "/absent.so" in str(error), error)
    os.environ["FASTNORM_ONNXRUNTIME_LIBRARY"] = named


def main():
    for step in (check_rows, check_variants, check_skips, check_empty_and_errors, check_codes,
                 check_heads, check_blocks, check_rewriting, check_threads, check_imports):
        step()
    cases.finish()


if __name__ == "__main__":
    main()
