#!/usr/bin/env python3
"""Tests of the PyTorch operators, on the CPU or a CUDA device. The last line is the count.

Every value is compared with double precision, within the bounds of its error, and its bits with
those of the C ABI called directly. Run with a Python that has PyTorch and NumPy.
"""

import gc
import importlib.util
import io
import itertools
import math
import os
import shutil
import sys
import threading
import time
import warnings
import weakref
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.append(str(Path(__file__).resolve().parents[1]))
from norm_testing import (
    BLOCKS,
    FP4,
    Exact,
    Suite,
    View,
    arguments,
    best_us,
    growth_kib,
    missing,
    round_to,
    run_readme,
    unpack_e2m1,
    use_library,
)  # noqa: E402

EPS = 1e-5
ROUNDINGS = {"once": 0, "normalized": 1, "every_step": 2, "once_rw": 3}


# --- helpers ---


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def f64(t):
    return None if t is None else t.detach().to("cpu", torch.float64).numpy()


def bits(t):
    """The bytes of a tensor, as one."""
    t = t.detach().cpu().contiguous()
    return t.view(torch.uint8).numpy().tobytes() if t.numel() else b""


def normal(shape, dtype, seed, scale=1.0, offset=0.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale + offset).to(dtype).to(DEVICE)


def view(t):
    return View(t.data_ptr(), ft._DTYPES[t.dtype], t.shape, t.stride(), t.element_size())


class Direct:
    """The C ABI by ctypes, without what the module keeps."""

    def __init__(self):
        self.context = ft._c.Context(
            ft._library, ft._c.CUDA if DEVICE.type == "cuda" else ft._c.CPU, 0
        )

    def run(self, kind, **fields):
        fields = {name: view(v) if isinstance(v, torch.Tensor) else v for name, v in fields.items()}
        stream = torch.cuda.current_stream().cuda_stream if DEVICE.type == "cuda" else None
        self.context.call(kind, stream, **fields).run()

    def error(self, kind, **fields):
        try:
            self.run(kind, **fields)
        except ft.FastnormError as error:
            return str(error)
        return "success"


def needs_cuda(suite, name):
    if DEVICE.type == "cuda":
        return False
    suite.skip(name, "needs a CUDA device")
    return True


# --- values ---

SHAPES = [
    ((5, 64), (64,)),
    ((3, 1000), (1000,)),
    ((2, 3, 4, 129), (4, 129)),
    ((7, 4096), (4096,)),
    ((1, 20000), (20000,)),
    ((300, 8), (8,)),
]


def dtypes():
    return torch.float32, torch.float16, torch.bfloat16


def test_rms_norm(suite):
    for (shape, weight_shape), dtype, wide in itertools.product(SHAPES, dtypes(), (False, True)):
        if wide and dtype == torch.float32:
            continue
        name = f"rms_norm {name_of(dtype)} {list(shape)}{' f32 weight' if wide else ''}"
        x = normal(shape, dtype, 1, 2.0, 0.25)
        weight = normal(weight_shape, torch.float32 if wide else dtype, 2, 0.2, 1.0)
        for options in (
            {},
            {"weight_offset": 1.0},
            {"rounding": "normalized"},
            {"rounding": "once_rw"},
        ):
            y = ft.rms_norm(x, weight, EPS, **options)
            exact = Exact("rms", f64(x), f64(weight), eps=EPS, dtype=name_of(dtype), **options)
            label = f"{name} {options or ''}".strip()
            suite.check(f"{label}: double precision", y.dtype == dtype and exact.holds(f64(y)))
            wanted = torch.empty_like(y)
            direct.run(
                ft._c.RMS,
                x=x,
                weight=weight,
                y=wanted,
                eps=EPS,
                weight_offset=options.get("weight_offset", 0.0),
                rounding=ROUNDINGS[options.get("rounding", "once")],
            )
            suite.check(f"{label}: bits of the C ABI", bits(y) == bits(wanted))
    x = normal((4, 96), torch.bfloat16, 3)
    suite.check(
        "rms_norm without weight",
        Exact("rms", f64(x), eps=EPS, dtype="bfloat16").holds(f64(ft.rms_norm(x, eps=EPS))),
    )
    weight = normal((96,), torch.bfloat16, 4)
    stepped = ft.rms_norm(x, weight, rounding="every_step")
    wanted = torch.empty_like(stepped)
    direct.run(ft._c.RMS, x=x, weight=weight, y=wanted, eps=1e-6, rounding=2)
    suite.check("rms_norm every_step: bits of the C ABI", bits(stepped) == bits(wanted))


def test_layer_norm(suite):
    for (shape, weight_shape), dtype in itertools.product(SHAPES, dtypes()):
        name = f"layer_norm {name_of(dtype)} {list(shape)}"
        x = normal(shape, dtype, 5, 2.0, 0.5)
        weight, bias = normal(weight_shape, dtype, 6, 0.2, 1.0), normal(weight_shape, dtype, 7)
        y = ft.layer_norm(x, weight, bias, EPS)
        exact = Exact("layer", f64(x), f64(weight), f64(bias), eps=EPS, dtype=name_of(dtype))
        suite.check(f"{name}: double precision", y.dtype == dtype and exact.holds(f64(y)))
        wanted = torch.empty_like(y)
        direct.run(ft._c.LAYER, x=x, weight=weight, bias=bias, y=wanted, eps=EPS)
        suite.check(f"{name}: bits of the C ABI", bits(y) == bits(wanted))


def test_mixed_dtypes(suite):
    """Weight, bias and residual of any dtype beside any x; y of x's dtype or float32."""
    for own, parameter, other, wide in itertools.product(
        dtypes(), dtypes(), dtypes(), (None, torch.float32)
    ):
        name = f"x {name_of(own)}, weight {name_of(parameter)}, residual {name_of(other)}, y {name_of(wide or own)}"
        x, residual = normal((5, 129), own, 20, 2.0), normal((5, 129), other, 21)
        weight, bias = normal((129,), parameter, 22, 0.2, 1.0), normal((129,), other, 23)
        for rounding in ("once", "normalized"):
            options = {"rounding": rounding, "y_dtype": wide}
            y, total = ft.add_rms_norm(x, residual, weight, EPS, **options)
            exact = Exact(
                "rms",
                f64(x),
                f64(weight),
                residual=f64(residual),
                eps=EPS,
                dtype=name_of(own),
                rounding=rounding,
                y_dtype=name_of(wide or own),
            )
            suite.check(
                f"{name}, {rounding}: double precision",
                y.dtype == (wide or own) and exact.holds(f64(y)),
            )
            suite.check(
                f"{name}, {rounding}: the sum",
                total.dtype == other and (f64(total) == round_to(exact.sums, name_of(other))).all(),
            )
            kept = residual.clone()
            fused = ft.fused_add_rms_norm(x, kept, weight, EPS, **options)
            suite.check(
                f"{name}, {rounding}: in place",
                bits(fused) == bits(y) and bits(kept) == bits(total),
            )
        exact = Exact(
            "layer",
            f64(x),
            f64(weight),
            f64(bias),
            eps=EPS,
            dtype=name_of(own),
            y_dtype=name_of(wide or own),
        )
        y = ft.layer_norm(x, weight, bias, EPS, y_dtype=wide)
        suite.check(f"{name}: layer_norm", y.dtype == (wide or own) and exact.holds(f64(y)))
        found = ft.layer_norm(x.to("meta"), weight.to("meta"), bias.to("meta"), EPS, y_dtype=wide)
        suite.check(f"{name}: on meta", found.is_meta and found.dtype == y.dtype)
        wanted = torch.empty_like(y)
        direct.run(ft._c.LAYER, x=x, weight=weight, bias=bias, y=wanted, eps=EPS)
        suite.check(f"{name}: bits of the C ABI", bits(y) == bits(wanted))
    # Hugging Face: the row is normalised in f32, rounded to x's dtype, and multiplied by the weight
    # in f32.
    x, weight = normal((4, 256), torch.bfloat16, 24), normal((256,), torch.float32, 25, 0.2, 1.0)
    rows = x.float()
    theirs = weight * (rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)
    ours = ft.rms_norm(x, weight, EPS, rounding="normalized", y_dtype=torch.float32)
    # The root's last place decides a tie of bf16 now and then.
    suite.check(
        "as Hugging Face's norm returns it",
        ours.dtype == theirs.dtype
        and (ours == theirs).double().mean().item() > 0.99
        and torch.allclose(ours, theirs, rtol=2**-7),
    )
    suite.raises(
        "y of another 16-bit dtype",
        ft.FastnormError,
        "y.dtype is f16; required: bf16, or f32, as x is bf16",
        lambda: ft.rms_norm(x, weight, y_dtype=torch.float16),
    )


def test_columns(suite):
    """Weight and bias of every shape that broadcasts against x's."""
    for shape in ((3, 129), (2, 3, 129), (2, 3, 4, 129), (2, 1, 3, 4, 129)):
        x = normal(shape, torch.bfloat16, 26)
        shapes = [
            own[cut:]
            for own in itertools.product(*((1, extent) for extent in shape[:-1]), (129,))
            for cut in range(len(shape))
        ]
        for own, other in zip(shapes, reversed(shapes)):
            weight, bias = normal(own, torch.float16, 27, 0.2, 1.0), normal(
                other, torch.float32, 28
            )
            y = ft.layer_norm(x, weight, bias, EPS)
            exact = Exact("layer", f64(x), f64(weight), f64(bias), eps=EPS, dtype="bfloat16")
            suite.check(
                f"x {list(shape)}, weight {list(own)}, bias {list(other)}", exact.holds(f64(y))
            )


