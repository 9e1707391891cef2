#!/usr/bin/env python3
"""Tests of the JAX functions, on the CPU or a CUDA device. The last line is the count.

Every value is compared with double precision, within the bounds of its error, and its bits with
those of the C ABI called directly. Run with a Python that has JAX and NumPy; --plugin names
libfastnorm_xla.so.
"""

import ctypes
import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path

sys.dont_write_bytecode = True
from jax_testing import bits, f64, normal, start  # noqa: E402
from norm_testing import (  # noqa: E402
    BLOCKS,
    FP4,
    Exact,
    View,
    best_us,
    growth_kib,
    round_to,
    run_readme,
    unpack_e2m1,
)

EPS = 1e-5
ROUNDINGS = {"once": 0, "normalized": 1, "every_step": 2, "once_rw": 3}


# --- helpers ---


class Direct:
    """The C ABI by ctypes on copies of the arrays, in host memory or in that of the device."""

    def __init__(self, library, cuda, devmem):
        from fastnorm import abi as c

        self.c = c
        self.context = c.Context(c.Library(library), c.CUDA if cuda else c.CPU)
        self.devmem = c.Devmem(devmem) if cuda else None
        self.words = {
            "float32": c.F32,
            "float16": c.F16,
            "bfloat16": c.BF16,
            "int8": c.I8,
            "uint8": c.U8,
            "int32": c.Dtype(0, 32, 1),
            "float8_e4m3fn": c.F8_E4M3FN,
            "float8_e5m2": c.F8_E5M2,
            "float8_e8m0fnu": c.F8_E8M0FNU,
        }

    def run(self, kind, outputs, **fields):
        """outputs: (shape, dtype) by name. The results as bytes, in their order."""
        kept, views = [], {}
        for name, (shape, dtype) in outputs.items():
            fields[name] = np.zeros(shape, dtype)
        for name, value in fields.items():
            if not hasattr(value, "shape"):
                views[name] = value
                continue
            host = np.array(np.asarray(value), order="C")
            raw = host.reshape(-1).view(np.uint8)
            memory = self.c.DeviceArray(self.devmem, raw) if self.devmem else raw
            kept.append((name, memory))
            strides = [s // host.itemsize for s in host.strides]
            address = memory.address if self.devmem else host.ctypes.data
            views[name] = View(
                address, self.words[host.dtype.name], host.shape, strides, host.itemsize
            )
            kept.append((None, host))
        self.context.call(kind, self.devmem.stream if self.devmem else None, **views).run()
        if self.devmem:
            self.devmem.synchronize()
        found = {name: memory for name, memory in kept if name in outputs}
        return [
            (found[name].download() if self.devmem else found[name]).tobytes() for name in outputs
        ]

    def error(self, kind, outputs, **fields):
        try:
            self.run(kind, outputs, **fields)
        except self.c.FastnormError as error:
            return str(error)
        return "success"


def out(a):
    return a.shape, np.dtype(a.dtype)


def same(suite, name, results, kind, outputs, **fields):
    """One case: results have the bits that the C ABI gives."""
    if direct is None:
        suite.skip(f"{name}: bits of the C ABI", "no libfastnorm_devmem.so (--devmem)")
        return
    suite.check(
        f"{name}: bits of the C ABI",
        [bits(r) for r in results] == direct.run(kind, outputs, **fields),
    )


# --- values ---

SHAPES = [
    ((5, 64), (64,)),
    ((3, 1000), (1000,)),
    ((2, 3, 4, 129), (4, 129)),
    ((7, 4096), (4096,)),
    ((1, 20000), (20000,)),
    ((64,), (64,)),
    ((2, 2, 2, 2, 96), (96,)),
]
DTYPES = ("float32", "float16", "bfloat16")


def rows_of(x, weight):
    """x as the library sees it."""
    return x.reshape(-1, *x.shape[-weight.ndim :])


def test_rms_norm(suite):
    for (shape, weight_shape), dtype, wide in itertools.product(SHAPES, DTYPES, (False, True)):
        if wide and dtype == "float32":
            continue
        name = f"rms_norm {dtype} {list(shape)}{' f32 weight' if wide else ''}"
        x = normal(shape, dtype, 1, 2.0, 0.25)
        weight = normal(weight_shape, "float32" if wide else dtype, 2, 0.2, 1.0)
        for options in (
            {},
            {"weight_offset": 1.0},
            {"rounding": "normalized"},
            {"rounding": "once_rw"},
        ):
            label = f"{name} {options or ''}".strip()
            y = fj.rms_norm(x, weight, EPS, **options)
            exact = Exact("rms", f64(x), f64(weight), eps=EPS, dtype=dtype, **options)
            suite.check(
                f"{label}: double precision",
                y.shape == x.shape and y.dtype == x.dtype and exact.holds(f64(y)),
            )
            flat = rows_of(x, weight)
            same(
                suite,
                label,
                [y],
                0,
                {"y": out(flat)},
                x=flat,
                weight=weight,
                eps=EPS,
                weight_offset=options.get("weight_offset", 0.0),
                rounding=ROUNDINGS[options.get("rounding", "once")],
            )
        suite.check(
            f"{name}: jit",
            bits(jax.jit(lambda a, w: fj.rms_norm(a, w, EPS))(x, weight))
            == bits(fj.rms_norm(x, weight, EPS)),
        )
    x = normal((4, 96), "bfloat16", 3)
    suite.check(
        "rms_norm without weight",
        Exact("rms", f64(x), eps=EPS, dtype="bfloat16").holds(f64(fj.rms_norm(x, eps=EPS))),
    )
    suite.equal("no rows", fj.rms_norm(jnp.zeros((0, 3, 64)), jnp.ones(64)).shape, (0, 3, 64))


def test_layer_norm(suite):
    for (shape, weight_shape), dtype in itertools.product(SHAPES, DTYPES):
        name = f"layer_norm {dtype} {list(shape)}"
        x = normal(shape, dtype, 5, 2.0, 0.5)
        weight, bias = normal(weight_shape, dtype, 6, 0.2, 1.0), normal(weight_shape, dtype, 7)
        y = fj.layer_norm(x, weight, bias, EPS)
        exact = Exact("layer", f64(x), f64(weight), f64(bias), eps=EPS, dtype=dtype)
        suite.check(f"{name}: double precision", exact.holds(f64(y)))
        flat = rows_of(x, weight)
        same(suite, name, [y], 1, {"y": out(flat)}, x=flat, weight=weight, bias=bias, eps=EPS)


def test_mixed_dtypes(suite):
    """Weight, bias and residual of any dtype beside any x; y of x's dtype or float32."""
    for own, parameter, other, wide in itertools.product(DTYPES, DTYPES, DTYPES, (None, "float32")):
        name = f"x {own}, weight {parameter}, residual {other}, y {wide or own}"
        x, residual = normal((5, 129), own, 20, 2.0), normal((5, 129), other, 21)
        weight, bias = normal((129,), parameter, 22, 0.2, 1.0), normal((129,), other, 23)
        y, total = fj.add_rms_norm(x, residual, weight, EPS, y_dtype=wide)
        exact = Exact(
            "rms", f64(x), f64(weight), residual=f64(residual), eps=EPS, dtype=own, y_dtype=wide
        )
        suite.check(
            f"{name}: double precision", y.dtype.name == (wide or own) and exact.holds(f64(y))
        )
        suite.check(
            f"{name}: the sum",
            total.dtype.name == other and (f64(total) == round_to(exact.sums, other)).all(),
        )
        y = fj.layer_norm(x, weight, bias, EPS, y_dtype=wide)
        exact = Exact("layer", f64(x), f64(weight), f64(bias), eps=EPS, dtype=own, y_dtype=wide)
        suite.check(f"{name}: layer_norm", y.dtype.name == (wide or own) and exact.holds(f64(y)))
    x, weight = normal((4, 256), "bfloat16", 24), normal((256,), "float32", 25, 0.2, 1.0)
    ours = fj.rms_norm(x, weight, EPS, rounding="normalized", y_dtype=jnp.float32)
    exact = Exact(
        "rms",
        f64(x),
        f64(weight),
        eps=EPS,
        dtype="bfloat16",
        rounding="normalized",
        y_dtype="float32",
    )
    suite.check(
        "f32 of bf16 rounded before the weight",
        ours.dtype == jnp.float32 and exact.holds(f64(ours)),
    )
    suite.raises(
        "y of another 16-bit dtype",
        fj.FastnormError,
        "y.dtype is f16; required: bf16, or f32, as x is bf16",
        lambda: fj.rms_norm(x, weight, y_dtype=jnp.float16),
    )


def test_columns(suite):
    """Weight and bias of every shape that broadcasts against x's."""
    for shape in ((3, 129), (2, 3, 129), (2, 3, 4, 129)):
        x = normal(shape, "bfloat16", 26)
        shapes = [
            own[cut:]
            for own in itertools.product(*((1, extent) for extent in shape[:-1]), (129,))
            for cut in range(len(shape))
        ]
        for own, other in zip(shapes, reversed(shapes)):
            weight, bias = normal(own, "float16", 27, 0.2, 1.0), normal(other, "float32", 28)
            y = fj.layer_norm(x, weight, bias, EPS)
            exact = Exact("layer", f64(x), f64(weight), f64(bias), eps=EPS, dtype="bfloat16")
            suite.check(
                f"x {list(shape)}, weight {list(own)}, bias {list(other)}", exact.holds(f64(y))
            )


def test_add(suite):
    for (shape, weight_shape), dtype, wide in itertools.product(SHAPES, DTYPES, (False, True)):
        if wide and dtype == "float32":
            continue
        name = f"add_rms_norm {dtype} {list(shape)}{' f32 residual' if wide else ''}"
        x, weight = normal(shape, dtype, 8), normal(weight_shape, dtype, 9, 0.2, 1.0)
        residual = normal(shape, "float32" if wide else dtype, 10, 3.0)
        kept = bits(residual)
        y, total = fj.add_rms_norm(x, residual, weight, EPS)
        exact = Exact("rms", f64(x), f64(weight), residual=f64(residual), eps=EPS, dtype=dtype)
        suite.check(f"{name}: double precision", exact.holds(f64(y)))
        suite.check(
            f"{name}: the sum",
            total.dtype == residual.dtype
            and (f64(total) == round_to(exact.sums, residual.dtype.name)).all(),
        )
        flat = rows_of(x, weight)
        same(
            suite,
            name,
            [y, total],
            0,
            {"y": out(flat), "residual_out": (flat.shape, np.dtype(residual.dtype))},
            x=flat,
            residual=rows_of(residual, weight),
            weight=weight,
            eps=EPS,
        )
        fused = fj.fused_add_rms_norm(x, residual, weight, EPS)
        suite.check(
            f"fused_{name}: same bits; an argument that is not donated stays",
            [bits(a) for a in fused] == [bits(y), bits(total)] and bits(residual) == kept,
        )


def test_in_place(suite):
    def step(x, residual, weight):
        y, residual = fj.fused_add_rms_norm(x, residual, weight, EPS)
        return residual, y

    x, weight = normal((6, 4, 64), "bfloat16", 11), normal((64,), "bfloat16", 12)
    residual = jnp.array(normal((6, 4, 64), "bfloat16", 13))
    want = [bits(a) for a in fj.add_rms_norm(x, residual, weight, EPS)]
    compiled = jax.jit(step, donate_argnums=1).lower(x, residual, weight).compile()
    address = residual.unsafe_buffer_pointer()
    total, y = compiled(x, residual, weight)
    suite.check(
        "a donated residual: in place",
        total.unsafe_buffer_pointer() == address and residual.is_deleted(),
    )
    suite.check("a donated residual: values", [bits(y), bits(total)] == want)
    suite.check(
        "a donated residual: nothing is copied",
        " copy(" not in compiled.as_text(),
        compiled.as_text(),
    )

    def layers(x, residual, weights):
        def layer(carry, weight):
            x, residual = carry
            y, residual = fj.fused_add_rms_norm(x, residual, weight, EPS)
            return (y * 2, residual), None

        return jax.lax.scan(layer, (x, residual), weights)[0]

    weights = normal((5, 64), "float32", 14, 0.2, 1.0)
    x, residual = normal((6, 64), "float32", 15), normal((6, 64), "float32", 16)
    y, total = jax.jit(layers)(x, residual, weights)
    for weight in weights:
        x, residual = fj.add_rms_norm(x, residual, weight, EPS)
        x = x * 2
    suite.check(
        "a residual stream through scan", bits(y) == bits(x) and bits(total) == bits(residual)
    )


# --- vmap ---


def part(a, index, axis=0):
    """One part of an array along an axis, cut by NumPy."""
    return jnp.asarray(np.take(np.asarray(a), index, axis))


def test_vmap(suite):
    leaves = jax.tree.leaves
    norm = lambda x, w: fj.rms_norm(x, w, EPS)  # noqa: E731
    x, shared = normal((3, 4, 5, 64), "bfloat16", 20), normal((64,), "bfloat16", 21)
    own, heads = normal((3, 64), "bfloat16", 22), normal((3, 5, 64), "bfloat16", 23)
    for name, function, args, axes in (
        ("weight shared", norm, (x, shared), (0, None)),
        ("weight of its own", norm, (x, own), (0, 0)),
        ("weights of heads", norm, (x, heads), (0, 0)),
        ("weights of heads, shared", norm, (x, heads[0]), (0, None)),
        ("x shared", norm, (x[0], own), (None, 0)),
        ("another axis", norm, (x, normal((4, 64), "bfloat16", 24)), (1, 0)),
        ("the last axis but one of rows", norm, (x[0], normal((5, 64), "bfloat16", 25)), (1, 0)),
        ("rows themselves", norm, (x[0, 0], shared), (0, None)),
        (
            "rows themselves, weights too",
            norm,
            (x[0, :, 0], normal((4, 64), "bfloat16", 26)),
            (0, 0),
        ),
        ("no weight", lambda a: fj.rms_norm(a, eps=EPS), (x,), (0,)),
        ("layer_norm", lambda a, w: fj.layer_norm(a, w, w), (x, own), (0, 0)),
        ("add", lambda a, w: fj.add_rms_norm(a, a * 2, w), (x, own), (0, 0)),
        ("fused add", lambda a, w: fj.fused_add_rms_norm(a, a * 2, w), (x, own), (0, 0)),
        ("residual shared", lambda a, r: fj.fused_add_rms_norm(a, r, shared), (x, x[0]), (0, None)),
    ):
        batch = next(a.shape[axis] for a, axis in zip(args, axes) if axis is not None)
        parts = [
            leaves(
                function(*(a if axis is None else part(a, i, axis) for a, axis in zip(args, axes)))
            )
            for i in range(batch)
        ]
        want = [b"".join(bits(a) for a in column) for column in zip(*parts)]
        suite.check(
            f"vmap, {name}", [bits(a) for a in leaves(jax.vmap(function, axes)(*args))] == want
        )
        suite.check(
            f"jit of vmap, {name}",
            [bits(a) for a in leaves(jax.jit(jax.vmap(function, axes))(*args))] == want,
        )
    for name, weight, calls in (("weights of their own", own, 1), ("weights of heads", heads, 1)):
        before = fj.handler_calls()
        jax.block_until_ready(jax.vmap(norm)(x, weight))
        suite.equal(f"vmap, {name}: calls of the handler", fj.handler_calls() - before, calls)
    nested = jax.vmap(jax.vmap(norm, (0, None)), (0, 0))(x, own)
    suite.check("vmap of vmap", bits(nested) == bits(jax.vmap(norm)(x, own)))
    weights = normal((3, 4, 64), "bfloat16", 27)
    both = jax.vmap(jax.vmap(norm))(x, weights)
    want = [
        bits(norm(part(part(x, i), j), part(part(weights, i), j)))
        for i in range(3)
        for j in range(4)
    ]
    suite.check("vmap of vmap, weights too", bits(both) == b"".join(want))
    suite.raises(
        "vmap, the library's error",
        fj.FastnormError,
        "FASTNORM_ERROR_SHAPE: weight.shape is [60]",
        lambda: jax.vmap(norm)(x, own[:, :60]),
    )


# --- quantised ---


def quant_cases():
    e4m3, e5m2 = jnp.float8_e4m3fn, jnp.float8_e5m2
    return (
        ("per_row", 0, e4m3),
        ("per_row", 0, jnp.int8),
        ("per_block", 64, e4m3),
        ("per_block", 128, jnp.int8),
        ("mxfp8", 0, e4m3),
        ("mxfp8", 0, e5m2),
        *((scheme, 0, jnp.uint8) for scheme in FP4),
    )


def test_quantised(suite):
    for (scheme, block, dtype), source in itertools.product(quant_cases(), ("bfloat16", "float32")):
        name = f"rms_norm_quant {scheme} {block or ''} {np.dtype(dtype).name} of {source}"
        x, weight = normal((6, 320), source, 30), normal((320,), source, 31, 0.2, 1.0)

        def quant(x, weight):
            return fj.rms_norm_quant(x, weight, EPS, scheme=scheme, block_size=block, dtype=dtype)

        number = getattr(fj._c.QuantScheme, scheme.upper())
        codes, scale = jax.eval_shape(quant, x, weight)
        outputs = {"quantized": out(codes), "scale": out(scale)}
        fields = {
            "x": x,
            "weight": weight,
            "eps": EPS,
            "quant_scheme": number,
            "quant_block_size": block,
        }
        codes, scale = quant(x, weight)
        same(suite, name, [codes, scale], 0, outputs, **fields)
        fp4 = scheme in FP4
        form = "float4_e2m1fn" if fp4 else np.dtype(dtype).name
        columns = BLOCKS[scheme][0] if scheme in BLOCKS else block or 320
        numbers = unpack_e2m1(np.asarray(codes)) if fp4 else f64(codes)
        exact = Exact("rms", f64(x), f64(weight), eps=EPS, dtype=source)
        wrong = exact.holds_scales(f64(scale), form, columns, scheme)
        suite.check(f"{name}: scales", not wrong, wrong)
        wrong = exact.holds_codes(numbers, f64(scale), form, columns)
        suite.check(f"{name}: codes", not wrong, wrong)
        many, weights = normal((3, 6, 320), source, 32), normal((3, 320), source, 33, 0.2, 1.0)
        got = jax.vmap(quant)(many, weights)
        want = [
            b"".join(bits(a) for a in column)
            for column in zip(*(quant(part(many, i), part(weights, i)) for i in range(3)))
        ]
        suite.check(f"vmap of {name}", [bits(a) for a in got] == want)


# --- errors ---


ARGUMENTS = {
    "rms_norm": ("x", "weight"),
    "layer_norm": ("x", "weight", "bias"),
    "add_rms_norm": ("x", "residual", "weight"),
    "fused_add_rms_norm": ("x", "residual", "weight"),
    "rms_norm_quant": ("x", "weight"),
}


class Function:
    """One of the functions, with arrays for it."""

    def __init__(self, name, shape=(4, 64), dtype="float32"):
        options = {"scheme": "per_row"} if "quant" in name else {}
        self.name, self.arrays = name, {
            argument: normal(shape if argument in ("x", "residual") else shape[-1:], dtype, 100 + i)
            for i, argument in enumerate(ARGUMENTS[name])
        }
        self.function = lambda **changed: getattr(fj, name)(**options, **{**self.arrays, **changed})

    def call(self, **changed):
        return self.function(**changed)


def refused(suite, name, text, call, *arrays):
    """Cases: a call is refused with this text, also under jit and eval_shape, and nothing is
    launched."""
    before = fj.handler_calls()
    for label, run in (
        ("", call),
        (", jit", jax.jit(call)),
        (", eval_shape", lambda *a: jax.eval_shape(call, *a)),
    ):
        suite.raises(f"{name}{label}", fj.FastnormError, text, lambda: run(*arrays))
    suite.equal(f"{name}: nothing is launched", fj.handler_calls(), before)


def test_errors(suite):
    x, weight = normal((4, 64), "float32", 40), normal((64,), "float32", 41)
    whole = x.astype(jnp.int32)
    for name, call, kind, fields in (
        (
            "another length of weight",
            lambda: fj.rms_norm(x, weight[:63]),
            "SHAPE",
            {"x": x, "weight": weight[:63]},
        ),
        (
            "a weight of i8 with x of f32",
            lambda: fj.rms_norm(x, weight.astype(jnp.int8)),
            "DTYPE",
            {"x": x, "weight": weight.astype(jnp.int8)},
        ),
        ("integers", lambda: fj.rms_norm(whole), "DTYPE", {"x": whole}),
        (
            "a negative eps",
            lambda: fj.rms_norm(x, weight, -1.0),
            "ARGUMENT",
            {"x": x, "weight": weight, "eps": -1.0},
        ),
        (
            "eps that is NaN",
            lambda: fj.rms_norm(x, weight, float("nan")),
            "ARGUMENT",
            {"x": x, "weight": weight, "eps": float("nan")},
        ),
        ("no dimension", lambda: fj.rms_norm(x[0, 0]), "SHAPE", {"x": x[0, 0]}),
        ("no columns", lambda: fj.rms_norm(x[:, :0]), "SHAPE", {"x": x[:, :0]}),
    ):
        text = "FASTNORM_ERROR_"
        if direct:
            text = direct.error(0, {"y": out(fields["x"])}, **{"eps": 1e-6, **fields})
            suite.check(f"{name}: status", text.startswith(f"FASTNORM_ERROR_{kind}"), text)
        refused(suite, name, text, call)
    refused(
        suite,
        "no rows, another length of weight",
        "weight.shape is [63]",
        lambda: fj.rms_norm(x[:0], weight[:63]),
    )
    refused(
        suite,
        "a residual of another shape",
        "residual.shape is [3, 64]",
        lambda: fj.add_rms_norm(x, x[:3]),
    )
    refused(
        suite,
        "a residual with as many rows in another shape",
        "residual.shape is [3, 2, 32]",
        lambda: fj.add_rms_norm(
            normal((2, 3, 32), "float32", 44), normal((3, 2, 32), "float32", 45)
        ),
    )
    refused(
        suite,
        "vmap over numbers",
        "FASTNORM_ERROR_SHAPE: x.ndim is 0",
        lambda: jax.vmap(fj.rms_norm)(weight),
    )
    refused(
        suite,
        "vmap with weights that are numbers",
        "FASTNORM_ERROR_SHAPE: weight.ndim is 0",
        lambda: jax.vmap(fj.rms_norm)(normal((64, 64), "float32", 46), weight),
    )
    refused(
        suite,
        "codes of f32",
        "quantized.dtype is f32",
        lambda: fj.rms_norm_quant(x, scheme="per_row", dtype=jnp.float32),
    )
    for size in (0, -64, 65, 2**32 + 64):
        refused(
            suite,
            f"block_size {size}",
            f"block_size is {size}; required: 64 or 128",
            lambda: fj.rms_norm_quant(x, scheme="per_block", block_size=size),
        )
    refused(
        suite,
        "a block_size for mxfp8",
        "block_size is 32; required: 0",
        lambda: fj.rms_norm_quant(x, scheme="mxfp8", block_size=32),
    )
    refused(
        suite,
        "codes of a number",
        "x has 0 dimensions",
        lambda: fj.rms_norm_quant(1.0, scheme="per_row"),
    )
    suite.raises(
        "an unknown rounding",
        ValueError,
        "once, normalized, every_step, once_rw",
        lambda: fj.rms_norm(x, rounding="up"),
    )
    for scheme in ("fp2", None):
        suite.raises(
            f"scheme {scheme}",
            ValueError,
            "required: one of per_row",
            lambda: fj.rms_norm_quant(x, scheme=scheme),
        )
    suite.raises(
        "eps that is traced",
        TypeError,
        "eps is a traced value; required: a number",
        lambda: jax.jit(lambda e: fj.rms_norm(x, weight, e))(1e-5),
    )
    suite.raises(
        "eps that is a word",
        TypeError,
        "eps is 'small'; required: a number",
        lambda: fj.rms_norm(x, weight, "small"),
    )
    suite.raises(
        "a traced weight_offset",
        TypeError,
        "weight_offset is a traced value",
        lambda: jax.jit(lambda o: fj.rms_norm(x, weight, weight_offset=o))(1.0),
    )
    suite.check(
        "after errors the next call is fine",
        Exact("rms", f64(x), f64(weight), eps=EPS).holds(f64(fj.rms_norm(x, weight, EPS))),
    )
    # What the handler itself says, to a program that was made without the check.
    kept, fj._check = fj._check, lambda *_: None
    try:
        suite.raises(
            "the handler's error",
            jax.errors.JaxRuntimeError,
            "FASTNORM_ERROR_SHAPE: weight.shape is [62]",
            lambda: jax.block_until_ready(fj.rms_norm(x, weight[:62])),
        )
        suite.raises(
            "the handler's error, jit of vmap",
            jax.errors.JaxRuntimeError,
            "FASTNORM_ERROR_SHAPE: weight.shape is ",
            lambda: jax.block_until_ready(
                jax.jit(jax.vmap(fj.rms_norm))(x[:, None], weight[: 4 * 15].reshape(4, 15))
            ),
        )
    finally:
        fj._check = kept


def test_arguments(suite):
    """Every argument of every function: wrong dtypes, what is no array, arrays without memory."""
    required = "required: one of float32, float16, bfloat16"
    for name, arguments in ARGUMENTS.items():
        function = Function(name)
        want = [bits(a) for a in jax.tree.leaves(function.call())]
        for argument in arguments:
            array = function.arrays[argument]
            for dtype in ("bool", "uint16", "int4", "complex64"):
                refused(
                    suite,
                    f"{name}, {argument} of {dtype}",
                    f"{argument}.dtype is {dtype}; {required}",
                    lambda a: function.call(**{argument: a}),
                    array.astype(dtype),
                )
            with jax.enable_x64(True):
                refused(
                    suite,
                    f"{name}, {argument} of float64",
                    f"{argument}.dtype is float64; {required}",
                    lambda a: function.call(**{argument: a}),
                    np.asarray(array, np.float64),
                )
            refused(
                suite,
                f"{name}, {argument} of random keys",
                f"{argument}.dtype is key",
                lambda a: function.call(**{argument: a}),
                jax.random.split(jax.random.key(0), array.shape),
            )
            for value in ("word", object()):
                suite.raises(
                    f"{name}, {argument} is {type(value).__name__}",
                    TypeError,
                    f"{argument} is {type(value).__name__}; required",
                    lambda: function.call(**{argument: value}),
                )
            if argument in ("x", "residual"):
                suite.raises(
                    f"{name}, {argument} is None",
                    fj.FastnormError,
                    f"{argument} is None; required: an array",
                    lambda: function.call(**{argument: None}),
                )
            deleted = jnp.array(array)
            deleted.delete()
            suite.raises(
                f"{name}, {argument} was donated",
                fj.FastnormError,
                f"{argument} was deleted",
                lambda: function.call(**{argument: deleted}),
            )
            kept, fj._PLATFORMS = fj._PLATFORMS, ("abacus",)
            try:
                suite.raises(
                    f"{name}, {argument} on another platform",
                    fj.FastnormError,
                    f"{argument} is on {jax.devices()[0]}, of platform ",
                    lambda: jax.jit(lambda **others: function.call(**others, **{argument: array}))(
                        **{k: a for k, a in function.arrays.items() if k != argument}
                    ),
                )
            finally:
                fj._PLATFORMS = kept
            for label, value in (
                ("NumPy array", np.asarray(array)),
                ("list", np.asarray(array).tolist()),
            ):
                suite.check(
                    f"{name}, {argument} as a {label}",
                    [bits(a) for a in jax.tree.leaves(function.call(**{argument: value}))] == want,
                )


def test_immutable(suite):
    """fastnorm's calls for other arrays do not write JAX arrays, whose memory others may share."""
    import fastnorm

    x = jnp.ones((2, 4))
    alias, host = jnp.asarray(x), np.ones((2, 4), np.float32)
    text = "is a JAX array, which is immutable; required: an array that can be written"
    context = fastnorm.context()
    for name, call in (
        ("out", lambda: fastnorm.rms_norm(x, out=x)),
        ("out", lambda: fastnorm.rms_norm(host, out=x)),
        ("out", lambda: fastnorm.layer_norm(host, out=x)),
        ("out", lambda: fastnorm.add_rms_norm(host, host, out=x)),
        ("residual_out", lambda: fastnorm.add_rms_norm(host, host, residual_out=x)),
        ("y", lambda: context.call(x=host, y=x)),
        ("scale", lambda: context.call(x=host, scale=x, quant_scheme=2)),
        ("dx", lambda: context.norm_backward(x=host, dy=host, dx=x)),
        ("cache", lambda: context.norm_heads([{"x": host, "cache": x}])),
        ("dweight", lambda: context.norm_heads_backward([{"x": host, "dweight": x}])),
        ("o", lambda: context.mla_decode(o=x)),
    ):
        suite.raises(f"{name} that is immutable", ValueError, f"{name} {text}", call)
    suite.check("immutable arrays stay", (np.asarray(alias) == 1).all())
    frozen = host.copy()
    frozen.flags.writeable = False
    suite.raises(
        "a read-only y", ValueError, "y is read-only", lambda: context.call(x=host, y=frozen)
    )
    y = fastnorm.rms_norm(x, out=np.empty((2, 4), np.float32), eps=0.0)
    suite.check("a JAX array is read", (y == 1).all())
    context.call(x=host, y=y, scale=jnp.ones(1), quant_scheme=1)


def test_eps_none(suite):
    default = float(np.finfo(np.float32).eps)
    for name, dtype in itertools.product(ARGUMENTS, DTYPES):
        function = Function(name, dtype=dtype)
        # So small that eps decides.
        small = {
            k: a * jnp.asarray(1e-3, a.dtype)
            for k, a in function.arrays.items()
            if k in ("x", "residual")
        }
        ours, same, other = (
            [bits(a) for a in jax.tree.leaves(function.call(**small, eps=eps))]
            for eps in (None, default, 2 * default)
        )
        suite.check(f"{name} of {dtype}, eps None", ours == same and ours != other)


def test_dimensions(suite):
    for name, rank in itertools.product(ARGUMENTS, range(1, 11)):
        shape = (2, 1, 3, 1, 2, 1, 2, 1, 1)[: rank - 1] + (64,)
        function = Function(name, shape)
        flat = {k: a.reshape(-1, 64) for k, a in function.arrays.items() if k in ("x", "residual")}
        found, want = jax.tree.leaves(function.call()), jax.tree.leaves(function.call(**flat))
        suite.check(
            f"{name} of {rank} dimensions",
            all(a.shape[:-1] == shape[:-1] for a in found)
            and [bits(a) for a in found] == [bits(a) for a in want],
        )
    for name, shape in itertools.product(
        ARGUMENTS, ((0, 64), (2, 0, 3, 64), (2, 1, 0, 3, 1, 5, 64))
    ):
        suite.check(
            f"{name} of {list(shape)}",
            all(
                a.shape[:-1] == shape[:-1] and a.size == 0
                for a in jax.tree.leaves(Function(name, shape).call())
            ),
        )


def test_donation(suite):
    x, weight = normal((4, 64), "float32", 47), normal((64,), "float32", 48)
    want = [bits(a) for a in fj.add_rms_norm(x, jnp.array(x), weight)]
    suite.check(
        "x as its own residual", [bits(a) for a in fj.fused_add_rms_norm(x, x, weight)] == want
    )
    suite.check(
        "x as its own residual, jit",
        [bits(a) for a in jax.jit(lambda a: fj.fused_add_rms_norm(a, a, weight))(x)] == want,
    )
    step = jax.jit(lambda a, r: fj.fused_add_rms_norm(a, r, weight)[::-1], donate_argnums=1)
    twice = jnp.array(x)
    suite.raises(
        "x that is also the donated residual",
        jax.errors.JaxRuntimeError,
        "donate",
        lambda: step(twice, twice),
    )
    residual = jnp.array(x)
    total, y = step(x, residual)
    suite.check("a donated residual: values", [bits(y), bits(total)] == want)
    suite.raises(
        "a residual that was donated before",
        fj.FastnormError,
        "residual was deleted, as donated arguments are",
        lambda: fj.add_rms_norm(x, residual),
    )


def sharded_program():
    """Run in a process of its own, which has two CPU devices: a line for each case, with its
    result."""
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    first, second = jax.devices()
    x, residual, weight = (
        normal((4, 64), "float32", 110),
        normal((4, 64), "float32", 111),
        normal((64,), "float32", 112),
    )
    want = [bits(a) for a in fj.add_rms_norm(x, residual, weight)]

    def report(name, ok):
        print(f"case {'ok' if ok else 'wrong'} {name}", flush=True)

    for name, arguments in ARGUMENTS.items():
        for argument in arguments:
            function = Function(name)
            arrays = {
                k: jax.device_put(a, second if k == argument else first)
                for k, a in function.arrays.items()
            }
            odd, other = (arguments[1], arguments[0]) if argument == "x" else (argument, "x")
            places = [next(iter(arrays[k].devices())) for k in (odd, other)]
            before, text = fj.handler_calls(), "no error"
            try:
                function.call(**arrays)
            except fj.FastnormError as error:
                text = str(error)
            report(
                f"{name}, {argument} on another device: {text}",
                fj.handler_calls() == before
                and f"{odd} is on {places[0]}; required: {places[1]}, as {other} is" in text,
            )
            try:
                jax.jit(lambda arrays, function=function: function.call(**arrays))(arrays)
                text = "no error"
            except ValueError as error:
                text = str(error)
            report(
                f"{name}, {argument} on another device, jit: {text[:200]}",
                "incompatible devices" in text,
            )
    moved = [jax.device_put(a, second) for a in (x, residual, weight)]
    found = fj.add_rms_norm(*moved)
    report(
        "all on the second device",
        [bits(a) for a in found] == want and all(a.devices() == {second} for a in found),
    )
    found = fj.add_rms_norm(*moved[:2], weight)  # one that is bound to no device
    report("a weight that goes where the others are", [bits(a) for a in found] == want)
    mesh = Mesh(np.array([first, second]), ("d",))

    def put(a, *names):
        return jax.device_put(np.asarray(a), NamedSharding(mesh, P(*names)))

    for names in (("d",), (None, "d"), ()):
        for weight_names in ((), ("d",)):
            arrays = put(x, *names), put(residual, *names), put(weight, *weight_names)
            label = f"x sharded by {names}, weight by {weight_names}"
            for wrap, function in itertools.product(
                (lambda f: f, jax.jit), (fj.add_rms_norm, fj.fused_add_rms_norm)
            ):
                report(label, [bits(a) for a in wrap(function)(*arrays)] == want)
    step = jax.jit(lambda a, r, w: fj.fused_add_rms_norm(a, r, w)[::-1], donate_argnums=1)
    for names in (("d",), (None, "d"), ()):
        total, y = step(put(x, *names), put(residual, *names), put(weight))
        report(f"a donated residual sharded by {names}", [bits(y), bits(total)] == want)
    rows = jax.jit(
        jax.shard_map(fj.add_rms_norm, mesh=mesh, in_specs=(P("d"), P("d"), P()), out_specs=P("d"))
    )
    before = fj.handler_calls()
    found = jax.block_until_ready(rows(put(x, "d"), put(residual, "d"), put(weight)))
    report(
        "shard_map over rows",
        [bits(a) for a in found] == want
        and fj.handler_calls() - before == 2
        and all(a.sharding.spec == P("d") for a in found),
    )


def test_sharded(suite):
    name = "arrays on two devices"
    if DEVICE == "cuda":
        suite.skip(name, "tested with two CPU devices")
        return
    result = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], "--sharded"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
    )
    cases = [
        line.split(" ", 2)[1:] for line in result.stdout.splitlines() if line.startswith("case ")
    ]
    suite.check(
        f"{name}: the program ends well", result.returncode == 0 and cases, result.stderr[-2000:]
    )
    for found, case in cases:
        suite.check(f"{name}, {case}", found == "ok")


