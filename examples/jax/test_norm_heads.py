#!/usr/bin/env python3
"""Tests of norm_heads for JAX, on the CPU or a CUDA device. The last line is the count.

A result is compared with the formula in double precision. On the CPU all results have the bits of
the C ABI called directly. Run with a Python that has JAX and NumPy; --plugin names
libfastnorm_xla.so.
"""

import functools
import itertools
import os
import sys

sys.dont_write_bytecode = True
from jax_testing import bits, f64, normal, start  # noqa: E402
from norm_testing import View  # noqa: E402

EPS = 1e-6
QUERY, KEY, HEAD, TOKENS, PAGE, PAGES, ROWS = 6, 2, 64, 7, 4, 3, 20
ALL = QUERY + 2 * KEY
DTYPES = ("float32", "float16", "bfloat16")
SLOTS = [9, 0, -1, 4, 11, 3]  # of no token behind them: it is padding
LIVE, PADDING = [0, 1, 3, 4, 5], [2, 6]  # tokens; the rows of padding may be anything


class Layer:
    """Heads of one buffer, weights, tables and caches."""

    def __init__(self, dtype, seed=1):
        self.dtype = dtype
        self.qkv = normal((TOKENS, ALL, HEAD), dtype, seed, 2.0)
        self.weights = normal((HEAD,), dtype, 2, 0.2, 1.0), normal((KEY, HEAD), dtype, 3, 0.2, 1.0)
        angles = np.arange(ROWS)[:, None] * 1000.0 ** (-np.arange(HEAD // 2) / (HEAD // 2))
        self.cos, self.sin = (jnp.asarray(f(angles), jnp.float32) for f in (np.cos, np.sin))
        self.positions = jnp.asarray([19, 0, 3, 3, 8, 1, 2], jnp.int32)
        self.slots = jnp.asarray(SLOTS, jnp.int32)
        self.caches = [jnp.full((PAGES, PAGE, KEY, HEAD), 7, dtype) for _ in range(2)]

    def parts(self, fused=True, **options):
        both = {"norm": "rms", "eps": EPS, "rope": True, **options}
        heads = ((0, QUERY), (QUERY, KEY), (QUERY + KEY, KEY))
        x = [
            {"x": self.qkv, "heads": h} if fused else {"x": self.qkv[:, h[0] : sum(h)]}
            for h in heads
        ]
        return [
            fh.Part(weight=self.weights[0], **x[0], **both),
            fh.Part(weight=self.weights[1], cache=self.caches[0], **x[1], **both),
            fh.Part(y=False, cache=self.caches[1], **x[2]),
        ]

    def tables(self):
        return {
            "cos": self.cos,
            "sin": self.sin,
            "rope_dim": HEAD,
            "positions": self.positions,
            "slots": self.slots,
        }

    def exact(self, first, heads, weight):
        """Norm and rope in double precision, and what each value is the sum of."""
        x, w = f64(self.qkv)[:, first : first + heads], f64(weight)
        z = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * w
        c, s = (f64(t)[np.asarray(self.positions)][:, None] for t in (self.cos, self.sin))
        a, b = z[..., : HEAD // 2], z[..., HEAD // 2 :]
        return (
            np.concatenate([a * c - b * s, b * c + a * s], -1),
            np.concatenate([abs(a * c) + abs(b * s), abs(b * c) + abs(a * s)], -1),
        )


def close(found, exact, size, roundings=1):
    unit = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[found.dtype.name]
    allowed = size * (unit * roundings + 2.0**-18) + 2.0**-24
    return bool((abs(f64(found) - exact) <= allowed).all())


def close_live(found, exact, size):
    at = np.array(LIVE)
    return close(found[at], exact[at], size[at])


def live_bits(results):
    """Of y without padding, and of caches."""
    rows = [bits(r.y[np.array(LIVE)]) for r in results if r.y is not None]
    return rows + [bits(r.cache) for r in results if r.cache is not None]


def cached(cache, rows):
    """Whether the slots of SLOTS have their tokens' rows, and the others what was there."""
    wanted = np.full((PAGES * PAGE, KEY, HEAD), 7, np.asarray(rows).dtype)
    for token, slot in enumerate(SLOTS):
        if slot >= 0:
            wanted[slot] = np.asarray(rows)[token]
    return bits(cache) == bits(wanted)


# --- the C ABI ---


def direct(parts, results, **fields):
    """Runs the same call by ctypes on copies in host memory. parts: dicts of the C fields, arrays
    as arrays; results: for each part shapes and dtypes by name. Bytes of the results, in order."""
    kept = []

    def view(name, value):
        if not hasattr(value, "shape"):
            return value
        host = np.array(np.asarray(value), order="C")
        kept.append(host)
        strides = [s // host.itemsize for s in host.strides]
        return View(
            host.ctypes.data, fj._dtype(name, host.dtype), host.shape, strides, host.itemsize
        )

    structs, outputs = [], []
    for part, wanted in zip(parts, results):
        struct = {name: view(name, value) for name, value in part.items()}
        for name, value in wanted.items():
            struct[name] = view(name, value)
            outputs.append(kept[-1])
        structs.append(struct)
    context.norm_heads(structs, **{name: view(name, value) for name, value in fields.items()}).run()
    return [o.tobytes() for o in outputs]


def heads_of(layer):
    return (layer.qkv[:, :QUERY], layer.qkv[:, QUERY : QUERY + KEY], layer.qkv[:, QUERY + KEY :])


# --- tests ---


def test_layer(suite):
    for dtype, rounding in itertools.product(DTYPES, ("once", "once_rw")):
        layer = Layer(dtype)
        name = f"{dtype} {rounding}"
        q, k, v = fh.norm_heads(layer.parts(rounding=rounding), **layer.tables())
        suite.check(f"{name}: query", close_live(q.y, *layer.exact(0, QUERY, layer.weights[0])))
        suite.check(f"{name}: key", close_live(k.y, *layer.exact(QUERY, KEY, layer.weights[1])))
        suite.check(f"{name}: no value", v.y is None and v.cache_scale is None)
        suite.check(f"{name}: the key's cache", cached(k.cache, k.y))
        suite.check(f"{name}: the value's cache", cached(v.cache, heads_of(layer)[2]))
        suite.check(
            f"{name}: the arguments are as they were",
            all(bool((c == 7).all()) for c in layer.caches),
        )
        sliced = fh.norm_heads(layer.parts(False, rounding=rounding), **layer.tables())
        suite.check(
            f"{name}: slices give the same bits", live_bits(sliced) == live_bits([q, k, v])
        )
        jitted = jax.jit(
            lambda layer=layer, rounding=rounding: fh.norm_heads(
                layer.parts(rounding=rounding), **layer.tables()
            )
        )()
        suite.check(
            f"{name}: jit gives the same bits", live_bits(jitted) == live_bits([q, k, v])
        )
        if context is None:
            suite.skip(f"{name}: bits of the C ABI", "only on the CPU")
            continue
        x = heads_of(layer)
        norm = {"flags": fj._c.NORM | fj._c.ROPE, "eps": EPS, "rounding": fj._ROUNDING[rounding]}
        found = direct(
            [
                {"x": x[0], "weight": layer.weights[0], **norm},
                {"x": x[1], "weight": layer.weights[1], **norm},
                {"x": x[2]},
            ],
            [
                {"y": jnp.zeros_like(q.y)},
                {"y": jnp.zeros_like(k.y), "cache": layer.caches[0]},
                {"cache": layer.caches[1]},
            ],
            **layer.tables(),
        )
        wanted = [bits(q.y.at[np.array(PADDING)].set(0)), bits(k.y.at[np.array(PADDING)].set(0))]
        suite.check(
            f"{name}: bits of the C ABI", found == [*wanted, bits(k.cache), bits(v.cache)]
        )


def test_padding(suite):
    """Positions of padding are not looked at; nothing of it is in a cache."""
    for dtype in DTYPES:
        layer = Layer(dtype)
        wanted = live_bits(fh.norm_heads(layer.parts(), **layer.tables()))
        spoilt = jnp.asarray([-(2**31), 2**31 - 1])
        layer.positions = layer.positions.at[np.array(PADDING)].set(spoilt)
        found = fh.norm_heads(layer.parts(), **layer.tables())
        suite.check(f"{dtype}: any positions of padding", live_bits(found) == wanted)


def test_options(suite):
    """Every option reaches the library: each gives the bits of the C ABI, and other bits than
    without."""
    if context is None:
        suite.skip("options", "only on the CPU")
        return
    layer = Layer("bfloat16")
    x, weight = heads_of(layer)[0], layer.weights[0]
    plain = {"norm": "rms", "eps": EPS, "rope": True}
    flags = fj._c.NORM | fj._c.ROPE
    bias = normal((QUERY, HEAD), "float32", 5)

    def both(options, fields, shared=None, tables=None):
        """Bits by JAX and by the C ABI."""
        shared = {"rope_dim": HEAD // 2, **(shared or {})}
        tables = {
            "cos": layer.cos[:, : HEAD // 4],
            "sin": layer.sin[:, : HEAD // 4],
            "positions": layer.positions,
            **(tables or {}),
        }
        (ours,) = fh.norm_heads(
            [fh.Part(x, weight=weight, **{**plain, **options})],
            **tables,
            rope_dim=shared["rope_dim"],
            **({"mrope": (8, 4, 4)} if "mrope_0" in shared else {}),
            mrope_interleaved=bool(shared.get("flags")),
        )
        (theirs,) = direct(
            [{"x": x, "weight": weight, "flags": flags, "eps": EPS, **fields}],
            [{"y": ours.y * 0}],
            **shared,
            **tables,
        )
        return bits(ours.y), theirs

    base = both({}, {})
    suite.check("no option: bits of the C ABI", base[0] == base[1])
    axes = jnp.stack([layer.positions, layer.positions[::-1], layer.positions * 0])
    sections = {"mrope_0": 8, "mrope_1": 4, "mrope_2": 4}
    c = fj._c
    for name, options, fields, *more in (
        ("layer", {"norm": "layer"}, {"kind": 1}),
        ("bias", {"bias": bias}, {"bias": bias}),
        ("eps", {"eps": 1.0}, {"eps": 1.0}),
        ("weight_offset", {"weight_offset": 1.0}, {"weight_offset": 1.0}),
        ("rounding", {"rounding": "normalized"}, {"rounding": 1}),
        ("across_heads", {"across_heads": True}, {"flags": flags | c.ACROSS_HEADS}),
        ("rope_offset", {"rope_offset": -1}, {"rope_offset": -1}),
        ("interleaved", {"interleaved": True}, {"flags": flags | c.ROPE_INTERLEAVED}),
        ("inverse", {"inverse": True}, {"flags": flags | c.ROPE_INVERSE}),
        ("from_rounded", {"from_rounded": True}, {"flags": flags | c.ROPE_FROM_ROUNDED}),
        ("rope_rounding", {"rope_rounding": "every_step"}, {"rope_rounding": 1}),
        ("y_dtype", {"y_dtype": jnp.float32}, {}),
        ("mrope", {}, {}, sections, {"positions": axes}),
        (
            "mrope_interleaved",
            {},
            {},
            {**sections, "flags": c.MROPE_INTERLEAVED},
            {"positions": axes},
        ),
    ):
        ours, theirs = both(options, fields, *more)
        suite.check(f"{name}: bits of the C ABI", ours == theirs)
        suite.check(f"{name}: which differ", ours != base[0])


def test_codes(suite):
    layer = Layer("bfloat16")
    k, v = heads_of(layer)[1:]
    scale = jnp.asarray([0.0123], jnp.float32)
    for name, dtype, block, division in (
        ("fp8, one scale", jnp.float8_e4m3fn, 0, "reciprocal"),
        ("fp8, one scale, quotients", jnp.float8_e4m3fn, 0, "divide"),
        ("int8, blocks", jnp.int8, 64, "reciprocal"),
    ):
        codes = jnp.zeros((PAGES, PAGE, KEY, HEAD), dtype)
        scales = jnp.full((PAGES, PAGE, KEY, 1), 5, jnp.float32) if block else scale
        (found,) = fh.norm_heads(
            [
                fh.Part(
                    v,
                    y=False,
                    cache=codes,
                    cache_scale=scales,
                    cache_block=block,
                    division=division,
                )
            ],
            slots=layer.slots,
        )
        rows = f64(found.cache).reshape(-1, KEY, HEAD)
        suite.equal(f"{name}: whether scales are results", found.cache_scale is None, block == 0)
        wide = (
            f64(found.cache_scale).reshape(-1, KEY, 1)
            if block
            else np.full((PAGES * PAGE, 1, 1), f64(scale)[0])
        )
        worst = 0.0
        for token, slot in enumerate(SLOTS):
            if slot < 0:
                continue
            most = (127 if dtype == jnp.int8 else 448) * wide[slot]
            exact = np.clip(f64(v)[token], -most, most)
            step = wide[slot] if dtype == jnp.int8 else np.maximum(abs(exact) / 8, wide[slot] / 512)
            worst = max(worst, (abs(rows[slot] * wide[slot] - exact) / step).max())
        suite.check(f"{name}: codes", worst <= 0.5001, worst)
        free = [slot for slot in range(PAGES * PAGE) if slot not in SLOTS]
        suite.check(
            f"{name}: free rows", not rows[free].any() and (not block or (wide[free] == 5).all())
        )
        if context is None:
            continue
        fields = {
            "x": v,
            "cache_scheme": 3 if block else 1,
            "cache_block_size": block,
            "quant_division": int(division == "divide"),
            **({} if block else {"cache_scale": scale}),
        }
        results = {"cache": codes, **({"cache_scale": scales} if block else {})}
        wanted = direct([fields], [results], slots=layer.slots)
        suite.check(
            f"{name}: bits of the C ABI",
            wanted == [bits(a) for a in (found.cache, found.cache_scale) if a is not None],
        )


def test_ranks(suite):
    """Statistics out and in: heads spread over ranks are normalised as on one."""
    for dtype, kind in itertools.product(DTYPES, ("rms", "layer")):
        name = f"{dtype}, {kind}"
        x = normal((TOKENS, 8, HEAD), dtype, 21, 1.0, 0.5)
        weight = normal((8, HEAD), dtype, 22)
        base = fh.Part(x, norm=kind, weight=weight, eps=EPS, across_heads=True)
        (whole,) = fh.norm_heads([base._replace(rstd=True, mean=kind == "layer")])
        rows = f64(x).reshape(TOKENS, -1)
        mean = rows.mean(1) if kind == "layer" else np.zeros(TOKENS)
        centred = rows - mean[:, None]
        rstd = 1 / np.sqrt((centred**2).mean(1) + EPS)
        exact = (centred * rstd[:, None]).reshape(x.shape) * f64(weight)
        suite.check(
            f"{name}: mean and rstd",
            np.allclose(f64(whole.rstd), rstd, rtol=1e-6)
            and (whole.mean is None if kind == "rms" else np.allclose(f64(whole.mean), mean, 1e-6)),
        )
        if context is not None:
            results = {n: getattr(whole, n) for n in ("y", "mean", "rstd")}
            results = {n: a for n, a in results.items() if a is not None}
            fields = {"x": x, "weight": weight, "eps": EPS, "kind": int(kind == "layer")}
            fields["flags"] = c.NORM | c.ACROSS_HEADS
            wanted = direct([fields], [{n: a * 0 for n, a in results.items()}])
            suite.check(f"{name}: bits of the C ABI", wanted == list(map(bits, results.values())))
        for ranks in (1, 2, 4):

            def sums_of(x, w, base=base):
                part = base._replace(x=x, weight=w, y=False, sumsq=True)
                return fh.norm_heads([part])[0].sumsq

            @jax.jit
            def run(x, weight, ranks=ranks, base=base, kind=kind, sums_of=sums_of):
                shards = list(zip(jnp.split(x, ranks, 1), jnp.split(weight, ranks)))
                sums = jnp.stack([sums_of(*shard) for shard in shards])
                found = fh.statistics_of_sums(sums, x[0].size // ranks, EPS, kind)
                given = {"rstd_in": found} if kind == "rms" else dict(
                    zip(("mean_in", "rstd_in"), found)
                )  # fmt: skip
                parts = [base._replace(x=x, weight=w, **given) for x, w in shards]
                return given, jnp.concatenate([fh.norm_heads([p])[0].y for p in parts], 1)

            given, y = run(x, weight)
            suite.check(
                f"{name}: statistics of {ranks} ranks",
                np.allclose(f64(given["rstd_in"]), rstd, rtol=1e-6)
                and np.allclose(f64(given.get("mean_in", mean)), mean, rtol=1e-6, atol=1e-6),
            )
            suite.check(f"{name}: results of {ranks} ranks", close(y, exact, abs(exact) + 0.1))
    for name, says, call in (
        (
            "a gradient with given statistics",
            "parts[0].rstd_in is given",
            lambda x: fh.norm_heads([base._replace(x=x, **given)])[0].y.sum(),
        ),
        (
            "a gradient of rstd",
            "a gradient of the rstd that parts[0] stored",
            lambda x: fh.norm_heads([base._replace(x=x, rstd=True)])[0].rstd.sum(),
        ),
    ):
        suite.raises(name, FastnormError, says, lambda: jax.grad(call)(x.astype(jnp.float32)))
    suite.raises(
        "sums of layer without their mean",
        ValueError,
        "required: [.., 2]",
        lambda: fh.statistics_of_sums([jnp.ones(3)], 8, EPS, "layer"),
    )
    suite.raises("no ranks", ValueError, "at least 1", lambda: fh.statistics_of_sums([], 8, EPS))


def test_quantised(suite):
    """Codes and scales of the result: jit and the C ABI give the same bits."""
    for dtype in DTYPES:
        x, weight = normal((TOKENS, QUERY, HEAD), dtype, 23), normal((HEAD,), dtype, 24, 0.2, 1.0)
        exact = f64(x) / np.sqrt((f64(x) ** 2).mean(-1, keepdims=True) + EPS) * f64(weight)
        for scheme, number, codes, block in (
            ("per_tensor", 1, jnp.float8_e4m3fn, 0), ("per_tensor", 1, jnp.int8, 0),
            ("per_row", 2, jnp.float8_e4m3fn, 0), ("per_row", 2, jnp.int8, 0),
            ("per_block", 3, jnp.float8_e4m3fn, 64), ("per_block", 3, jnp.int8, 64),
            ("mxfp8", 4, jnp.float8_e4m3fn, 0),
        ):  # fmt: skip
            name = f"{dtype}: {scheme} of {jnp.dtype(codes).name}"
            scale = jnp.full(1, 1 / 32, jnp.float32) if scheme == "per_tensor" else None
            part = fh.Part(
                x, norm="rms", weight=weight, eps=EPS, scheme=scheme, block_size=block,
                codes=codes, scale=scale,
            )  # fmt: skip
            (found,) = fh.norm_heads([part])
            suite.equal(f"{name}: scales that are results", found.scale is None, scale is not None)
            scales = f64(scale if found.scale is None else found.scale)
            if scheme != "per_tensor":
                scales = np.repeat(scales, HEAD // scales.shape[-1], -1)
            greatest, step = (127, 0.5) if codes == jnp.int8 else (448, 2.0**-10)
            least = -128 if codes == jnp.int8 else -448
            kept = exact.clip(least * scales, greatest * scales)
            share = 0.0 if codes == jnp.int8 else 1 / 16
            error = abs(f64(found.quantized) * scales - kept)
            suite.check(name, (error <= abs(kept) * share + scales * step + 1e-5).all())
            arrays = [a for a in (found.y, found.quantized, found.scale) if a is not None]
            jitted = jax.tree.leaves(jax.jit(lambda part=part: fh.norm_heads([part]))())
            same = list(map(bits, jitted)) == list(map(bits, arrays))
            suite.check(f"{name}: jit gives the same bits", same)
            if context is None:
                continue
            fields = {"flags": c.NORM, "x": x, "weight": weight, "eps": EPS}
            fields.update(quant_scheme=number, quant_block_size=block)
            if scale is not None:
                fields["scale"] = scale
            results = dict(zip(("y", "quantized", "scale"), arrays))
            wanted = direct([fields], [results])
            suite.check(f"{name}: bits of the C ABI", wanted == list(map(bits, arrays)))
    suite.raises(
        "a scale that the scheme makes", FastnormError, "parts[0].scale is given",
        lambda: fh.norm_heads([part._replace(scale=jnp.ones(1))]),
    )  # fmt: skip


def test_head_weights(suite):
    """The weights of heads times the scales of their codes and a factor, in two products."""
    x = normal((TOKENS, QUERY, HEAD), "bfloat16", 31)
    weights = normal((TOKENS, QUERY), "float32", 32)
    part = fh.Part(
        x, y=False, scheme="per_row", rotation=HEAD, head_weights=weights, head_weights_factor=0.125
    )

    def call(w):
        return fh.norm_heads([part._replace(head_weights=w)])[0]

    for name, of in (("eager", call), ("jit", jax.jit(call))):
        found = of(weights)
        wanted = np.asarray(weights) * np.asarray(found.scale).reshape(TOKENS, QUERY)
        wanted = wanted * np.float32(0.125)
        suite.equal(f"head weights, {name}", bits(found.head_weights), wanted.tobytes())
    suite.raises(
        "a gradient of head weights", FastnormError,
        "a gradient of parts[0].head_weights is wanted",
        lambda: jax.grad(lambda w: call(w).head_weights.sum())(weights),
    )  # fmt: skip
    suite.raises(
        "head weights without codes", FastnormError, "quant.quantized is NULL",
        lambda: fh.norm_heads([fh.Part(x, head_weights=weights)]),
    )  # fmt: skip


def test_tail(suite):
    """A cache of codes of the first columns of a head, and the last ones as they are."""
    x = normal((TOKENS, KEY, HEAD), "bfloat16", 33)
    part = fh.Part(
        x, y=False, cache=jnp.zeros((2, TOKENS, KEY, HEAD - 8), jnp.float8_e4m3fn),
        cache_scale=jnp.full(1, 0.5), cache_tail=jnp.zeros((2, TOKENS, KEY, 8), jnp.bfloat16),
    )  # fmt: skip
    slots = jnp.arange(TOKENS)[::-1] + 1

    def call(tail):
        return fh.norm_heads([part._replace(cache_tail=tail)], slots=slots)[0]

    for name, of in (("eager", call), ("jit", jax.jit(call))):
        found = of(part.cache_tail)
        tail = found.cache_tail.reshape(2 * TOKENS, KEY, 8)
        codes = found.cache.reshape(2 * TOKENS, KEY, HEAD - 8).astype(jnp.float32)
        suite.equal(f"tail, {name}", bits(tail[slots]), bits(x[..., HEAD - 8 :]))
        suite.check(f"tail, {name}: the rest is as before",
                    not tail[0].any() and not tail[TOKENS + 1 :].any())
        error = jnp.abs(codes[slots] / 2 - x[..., : HEAD - 8].astype(jnp.float32))
        suite.check(f"codes before a tail, {name}", float(error.max()) <= 0.25, error.max())
    suite.raises(
        "a tail without codes", FastnormError, "cache_tail is given and cache_quant.scheme is",
        lambda: fh.norm_heads([part._replace(cache_scale=None)], slots=slots),
    )  # fmt: skip


def test_donation(suite):
    """A cache that is given away is written in place."""
    layer = Layer("float32")

    @functools.partial(jax.jit, donate_argnums=0)
    def write(cache, qkv, slots):
        (found,) = fh.norm_heads(
            [fh.Part(qkv, heads=(QUERY, KEY), y=False, cache=cache)], slots=slots
        )
        return found.cache

    cache = jnp.full((PAGES, PAGE, KEY, HEAD), 7, jnp.float32)
    before = cache.unsafe_buffer_pointer()
    written = write(cache, layer.qkv, layer.slots)
    suite.check("a donated cache: the same memory", written.unsafe_buffer_pointer() == before)
    suite.check("a donated cache: its rows", cached(written, heads_of(layer)[1]))
    suite.raises(
        "a cache that was given away",
        FastnormError,
        "cache was deleted",
        lambda: fh.norm_heads([fh.Part(layer.qkv, heads=(0, KEY), cache=cache)], slots=layer.slots),
    )
    kept = jnp.full((PAGES, PAGE, KEY, HEAD), 7, jnp.float32)
    other = jax.jit(lambda c: (write(c, layer.qkv, layer.slots), c + 0))(kept)
    suite.check(
        "a cache that is used elsewhere stays",
        bool((other[1] == 7).all()) and cached(other[0], heads_of(layer)[1]),
    )


def test_cache_elsewhere(suite):
    """XLA may give the cache of the result a place of its own, as it does with slices."""
    layer = Layer("float32")

    def write(cache):
        (found,) = fh.norm_heads(
            [fh.Part(layer.qkv, heads=(QUERY, KEY), y=False, cache=cache)], slots=layer.slots
        )
        return found.cache

    cache = jnp.arange(PAGES * PAGE * KEY * HEAD, dtype=jnp.float32).reshape(PAGES, PAGE, KEY, HEAD)
    wanted = bits(write(cache))
    ffi_call = jax.ffi.ffi_call
    jax.ffi.ffi_call = lambda *a, input_output_aliases, **more: ffi_call(*a, **more)
    try:
        suite.check("a cache with a place of its own", bits(write(cache)) == wanted)
    finally:
        jax.ffi.ffi_call = ffi_call


def test_vmap(suite):
    layers = [Layer("bfloat16", seed) for seed in (1, 20, 21)]
    one = layers[0]

    def run(qkv, cache, slots):
        q, k = fh.norm_heads(
            [
                fh.Part(
                    qkv, heads=(0, QUERY), norm="rms", eps=EPS, weight=one.weights[0], rope=True
                ),
                fh.Part(qkv, heads=(QUERY, KEY), y=False, cache=cache),
            ],
            cos=one.cos,
            sin=one.sin,
            rope_dim=HEAD,
            positions=one.positions,
            slots=slots,
        )
        return q.y, k.cache

    slots = jnp.stack([one.slots, one.slots[::-1], one.slots * 0 - 1])
    arguments_ = [
        jnp.stack([layer.qkv for layer in layers]),
        jnp.stack([layer.caches[0] for layer in layers]),
        slots,
    ]
    apart = [run(*(a[i] for a in arguments_)) for i in range(3)]
    live = [np.array(LIVE), np.array([0, 1, 2, 4, 5]), np.array([], int)]
    suite.equal(
        "live tokens", [np.flatnonzero(np.asarray(s) >= 0).tolist() for s in slots],
        [tokens.tolist() for tokens in live],
    )  # fmt: skip

    def same(found, i):
        return bits(found[0][i][live[i]]) == bits(apart[i][0][live[i]])

    for name, function in (("vmap", jax.vmap(run)), ("jit of vmap", jax.jit(jax.vmap(run)))):
        found = function(*arguments_)
        suite.check(
            f"{name}: the bits of each call",
            all(same(found, i) and bits(found[1][i]) == bits(apart[i][1]) for i in range(3)),
        )
    found = jax.vmap(run, in_axes=(0, None, None))(arguments_[0], one.caches[0], one.slots)
    alone = [run(x, one.caches[0], one.slots)[0] for x in arguments_[0]]
    suite.check(
        "vmap of x alone",
        all(bits(found[0][i][live[0]]) == bits(alone[i][live[0]]) for i in range(3)),
    )


def test_nothing(suite):
    suite.equal("no parts", fh.norm_heads([]), [])
    layer = Layer("float32")
    none = layer.positions[:0]
    (found,) = fh.norm_heads(
        [fh.Part(layer.qkv[:0], norm="rms", rope=True)],
        cos=layer.cos,
        sin=layer.sin,
        rope_dim=HEAD,
        positions=none,
    )
    suite.equal("no tokens", found.y.shape, (0, ALL, HEAD))


def test_errors(suite):
    layer = Layer("bfloat16")
    q, k, v = layer.parts()
    for name, kind, text, parts, change in (
        (
            "a norm without a name",
            ValueError,
            "norm is 'l2'; required: one of rms, layer",
            [q._replace(norm="l2")],
            {},
        ),
        ("a rounding", ValueError, "rounding is 'down'", [q._replace(rounding="down")], {}),
        ("a division", ValueError, "division is 'half'", [q._replace(division="half")], {}),
        (
            "eps",
            FastnormError,
            "FASTNORM_ERROR_ARGUMENT: parts[0].eps is -1",
            [q._replace(eps=-1.0), k],
            {},
        ),
        ("eps that is no number", TypeError, "eps is 'x'", [q._replace(eps="x")], {}),
        (
            "a window",
            FastnormError,
            "FASTNORM_ERROR_SHAPE: parts[1].rope_offset is 3",
            [q, k._replace(rope_offset=3)],
            {},
        ),
        (
            "an output",
            FastnormError,
            "parts[0].y, quant.quantized, cache",
            [q._replace(y=False), k],
            {},
        ),
        (
            "a matrix",
            FastnormError,
            "parts[0].x has 2 dimensions",
            [q._replace(x=layer.qkv[0])],
            {},
        ),
        (
            "heads that are not there",
            FastnormError,
            "parts[0].heads is (8, 3); required",
            [q._replace(heads=(8, 3))],
            {},
        ),
        (
            "a weight of other columns",
            FastnormError,
            "FASTNORM_ERROR_SHAPE: parts[0].weight.shape is [63]",
            [q._replace(weight=layer.weights[0][:63]), k],
            {},
        ),
        (
            "y of another dtype",
            FastnormError,
            "FASTNORM_ERROR_DTYPE: parts[0].y.dtype",
            [q._replace(y_dtype=jnp.float16), k],
            {},
        ),
        (
            "a cache of another dtype",
            FastnormError,
            "FASTNORM_ERROR_DTYPE: parts[1].cache.dtype",
            [q, k._replace(cache=layer.caches[0].astype(jnp.float16))],
            {},
        ),
        ("tables", FastnormError, "cos is NULL", [q, k], {"cos": None}),
        ("a cache without slots", FastnormError, "slots is NULL", [q, k], {"slots": None}),
        (
            "positions of floats",
            FastnormError,
            "FASTNORM_ERROR_DTYPE: positions.dtype is f32",
            [q, k],
            {"positions": layer.positions.astype(jnp.float32)},
        ),
        (
            "a table of one of two layouts",
            FastnormError,
            f"rope_dim is None and cos.shape is [{len(layer.cos)}, {HEAD // 2}]; required: how "
            f"many columns of a head turn, {HEAD} where the tables are [P, R], {HEAD // 2} where",
            [q, k],
            {"rope_dim": None},
        ),
        ("an odd window", FastnormError, "rope_dim is 3", [q, k], {"rope_dim": 3}),
        (
            "five sections",
            FastnormError,
            "mrope has 5 sections",
            [q, k],
            {"mrope": (1, 2, 3, 4, 5)},
        ),
        (
            "nine parts",
            FastnormError,
            "count is 9",
            [v._replace(cache=None, y=True)] * 9,
            {"slots": None, "cos": None, "sin": None, "positions": None},
        ),
    ):
        options = {**layer.tables(), **change}
        before = fj.handler_calls()
        for label, run in (
            ("", lambda: fh.norm_heads(parts, **options)),
            (", jit", jax.jit(lambda: [r.y for r in fh.norm_heads(parts, **options)])),
        ):
            suite.raises(f"{name}{label}", kind, text, run)
        suite.equal(f"{name}: nothing is launched", fj.handler_calls(), before)
    if DEVICE == "cpu":
        for name, text, change in (
            (
                "a position",
                "the position of token 0, axis 0, is 69",
                {"positions": layer.positions + 50},
            ),
            ("a slot", "slots[0] is 109", {"slots": layer.slots + 100}),
        ):
            suite.raises(
                name,
                jax.errors.JaxRuntimeError,
                text,
                lambda: jax.block_until_ready(
                    [r.cache for r in fh.norm_heads([q, k], **{**layer.tables(), **change})]
                ),
            )


# --- gradients ---


def plain(q, k, v, weights, tables, layer_norm=False, across=False):
    """The heads of test_gradients as JAX's own functions of float32."""
    c, s = (tables[n][tables["positions"]][:, None] for n in ("cos", "sin"))

    def turned(z):
        a, b = z[..., : HEAD // 2], z[..., HEAD // 2 :]
        return jnp.concatenate([a * c - b * s, b * c + a * s], -1)

    def norm(x, w, bias):
        axes = (-2, -1) if across else -1
        if layer_norm:
            x = x - x.mean(axes, keepdims=True)
        z = x * jax.lax.rsqrt((x**2).mean(axes, keepdims=True) + EPS) * w
        return z if bias is None else z + bias

    return turned(norm(q, *weights[0])), turned(norm(k, *weights[1])), v


def gradient_parts(qkv, weights, layer_norm=False, across=False):
    both = {
        "norm": "layer" if layer_norm else "rms",
        "eps": EPS,
        "rope": True,
        "across_heads": across,
    }
    return [
        fh.Part(qkv, weight=weights[0][0], bias=weights[0][1], heads=(0, QUERY), **both),
        fh.Part(qkv, weight=weights[1][0], bias=weights[1][1], heads=(QUERY, KEY), **both),
        fh.Part(qkv, heads=(QUERY + KEY, KEY)),
    ]


def gradient_tables(layer):
    return {**layer.tables(), "slots": None}


def test_gradients(suite):
    """Against JAX's own gradients of the formula in float32."""
    for dtype, layer_norm in (*((d, False) for d in DTYPES), ("bfloat16", True)):
        across = layer_norm
        name = f"gradients {dtype}{' layer, across heads' if layer_norm else ''}"
        layer = Layer(dtype)
        bias = [normal((HEAD,), dtype, 8), normal((KEY, HEAD), dtype, 9)]
        bias = bias if layer_norm else [None] * 2
        weights = [[w, b] for w, b in zip(layer.weights, bias)]
        seeds = [normal((TOKENS, h, HEAD), dtype, 10 + h) for h in (QUERY, KEY, KEY + 1)]
        seeds[2] = seeds[2][:, :KEY]

        def ours(qkv, weights):
            found = fh.norm_heads(
                gradient_parts(qkv, weights, layer_norm, across), **gradient_tables(layer)
            )
            return sum((r.y.astype(jnp.float32) * d).sum() for r, d in zip(found, seeds))

        def theirs(qkv, weights):
            heads = (qkv[:, :QUERY], qkv[:, QUERY : QUERY + KEY], qkv[:, QUERY + KEY :])
            found = plain(*heads, weights, layer.tables(), layer_norm, across)
            return sum((y * d).sum() for y, d in zip(found, seeds))

        wide = jax.tree.map(lambda a: a.astype(jnp.float32), (layer.qkv, weights))
        found = jax.jit(jax.grad(ours, (0, 1)))(layer.qkv, weights)
        wanted = jax.jit(jax.grad(theirs, (0, 1)))(*wide)
        unit = {"float32": 2.0**-18, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
        for of, a, b in zip(
            ("qkv", "weights and biases"), (found[0], found[1]), (wanted[0], wanted[1])
        ):
            pairs = list(zip(jax.tree.leaves(a), jax.tree.leaves(b)))
            near = all(
                x.dtype == jnp.dtype(dtype)
                and (abs(f64(x) - f64(y)) <= unit * (abs(f64(y)) + abs(f64(y)).max())).all()
                for x, y in pairs
            )
            suite.check(f"{name}: {of}", near and len(pairs) > 0)
        again = jax.grad(ours, (0, 1))(layer.qkv, weights)
        suite.check(
            f"{name}: the same bits without jit",
            all(bits(a) == bits(b) for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(again))),
        )
        if not across:
            check_direct_gradients(suite, name, layer, seeds, found)


def check_direct_gradients(suite, name, layer, seeds, found):
    """The bits of the C ABI, called directly."""
    if DEVICE != "cpu":
        return
    kept = []

    def view(label, value):
        host = np.array(np.asarray(value), order="C")
        kept.append(host)
        strides = [s // host.itemsize for s in host.strides]
        return View(
            host.ctypes.data, fj._dtype(label, host.dtype), host.shape, strides, host.itemsize
        )

    parts, results = [], []
    for i, x in enumerate(heads_of(layer)):
        part = {"dy": view("dy", seeds[i]), "dx": view("dx", jnp.zeros_like(x))}
        results.append(kept[-1])
        if i < 2:
            part.update(flags=c.NORM | c.ROPE, eps=EPS, x=view("x", x))
            part["weight"] = view("weight", layer.weights[i])
            part["dweight"] = view("dweight", jnp.zeros_like(layer.weights[i]))
            results.append(kept[-1])
        parts.append(part)
    tables = {n: view(n, a) for n, a in layer.tables().items() if n not in ("slots", "rope_dim")}
    call = context.norm_heads_backward(parts, rope_dim=HEAD, **tables)
    room = np.zeros(call.query().workspace_bytes + 256, np.uint8)
    call.run((room.ctypes.data + 255) // 256 * 256, room.nbytes - 256)
    dqkv = np.concatenate([results[i] for i in (0, 2, 4)], axis=1)
    suite.check(f"{name}: dx has the bits of the C ABI", bits(found[0]) == bits(dqkv))
    for i, (dweight, _) in enumerate(found[1]):
        suite.check(
            f"{name}: dweight {i} has the bits of the C ABI",
            bits(dweight) == bits(results[2 * i + 1]),
        )


def test_gradients_of_some(suite):
    """Only what is wanted is computed; what has no gradient says so."""
    layer = Layer("float32")
    q, k, v = layer.parts()
    tables = gradient_tables(layer)

    def query(w):
        return fh.norm_heads([q._replace(weight=w)], **tables)[0].y.sum()

    before = fj.handler_calls()
    found = jax.block_until_ready(jax.grad(query)(layer.weights[0]))
    suite.check(
        "a weight's gradient alone", found.shape == (HEAD,) and bool(jnp.abs(found).sum() > 0)
    )
    suite.check("it takes two calls", fj.handler_calls() == before + 2)

    def cached(w, cache):
        results = fh.norm_heads([k._replace(weight=w, cache=cache)], **layer.tables())
        return results[0].y.sum(), results[0].cache

    (value, cache), _ = jax.value_and_grad(cached, has_aux=True)(
        layer.weights[1], layer.caches[0]
    )
    suite.check(
        "a gradient beside a cache",
        bits(cache) == bits(fh.norm_heads([k], **layer.tables())[0].cache)
        and bool(jnp.isfinite(value)),
    )
    rope = fh.Part(layer.qkv, rope=True, interleaved=True)
    turned, back = jax.vjp(
        lambda x: fh.norm_heads([rope._replace(x=x)], **tables)[0].y, layer.qkv
    )
    (there,) = back(turned)
    suite.check(
        "rope alone: its transpose turns back", bool(jnp.allclose(there, layer.qkv, atol=1e-5))
    )
    for name, of in (("cos", layer.cos), ("a cache", layer.caches[0])):
        def wanted(value):
            if name == "cos":
                return fh.norm_heads([q], **{**tables, "cos": value})[0].y.sum()
            return fh.norm_heads([k._replace(cache=value)], **layer.tables())[0].y.sum()

        suite.raises(
            f"a gradient of {name}", FastnormError, "is wanted", lambda: jax.grad(wanted)(of)
        )
    suite.raises(
        "a gradient through a cache",
        FastnormError,
        "stored is given",
        lambda: jax.grad(
            lambda w: fh.norm_heads([k._replace(weight=w)], **layer.tables())[0].cache.sum()
        )(layer.weights[1]),
    )


def test_variants_for_graphs(suite):
    """What XLA may record in CUDA graphs has targets of its own, and the same bits."""
    layer = Layer("float32")
    q, _, _ = layer.parts()
    tables = gradient_tables(layer)

    def query(w):
        return fh.norm_heads([q._replace(weight=w)], **tables)[0].y.sum()

    def gradient():
        lowered = jax.jit(lambda w: jax.value_and_grad(query)(w)).lower(layer.weights[0])
        found = lowered.compile()(layer.weights[0])
        return [bits(a) for a in found], lowered.as_text()

    want, plain = gradient()
    fj.use_command_buffers = True
    try:
        found, recorded = gradient()
    finally:
        fj.use_command_buffers = False
    suite.check("variants for graphs: off by default", "_graph" not in plain, plain)
    for target in ("fastnorm_norm_heads_graph", "fastnorm_norm_heads_backward_graph"):
        suite.check(f"variants for graphs: {target}", f"@{target}(" in recorded, recorded)
    suite.check("variants for graphs: bits", found == want)


if __name__ == "__main__":
    suite, options, library = start(__doc__, "jax norm_heads", "norm_heads for JAX")
    DEVICE = options.device
    import jax
    import jax.numpy as jnp
    import numpy as np

    import fastnorm.jax as fj
    import fastnorm.jax.norm_heads as fh

    FastnormError = fh.FastnormError
    c = fj._c
    context = c.Context(c.Library(library), c.CPU) if DEVICE == "cpu" else None
    suite.run(
        [
            test_layer,
            test_padding,
            test_options,
            test_codes,
            test_ranks,
            test_quantised,
            test_head_weights,
            test_tail,
            test_donation,
            test_cache_elsewhere,
            test_vmap,
            test_nothing,
            test_errors,
            test_gradients,
            test_gradients_of_some,
            test_variants_for_graphs,
        ]
    )
    suite.finish()