def test_add(suite):
    for (shape, weight_shape), dtype, wide in itertools.product(SHAPES, dtypes(), (False, True)):
        if wide and dtype == torch.float32:
            continue
        name = f"add_rms_norm {name_of(dtype)} {list(shape)}{' f32 residual' if wide else ''}"
        x, weight = normal(shape, dtype, 8), normal(weight_shape, dtype, 9, 0.2, 1.0)
        residual = normal(shape, torch.float32 if wide else dtype, 10, 3.0)
        kept = residual.clone()
        y, total = ft.add_rms_norm(x, residual, weight, EPS)
        exact = Exact(
            "rms", f64(x), f64(weight), residual=f64(residual), eps=EPS, dtype=name_of(dtype)
        )
        suite.check(f"{name}: double precision", exact.holds(f64(y)))
        suite.check(
            f"{name}: the sum",
            total.dtype == residual.dtype
            and (f64(total) == round_to(exact.sums, name_of(residual.dtype))).all(),
        )
        suite.check(f"{name}: inputs unchanged", torch.equal(residual, kept))
        wanted, wanted_sum = torch.empty_like(y), torch.empty_like(total)
        direct.run(
            ft._c.RMS,
            x=x,
            residual=residual,
            weight=weight,
            y=wanted,
            residual_out=wanted_sum,
            eps=EPS,
        )
        suite.check(
            f"{name}: bits of the C ABI",
            bits(y) == bits(wanted) and bits(total) == bits(wanted_sum),
        )
        address, counted = residual.data_ptr(), residual._version
        in_place = ft.fused_add_rms_norm(x, residual, weight, EPS)
        suite.check(
            f"fused_{name}: same bits, in place",
            bits(in_place) == bits(y)
            and bits(residual) == bits(total)
            and residual.data_ptr() == address,
        )
        suite.equal(f"fused_{name}: autograd's version of residual", residual._version, counted + 1)
        with torch.inference_mode():
            ft.fused_add_rms_norm(x, residual, weight, EPS)
            ft.fused_add_rms_norm(x, residual.clone(), weight, EPS)  # one that has no version
        suite.equal(f"fused_{name}: the same in inference mode", residual._version, counted + 2)


def quant_cases():
    e4m3, e5m2 = torch.float8_e4m3fn, torch.float8_e5m2
    return (
        ("per_row", 0, e4m3),
        ("per_row", 0, e5m2),
        ("per_row", 0, torch.int8),
        ("per_block", 64, e4m3),
        ("per_block", 128, torch.int8),
        ("mxfp8", 0, e4m3),
        ("mxfp8", 0, e5m2),
        *((scheme, 0, torch.uint8) for scheme in FP4),
        *((scheme, 0, ft._FP4) for scheme in FP4 if ft._FP4 is not None),
    )


def test_quantised(suite):
    for (scheme, block, dtype), source in itertools.product(
        quant_cases(), (torch.bfloat16, torch.float32)
    ):
        name = f"rms_norm_quant {scheme} {block or ''} {name_of(dtype)} of {name_of(source)}"
        x, weight = normal((6, 320), source, 11), normal((320,), source, 12, 0.2, 1.0)
        number = getattr(ft._c.QuantScheme, scheme.upper())
        like = ft._quant_outputs(x, scheme, block, dtype)
        fields = {
            "x": x,
            "weight": weight,
            "eps": EPS,
            "quant_scheme": number,
            "quant_block_size": block,
            "quantized": like["quantized"],
            "scale": like["scale"],
        }
        direct.run(ft._c.RMS, **fields)
        codes, scale = ft.rms_norm_quant(
            x, weight, EPS, scheme=scheme, block_size=block, dtype=dtype
        )
        suite.check(
            f"{name}: bits of the C ABI",
            bits(codes) == bits(like["quantized"]) and bits(scale) == bits(like["scale"]),
        )
        fp4 = scheme in FP4
        if fp4:
            suite.equal(f"{name}: dtype of the codes", codes.dtype, dtype)
        numbers = unpack_e2m1(codes.view(torch.uint8).cpu().numpy()) if fp4 else f64(codes)
        form = "float4_e2m1fn" if fp4 else name_of(dtype)
        columns = BLOCKS[scheme][0] if scheme in BLOCKS else block or 320
        scales = f64(scale.float())
        exact = Exact("rms", f64(x), f64(weight), eps=EPS, dtype=name_of(source))
        wrong = exact.holds_scales(scales, form, columns, scheme)
        suite.check(f"{name}: scales", not wrong, wrong)
        wrong = exact.holds_codes(numbers, scales, form, columns)
        suite.check(f"{name}: codes", not wrong, wrong)
        residual = normal((6, 320), source, 13)
        _, total = ft.add_rms_norm(x, residual, weight, EPS)
        want = ft.rms_norm_quant(total, weight, EPS, scheme=scheme, block_size=block, dtype=dtype)
        got = ft.fused_add_rms_norm_quant(
            x,
            residual,
            weight,
            EPS,
            scheme=scheme,
            block_size=block,
            dtype=dtype,
            residual_rounding="before_statistics",
        )
        suite.check(
            f"fused_add_{name}: as of the sum",
            bits(residual) == bits(total) and all(bits(a) == bits(b) for a, b in zip(got, want)),
        )


def chain(z, columns, least=1e-10, divide=False, clamp=None, pow2=False):
    """Codes of e4m3 and the scale of each block of columns as an unfused chain makes them from z in
    float32, each step rounded."""
    z = z.float() if clamp is None else z.float().clamp(-clamp, clamp)
    blocks = z.unflatten(-1, (-1, columns))
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=least) / 448
    if pow2:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    codes = blocks / scale if divide else blocks * (1 / scale)
    return codes.clamp(-448, 448).to(torch.float8_e4m3fn).flatten(-2), scale.squeeze(-1)


def rotated(z, block, signs=None):
    """Blocks of columns times a Hadamard matrix, in the library's order of operations."""
    z = z.float() if signs is None else z.float() * signs
    step = 1
    while step < block:
        pairs = z.unflatten(-1, (-1, 2, step))
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        z = torch.stack((first + second, first - second), -2).flatten(-3)
        step *= 2
    return z * (1 / math.sqrt(block))