def formula(kind, x, residual=None, weight=None, bias=None, weight_offset=0.0):
    """y, or y and the sum, in float64 where the arguments are."""
    s = x if residual is None else x + residual
    centred = s - s.mean(-1, keepdims=True) if kind == "layer" else s
    y = centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + EPS)
    y = y if weight is None else y * (weight + weight_offset)
    y = y if bias is None else y + bias
    return (y,) if residual is None else (y, s)


DIFFERENTIABLE = {
    "rms_norm": ("rms", ("x", "weight")),
    "layer_norm": ("layer", ("x", "weight", "bias")),
    "add_rms_norm": ("rms", ("x", "residual", "weight")),
    "fused_add_rms_norm": ("rms", ("x", "residual", "weight")),
}
# Largest error of a gradient, relative and in norm: a few roundings to its dtype, or sums in single
# precision.
GRADIENT_BOUNDS = {"float32": 5e-6, "float16": 2e-3, "bfloat16": 1.2e-2}


def pulled(function, arrays, **options):
    """Outputs, and gradients by name for gradients of the outputs that are the same for each
    function."""
    outputs, pull = jax.vjp(lambda arrays: jax.tree.leaves(function(**arrays, **options)), arrays)
    return outputs, pull([normal(y.shape, y.dtype.name, 300 + i) for i, y in enumerate(outputs)])[0]


