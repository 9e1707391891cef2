#!/usr/bin/env python3
"""Tests of the settings of codes, which the stages, the heads and rms_norm_quant share. The last
line is the count.

Rows have one magnitude and eps is 0, so the result of a row is the weight, and each code and scale
follows by hand. Run with a Python that has JAX and NumPy; --plugin names libfastnorm_xla.so.
"""

import sys

sys.dont_write_bytecode = True
from jax_testing import start  # noqa: E402

N, ROWS = 64, 6
# Between two codes of float8_e4m3fn near 1, which are 1/8 apart: above the middle, and bfloat16
# rounds it to the middle, which goes to the even code.
TIE = 1.0625 + 2.0**-12


def weights(*first, rest=0.5):
    return np.array([*first] + [rest] * (N - len(first)), np.float32)


def x_of(dtype="bfloat16", rows=ROWS):
    return jnp.full((rows, N), 2.0, dtype)


def by_stage(weight, quant, rows=ROWS, dtype="bfloat16"):
    return fs.gated_norm(x_of(dtype, rows), None, weight, 0.0, quant=quant)


def by_adaln(weight, quant, rows=ROWS, dtype="bfloat16"):
    return fs.adaln(
        x_of(dtype, rows), jnp.asarray(weight), kind="rms", eps=0.0, plain_scale=True, quant=quant
    )


def by_sandwich(weight, quant, rows=ROWS, dtype="bfloat16"):
    x = x_of(dtype, rows)
    return fs.sandwich_norm(x, x, None, weight, 0.0, quant=quant)