def test_rotation(suite):
    """Rotated codes, against a chain of PyTorch's operations."""
    x, weight = normal((6, 256), torch.bfloat16, 64), normal((256,), torch.bfloat16, 65, 0.2, 1.0)
    wide = ft.rms_norm(x, weight, EPS, y_dtype=torch.float32)
    y = ft.rms_norm(x, weight, EPS)
    signs = torch.where(normal((256,), torch.float32, 66) < 0, -1.0, 1.0)
    for block in (16, 32, 64, 128):
        for of_block, given in ((256, None), (256, signs), (block, signs[:block])):
            found = ft.rms_norm_quant(x, weight, EPS, scheme="per_row", rotation=block,
                                      rotation_signs=given)  # fmt: skip
            whole = None if given is None else given.repeat(256 // of_block)
            wanted = chain(rotated(wide, block, whole), 256)
            same = all(bits(a) == bits(b) for a, b in zip(found, wanted))
            suite.check(f"rotation {block}, signs {None if given is None else of_block}", same)
    found = ft.rms_norm_quant(x, weight, EPS, scheme="per_row", rotation=64,
                              quant_source="rounded")  # fmt: skip
    wanted = chain(rotated(y, 64).bfloat16(), 256)
    suite.check("rotation of the rounded result", bits(found[0]) == bits(wanted[0]))
    for name, text, options in (
        ("a rotation of 48", "quant.rotation is 48", {"rotation": 48}),
        ("signs alone", "quant.rotation_signs is given", {"rotation_signs": signs}),
        ("a rotation of two scales", "a divisor of 16", {"scheme": "nvfp4", "rotation": 32}),
        ("a sign that is none", "quant.rotation_signs[0] is 2",
         {"rotation": 16, "rotation_signs": signs * 0 + 2}),
    ):  # fmt: skip
        if DEVICE == "cpu" or "sign" not in name or name == "signs alone":
            call = {"scheme": "per_row", **options}
            suite.raises(
                name, RuntimeError, text, lambda: ft.rms_norm_quant(x, weight, EPS, **call)
            )


def test_settings_of_codes(suite):
    """Each setting of codes, against a chain of PyTorch's operations."""
    x, weight = normal((6, 256), torch.bfloat16, 61), normal((256,), torch.bfloat16, 62, 0.2, 1.0)
    wide = ft.rms_norm(x, weight, EPS, y_dtype=torch.float32)
    y = ft.rms_norm(x, weight, EPS)
    one = torch.tensor([0.75], device=DEVICE)

    def quantised(**options):
        return ft.rms_norm_quant(x, weight, EPS, **{"scheme": "per_row", **options})

    def same(name, found, wanted):
        codes, scale = (bits(a) == bits(b) for a, b in zip(found, wanted))
        suite.check(f"codes, {name}", codes)
        suite.check(f"scales, {name}", scale)

    same("quant_source rounded", quantised(quant_source="rounded"), chain(y, 256))
    same("quant_source unrounded", quantised(quant_source="unrounded"), chain(wide, 256))
    suite.check(
        "both sources differ",
        bits(quantised(quant_source="rounded")[0]) != bits(quantised()[0]),
    )
    same("division divide", quantised(division="divide"), chain(wide, 256, divide=True))
    same("clamp", quantised(clamp=0.75), chain(wide, 256, clamp=0.75))
    same("clamp_scale", quantised(clamp_scale=one), chain(wide, 256, clamp=0.75))
    same("amax_floor", quantised(amax_floor=64.0), chain(wide, 256, least=64.0))
    same("pow2", quantised(pow2=True), chain(wide, 256, pow2=True))
    blocks = {"scheme": "per_block", "block_size": 64}
    codes, scale = quantised(layout="column_major", **blocks)
    same("column_major", (codes, scale), chain(wide, 64))
    suite.equal("column_major: strides", scale.stride(), (1, 6))
    rows = x.expand(3, 6, 256).reshape(3, 1, 1, 6, 256)  # more dimensions than the library takes
    found = ft.rms_norm_quant(rows, weight, EPS, layout="column_major", **blocks)
    same("column_major of many dimensions", [t.reshape(3, 6, -1)[2] for t in found],
         chain(wide, 64))  # fmt: skip
    plain, codes = quantised(scheme="mxfp8"), quantised(scheme="mxfp8", layout="swizzled_128x4")
    suite.equal("swizzled_128x4: shape", codes[1].shape, (512 * 2,))
    places = [
        (m // 128 * 2 + k // 4) * 512 + m % 32 * 16 + m % 128 // 32 * 4 + k % 4
        for m in range(6)
        for k in range(8)
    ]
    swizzled = codes[1].view(torch.uint8)
    wanted = torch.zeros_like(swizzled)
    wanted[places] = plain[1].view(torch.uint8).flatten()
    suite.check("swizzled_128x4: places, and zeros between", torch.equal(swizzled, wanted))
    suite.check("swizzled_128x4: codes", bits(codes[0]) == bits(plain[0]))
    bytes_of = quantised(pow2=True, layout="swizzled_128x4", **blocks)[1]
    suite.equal("swizzled scales of blocks are bytes", bytes_of.dtype, torch.float8_e8m0fnu)
    half = torch.tensor([0.5], device=DEVICE)
    found = quantised(scheme="nvfp4", global_scale=half)[1].float()
    wanted = (wide.unflatten(-1, (-1, 16)).abs().amax(-1) / (6 * 0.5)).to(torch.float8_e4m3fn)
    suite.check("global_scale", torch.equal(found, wanted.float()))
    residual = normal((6, 256), torch.bfloat16, 63)
    _, total = ft.add_rms_norm(x, residual, weight, EPS)
    found = ft.fused_add_rms_norm_quant(
        x, residual, weight, EPS, scheme="per_row", quant_source="rounded", clamp=0.75,
        residual_rounding="before_statistics",
    )  # fmt: skip
    same("of the sum", found, chain(ft.rms_norm(total, weight, EPS), 256, clamp=0.75))
    for name, text, options in (
        ("a source", "quant_source is 'f16'; required: one of unrounded, rounded",
         {"quant_source": "f16"}),
        ("a layout", "layout is 'tiled'; required: one of row_major, column_major",
         {"layout": "tiled"}),
        ("a clamp", "clamp is -1", {"clamp": -1.0}),
        ("two clamps", "clamp", {"clamp": 1.0, "clamp_scale": one}),
        ("a floor of mxfp8", "amax_floor is 2", {"scheme": "mxfp8", "amax_floor": 2.0}),
    ):  # fmt: skip
        suite.raises(name, (RuntimeError, ValueError), text, lambda: quantised(**options))


def test_edges(suite):
    x = normal((0, 64), torch.float32, 14)
    suite.equal("no rows", tuple(ft.rms_norm(x, normal((64,), torch.float32, 15)).shape), (0, 64))
    one = normal((64,), torch.float16, 16)
    suite.check(
        "rank 1",
        Exact("rms", f64(one)[None], eps=EPS, dtype="float16").holds(
            f64(ft.rms_norm(one, eps=EPS))[None]
        ),
    )
    words = {
        f"{i}": ft.rms_norm(normal((2, 8 + i), torch.float32, i)) for i in range(ft._MAX_CALLS + 8)
    }
    suite.check(
        "as many shapes as one likes",
        len(words) == ft._MAX_CALLS + 8 and 0 < len(ft._calls.made) <= ft._MAX_CALLS,
    )


# --- views ---


def test_strided_views(suite):
    heads, kv, n = 4, 2, 64
    for dtype in dtypes():
        label = f"QKV slice, {name_of(dtype)}"
        fused = normal((6, (heads + 2 * kv) * n), dtype, 17)
        kept = fused.clone()
        query = fused[:, : heads * n].view(6, heads, n)
        weight = normal((n,), dtype, 18, 0.2, 1.0)
        y = ft.rms_norm(query, weight, EPS)
        suite.check(
            f"{label}: as of a copy", bits(y) == bits(ft.rms_norm(query.contiguous(), weight, EPS))
        )
        suite.check(f"{label}: the output is compact", y.is_contiguous())
        x = normal((6, heads, n), dtype, 19)
        total = ft.add_rms_norm(x, query.contiguous(), weight, EPS)[1]
        ft.fused_add_rms_norm(x, query, weight, EPS)
        suite.check(
            f"{label}: the residual is written where it lies",
            torch.equal(query, total)
            and torch.equal(fused[:, heads * n :], kept[:, heads * n :])
            and not torch.equal(fused, kept),
        )
    x = normal((5, 8, 96), torch.float32, 20)
    suite.check(
        "dimensions in another order",
        bits(ft.rms_norm(x.transpose(0, 1))) == bits(ft.rms_norm(x.transpose(0, 1).contiguous())),
    )
    weights = normal((8, 96), torch.float32, 35)
    mapped = torch.func.vmap(ft.rms_norm)(x.transpose(0, 1), weights)
    suite.check(
        "torch.func.vmap",
        all(bits(mapped[i]) == bits(ft.rms_norm(x[:, i], weights[i])) for i in range(8)),
    )
    row = normal((96,), torch.float32, 21)
    suite.check(
        "a broadcast input",
        bits(ft.rms_norm(row.expand(7, 96))) == bits(ft.rms_norm(row.repeat(7, 1))),
    )
    suite.check(
        "an odd offset",
        bits(ft.rms_norm(x[0, 1:, 1:])) == bits(ft.rms_norm(x[0, 1:, 1:].contiguous())),
    )
    if not needs_cuda(suite, "memory that a strided view takes"):
        big = normal((4096, 3 * 1024), torch.bfloat16, 22)
        part = big[:, 1024:2048]
        ft.rms_norm(part)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        y = ft.rms_norm(part)
        suite.equal(
            "memory that a strided view takes: y alone",
            torch.cuda.max_memory_allocated() - before,
            y.numel() * y.element_size(),
        )


def test_dlpack(suite):
    host = torch.from_numpy(numpy.linspace(-2, 3, 3 * 64, dtype=numpy.float32).reshape(3, 64))
    wanted = bits(ft.rms_norm(host.to(DEVICE)))
    array = host.numpy()
    suite.check(
        "NumPy by DLPack", bits(ft.rms_norm(torch.from_dlpack(array))) == bits(ft.rms_norm(host))
    )
    for module, make in (
        ("cupy", lambda m: m.asarray(array)),
        ("jax", lambda m: m.numpy.asarray(array)),
    ):
        found = importlib.util.find_spec(module)
        if found is None or found.origin is None:
            suite.skip(f"{module} by DLPack", "not installed")
            continue
        if module == "cupy" and DEVICE.type == "cpu":
            suite.skip("cupy by DLPack", "needs a CUDA device")
            continue
        package = importlib.import_module(module)
        if module == "jax":
            importlib.import_module("jax.numpy")
        made = make(package)
        x = torch.from_dlpack(made)
        if module == "jax" and x.device.type != DEVICE.type:
            suite.skip(
                f"jax on {DEVICE.type} by DLPack", f"this jax has its arrays on {x.device.type}"
            )
            continue
        suite.check(
            f"{module} by DLPack: the same memory",
            x.data_ptr() == torch.from_dlpack(made).data_ptr(),
        )
        suite.check(f"{module} by DLPack: on {x.device.type}", bits(ft.rms_norm(x)) == wanted)


# --- errors ---


def test_errors(suite):
    x, weight = normal((4, 64), torch.float32, 23), normal((64,), torch.float32, 24)
    y = torch.empty_like(x)
    whole = weight.long()
    for name, call, kind, fields in (
        (
            "another length of weight",
            lambda: ft.rms_norm(x, weight[:63]),
            "SHAPE",
            {"x": x, "weight": weight[:63], "y": y},
        ),
        (
            "a weight of i64",
            lambda: ft.rms_norm(x, whole),
            "DTYPE",
            {"x": x, "weight": whole, "y": y},
        ),
        ("integers", lambda: ft.rms_norm(x.int()), "DTYPE", {"x": x.int(), "y": y.int()}),
        (
            "a negative eps",
            lambda: ft.rms_norm(x, weight, -1.0),
            "ARGUMENT",
            {"x": x, "weight": weight, "y": y, "eps": -1.0},
        ),
        (
            "eps that is NaN",
            lambda: ft.rms_norm(x, weight, float("nan")),
            "ARGUMENT",
            {"x": x, "weight": weight, "y": y, "eps": float("nan")},
        ),
        ("no dimension", lambda: ft.rms_norm(x[0, 0]), "SHAPE", {"x": x[0, 0], "y": y[0, 0]}),
        (
            "rows of no elements",
            lambda: ft.rms_norm(x[:, :0]),
            "SHAPE",
            {"x": x[:, :0], "y": y[:, :0].contiguous()},
        ),
        (
            "a residual that overlaps itself",
            lambda: ft.fused_add_rms_norm(x, weight.expand(4, 64)),
            "LAYOUT",
            {
                "x": x,
                "residual": weight.expand(4, 64),
                "residual_out": weight.expand(4, 64),
                "y": y,
            },
        ),
        (
            "a residual of another shape",
            lambda: ft.fused_add_rms_norm(x, x[:3].clone()),
            "SHAPE",
            {"x": x, "residual": x[:3], "residual_out": x[:3], "y": y},
        ),
    ):
        fields = {"eps": 1e-6, **fields}
        text = direct.error(ft._c.RMS, **fields)
        suite.check(f"{name}: status", text.startswith(f"FASTNORM_ERROR_{kind}"), text)
        suite.raises(name, RuntimeError, text, call)
    for size in (0, -64, 65, 2**32 + 64):
        suite.raises(
            f"block_size {size}",
            RuntimeError,
            f"block_size is {size}; required: 64 or 128",
            lambda: ft.rms_norm_quant(x, scheme="per_block", block_size=size),
        )
    suite.raises(
        "a block_size for mxfp8",
        RuntimeError,
        "block_size is 32; required: 0",
        lambda: ft.rms_norm_quant(x, scheme="mxfp8", block_size=32),
    )
    for dtype in (torch.float64, torch.complex64, torch.bool, torch.int16):
        for name, arguments in OPERATORS.items():
            for argument in arguments:
                suite.raises(
                    f"{name}, {argument} of {name_of(dtype)}",
                    ft.FastnormError,
                    f"{argument}.dtype is {dtype}; required: one of torch.float32, torch.float16, torch.bfloat16",
                    lambda: Operator(name).call(
                        **{argument: Operator(name).tensors[argument].to(dtype)}
                    ),
                )
    suite.raises(
        "an unknown rounding",
        ValueError,
        "once, normalized, every_step",
        lambda: ft.rms_norm(x, rounding="up"),
    )
    suite.raises(
        "an unknown scheme",
        ValueError,
        "required: one of",
        lambda: ft.rms_norm_quant(x, scheme="fp2"),
    )
    suite.raises("no tensor", RuntimeError, "", lambda: ft.rms_norm([1.0, 2.0]))
    if not needs_cuda(suite, "a weight in host memory"):
        suite.raises(
            "a weight in host memory",
            RuntimeError,
            "weight is on cpu; required: cuda:0",
            lambda: ft.rms_norm(x, weight.cpu()),
        )
    suite.check(
        "after errors the next call is fine",
        Exact("rms", f64(x), f64(weight), eps=EPS).holds(f64(ft.rms_norm(x, weight, EPS))),
    )


def test_no_forward_derivative(suite):
    """Gradients are the matter of test_backward.py."""
    x, weight = normal((4, 64), torch.float32, 25), normal((64,), torch.float32, 26)
    grad = x.clone().requires_grad_()
    y = ft.rms_norm(x, weight)
    with torch.no_grad():
        suite.check(
            "fine under no_grad",
            bits(ft.rms_norm(grad, weight)) == bits(y)
            and not ft.rms_norm(grad, weight).requires_grad,
        )
    suite.check(
        "the same bits where a gradient is wanted", bits(ft.rms_norm(grad, weight)) == bits(y)
    )
    suite.raises(
        "torch.func.jvp",
        RuntimeError,
        "no forward derivative yet",
        lambda: torch.func.jvp(lambda a: ft.rms_norm(a, weight), (x,), (x,)),
    )
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        suite.raises(
            "a dual tensor",
            RuntimeError,
            "no forward derivative yet",
            lambda: ft.add_rms_norm(x, dual, weight),
        )
        suite.check("a tensor beside a dual one", bits(ft.rms_norm(x, weight)) == bits(y))
    residual = normal((4, 64), torch.float32, 27).requires_grad_()
    inner = residual * 1.0
    loss = (inner * inner).sum()
    with torch.no_grad():
        ft.fused_add_rms_norm(x, inner, weight)
    suite.raises(
        "autograd sees that residual has changed",
        RuntimeError,
        "modified by an inplace operation",
        loss.backward,
    )


# --- every operator ---


OPERATORS = {
    "rms_norm": ("x", "weight"),
    "layer_norm": ("x", "weight", "bias"),
    "add_rms_norm": ("x", "residual", "weight"),
    "fused_add_rms_norm": ("x", "residual", "weight"),
    "rms_norm_quant": ("x", "weight"),
    "fused_add_rms_norm_quant": ("x", "residual", "weight"),
}
IN_PLACE = [name for name in OPERATORS if name.startswith("fused")]


class Operator:
    """One function with tensors for it."""

    def __init__(self, name, shape=(4, 64), dtype=None, weight_shape=None):
        dtype = dtype or torch.float32
        self.name, self.function = name, getattr(ft, name)
        self.options = {"scheme": "per_row"} if "quant" in name else {}
        self.tensors = {}
        for i, argument in enumerate(OPERATORS[name]):
            own = shape if argument in ("x", "residual") else weight_shape or shape[-1:]
            self.tensors[argument] = normal(own, dtype, 200 + i)

    def call(self, **changed):
        """All results as a list, with the residual that was replaced at its end."""
        tensors = {**self.tensors, **changed}
        if self.name in IN_PLACE and "residual" not in changed:
            tensors["residual"] = tensors["residual"].clone()
        found = self.function(*tensors.values(), **self.options)
        found = list(found) if isinstance(found, tuple) else [found]
        return found + [tensors["residual"]] if self.name in IN_PLACE else found


def same_bits(found, wanted):
    return len(found) == len(wanted) and all(
        a.shape == b.shape and a.dtype == b.dtype and bits(a) == bits(b)
        for a, b in zip(found, wanted)
    )


def wrong_places(suite):
    """Kinds of tensors that no operator takes: a name, what makes one of a plain tensor or gives
    None where there is none, and what the error says of it."""
    mkldnn = DEVICE.type == "cpu" and torch.backends.mkldnn.is_available()
    kinds = [
        ("on meta", lambda t: t.to("meta"), "is on meta"),
        ("sparse", lambda t: t.to_sparse(), "has layout torch.sparse_coo"),
        (
            "sparse rows",
            lambda t: t.to_sparse_csr() if t.dim() == 2 else None,
            "has layout torch.sparse_csr",
        ),
        (
            "sparse blocks",
            lambda t: t.to_sparse_bsr((2, 2)) if t.dim() == 2 else None,
            "has layout torch.sparse_bsr",
        ),
        ("nested", lambda t: torch.nested.nested_tensor([t, t]), "is a nested tensor"),
        (
            "jagged",
            lambda t: torch.nested.nested_tensor([t, t], layout=torch.jagged),
            "has layout torch.jagged",
        ),
    ]
    if hasattr(torch, "quantize_per_tensor"):
        kinds.append(
            (
                "quantised",
                lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8),
                "is quantised (torch.qint8)",
            )
        )
    else:
        suite.skip("quantised tensors", "this PyTorch has none")
    if mkldnn:
        kinds.append(("of mkldnn", lambda t: t.to_mkldnn(), "has layout torch._mkldnn"))
    else:
        suite.skip("tensors of mkldnn", "only PyTorch on the CPU with mkldnn has them")
    if DEVICE.type == "cuda":
        kinds.append(("in host memory", lambda t: t.cpu(), "is on cpu"))
        if torch.cuda.device_count() > 1:
            kinds.append(("on another GPU", lambda t: t.to("cuda:1"), "is on cuda:1"))
        else:
            suite.skip("tensors on another GPU", "there is one GPU")
    else:
        suite.skip("tensors on a GPU beside those on the CPU", "needs a CUDA device")
    return kinds


def test_wrong_places(suite):
    kinds = wrong_places(suite)
    for (name, arguments), (kind, make, said) in itertools.product(OPERATORS.items(), kinds):
        for argument in arguments:
            operator = Operator(name)
            wrong = make(operator.tensors[argument])
            if wrong is None:
                continue
            # Where x is on another device than all the others, the first of them is the one that is
            # named.
            text = f"{argument} {said}; required: "
            if argument == "x" and " is on " in f" {said}":
                text = (
                    f"{arguments[1]} is on {operator.tensors['x'].device}; required: {wrong.device}"
                )
            for mode in (torch.no_grad, torch.inference_mode):
                tensors = {k: t.clone() for k, t in operator.tensors.items()}
                tensors[argument] = wrong
                with mode():
                    suite.raises(
                        f"{name}, {argument} {kind}, {mode.__name__}",
                        ft.FastnormError,
                        text,
                        lambda: operator.function(*tensors.values(), **operator.options),
                    )
                if name in IN_PLACE and argument != "residual":
                    suite.check(
                        f"{name}, {argument} {kind}, {mode.__name__}: nothing is written",
                        bits(tensors["residual"]) == bits(operator.tensors["residual"]),
                    )
    for name, arguments in OPERATORS.items():
        for argument in [a for a in arguments if a in ("x", "residual")]:
            suite.raises(
                f"{name}, {argument} is None",
                ft.FastnormError,
                f"{argument} is None; required: a tensor",
                lambda: Operator(name).call(**{argument: None}),
            )
        suite.raises(
            f"{name}, nothing is a tensor",
            ft.FastnormError,
            "x is None; required: a tensor",
            lambda: getattr(ft, name)(*[None] * len(arguments), **Operator(name).options),
        )
        for argument in arguments:
            operator = Operator(name)
            freed = operator.tensors[argument].clone()
            freed.untyped_storage().resize_(0)
            suite.raises(
                f"{name}, {argument} without its storage",
                ft.FastnormError,
                f"{argument}.data is NULL",
                lambda: operator.call(**{argument: freed}),
            )


def test_meta(suite):
    """Tensors on meta and fake ones: outputs as of those with memory, and the same errors."""
    for name, dtype in itertools.product(OPERATORS, dtypes()):
        operator = Operator(name, (2, 3, 64), dtype)
        wanted = [(t.shape, t.dtype, t.stride()) for t in operator.call()]
        found = operator.call(**{k: t.to("meta") for k, t in operator.tensors.items()})
        suite.check(
            f"{name} of {name_of(dtype)} on meta",
            all(t.is_meta for t in found)
            and [(t.shape, t.dtype, t.stride()) for t in found] == wanted,
            found,
        )
        with FakeTensorMode() as mode:
            found = operator.call(**{k: mode.from_tensor(t) for k, t in operator.tensors.items()})
            suite.check(
                f"{name} of {name_of(dtype)}, fake",
                [(t.shape, t.dtype, t.stride()) for t in found] == wanted
                and all(isinstance(t, FakeTensor) and t.device == DEVICE for t in found),
                found,
            )
    x, weight = normal((4, 64), torch.float32, 210), normal((64,), torch.float32, 211)
    for label, function, tensors in (
        ("a short weight", ft.rms_norm, (x, weight[:63])),
        (
            "a long bias",
            lambda a, b: ft.layer_norm(a, None, b),
            (x, normal((65,), torch.float32, 212)),
        ),
        ("a weight of f64", ft.rms_norm, (x, weight.double())),
        ("integers", ft.rms_norm, (x.int(),)),
        ("complex numbers", ft.rms_norm, (x.to(torch.complex64),)),
        ("no dimension", ft.rms_norm, (x[0, 0],)),
        ("no columns", ft.rms_norm, (x[:, :0],)),
        ("another residual", ft.add_rms_norm, (x, x[:3])),
        ("a negative eps", lambda a: ft.rms_norm(a, eps=-1.0), (x,)),
        (
            "codes of f32",
            lambda a: ft.rms_norm_quant(a, scheme="per_row", dtype=torch.float32),
            (x,),
        ),
        ("a residual of one row", ft.fused_add_rms_norm, (x, weight.expand(4, 64))),
        ("a residual of one column", ft.fused_add_rms_norm, (x, weight[:4, None].expand(4, 64))),
    ):
        text = "no error"
        try:
            function(*tensors)
        except ft.FastnormError as error:
            text = str(error).partition(":")[0]  # texts may have addresses in them
        suite.check(f"{label}: an error", text.startswith("FASTNORM_ERROR_"), text)
        suite.raises(
            f"{label}, on meta",
            ft.FastnormError,
            text,
            lambda: function(
                *[
                    torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
                    for t in tensors
                ]
            ),
        )
    with FakeTensorMode():
        host = torch.empty(64)
        for device in ("cuda:0", "meta"):
            suite.raises(
                f"fake tensors on {device} and the CPU",
                RuntimeError,
                f"weight is on cpu; required: {device}",
                lambda: ft.rms_norm(torch.empty(4, 64, device=device), host),
            )
        suite.raises(
            "a fake tensor on a device of another kind",
            RuntimeError,
            "x is on mtia:0; required: a CPU or CUDA device",
            lambda: ft.rms_norm(torch.empty(4, 64, device="mtia:0")),
        )


def layouts():
    """Views with the values of a tensor: a name, a function, the least number of dimensions."""

    def every_other(t):
        return torch.stack([t, t + 1], -1).flatten(-2)[..., ::2]

    def in_order(*order):
        return (
            lambda t: t.permute(order)
            .contiguous()
            .permute(sorted(range(t.dim()), key=order.__getitem__))
        )

    return (
        ("Tensor.T", lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2), 2),
        ("every other column", every_other, 1),
        ("channels last", lambda t: t.movedim(-3, -1).contiguous().movedim(-1, -3), 3),
        (
            "dimensions backwards",
            lambda t: t.permute(*reversed(range(t.dim())))
            .contiguous()
            .permute(*reversed(range(t.dim()))),
            2,
        ),
        (
            "rows in another order",
            lambda t: in_order(*reversed(range(t.dim() - 1)), t.dim() - 1)(t),
            3,
        ),
        ("rows with gaps", lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]], 2),
    )