def exact_gradients(kind, arrays, **options):
    wide = {name: np.asarray(a).astype(np.float64) for name, a in arrays.items()}
    dtypes = [arrays["x"].dtype.name, arrays.get("residual", arrays["x"]).dtype.name]
    with jax.enable_x64(True):
        outputs, pull = jax.vjp(lambda arrays: formula(kind, **arrays, **options), wide)
        return {
            name: np.asarray(g)
            for name, g in pull(
                tuple(
                    jnp.asarray(np.asarray(normal(y.shape, dtype, 300 + i)).astype(np.float64))
                    for i, (y, dtype) in enumerate(zip(outputs, dtypes))
                )
            )[0].items()
        }


def test_gradients(suite):
    shapes = [
        ((5, 64), (64,)),
        ((2, 3, 4, 129), (4, 129)),
        ((64,), (64,)),
        ((2, 2, 2, 2, 96), (96,)),
    ]
    for (name, (kind, arguments)), (shape, weight_shape), dtype, wide in itertools.product(
        DIFFERENTIABLE.items(), shapes, DTYPES, (False, True)
    ):
        if wide and dtype == "float32":
            continue
        other = "float32" if wide else dtype
        made = {
            "x": normal(shape, dtype, 1, 2.0, 0.25),
            "residual": normal(shape, other, 2),
            "weight": normal(weight_shape, other, 3, 0.2, 1.0),
            "bias": normal(weight_shape, other, 4),
        }
        arrays = {k: made[k] for k in arguments}
        function, label = (
            getattr(fj, name),
            f"{name} {dtype} {list(shape)}{' f32 weight' if wide else ''}",
        )
        outputs, found = pulled(function, arrays, eps=EPS)
        suite.check(
            f"{label}: values as without a gradient",
            [bits(a) for a in outputs]
            == [bits(a) for a in jax.tree.leaves(function(**arrays, eps=EPS))],
        )
        wanted = exact_gradients(kind, arrays)
        for k, g in found.items():
            # A 16-bit sum is what is normalised in the backward.
            bound = max(
                GRADIENT_BOUNDS[g.dtype.name],
                GRADIENT_BOUNDS[dtype] if wide or "residual" in arrays else 0,
            )
            error = np.linalg.norm(f64(g) - wanted[k]) / np.linalg.norm(wanted[k])
            suite.check(
                f"{label}, gradient of {k}",
                g.dtype == arrays[k].dtype and g.shape == arrays[k].shape and error <= bound,
                (g.dtype, g.shape, error),
            )
        compiled = jax.jit(lambda arrays, function=function: pulled(function, arrays, eps=EPS)[1])(
            arrays
        )
        suite.check(f"{label}: jit", all(bits(compiled[k]) == bits(found[k]) for k in found))
    arrays = {"x": normal((6, 96), "float32", 1), "weight": normal((96,), "float32", 3, 0.2, 1.0)}
    _, found = pulled(fj.rms_norm, arrays, eps=EPS, weight_offset=1.0)
    wanted = exact_gradients("rms", arrays, weight_offset=1.0)
    suite.check(
        "weight_offset",
        all(
            np.linalg.norm(f64(found[k]) - wanted[k]) <= 5e-6 * np.linalg.norm(wanted[k])
            for k in found
        ),
    )
    rows = jnp.zeros((0, 64)), jnp.ones(64)
    found = jax.grad(lambda a, w: fj.rms_norm(a, w).sum(), (0, 1))(*rows)
    suite.check(
        "no rows",
        found[0].shape == (0, 64) and found[1].shape == (64,) and not np.asarray(found[1]).any(),
    )