def by_heads(weight, quant, rows=ROWS, dtype="bfloat16"):
    x = x_of(dtype, rows).reshape(rows // 2, 2, N)
    part = fh.Part(
        x,
        "rms",
        weight,
        y=quant.y,
        codes=jnp.float8_e4m3fn if quant.dtype is None else quant.dtype,
        **{s.of_part: getattr(quant, s.name) for s in stages.SETTINGS},
    )
    (found,) = fh.norm_heads([part])
    return found


CALLS = {
    "gated_norm": by_stage,
    "adaln": by_adaln,
    "sandwich_norm": by_sandwich,
    "norm_heads": by_heads,
}


def column(codes, number):
    """The same code of all rows."""
    values = np.asarray(codes).astype(np.float64).reshape(-1, codes.shape[-1])[:, number]
    assert (values == values[0]).all(), values
    return values[0]


def scale_of(found):
    values = np.asarray(found.scale).astype(np.float64).reshape(-1)
    assert (values == values[0]).all(), values
    return values[0]


def test_source(suite):
    for name, call in CALLS.items():
        for jit in (False, True):
            how = f"{name}{', jit' if jit else ''}"
            for source, wanted in (("unrounded", 1.125), ("rounded", 1.0)):
                quant = fs.Quant("per_row", source=source)

                def run(weight, call=call, quant=quant):
                    return call(weight, quant)

                found = (jax.jit(run) if jit else run)(jnp.asarray(weights(TIE, 448.0)))
                suite.equal(f"{how}: {source}", column(found.quantized, 0), wanted)
                suite.equal(f"{how}: {source}, scale", scale_of(found), 1.0)
        static = fs.Quant("per_tensor", scale=jnp.ones(1), source="rounded")
        suite.equal(f"{name}: static scale", column(call(weights(TIE), static).quantized, 0), 1.0)
        suite.raises(
            f"{name}: an unknown source",
            ValueError,
            "quant_source is 'f64'; required: one of unrounded, rounded",
            lambda call=call: call(weights(TIE), fs.Quant("per_row", source="f64")),
        )
    for source, wanted in (("unrounded", 1.125), ("rounded", 1.0)):
        codes, scales = fj.rms_norm_quant(
            x_of(), weights(TIE, 448.0), 0.0, scheme="per_row", quant_source=source
        )
        suite.equal(f"rms_norm_quant: {source}", column(codes, 0), wanted)
        suite.check(f"rms_norm_quant: {source}, scale", (np.asarray(scales) == 1).all())
        codes, _ = jax.vmap(
            lambda x, source=source: fj.rms_norm_quant(
                x, weights(TIE, 448.0), 0.0, scheme="per_row", quant_source=source
            )
        )(x_of())
        suite.equal(f"rms_norm_quant: {source}, vmap", column(codes, 0), wanted)


def test_division(suite):
    """A scale of 3/448: 1 / scale is rounded before the product, the quotient is not. The quotient
    of this value lies between two codes, and the product below."""
    f32 = np.float32
    value, scale = f32(0.00040544782), f32(3.0) / f32(448.0)
    product, quotient = value * (f32(1) / scale), value / scale
    suite.check("the divisions differ", product < quotient == f32(0.060546875))
    for name, call in CALLS.items():
        for division, exact in (("reciprocal", product), ("divide", quotient)):
            found = call(weights(value, 3.0), fs.Quant("per_row", division=division), 2, "float32")
            wanted = float(exact.astype(ml_dtypes.float8_e4m3fn))
            suite.equal(f"{name}: {division}", column(found.quantized, 0), wanted)
    codes = [
        fj.rms_norm_quant(
            x_of("float32", 2), weights(value, 3.0), 0.0, scheme="per_row", division=division
        )[0]
        for division in ("reciprocal", "divide")
    ]
    wanted = [float(v.astype(ml_dtypes.float8_e4m3fn)) for v in (product, quotient)]
    suite.equal("rms_norm_quant: divisions", [column(c, 0) for c in codes], wanted)


def test_scales(suite):
    for name, call in CALLS.items():
        found = call(weights(1.0, 450.0), fs.Quant("per_row", pow2=True))
        suite.equal(f"{name}: a power of two", scale_of(found), 2.0)
        suite.equal(f"{name}: codes of a power of two", column(found.quantized, 0), 0.5)
        found = call(weights(1.0, rest=0.0), fs.Quant("per_row", amax_floor=448.0))
        suite.equal(f"{name}: a floor", scale_of(found), 1.0)
        found = call(weights(100.0, 2.0), fs.Quant("per_row", clamp=2.0))
        suite.equal(f"{name}: a clamp", column(found.quantized, 0), 448.0)
        suite.equal(f"{name}: scale of a clamp", scale_of(found), float(np.float32(2 / 448)))
        found = call(weights(100.0, 2.0), fs.Quant("per_row", clamp_scale=jnp.full(1, 2.0)))
        suite.equal(f"{name}: a clamp on the device", column(found.quantized, 0), 448.0)
        for before, wanted in ((3.0, 448.0), (500.0, 500.0)):
            quant = fs.Quant("per_row", amax=jnp.full(1, before))
            for how, jit in (("", lambda f: f), (", jit", jax.jit)):
                found = jit(lambda quant_amax, call=call, quant=quant: call(
                    weights(448.0), quant._replace(amax=quant_amax)
                ).amax)(quant.amax)  # fmt: skip
                suite.equal(f"{name}: amax from {before}{how}", found.tolist(), [wanted])
            suite.equal(f"{name}: amax stays", quant.amax.tolist(), [before])
        # NVFP4: 6 / (6 * 0.5) is the scale of a block, and a code is z / (scale * 0.5).
        quant = fs.Quant("nvfp4", global_scale=jnp.full(1, 0.5))
        found = call(weights(1.0, 6.0, rest=6.0), quant)
        suite.equal(f"{name}: global_scale", scale_of(found), 2.0)
        pairs = np.asarray(found.quantized).reshape(-1, N // 2)[:, 0]
        suite.check(f"{name}: codes of 1 and 6", (pairs == (0x2 | 0x7 << 4)).all(), pairs)


def test_rotation(suite):
    """A column of 4 is 1 in each column of its block of 16, and its sign decides theirs."""
    signs = jnp.ones(16).at[0].set(-1.0)
    for name, call in CALLS.items():
        for how, given, wanted in (("", None, 448.0), (", signs", signs, -448.0)):
            quant = fs.Quant("per_row", rotation=16, rotation_signs=given, y=True, y_rotated=True)
            found = call(weights(4.0, rest=0.0), quant)
            for number in (0, 1, 15):
                suite.equal(f"{name}: rotated{how}", column(found.quantized, number), wanted)
            suite.equal(f"{name}: the next block{how}", column(found.quantized, 16), 0.0)
            one = float(np.float32(1 / 448))
            suite.equal(f"{name}: scale of a rotation{how}", scale_of(found), one)
            suite.equal(f"{name}: y is rotated{how}", column(found.y, 15), wanted / 448)
        found = call(weights(4.0, rest=0.0), fs.Quant("per_row", rotation=16, y=True))
        suite.equal(f"{name}: y is not rotated", column(found.y, 0), 4.0)
    x, slots = x_of().reshape(ROWS, 1, N), jnp.arange(ROWS)
    codes = jnp.zeros((ROWS, 1, 1, N), jnp.float8_e4m3fn)
    part = fh.Part(
        x, "rms", weights(4.0, rest=0.0), y=False, cache=codes, cache_scale=jnp.ones(1),
        cache_rotation=16, cache_rotation_signs=signs,
    )  # fmt: skip
    (found,) = fh.norm_heads([part], slots=slots)
    suite.equal("a cache: rotated", column(found.cache, 15), -1.0)


def test_swizzled(suite):
    """Scale k of row m is where norm.h says, and the padding is 0."""
    rows = 130
    for name in ("gated_norm", "norm_heads"):
        call = CALLS[name]
        weight = weights(1.0, 448.0, rest=900.0)
        weight[32:] = 3.0
        plain = np.asarray(call(weight, fs.Quant("mxfp8"), rows).scale).reshape(rows, -1)
        quant = fs.Quant("mxfp8", layout="swizzled_128x4")
        found = np.asarray(call(weight, quant, rows).scale).view(np.uint8)
        wanted = np.zeros(512 * 2, np.uint8)
        for m in range(rows):
            for k in range(N // 32):
                at = (m // 128 + k // 4) * 512 + m % 32 * 16 + m % 128 // 32 * 4 + k % 4
                wanted[at] = plain.view(np.uint8)[m, k]
        suite.check(f"{name}: swizzled scales", (found == wanted).all())
        suite.check(f"{name}: scales differ", len(set(wanted)) == 3, set(wanted))
    suite.raises(
        "an order of memory",
        ValueError,
        "layout is 'column_major'; required: one of row_major, swizzled_128x4",
        lambda: by_stage(weights(), fs.Quant("mxfp8", layout="column_major")),
    )


def test_cache(suite):
    """quant_source, cache_pow2 and amax_floor of a cache of codes."""
    x, slots = x_of().reshape(ROWS, 1, N), jnp.arange(ROWS)
    codes = jnp.zeros((ROWS, 1, 1, N), jnp.float8_e4m3fn)
    for source, wanted in (("unrounded", 1.125), ("rounded", 1.0)):
        part = fh.Part(
            x, "rms", weights(TIE), y=False, cache=codes, cache_scale=jnp.ones(1),
            quant_source=source,
        )  # fmt: skip
        (found,) = fh.norm_heads([part], slots=slots)
        suite.equal(f"a cache: {source}", column(found.cache, 0), wanted)
    blocks = jnp.zeros((ROWS, 1, 1, 1))
    part = fh.Part(
        x, "rms", weights(1.0, 450.0), y=False, cache=codes, cache_scale=blocks, cache_block=64,
        cache_pow2=True,
    )  # fmt: skip
    (found,) = fh.norm_heads([part], slots=slots)
    suite.check("a cache: powers of two", (np.asarray(found.cache_scale) == 2).all())
    part = part._replace(weight=weights(1.0), cache_pow2=False, amax_floor=448.0)
    (found,) = fh.norm_heads([part], slots=slots)
    suite.check("a cache: a floor", (np.asarray(found.cache_scale) == 1).all())


def test_without_a_scheme(suite):
    """Settings of codes without codes are refused, not ignored."""
    x = x_of().reshape(ROWS, 1, N)
    of_caches_too = ("scheme", "division", "source", "layout", "amax_floor")
    values = {int: 16, float: 1.0, bool: True, None: jnp.ones(1)}
    refused = [s for s in stages.SETTINGS if s.name not in of_caches_too]
    suite.check("settings of codes alone", len(refused) >= 10, refused)
    for name, kind, *_ in refused:
        value = values[kind]
        suite.raises(
            f"{name} without a scheme",
            fj.FastnormError,
            f"parts[0].{name} is given without a scheme; required: one of per_tensor",
            lambda name=name, value=value: fh.norm_heads([fh.Part(x, **{name: value})]),
        )


if __name__ == "__main__":
    suite, _, _ = start(__doc__, "jax quantised", "codes for JAX", packages=["ml_dtypes"])
    import jax
    import jax.numpy as jnp
    import ml_dtypes
    import numpy as np

    import fastnorm.jax as fj
    import fastnorm.jax.norm_heads as fh
    import fastnorm.jax.norm_stages as fs
    from fastnorm import stages

    suite.run(
        [
            test_source,
            test_division,
            test_scales,
            test_rotation,
            test_swizzled,
            test_cache,
            test_without_a_scheme,
        ]
    )
    suite.finish()