def test_layouts(suite):
    shapes = [
        ((4, 64), None),
        ((3, 4, 64), (4, 64)),
        ((2, 3, 2, 5, 2, 64), None),
        ((2, 3, 2, 5, 4, 64), (4, 64)),
    ]
    for name, (shape, weight_shape) in itertools.product(OPERATORS, shapes):
        operator = Operator(name, shape, torch.bfloat16, weight_shape)
        wanted = operator.call()
        for argument, (layout, make, least) in itertools.product(OPERATORS[name], layouts()):
            if operator.tensors[argument].dim() < least:
                continue
            view = make(operator.tensors[argument].clone())
            before = view._version
            label = f"{name} {list(shape)}, {argument}: {layout}"
            suite.check(label, same_bits(operator.call(**{argument: view}), wanted))
            if argument == "residual" and name in IN_PLACE:
                suite.check(f"{label}: its version", view._version == before + 1)
        everything = {k: layouts()[1][1](t.clone()) for k, t in operator.tensors.items()}
        suite.check(
            f"{name} {list(shape)}, all arguments: every other column",
            same_bits(operator.call(**everything), wanted),
        )
        if "residual" in everything and len(shape) > 4:
            everything["residual"] = dict((n, f) for n, f, _ in layouts())["rows in another order"](
                operator.tensors["residual"]
            )
            suite.check(
                f"{name} {list(shape)}: x of every other column, the residual's rows in another order",
                same_bits(operator.call(**everything), wanted),
            )
            found = operator.call(
                **{
                    k: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
                    for k, t in everything.items()
                }
            )
            suite.check(
                f"{name} {list(shape)}: the same on meta",
                [t.shape for t in found] == [t.shape for t in wanted],
            )
    for name in OPERATORS:
        operator = Operator(name)
        for argument in [a for a in OPERATORS[name] if a in ("weight", "bias")]:
            one = normal((1,), torch.float32, 213).expand(64)
            suite.check(
                f"{name}, {argument} of one number, expanded",
                same_bits(
                    operator.call(**{argument: one}), operator.call(**{argument: one.contiguous()})
                ),
            )
        x = operator.tensors["x"][:, :1].expand(4, 64)
        suite.check(
            f"{name}, x of one column, expanded",
            same_bits(operator.call(x=x), operator.call(x=x.contiguous())),
        )
        heads = Operator(name, (3, 4, 64))
        row = heads.tensors["weight"].expand(4, 64)
        suite.check(
            f"{name}, weight of all heads, expanded",
            same_bits(heads.call(weight=row), heads.call(weight=row.contiguous())),
        )
    # What lies beside a residual of every other column stays.
    buffer = normal((4, 128), torch.float32, 214)
    kept, x = buffer.clone(), normal((4, 64), torch.float32, 215)
    y, total = ft.add_rms_norm(x, buffer[:, ::2].contiguous())
    in_place = ft.fused_add_rms_norm(x, buffer[:, ::2])
    suite.check(
        "a residual of every other column: what is beside it stays",
        torch.equal(buffer[:, 1::2], kept[:, 1::2])
        and torch.equal(buffer[:, ::2], total)
        and torch.equal(in_place, y),
    )