def test_what_is_differentiated(suite):
    """Each argument alone: the same gradient, and the library computes nothing else."""
    for name, (_, arguments) in DIFFERENTIABLE.items():
        function = Function(name)

        def loss(arrays, function=function):
            return sum((a * a).sum() for a in jax.tree.leaves(function.call(**arrays)))

        whole = jax.grad(loss)(function.arrays)
        for k in arguments:
            kept, calls = fj._norm_backward, []

            def watched(
                kind, eps, weight_offset, rounding, inputs, outputs, *more, kept=kept, calls=calls
            ):
                calls.append(set(outputs))
                return kept(kind, eps, weight_offset, rounding, inputs, outputs, *more)

            fj._norm_backward = watched
            try:
                found = jax.grad(lambda a, k=k: loss({**function.arrays, k: a}))(function.arrays[k])
            finally:
                fj._norm_backward = kept
            suite.check(f"gradient of {name} by {k} alone", bits(found) == bits(whole[k]))
            suite.equal(
                f"gradient of {name} by {k} alone: outputs",
                calls,
                [{{"weight": "dweight", "bias": "dbias"}.get(k, "dx")}],
            )
    x, residual, weight = (
        normal((4, 64), "float32", 42),
        normal((4, 64), "float32", 43),
        normal((64,), "float32", 44),
    )
    for label, pick in (("y", 0), ("the sum", 1)):
        found = jax.grad(
            lambda a, r, pick=pick: (fj.add_rms_norm(a, r, weight, EPS)[pick] ** 2).sum(), (0, 1)
        )(x, residual)
        wanted = jax.grad(
            lambda a, r, pick=pick: (formula("rms", a, r, weight)[pick] ** 2).sum(), (0, 1)
        )(x, residual)
        suite.check(
            f"gradient of {label} alone",
            all(np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(found, wanted)),
        )