def test_dimensions(suite):
    for name, rank in itertools.product(OPERATORS, range(1, 9)):
        shape = (2, 1, 3, 1, 2, 1, 2)[: rank - 1] + (64,)
        operator = Operator(name, shape)
        found = operator.call()
        flat = Operator(name, shape)
        flat.tensors = {
            k: t.reshape(-1, 64) if k in ("x", "residual") else t
            for k, t in operator.tensors.items()
        }
        wanted = flat.call()
        suite.check(
            f"{name} of {rank} dimensions",
            all(a.shape[:-1] == shape[:-1] for a in found)
            and all(bits(a) == bits(b) for a, b in zip(found, wanted)),
        )
    x = normal((2, 2, 3, 2, 5, 64), torch.float32, 216)
    heads = normal((5, 64), torch.float32, 217)
    suite.check(
        "weights of heads of 6 dimensions",
        bits(ft.rms_norm(x, heads)) == bits(ft.rms_norm(x.view(-1, 5, 64), heads)),
    )
    suite.raises(
        "weights of other heads of 6 dimensions",
        RuntimeError,
        "weight.shape is [4, 64]",
        lambda: ft.rms_norm(x, heads[:4]),
    )
    suite.raises(
        "a residual of as many rows in another shape",
        RuntimeError,
        "residual.shape is [2, 2, 2, 3, 5, 64]",
        lambda: ft.add_rms_norm(x, x.reshape(2, 2, 2, 3, 5, 64)),
    )
    suite.raises(
        "a residual of fewer dimensions",
        RuntimeError,
        "residual.shape is [120, 64]",
        lambda: ft.add_rms_norm(x, x.reshape(120, 64)),
    )


def test_empty(suite):
    for name, shape in itertools.product(
        OPERATORS, ((0, 64), (2, 0, 3, 64), (2, 1, 0, 3, 1, 5, 64))
    ):
        operator = Operator(name, shape)
        found = operator.call()
        suite.check(
            f"{name} of {list(shape)}",
            all(t.shape[:-1] == shape[:-1] and t.numel() == 0 for t in found),
        )
        permuted = {
            k: t.transpose(0, 1) for k, t in operator.tensors.items() if k in ("x", "residual")
        }
        suite.check(
            f"{name} of {list(shape)}, transposed",
            (
                name and all(t.numel() == 0 for t in operator.call(**permuted))
                if len(shape) > 2
                else True
            ),
        )
        suite.raises(
            f"{name} of {list(shape)}: another length of weight",
            ft.FastnormError,
            "weight.shape is [63]",
            lambda: operator.call(weight=normal((63,), torch.float32, 218)),
        )
        suite.raises(
            f"{name} of {list(shape)}: weight on meta",
            ft.FastnormError,
            "weight is on meta",
            lambda: operator.call(weight=operator.tensors["weight"].to("meta")),
        )
    for name in OPERATORS:
        columns = {k: t[..., :0] for k, t in Operator(name).tensors.items()}
        suite.raises(
            f"{name} without columns",
            ft.FastnormError,
            "FASTNORM_ERROR_SHAPE: x",
            lambda: Operator(name).call(**columns),
        )
        number = {k: t.reshape(-1)[0] for k, t in Operator(name).tensors.items()}
        suite.raises(
            f"{name} of a number",
            ft.FastnormError,
            "FASTNORM_ERROR_SHAPE: x",
            lambda: Operator(name).call(**number),
        )
        suite.raises(
            f"{name} with a weight that is a number",
            ft.FastnormError,
            "FASTNORM_ERROR_SHAPE: weight",
            lambda: Operator(name).call(weight=number["weight"]),
        )


def test_overlap(suite):
    def fresh():
        return normal((64, 64), torch.float32, 219)

    weight = normal((64,), torch.float32, 220)
    cases = {
        "x one row further": lambda b: (b[1:], b[:-1], weight),
        "x is the residual's T": lambda b: (b.T, b, weight),
        "the residual is x's T": lambda b: (b, b.T, weight),
        "both are T, a row apart": lambda b: (b[1:].T[:62, :], b[:-1].T[:62, :], None),
        "weight is a row of the residual": lambda b: (b.clone(), b, b[3]),
        "weight is a column of the residual": lambda b: (b.clone(), b, b[:, 3]),
        "weight is a row of the residual's T": lambda b: (b.clone(), b.T, b[3]),
        "a row for all rows": lambda b: (b.clone(), b[0].expand(64, 64), weight),
        "a column for all columns": lambda b: (b.clone(), b[:, :1].expand(64, 64), weight),
        "rows that overlap": lambda b: (b.clone()[:8], b.as_strided((8, 64), (32, 1)), weight),
        "columns that overlap": lambda b: (b.clone()[:8], b.as_strided((8, 64), (2, 3)), weight),
        "one number": lambda b: (b.clone(), b[:1, :1].expand(64, 64), weight),
    }
    for name, (label, make) in itertools.product(IN_PLACE, cases.items()):
        buffer = fresh()
        suite.raises(
            f"{name}: {label}",
            ft.FastnormError,
            "FASTNORM_ERROR_LAYOUT",
            lambda: Operator(name).function(*make(buffer), **Operator(name).options),
        )
        suite.check(f"{name}: {label}: nothing is written", torch.equal(buffer, fresh()))
    for name in IN_PLACE:
        buffer = fresh()
        wanted = Operator(name).call(
            x=buffer[:32].clone(), residual=buffer[32:].clone(), weight=weight
        )
        found = Operator(name).call(x=buffer[:32], residual=buffer[32:], weight=weight)
        suite.check(f"{name}: two parts of one buffer", same_bits(found, wanted))
        buffer = fresh()
        found = Operator(name).call(x=buffer[:, :32], residual=buffer[:, 32:], weight=weight[:32])
        wanted = Operator(name).call(
            x=fresh()[:, :32].clone(), residual=fresh()[:, 32:].clone(), weight=weight[:32]
        )
        suite.check(f"{name}: interleaved views", same_bits(found, wanted))


# --- what users of torch.nn.functional expect ---


def test_functional(suite):
    functional = torch.nn.functional
    for dtype, shape in itertools.product(
        dtypes(), ((64,), (4, 64), (2, 3, 64), (2, 1, 3, 2, 2, 64))
    ):
        x, weight, bias = (
            normal(shape, dtype, 230),
            normal((64,), dtype, 231),
            normal((64,), dtype, 232),
        )
        relative = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
        for label, ours, theirs in (
            ("rms_norm", ft.rms_norm(x, weight, EPS), functional.rms_norm(x, (64,), weight, EPS)),
            (
                "rms_norm, eps None",
                ft.rms_norm(x * 1e-3, weight, None),
                functional.rms_norm(x * 1e-3, (64,), weight),
            ),
            ("rms_norm alone", ft.rms_norm(x, eps=None), functional.rms_norm(x, (64,))),
            (
                "layer_norm",
                ft.layer_norm(x, weight, bias),
                functional.layer_norm(x, (64,), weight, bias),
            ),
            ("layer_norm alone", ft.layer_norm(x), functional.layer_norm(x, (64,))),
            (
                "layer_norm, bias alone",
                ft.layer_norm(x, bias=bias),
                functional.layer_norm(x, (64,), None, bias),
            ),
        ):
            suite.check(
                f"{label} of {name_of(dtype)} {list(shape)} as torch.nn.functional",
                ours.dtype == theirs.dtype
                and ours.shape == theirs.shape
                and torch.allclose(ours, theirs, rtol=relative, atol=relative),
            )


def test_eps_none(suite):
    default = torch.finfo(torch.float32).eps
    for name, dtype in itertools.product(OPERATORS, dtypes()):
        operator = Operator(name, (4, 64), dtype)
        # So small that eps decides.
        small = {k: t * 1e-3 if k in ("x", "residual") else t for k, t in operator.tensors.items()}
        results = []
        for eps in (None, default, 2 * default):
            operator.options["eps"] = eps
            results.append(
                [t.clone() for t in operator.call(**{k: t.clone() for k, t in small.items()})]
            )
        suite.check(
            f"{name} of {name_of(dtype)}, eps None",
            same_bits(results[0], results[1]) and not same_bits(results[0], results[2]),
        )
    x = normal((4, 64), torch.float32, 233)
    y = torch.ops.fastnorm.rms_norm(x, None, None, 0.0, "once")
    suite.check("the operator itself, eps None", bits(y) == bits(ft.rms_norm(x, eps=default)))
    suite.raises("eps that is a word", RuntimeError, "'eps'", lambda: ft.rms_norm(x, None, "small"))


def test_autocast(suite):
    """Autocast changes nothing: inputs are taken as they are, y has x's dtype."""
    for name, dtype, low in itertools.product(OPERATORS, dtypes(), (torch.bfloat16, torch.float16)):
        operator = Operator(name, (4, 64), dtype)
        wanted = operator.call()
        with torch.autocast(DEVICE.type, dtype=low):
            found = operator.call()
        suite.check(
            f"{name} of {name_of(dtype)} under autocast to {name_of(low)}", same_bits(found, wanted)
        )
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        x, master = torch.nn.functional.linear(
            normal((4, 64), torch.float32, 234), normal((64, 64), torch.float32, 235)
        ), normal((64,), torch.float32, 236)
        y = ft.rms_norm(x, master, EPS)
    suite.check(
        "autocast's bf16 with a weight of f32",
        y.dtype == torch.bfloat16
        and Exact("rms", f64(x), f64(master), eps=EPS, dtype="bfloat16").holds(f64(y)),
    )


def test_gradients(suite):
    """The quantised operators are not differentiable, in any argument; they say so and write
    nothing."""
    for name, arguments in OPERATORS.items():
        if "quant" not in name:
            continue
        for argument in arguments:
            operator = Operator(name)
            tensors = {k: t.clone() for k, t in operator.tensors.items()}
            kept = {k: t.clone() for k, t in tensors.items()}

            def of(value, changed=argument, tensors=tensors, operator=operator):
                return operator.function(*{**tensors, changed: value}.values(), **operator.options)

            wanted = f"fastnorm::{name} has no backward"
            for label, make in (
                ("a leaf", lambda t: t.clone().requires_grad_()),
                ("a result", lambda t: t.clone().requires_grad_() * 1),
                ("a parameter", lambda t: torch.nn.Parameter(t.clone())),
            ):
                value = make(tensors[argument])
                suite.raises(
                    f"{name}, {argument} requires grad, {label}",
                    RuntimeError,
                    wanted,
                    lambda: of(value),
                )

            def loss(value):
                found = of(value)
                return (found[0] if isinstance(found, tuple) else found).float().sum()

            suite.raises(
                f"{name}, {argument}: torch.func.grad",
                RuntimeError,
                wanted,
                lambda: torch.func.grad(loss)(tensors[argument].clone()),
            )
            suite.raises(
                f"{name}, {argument}: torch.func.vjp",
                RuntimeError,
                wanted,
                lambda: torch.func.vjp(loss, tensors[argument].clone()),
            )
            suite.raises(
                f"{name}, {argument}: torch.func.jvp",
                RuntimeError,
                f"fastnorm::{name} has no forward derivative yet",
                lambda: torch.func.jvp(
                    loss, (tensors[argument].clone(),), (tensors[argument].clone(),)
                ),
            )
            suite.check(
                f"{name}, {argument}: nothing is written",
                all(torch.equal(tensors[k], kept[k]) for k in tensors),
            )
            with torch.no_grad():
                value = tensors[argument].clone().requires_grad_()
                found = of(value)
            suite.check(
                f"{name}, {argument} requires grad under no_grad",
                not any(t.requires_grad for t in (found if isinstance(found, tuple) else (found,))),
            )


def test_vmap(suite):
    for name, arguments in OPERATORS.items():
        operator = Operator(name, (3, 4, 64), None, (3, 64))
        tensors = {k: t.clone() for k, t in operator.tensors.items()}
        mapped = torch.func.vmap(
            lambda *a, operator=operator: operator.function(*a, **operator.options)
        )
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # PyTorch says that it calls the operator once for each part
            if name in IN_PLACE:
                suite.raises(
                    f"vmap of {name} is refused",
                    RuntimeError,
                    f"fastnorm::{name}",
                    lambda: mapped(*tensors.values()),
                )
                suite.check(
                    f"vmap of {name}: nothing is written",
                    torch.equal(tensors["residual"], operator.tensors["residual"]),
                )
                continue
            found = mapped(*tensors.values())
        found = found if isinstance(found, tuple) else (found,)
        parts = [
            operator.function(*[t[i] for t in tensors.values()], **operator.options)
            for i in range(3)
        ]
        parts = [p if isinstance(p, tuple) else (p,) for p in parts]
        suite.check(
            f"vmap of {name}",
            all(same_bits(list(p), [f[i] for f in found]) for i, p in enumerate(parts)),
        )


def test_subclasses(suite):
    class Plain(torch.Tensor):
        pass

    class Wrapped(torch.Tensor):
        """A tensor that holds another."""

        @staticmethod
        def __new__(cls, inner):
            made = torch.Tensor._make_wrapper_subclass(
                cls, inner.shape, dtype=inner.dtype, device=inner.device
            )
            made.inner = inner
            return made

        @classmethod
        def __torch_dispatch__(cls, function, types, arguments=(), options=None):
            unwrap = [a.inner if isinstance(a, cls) else a for a in arguments]
            return function(*unwrap, **(options or {}))

    for name in OPERATORS:
        operator = Operator(name)
        wanted = operator.call()
        found = operator.call(x=operator.tensors["x"].as_subclass(Plain))
        count = len(wanted) - (name in IN_PLACE)
        suite.check(
            f"{name} of a subclass",
            same_bits(found, wanted) and all(type(t) is Plain for t in found[:count]),
        )
        found = operator.call(x=Wrapped(operator.tensors["x"]))
        suite.check(f"{name} of a tensor around another", same_bits(found, wanted))
        with torch.no_grad():
            found = operator.call(weight=torch.nn.Parameter(operator.tensors["weight"]))
        suite.check(f"{name} with a Parameter", same_bits(found, wanted))
        zero = torch._efficientzerotensor((4, 64), device=DEVICE)
        suite.check(
            f"{name} of PyTorch's tensor of zeros without memory",
            same_bits(
                operator.call(x=zero), operator.call(x=torch.zeros_like(operator.tensors["x"]))
            ),
        )
        negative = torch.complex(operator.tensors["x"], operator.tensors["x"]).conj().imag
        suite.check(
            f"{name} of a negated view",
            negative.is_neg()
            and same_bits(operator.call(x=negative), operator.call(x=negative.resolve_neg())),
        )
        if name in IN_PLACE:
            suite.raises(
                f"{name} into a negated view",
                ft.FastnormError,
                "residual.is_neg() is True; required: False",
                lambda: operator.call(residual=negative),
            )
            suite.raises(
                f"{name} into a tensor of zeros without memory",
                RuntimeError,
                "ZeroTensors are immutable",
                lambda: operator.call(residual=zero),
            )


def test_dynamic_shapes(suite):
    """One compilation for many shapes, and a program exported with a number of rows that is
    open."""
    for name in OPERATORS:
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        first = Operator(name)
        compiled = torch.compile(
            lambda *a, first=first: first.function(*a, **first.options),
            fullgraph=True,
            dynamic=True,
            backend=counter,
        )
        compilations = []
        for shape in ((4, 64), (7, 96), (9, 130), (33, 1000)):
            operator = Operator(name, shape)
            wanted = operator.call()
            operator.function = compiled
            options, operator.options = operator.options, {}
            suite.check(f"{name} compiled, {list(shape)}", same_bits(operator.call(), wanted))
            compilations.append(counter.frame_count)
        suite.check(
            f"{name} compiled: once for all shapes",
            compilations[0] > 0 and len(set(compilations)) == 1,
            compilations,
        )
        operator = Operator(name, (4, 64))
        operator.function, operator.options = compiled, {}
        suite.raises(
            f"{name} compiled: a weight on meta",
            RuntimeError,
            "weight is on meta; required: ",
            lambda: operator.call(weight=operator.tensors["weight"].to("meta")),
        )
        views = {k: layouts()[1][1](t) for k, t in operator.tensors.items()}
        suite.check(
            f"{name} compiled: every other column",
            same_bits(operator.call(**views), Operator(name).call()),
        )
    weight = normal((64,), torch.float32, 240)

    class Model(torch.nn.Module):
        def forward(self, x, residual):
            return ft.add_rms_norm(x * 2, residual, weight, None)

    rows = torch.export.Dim("rows", min=2, max=1000)
    x, residual = normal((4, 64), torch.float32, 241), normal((4, 64), torch.float32, 242)
    exported = torch.export.export(
        Model(), (x, residual), dynamic_shapes=({0: rows}, {0: rows})
    ).module()
    for count in (4, 9):
        x, residual = normal((count, 64), torch.float32, 243), normal(
            (count, 64), torch.float32, 244
        )
        suite.check(
            f"exported, {count} rows",
            same_bits(list(exported(x, residual)), list(Model()(x, residual))),
        )


# --- torch.fx and TorchScript ---


def modules():
    return (
        ft.RMSNorm(64, eps=EPS, device=DEVICE),
        ft.RMSNorm((4, 16), eps=0, device=DEVICE, weight_offset=1, rounding="normalized"),
        ft.RMSNorm(64, elementwise_affine=False, device=DEVICE, y_dtype=torch.float32),
        ft.LayerNorm(64, device=DEVICE),
        ft.LayerNorm((4, 16), bias=False, device=DEVICE, y_dtype=torch.float32),
    )