def test_gradients_vmap(suite):
    x, shared = normal((3, 4, 64), "float32", 20), normal((64,), "float32", 21, 0.2, 1.0)
    own, heads = normal((3, 64), "float32", 22, 0.2, 1.0), normal(
        (3, 4, 64), "float32", 23, 0.2, 1.0
    )

    def loss(a, w):
        return (fj.layer_norm(a, w, w, EPS) ** 2).sum()

    both = jax.grad(loss, (0, 1))
    for label, weight, axis in (
        ("a weight for all", shared, None),
        ("weights of their own", own, 0),
        ("weights of heads", heads, 0),
    ):
        parts = [both(part(x, i), weight if axis is None else part(weight, i)) for i in range(3)]
        want = [b"".join(bits(p[k]) for p in parts) for k in (0, 1)]
        for name, wrap in (("vmap", lambda f: f), ("jit of vmap", jax.jit)):
            found = wrap(jax.vmap(both, (0, axis)))(x, weight)
            suite.check(f"{name} of grad, {label}", [bits(a) for a in found] == want)
        total = jax.grad(lambda a, w, axis=axis: jax.vmap(loss, (0, axis))(a, w).sum(), (0, 1))(
            x, weight
        )
        summed = (
            np.sum([np.asarray(p[1]) for p in parts], 0)
            if axis is None
            else np.stack([np.asarray(p[1]) for p in parts])
        )
        suite.check(
            f"grad of vmap, {label}",
            bits(total[0]) == want[0] and np.allclose(total[1], summed, rtol=1e-5, atol=1e-5),
        )

    def layers(x, residual, weights):
        def layer(carry, weight):
            y, residual = fj.fused_add_rms_norm(*carry, weight, EPS)
            return (y * 2, residual), None

        return sum(a.sum() for a in jax.lax.scan(layer, (x, residual), weights)[0])

    def plain(x, residual, weights):
        for weight in weights:
            y, residual = formula("rms", x, residual, weight)
            x = y * 2
        return x.sum() + residual.sum()

    arrays = (
        normal((6, 64), "float32", 15),
        normal((6, 64), "float32", 16),
        normal((5, 64), "float32", 14, 0.2, 1.0),
    )
    found, wanted = (jax.jit(jax.grad(f, (0, 1, 2)))(*arrays) for f in (layers, plain))
    suite.check(
        "a residual stream through scan",
        all(np.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(found, wanted)),
    )
    again = jax.jit(jax.grad(jax.checkpoint(layers), (0, 1, 2)))(*arrays)
    suite.check("a checkpoint", all(bits(a) == bits(b) for a, b in zip(again, found)))