def around(norm):
    """A model with the module in it."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(64, 64).to(DEVICE)
            self.norm = norm

        def forward(self, x):
            return self.norm(self.first(x).view(-1, 4, 16)).flatten(1) + x

    class Flat(Model):
        def forward(self, x):
            return self.norm(self.first(x)) + x

    return Flat() if len(norm.normalized_shape) == 1 else Model()


def test_module_dtypes(suite):
    x = normal((5, 64), torch.bfloat16, 71)
    for made in (ft.RMSNorm(64, y_dtype=torch.float32), ft.LayerNorm(64, y_dtype=torch.float32)):
        made = made.to(DEVICE)
        function = ft.rms_norm if isinstance(made, ft.RMSNorm) else ft.layer_norm
        wanted = function(x, made.weight, eps=made.eps, y_dtype=torch.float32)
        name = type(made).__name__
        suite.check(f"{name} with y_dtype", bits(made(x)) == bits(wanted))
        suite.check(f"{name}: its text", "y_dtype=torch.float32" in repr(made))
    y, total = ft.RMSNorm(64, device=DEVICE, y_dtype=torch.float32)(x, x)
    suite.equal("a sum keeps its dtype", (y.dtype, total.dtype), (torch.float32, x.dtype))


def test_fx(suite):
    x = normal((5, 64), torch.float32, 72)
    for norm in modules():
        model = around(norm)
        graph = torch.fx.symbolic_trace(model)
        leaves = [node.target for node in graph.graph.nodes if node.op == "call_module"]
        suite.equal(f"torch.fx, {norm}: leaves", leaves, ["first", "norm"])
        suite.check(f"torch.fx, {norm}: values", torch.equal(graph(x), model(x)))
        shaped = x.view(5, *norm.normalized_shape)
        alone = torch.fx.symbolic_trace(norm)
        suite.check(f"torch.fx, {norm} alone", torch.equal(alone(shaped), norm(shaped)))

    class Sums(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = ft.RMSNorm(64, device=DEVICE)

        def forward(self, x, residual):
            y, total = self.norm(x, residual)
            z, total = self.norm.add(y, total)
            return z * total

    model = Sums()
    graph = torch.fx.symbolic_trace(model)
    leaves = [node.target for node in graph.graph.nodes if node.op == "call_module"]
    suite.equal("torch.fx, sums: leaves", leaves, ["norm", "norm"])
    suite.check("torch.fx, sums: values", torch.equal(graph(x, x + 1), model(x, x + 1)))
    pair = torch.fx.symbolic_trace(model.norm)(x, x)
    suite.check("torch.fx, a sum alone", all(map(torch.equal, pair, model.norm(x, x))))
    calls = torch.fx.symbolic_trace(lambda a: ft.rms_norm(a, eps=EPS) + ft.layer_norm(a))
    suite.check(
        "torch.fx, functions", torch.equal(calls(x), ft.rms_norm(x, eps=EPS) + ft.layer_norm(x))
    )


def test_script(suite):
    x = normal((5, 64), torch.float32, 73)
    for norm in modules():
        shaped = x.view(5, *norm.normalized_shape)
        for name, made, given in (("alone", norm, shaped), ("in a model", around(norm), x)):
            scripted = torch.jit.script(made)
            suite.check(f"scripted {norm} {name}", torch.equal(scripted(given), made(given)))
            names = list(scripted.state_dict())
            suite.equal(f"scripted {norm} {name}: state", names, list(made.state_dict()))
            file = io.BytesIO()
            torch.jit.save(scripted, file)
            file.seek(0)
            suite.check(
                f"scripted {norm} {name}, from a file",
                torch.equal(torch.jit.load(file)(given), made(given)),
            )
        with warnings.catch_warnings():
            warnings.simplefilter("error", torch.jit.TracerWarning)
            traced = torch.jit.trace(norm, shaped)
        suite.check(f"traced {norm}", torch.equal(traced(shaped), norm(shaped)))

    class Sums(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = ft.RMSNorm(64, device=DEVICE)

        def forward(self, x, residual):
            y, total = self.norm.add(x, residual)
            return y * total

    model = Sums()
    scripted = torch.jit.script(model)
    suite.check("scripted, a sum", torch.equal(scripted(x, x + 1), model(x, x + 1)))
    for made in (scripted, model):
        model.norm.weight.grad = None
        made(x, x + 1).pow(2).sum().backward()
        kept = model.norm.weight.grad if made is scripted else kept
    suite.check("scripted, the gradient", torch.equal(kept, model.norm.weight.grad))
    suite.raises(
        "scripted, another shape",
        torch.jit.Error,
        "x.shape is [5, 32]; required: [64] at its end",
        lambda: torch.jit.script(ft.RMSNorm(64, device=DEVICE))(x[:, :32]),
    )
    suite.raises(
        "scripted, a sum by forward",
        torch.jit.Error,
        "residual is a tensor; required in TorchScript: None, or the method add",
        lambda: torch.jit.script(model.norm)(x, x),
    )
    suite.check("the model as it was", type(model.norm) is ft.RMSNorm)


# --- torch.library and torch.compile ---


def test_opcheck(suite):
    x, residual, weight = (
        normal((4, 64), torch.bfloat16, 28),
        normal((4, 64), torch.bfloat16, 29),
        normal((64,), torch.bfloat16, 30),
    )
    quant = ("mxfp8", 0, torch.float8_e4m3fn)
    ops = torch.ops.fastnorm
    cases = [
        ("rms_norm", (x, weight, EPS, 0.0, "once")),
        ("rms_norm", (x, None, EPS, 0.0, "every_step")),
        ("layer_norm", (x, weight, weight, EPS, "once")),
        ("add_rms_norm", (x, residual, weight, EPS, 1.0, "once", "exact")),
        ("fused_add_rms_norm", (x, residual, weight, EPS, 0.0, "once", "exact")),
        (
            "fused_add_rms_norm",
            (x[:, :32], residual[:, 16:48], weight[:32], EPS, 0.0, "once", "exact"),
        ),
    ]
    cases += [
        ("rms_norm_quant", (x, weight, EPS, 0.0, "once", *quant)),
        ("fused_add_rms_norm_quant", (x, residual, weight, EPS, 0.0, "once", "exact", *quant)),
    ]
    for i, (name, args) in enumerate(cases):
        found = torch.library.opcheck(getattr(ops, name).default, args, raise_exception=False)
        suite.check(
            f"opcheck {i} of {name}",
            len(found) == 4 and all(v == "SUCCESS" for v in found.values()),
            found,
        )


def block(x, residual, weight):
    """What surrounds a norm in a model: pointwise work that the compiler fuses, before and
    after."""
    y = ft.fused_add_rms_norm(x * 2, residual, weight, EPS)
    z, total = ft.add_rms_norm(y + 1, residual, weight, EPS)
    return ft.layer_norm(z, weight, weight, EPS) + total


def test_compile(suite):
    backends = ["eager", "aot_eager"]
    if DEVICE.type == "cpu" and shutil.which("g++") is None:
        suite.skip("compile, inductor", "no C++ compiler for it")
    else:
        backends.append("inductor")
    weight = normal((64,), torch.float32, 31, 0.2, 1.0)
    for backend in backends:
        torch._dynamo.reset()
        # Without a word about it the second number of rows makes the compiler take them for a
        # variable.
        compiled = torch.compile(
            block, fullgraph=True, backend=backend, dynamic=True if backend == "inductor" else None
        )
        for rows in (4, 9, 17):
            x, residual = normal((rows, 64), torch.float32, 32), normal(
                (rows, 64), torch.float32, 33
            )
            ours, theirs = residual.clone(), residual.clone()
            want, got = block(x, ours, weight), compiled(x, theirs, weight)
            suite.check(
                f"compile, {backend}, {rows} rows", torch.allclose(want, got, rtol=1e-5, atol=1e-5)
            )
            suite.check(f"compile, {backend}, {rows} rows: residual", bits(ours) == bits(theirs))
    torch._dynamo.reset()
    fused = normal((6, 192), torch.float32, 34)
    views = torch.compile(
        lambda q, w: ft.rms_norm(q[:, 64:128], w, EPS), fullgraph=True, backend=backends[-1]
    )
    suite.check(
        "compile, a strided view",
        bits(views(fused, weight)) == bits(ft.rms_norm(fused[:, 64:128], weight, EPS)),
    )
    torch._dynamo.reset()
    suite.raises(
        "compile, the library's error",
        RuntimeError,
        "FASTNORM_ERROR_SHAPE",
        lambda: torch.compile(
            lambda a: ft.rms_norm(a, weight[:5]), fullgraph=True, backend="aot_eager"
        )(fused),
    )


# --- threads ---


def test_threads(suite):
    """Threads that norm, each on a stream of its own on a GPU, and provoke errors of their own. Two
    each have the same shapes, and the interpreter changes threads as often as it can."""
    rounds, wrong, done = 60, [], []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work(index):
        n = 32 * (index // 2 + 1)
        x, weight = normal((8, n), torch.bfloat16, index), normal((n,), torch.bfloat16, 40)
        stream = torch.cuda.Stream() if DEVICE.type == "cuda" else None
        if stream:
            stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream) if stream else torch.no_grad():
            want = bits(ft.rms_norm(x, weight))
            for _ in range(rounds):
                if bits(ft.rms_norm(x, weight)) != want:
                    wrong.append(f"thread {index}: other bits")
                try:
                    ft.rms_norm(x, weight[: index + 1])
                    wrong.append(f"thread {index}: no error")
                except RuntimeError as error:
                    if f"{index + 1}" not in str(error) or "SHAPE" not in str(error):
                        wrong.append(f"thread {index}: {error}")
        exact = Exact("rms", f64(x), f64(weight), eps=1e-6, dtype="bfloat16")
        if not exact.holds(f64(ft.rms_norm(x, weight))):
            wrong.append(f"thread {index}: wrong")
        done.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    sys.setswitchinterval(interval)
    suite.check("8 threads, one context", not wrong and len(done) == 8, wrong[:3] or done)


def test_number_of_threads(suite):
    """The context of the CPU follows torch.set_num_threads(), and the former one ends. Threads with
    other numbers have other contexts, and calls that run keep theirs. With PyTorch's loop there is
    one context for all numbers."""
    if DEVICE.type != "cpu":
        suite.skip("the number of threads", "it is that of calls on the CPU")
        return
    before, x = torch.get_num_threads(), normal((64, 4096), torch.float32, 81)
    made, wanted = [], None
    try:
        for number in (1, 3, 2, 3):
            torch.set_num_threads(number)
            y = ft.rms_norm(x)
            wanted = y if wanted is None else wanted
            suite.check(f"{number} threads: the same bits", torch.equal(y, wanted))
            context = ft._calls.host
            own = 0 if ft._loop else number
            suite.equal(f"{number} threads: those of the context", context.num_threads, own)
            suite.check("one context for all families", ft._context(-1) is context)
            made.append(weakref.ref(context))
            del context
            gc.collect()
            suite.equal("contexts that are left", [r() is not None for r in made],
                        [bool(ft._loop)] * (len(made) - 1) + [True])  # fmt: skip
        running, stop = [], threading.Event()

        def work():
            while not stop.is_set() and len(running) < 10**6:
                running.append(torch.equal(ft.rms_norm(x), wanted))

        worker = threading.Thread(target=work)
        worker.start()
        for number in range(40):
            torch.set_num_threads(1 + number % 3)
            ft.rms_norm(x)
        stop.set()
        worker.join()
        suite.check("a thread whose calls run meanwhile", running and all(running))
        gc.collect()
        suite.equal("contexts after it", len(ft._host_contexts), 1)
    finally:
        torch.set_num_threads(before)


def test_memory(suite):
    x, weight = normal((2, 64), torch.float32, 45), normal((64,), torch.float32, 46)

    def fail():
        try:
            ft.rms_norm(x, weight[:63])
        except RuntimeError:
            pass

    for name, call, count in (
        ("calls", lambda: ft.rms_norm(x, weight), 30000),
        ("errors", fail, 5000),
    ):
        grown = growth_kib(call, count)
        suite.check(f"memory after {count} {name}", grown < 1024, f"{grown} KiB more")


# --- CUDA ---


class Shape:
    """What the module asks of a tensor on a CUDA device, with an address but no memory."""

    layout, is_nested, is_quantized = None, False, False

    def __init__(self, shape, dtype=None, address=1 << 20, device=0):
        self.shape, self.dtype, self.address, self.index = (
            torch.Size(shape),
            dtype or torch.bfloat16,
            address,
            device,
        )
        self.device = torch.device("cpu") if device < 0 else torch.device("cuda", device)
        self.strides, self.layout = torch.empty(self.shape, device="meta").stride(), torch.strided

    def get_device(self):
        return self.index

    def dim(self):
        return len(self.shape)

    def data_ptr(self):
        return self.address

    def stride(self):
        return self.strides


def test_dry_run(suite):
    """The way to a launch on a GPU, which need not be there, up to the launch itself."""
    device = 7
    try:
        dry = ft._c.Context(ft._library, ft._c.CUDA, device, dry_run_capability=90)
    except ft.FastnormError as error:
        suite.skip("dry run", str(error))
        return
    kept, ft._raw_stream = ft._raw_stream, lambda device: 0x1230 + device
    ft._contexts[device] = dry
    options = ft._options(ft._c.RMS, EPS, 0.0, "once")
    x, weight, y = (
        Shape((64, 4096), device=device),
        Shape((4096,), None, 2 << 20, device),
        Shape((64, 4096), None, 4 << 20, device),
    )
    names = ("x", "weight", "y")
    try:
        ft._run(options, names, (x, weight, y))
        suite.cost(
            "a call for a GPU without its launch (dry run)",
            best_us(lambda: ft._run(options, names, (x, weight, y)), 2000),
        )
        call = ft._calls.made[next(reversed(ft._calls.made))]
        info = ft._c.Info(struct_size=ft._c.ctypes.sizeof(ft._c.Info))
        ft._library.check(ft._library.c.fastnorm_norm_query(dry.handle, call.args, info))
        suite.check(
            "dry run: a CUDA kernel, one launch",
            info.launches == 1 and b"rms" in info.kernel and info.threads_per_row > 1,
            info.kernel,
        )
        moved = Shape((64, 4096), None, 8 << 20, device)
        ft._run(options, names, (moved, weight, y))
        suite.equal("dry run: the address of the next call", call.structs[0].data, moved.address)
        suite.raises(
            "dry run: a weight in host memory",
            RuntimeError,
            "weight is on cpu; required: cuda:7",
            lambda: ft._run(options, names, (x, Shape((4096,), device=-1), y)),
        )
        suite.raises(
            "dry run: a weight on another GPU",
            RuntimeError,
            "weight is on cuda:6; required: cuda:7",
            lambda: ft._run(options, names, (x, Shape((4096,), device=6), y)),
        )
        suite.raises(
            "dry run: overlap",
            RuntimeError,
            "FASTNORM_ERROR_LAYOUT",
            lambda: ft._run(
                options, names, (x, weight, Shape((64, 4096), None, x.address + 4096, device))
            ),
        )
    finally:
        ft._raw_stream = kept
        del ft._contexts[device]
        ft._calls.made.clear()


def test_streams(suite):
    if needs_cuda(suite, "a side stream behind a long kernel"):
        return
    x, weight = normal((64, 4096), torch.bfloat16, 50), normal((4096,), torch.bfloat16, 51)
    want = bits(ft.rms_norm(x, weight))
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    late = torch.zeros_like(x)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(400_000_000)  # cycles: some 200 ms
        late.copy_(x)
        start = time.perf_counter()
        y = ft.rms_norm(late, weight)
        taken = time.perf_counter() - start
        running = not side.query()
    suite.check(
        "a side stream behind a long kernel: the call returns at once",
        running and taken < 0.05,
        f"took {taken} s, still running: {running}",
    )
    side.synchronize()
    suite.check("a side stream behind a long kernel: in order", bits(y) == want)


def test_capture(suite):
    if needs_cuda(suite, "graph capture and replay"):
        return
    weight = normal((4096,), torch.bfloat16, 52)
    x, residual = normal((16, 4096), torch.bfloat16, 53), normal((16, 4096), torch.bfloat16, 54)
    start = residual.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        ft.fused_add_rms_norm(x, residual, weight, EPS)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ft.fused_add_rms_norm(x, residual, weight, EPS)
    for i in range(3):
        x.copy_(normal((16, 4096), torch.bfloat16, 60 + i))
        residual.copy_(start)
        graph.replay()
        torch.cuda.synchronize()
        want, total = ft.add_rms_norm(x, start, weight, EPS)
        suite.check(f"graph replay {i}", bits(y) == bits(want) and bits(residual) == bits(total))


def test_reduced_overhead(suite):
    """torch.compile's own use of CUDA graphs."""
    if needs_cuda(suite, "compile with CUDA graphs"):
        return
    torch._dynamo.reset()
    weight = normal((64,), torch.float32, 55, 0.2, 1.0)

    def pure(x, residual):
        y, total = ft.add_rms_norm(x * 2, residual, weight, EPS)
        return ft.rms_norm(y + total, weight, EPS)

    compiled = torch.compile(pure, fullgraph=True, mode="reduce-overhead")
    calls, run = [0], ft._run

    def counted(*arguments):
        calls[0] += 1
        run(*arguments)

    ft._run = counted
    try:
        for i in range(6):  # the first calls warm up and record, the later ones replay
            torch.compiler.cudagraph_mark_step_begin()
            x, residual = normal((8, 64), torch.float32, 70 + i), normal(
                (8, 64), torch.float32, 80 + i
            )
            before = calls[0]
            got = compiled(x, residual).clone()
            made = calls[0] - before
            suite.check(
                f"compile with CUDA graphs, call {i}",
                torch.allclose(pure(x, residual), got, rtol=1e-5, atol=1e-5),
            )
    finally:
        ft._run = run
    suite.equal("compile with CUDA graphs: calls of the library in a replay", made, 0)