def test_not_differentiable(suite):
    said = "cannot be differentiated"
    function = Function("rms_norm_quant")
    for argument in ARGUMENTS["rms_norm_quant"]:
        suite.raises(
            f"grad of rms_norm_quant by {argument} is refused",
            Exception,
            said,
            lambda: jax.grad(lambda a: jax.tree.leaves(function.call(**{argument: a}))[1].sum())(
                function.arrays[argument]
            ),
        )
    x, weight = normal((4, 64), "float32", 42), normal((64,), "float32", 43)
    for name in DIFFERENTIABLE:
        function = Function(name)

        def loss(a, function=function):
            return (jax.tree.leaves(function.call(x=a))[0] ** 2).sum()

        suite.raises(
            f"second derivative of {name}",
            Exception,
            said,
            lambda: jax.grad(lambda a: jax.grad(loss)(a).sum())(x),
        )
        suite.raises(f"jvp of {name}", TypeError, "forward-mode", lambda: jax.jvp(loss, (x,), (x,)))
        with jax.enable_x64(True):
            suite.raises(
                f"grad of {name} in float64",
                fj.FastnormError,
                "x.dtype is float64; required: one of float32",
                lambda: jax.grad(loss)(np.zeros((4, 64))),
            )
    y = jax.grad(
        lambda a: (a * jax.lax.stop_gradient(fj.rms_norm(jax.lax.stop_gradient(a), weight))).sum()
    )(x)
    suite.check("fine behind stop_gradient", bits(y) == bits(fj.rms_norm(x, weight)))