# --- cost ---


def test_cost(suite):
    """Host time of a call on tensors so small that the work itself is next to nothing."""
    cuda = DEVICE.type == "cuda"
    x, residual, weight = (normal((1, 64), torch.bfloat16, s) for s in (90, 91, 92))
    weight, after = weight[0], torch.cuda.synchronize if cuda else lambda: None
    y = torch.empty_like(x)
    options, names = ft._options(ft._c.RMS, 1e-6, 0.0, "once"), ("x", "weight", "y")
    call = ft._Call(options, names, (x, weight, y))  # of memory that stays
    count = 300 if cuda else 3000
    costs = {
        "fastnorm_norm by ctypes, struct kept": call.run,
        "the same, struct found by shape, addresses set": lambda: ft._run(
            options, names, (x, weight, y)
        ),
        "rms_norm": lambda: ft.rms_norm(x, weight),
        "fused_add_rms_norm": lambda: ft.fused_add_rms_norm(x, residual, weight),
        "torch.nn.functional.rms_norm": lambda: torch.nn.functional.rms_norm(
            x, (64,), weight, 1e-6
        ),
    }
    for name, function in costs.items():
        suite.cost(name, best_us(function, count, after))
    with torch.inference_mode():
        suite.cost(
            "rms_norm, inference mode", best_us(lambda: ft.rms_norm(x, weight), count, after)
        )
    if cuda:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(100):
                ft._run(options, names, (x, weight, y))
        suite.cost(
            "rms_norm, one of 100 in a replayed graph (with the GPU's time)",
            best_us(lambda: (graph.replay(), torch.cuda.synchronize()), 5) / 100,
        )
    suite.check("costs were measured", len(suite.results["costs_us"]) >= 6)


def test_readme(suite):
    run_readme(suite, Path(__file__).resolve().parent)


def main():
    global torch, numpy, ft, DEVICE, direct, FakeTensor, FakeTensorMode, CompileCounterWithBackend
    options = arguments(__doc__.splitlines()[0]).parse_args()
    library = use_library(options)
    os.environ.setdefault(
        "XLA_PYTHON_CLIENT_PREALLOCATE", "false"
    )  # test_dlpack's JAX leaves memory to PyTorch
    suite = Suite("torch", options)
    why = missing("torch", "numpy")
    if why is None:
        import numpy
        import torch
        from torch._dynamo.testing import CompileCounterWithBackend
        from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

        suite.results["versions"] = {
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "cuda": torch.version.cuda,
        }
        if options.device == "cuda" and not torch.cuda.is_available():
            why = "PyTorch has no CUDA device here"
    if why:
        suite.skip("PyTorch operators", why)
        suite.write()
        suite.finish()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages" / "python"))
    import fastnorm.torch as ft

    DEVICE = torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")
    suite.results["versions"]["libfastnorm"] = ft.version()
    suite.results["device"] = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    direct = Direct()
    print(
        f"{library}, libfastnorm {ft.version()}, torch {torch.__version__}, {suite.results['device']}",
        flush=True,
    )
    suite.run(
        [
            test_rms_norm,
            test_layer_norm,
            test_add,
            test_mixed_dtypes,
            test_columns,
            test_quantised,
            test_settings_of_codes,
            test_rotation,
            test_edges,
            test_strided_views,
            test_errors,
            test_threads,
            test_number_of_threads,
            test_module_dtypes,
            test_fx,
            test_script,
            test_memory,
            test_dry_run,
            test_streams,
            test_capture,
            test_cost,
            test_no_forward_derivative,
            test_opcheck,
            test_compile,
            test_wrong_places,
            test_meta,
            test_layouts,
            test_dimensions,
            test_empty,
            test_overlap,
            test_functional,
            test_eps_none,
            test_autocast,
            test_gradients,
            test_vmap,
            test_subclasses,
            test_dynamic_shapes,
            test_readme,
            test_reduced_overhead,
            test_dlpack,
        ]
    )
    suite.finish()


main()