# --- threads, command buffers, cost ---


def test_threads(suite):
    wrong, done = [], []

    def work(index):
        n = 32 * (index + 1)
        x, weight = normal((8, n), "bfloat16", index), normal((n,), "bfloat16", 50)
        function = jax.jit(lambda a, w: fj.rms_norm(a, w, EPS))
        want = bits(function(x, weight))
        if not Exact("rms", f64(x), f64(weight), eps=EPS, dtype="bfloat16").holds(
            f64(function(x, weight))
        ):
            wrong.append(f"thread {index}: wrong")
        for _ in range(40):
            if bits(function(x, weight)) != want:
                wrong.append(f"thread {index}: other bits")
            try:
                jax.block_until_ready(fj.rms_norm(x, weight[: index + 1]))
                wrong.append(f"thread {index}: no error")
            except fj.FastnormError as error:
                if f"weight.shape is [{index + 1}]" not in str(error):
                    wrong.append(f"thread {index}: {error}")
        done.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    suite.check("8 threads, one context", not wrong and len(done) == 8, wrong[:3] or done)


def test_memory(suite):
    x, weight = normal((2, 64), "float32", 51), normal((64,), "float32", 52)
    norm = jax.jit(fj.rms_norm)

    def fail():
        try:
            norm(x, weight[:63]).block_until_ready()
        except fj.FastnormError:
            pass

    for name, call, count in (
        ("calls", lambda: norm(x, weight).block_until_ready(), 5000),
        ("errors", fail, 500),
    ):
        grown = growth_kib(call, count)
        suite.check(f"memory after {count} {name}", grown < 4096, f"{grown} KiB more")


def test_handler(suite):
    """What the handler refuses, and that it sets pointers between structs."""
    from fastnorm import abi

    size = ctypes.sizeof(abi.NormArgs)
    args = abi.NormArgs(struct_size=size, kind=abi.RMS)
    x, y = abi.NormArgs.x.offset, abi.NormArgs.y.offset
    plain = {
        "family": 0,
        "structs": np.frombuffer(bytes(args) + bytes(ctypes.sizeof(abi.Tensor)), np.int32),
        "parts": 0,
        "links": [-1, -1],
        "operands": [x, 0, 0, -1, -1, y, 0, 0, -1, -1],
        "rank": -1,
        "lead": 0,
        "given": 0,
    }
    a = normal((2, 8), "float32", 90)

    def word(value):
        if isinstance(value, list):
            return np.array(value, np.int64)
        return value if isinstance(value, np.ndarray) else np.int32(value)

    def call(**change):
        form = jax.ShapeDtypeStruct(a.shape, a.dtype)
        attributes = {name: word(value) for name, value in {**plain, **change}.items()}
        return jax.block_until_ready(jax.ffi.ffi_call("fastnorm_norm", form)(a, **attributes))

    suite.check("the handler: a call", bits(call()) == bits(fj.rms_norm(a, eps=0.0)))
    without_x = [-1, *plain["operands"][1:]]
    for name, text, change in (
        ("no x", "x is NULL", {}),
        ("a link to an empty tensor as x", "x.dtype", {"links": [-1, -1, x, size]}),
    ):
        suite.raises(
            f"the handler: {name}",
            jax.errors.JaxRuntimeError,
            text,
            lambda change=change: call(operands=without_x, **change),
        )
    end, others = size + ctypes.sizeof(abi.Tensor), plain["operands"][1:]
    for name, change in (
        ("links to what is behind the structs", {"links": [x, end]}),
        ("links from behind the structs", {"links": [end, 0]}),
        ("links between words", {"links": [x + 4, size]}),
        ("half a link", {"links": [x, -1]}),
        ("operands behind the structs", {"operands": [end, *others]}),
        ("operands between words", {"operands": [x + 4, *others]}),
        ("fewer operands", {"operands": plain["operands"][:5]}),
        ("heads that are not there", {"operands": [x, 0, 7, 2, -1, *others[4:]]}),
        ("results that are not there", {"operands": [x, 0, 0, -1, 1, *others[4:]]}),
        ("nine parts", {"parts": 9}),
        ("a part without a size", {"parts": 1}),
        ("a cut struct", {"structs": plain["structs"][:20]}),
        ("no workspace where one is given", {"given": 1}),
        ("fewer dimensions than x has", {"rank": 3}),
    ):
        suite.raises(
            f"the handler: {name}",
            jax.errors.JaxRuntimeError,
            "the buffers are not those that the attributes tell of",
            lambda change=change: call(**change),
        )


def test_handlers_for_cuda(suite):
    """They are there, XLA takes them, and without a CUDA stream they say so."""
    for symbol in ("fastnorm_xla_cuda", "fastnorm_xla_cuda_graph"):
        name = f"{symbol}_on_the_cpu"
        handler = jax.ffi.pycapsule(getattr(fj._library, symbol))
        jax.ffi.register_ffi_target(name, handler, platform="cpu")
        kept, fj.target_of = fj.target_of, lambda family, name=name: name
        try:
            suite.raises(
                f"the handler {symbol} on the CPU",
                jax.errors.JaxRuntimeError,
                "stream",
                lambda: jax.block_until_ready(fj.rms_norm(normal((2, 32), "float32", 53))),
            )
        finally:
            fj.target_of = kept


def recorded_program():
    """Run in a process of its own, whose XLA records custom calls in CUDA graphs: values, and how
    often XLA called."""

    def forward(x, residual, weights):
        for weight in weights:
            x, residual = fj.add_rms_norm(x + 1, residual, weight, EPS)
        return x, residual

    def program(x, residual, weights):
        outputs, back = jax.vjp(forward, x, residual, weights)
        return *outputs, *jax.tree.leaves(back(outputs))

    weights = [normal((256,), "float32", 60 + i, 0.2, 1.0) for i in range(4)]
    plain = jax.jit(program)
    inputs = [
        (normal((16, 256), "float32", 70 + i), normal((16, 256), "float32", 80 + i))
        for i in range(3)
    ]
    want = [[bits(a) for a in plain(*pair, weights)] for pair in inputs]
    fj.use_command_buffers = True
    recorded = jax.jit(lambda *a: program(*a))
    right = True
    for _ in range(4):
        for pair, bytes_wanted in zip(inputs, want):
            right &= [bits(a) for a in recorded(*pair, weights)] == bytes_wanted
    before = fj.handler_calls()
    for _ in range(20):
        jax.block_until_ready(recorded(*inputs[0], weights))
    print(f"right {right}, {fj.handler_calls() - before} handler calls of 160")
    return right


class Metadata(ctypes.Structure):
    """XLA_FFI_Metadata of XLA's c_api.h."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("version_size", ctypes.c_size_t),
        ("version_extension", ctypes.c_void_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
        ("traits", ctypes.c_uint32),
        ("state_type", ctypes.c_int64),
    ]


class MetadataExtension(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("metadata", ctypes.POINTER(Metadata)),
    ]


def traits_of(handler):
    """What a handler tells XLA of itself; the frame has nothing but the question."""
    metadata = Metadata(struct_size=ctypes.sizeof(Metadata))
    extension = MetadataExtension(
        struct_size=ctypes.sizeof(MetadataExtension), type=1, metadata=ctypes.pointer(metadata)
    )
    # XLA_FFI_CallFrame up to its attributes: 5 words, then arguments, results and attributes.
    frame = (ctypes.c_size_t * 32)((5 + 5 + 5 + 6) * 8, ctypes.addressof(extension))
    handler.restype = ctypes.c_void_p
    assert handler(ctypes.byref(frame)) is None
    assert (metadata.major, metadata.minor) != (0, 0)
    return metadata.traits


def test_traits(suite):
    """XLA records only what says that it may be: the variant for CUDA graphs, and no other."""
    for end, wanted in (("cuda_graph", 1), ("cuda", 0), ("cpu", 0)):
        name = f"fastnorm_xla_{end}"
        suite.equal(f"{name}: traits", traits_of(getattr(fj._library, name)), wanted)


def test_recorded_gradients(suite):
    """The variants give the same bits, with memory that the caller gives; vmap, too."""
    x, w = normal((7, 5, 256), "float32", 3), normal((256,), "float32", 4, 0.2, 1.0)

    def loss(x, w):
        return (fj.rms_norm(x, w, EPS) * jnp.cos(x)).sum()

    def gradients():
        plain = jax.jit(lambda *a: jax.grad(loss, (0, 1))(*a))
        mapped = jax.jit(lambda *a: jax.vmap(jax.grad(loss, (0, 1)), (0, None))(*a))
        lowered = plain.lower(x, w).as_text()
        return [bits(a) for a in (*plain(x, w), *mapped(x, w))], lowered

    want, lowered = gradients()
    suite.check("gradients: not for graphs", "norm_backward_graph" not in lowered, lowered)
    fj.use_command_buffers = True
    try:
        found, lowered = gradients()
    finally:
        fj.use_command_buffers = False
    suite.check("gradients for graphs: target", "norm_backward_graph" in lowered, lowered)
    suite.check("gradients for graphs: bits", found == want)
    # 35 rows of 256 columns: 32 lanes in 2 blocks, each with the sums of 4 thread blocks, and what
    # alignment wants.
    memory = f"tensor<{2 * 4 * 256 * 4 + 256}xui8>"
    suite.check("gradients for graphs: memory", memory in lowered, lowered)


def test_command_buffers(suite):
    name = "recorded in CUDA graphs by XLA"
    if DEVICE == "cpu":
        suite.skip(name, "needs a CUDA device")
        return
    flags = "--xla_gpu_enable_command_buffer=FUSION,CUSTOM_CALL --xla_gpu_graph_min_graph_size=1"
    result = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], "--recorded"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "XLA_FLAGS": flags},
    )
    said = [line for line in result.stdout.splitlines() if "handler calls" in line]
    suite.results["command_buffers"] = {
        "flags": flags,
        "said": said,
        "stderr": result.stderr[-2000:] if not said else "",
    }
    print(f"  {flags}: {said or result.stderr[-1000:]}")
    suite.check(
        f"{name}: values",
        result.returncode == 0 and said and said[0].startswith("right True"),
        result.stderr[-2000:],
    )
    if said and said[0].endswith(" 160 handler calls of 160"):
        suite.skip(f"{name}: replayed", "this XLA called every time, so nothing was recorded")
    elif said:
        suite.check(f"{name}: replayed without a call", int(said[0].split()[2]) < 80, said)


def test_ml_dtypes(suite):
    """NumPy arrays of the dtypes that come with JAX, by the package's own functions, on the CPU."""
    import fastnorm

    x, weight = (
        np.asarray(normal(shape, "bfloat16", seed)) for shape, seed in (((3, 64), 93), ((64,), 94))
    )
    y = fastnorm.rms_norm(x, weight, EPS)
    wide = fastnorm.rms_norm(x.astype(np.float32), weight.astype(np.float32), EPS)
    suite.equal("NumPy's bfloat16: the dtype of y", y.dtype, x.dtype)
    suite.equal("NumPy's bfloat16: the bits of y", bits(y), bits(wide.astype(x.dtype)))
    suite.raises(
        "NumPy's float8_e4m3",
        fastnorm.FastnormError,
        "x.dtype is float8_e4m3; required: a number's, in the order of bytes of this machine; of "
        "ml_dtypes one of bfloat16, float8_e4m3fn, float8_e5m2, float8_e8m0fnu",
        lambda: fastnorm.rms_norm(x.astype(jnp.float8_e4m3)),
    )


def test_cost(suite):
    x, residual, weight = (
        normal((1, 64), "bfloat16", 90),
        normal((1, 64), "bfloat16", 91),
        normal((64,), "bfloat16", 92),
    )

    def plain(a, w):
        wide = a.astype(jnp.float32)
        return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + EPS)).astype(
            a.dtype
        ) * w

    def chain(norm):
        def run(a, w):
            for _ in range(65):
                a = norm(a, w)
            return a

        return jax.jit(run)

    count = 200 if DEVICE == "cuda" else 1000
    ours, theirs = jax.jit(lambda a, w: fj.rms_norm(a, w, EPS)), jax.jit(plain)
    add = jax.jit(lambda a, r, w: fj.add_rms_norm(a, r, w, EPS))
    for name, call in (
        ("jit(rms_norm), waited for", lambda: ours(x, weight).block_until_ready()),
        ("jit of the same in jnp, waited for", lambda: theirs(x, weight).block_until_ready()),
        ("jit(add_rms_norm), waited for", lambda: jax.block_until_ready(add(x, residual, weight))),
    ):
        call()
        suite.cost(name, best_us(call, count))
    one, many = ours, chain(lambda a, w: fj.rms_norm(a, w, EPS))
    many(x, weight).block_until_ready()
    long = best_us(lambda: many(x, weight).block_until_ready(), 50)
    short = best_us(lambda: one(x, weight).block_until_ready(), 50)
    suite.cost("one more rms_norm inside a compiled program", (long - short) / 64)
    suite.check("costs were measured", len(suite.results["costs_us"]) == 4)


def test_readme(suite):
    run_readme(suite, Path(__file__).resolve().parent)


def add_arguments(parser):
    parser.add_argument("--devmem", type=Path, help="libfastnorm_devmem.so, for --device cuda")
    parser.add_argument(
        "--recorded", action="store_true", help="run the program for XLA's command buffers only"
    )
    parser.add_argument(
        "--sharded", action="store_true", help="run the program for two devices only"
    )


def main():
    global jax, jnp, np, fj, direct, DEVICE
    suite, options, library = start(__doc__, "jax", "JAX functions", add_arguments=add_arguments)
    DEVICE = options.device
    import jax
    import jax.numpy as jnp
    import numpy as np

    import fastnorm.jax as fj

    if options.recorded:
        sys.exit(0 if recorded_program() else 1)
    if options.sharded:
        sharded_program()
        sys.exit(0)
    direct = (
        Direct(library, DEVICE == "cuda", options.devmem)
        if DEVICE == "cpu" or options.devmem
        else None
    )
    print(f"{library}, jax {jax.__version__}, {suite.results['device']}", flush=True)
    suite.run(
        [
            test_rms_norm,
            test_layer_norm,
            test_add,
            test_mixed_dtypes,
            test_columns,
            test_in_place,
            test_vmap,
            test_quantised,
            test_errors,
            test_arguments,
            test_immutable,
            test_eps_none,
            test_dimensions,
            test_donation,
            test_sharded,
            test_gradients,
            test_what_is_differentiated,
            test_gradients_vmap,
            test_not_differentiable,
            test_readme,
            test_threads,
            test_memory,
            test_ml_dtypes,
            test_cost,
            test_traits,
            test_recorded_gradients,
            test_command_buffers,
            *([test_handler, test_handlers_for_cuda] if DEVICE == "cpu" else []),
        ]
    )
    suite.finish()


main()
