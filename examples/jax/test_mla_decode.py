#!/usr/bin/env python3
"""Tests of MLA decode attention as a JAX function, on the CPU or a CUDA device. The last line is
the count.

Values are compared with double precision: each element of o within (|o| + sum of p|v|) times the
tolerance of its dtype. Run with a Python that has JAX and NumPy; --plugin names libfastnorm_xla.so.
"""

import sys

sys.dont_write_bytecode = True
from jax_testing import bits, f64, start  # noqa: E402

TOLERANCE = {"float32": 2.0**-16, "float16": 2.0**-10, "bfloat16": 2.0**-8}
LATENT, ROPE, SCALE = 512, 64, 192**-0.5


class Batch:
    """Requests of (cached, new) tokens, with pages in another order than the requests; free rows
    are NaN. csr: the page table is one list. ragged: requests have different numbers of tokens."""

    def __init__(self, requests, heads, page, dtype, csr=False, ragged=False, seed=1):
        generator = np.random.default_rng(seed)
        self.requests, self.heads = requests, heads
        own = [-(-cached // page) for cached, _ in requests]
        total, width = max(1, sum(own)), max(1, *own)
        order = generator.permutation(total)
        starts = np.concatenate([[0], np.cumsum(own)])
        lists = [order[a:b] for a, b in zip(starts, starts[1:])]

        def array(values):
            return jnp.asarray(values.astype(np.float32).astype(jnp.dtype(dtype)))

        cache = np.full((total, page, LATENT + ROPE), np.nan)
        for (cached, _), pages in zip(requests, lists):
            for j in range(cached):
                cache[pages[j // page], j % page] = generator.standard_normal(LATENT + ROPE)
        tokens = sum(new for _, new in requests)
        cache = array(cache)
        query = array(generator.standard_normal((tokens, heads, LATENT + ROPE)))
        table = np.full((len(requests), width), 2147480000)
        for row, pages in zip(table, lists):
            row[: len(pages)] = pages
        self.lists, self.query, self.cache = lists, query, cache

        def int32(values):
            return jnp.asarray(np.asarray(values), jnp.int32)

        self.arrays = {
            "q_nope": query[..., :LATENT],
            "q_pe": query[..., LATENT:],
            "ckv": cache[..., :LATENT],
            "kpe": cache[..., LATENT:],
            "kv_len": int32([cached for cached, _ in requests]),
            "page_table": int32(order if csr else table),
        }
        self.options = {"sm_scale": SCALE}
        if csr:
            self.arrays["kv_indptr"] = int32(starts)
        if ragged:
            self.arrays["qo_indptr"] = int32([0, *np.cumsum([new for _, new in requests])])
            self.options["max_s_q"] = max(new for _, new in requests)

    def run(self, **options):
        return fm.mla_decode(**self.arrays, **{**self.options, **options})

    def exact(self, causal):
        """o, its tolerance's factor and lse in double precision."""
        query, cache = f64(self.query), f64(self.cache)
        o, magnitude, lse, token = [], [], [], 0
        for (cached, new), pages in zip(self.requests, self.lists):
            keys = cache[pages].reshape(-1, LATENT + ROPE)[:cached]
            for i in range(new):
                seen = keys[: max(0, cached - new + i + 1)] if causal else keys
                scores = query[token] @ seen.T * SCALE
                with np.errstate(divide="ignore"):
                    log = np.log(np.exp(scores).sum(-1))
                weights = np.exp(scores - log[:, None])
                o.append(weights @ seen[:, :LATENT])
                magnitude.append(weights @ abs(seen[:, :LATENT]))
                lse.append(log)
                token += 1
        return map(np.stack, (o, magnitude, lse))


def check_values(suite, name, batch, causal, found, base=1.0):
    (o, lse), (exact, magnitude, log) = found, batch.exact(causal)
    tolerance = TOLERANCE[o.dtype.name]
    right = o.dtype == batch.query.dtype and o.shape == exact.shape
    error = abs(f64(o) - exact) <= tolerance * (abs(exact) + magnitude)
    suite.check(f"{name}: o", right and error.all())
    log = log / base
    with np.errstate(invalid="ignore"):
        same = (f64(lse) == log) | (abs(f64(lse) - log) <= 2.0**-13 * np.maximum(abs(log), 1))
    suite.check(f"{name}: lse", lse.dtype == jnp.float32 and same.all())


def test_values(suite):
    for dtype in ("bfloat16", "float16") + (("float32",) if DEVICE == "cpu" else ()):
        for name, requests, options in (
            ("one token each", [(65, 1), (7, 1), (128, 1)], {"page": 16}),
            ("two tokens each", [(33, 2), (2, 2)], {"page": 64}),
            (
                "ragged, a list of pages",
                [(9, 3), (0, 0), (21, 1), (5, 5)],
                {"page": 5, "csr": True, "ragged": True},
            ),
            (
                "an empty cache, more new tokens than cached",
                [(0, 1), (1, 3)],
                {"page": 1, "ragged": True},
            ),
        ):
            for causal in (False, True):
                batch = Batch(requests, 3, dtype=dtype, **options)
                label = f"{dtype}: {name}{', causal' if causal else ''}"
                found = batch.run(causal=causal)
                check_values(suite, label, batch, causal, found)

                def jitted(arrays, batch=batch, causal=causal):
                    return fm.mla_decode(**arrays, causal=causal, **batch.options)

                same = list(map(bits, jax.jit(jitted)(batch.arrays))) == list(map(bits, found))
                suite.check(f"{label}: jit gives the same bits", same)
    batch = Batch([(40, 1)], 16, 8, "bfloat16")
    check_values(suite, "base 2", batch, False, batch.run(lse_base="2"), np.log(2))
    check_values(suite, "a split", batch, False, batch.run(split_tokens=64))


def test_bytes(suite):
    """Rows of bytes have the bits of the rows that they stand for, and indices those of the lengths
    and pages that they list."""
    if DEVICE != "cpu":
        return suite.skip("rows of bytes, and indices", "the CPU has them")
    random = np.random.default_rng(5)
    pages, page, count, heads = 4, 8, 27, 3
    lists = np.asarray([[2, 0, 3, 1]], np.int32)
    order = (lists.repeat(page, 1) * page + np.arange(pages * page) % page)[:, :count]
    indices = jnp.asarray(order.reshape(1, 1, count), jnp.int32)
    lengths, table = jnp.asarray([count], jnp.int32), jnp.asarray(lists)
    for row, width in ((656, 128), (576, 576), (584, 64)):
        codes, nope = {656: (512, 512), 576: (576, 512), 584: (448, 448)}[row]
        values = jnp.asarray(random.normal(size=(pages, page, codes)), jnp.float8_e4m3fn)
        exponents = random.integers(-2, 2, (pages, page, codes // width))
        rope = jnp.asarray(random.normal(size=(pages, page, 64)), jnp.bfloat16)
        scales = np.exp2(exponents).astype(np.float32)
        scale = np.float32(0.25)
        factor = scale if row == 576 else np.repeat(scales, width, -1)
        columns = [np.asarray(values, np.float32) * factor, np.asarray(rope, np.float32)]
        parts = [np.asarray(values).view(np.uint8), np.asarray(rope).view(np.uint8)]
        if row == 656:
            parts.insert(1, scales.view(np.uint8))
        cache = np.concatenate(parts[: 1 if row == 576 else None], -1)
        if row == 584:  # scales behind the rows of a page
            unused = np.zeros((pages, page, 1), np.uint8)
            behind = np.concatenate([(exponents + 127).astype(np.uint8), unused], -1)
            cache = np.concatenate([cache.reshape(pages, -1), behind.reshape(pages, -1)], -1)
            cache = cache.reshape(pages, page, row)
        q = jnp.asarray(random.normal(size=(1, heads, nope + 64)), jnp.float32)
        full = jnp.asarray(np.concatenate(columns, -1))
        # A head of 512 columns: zeros in the place of the others.
        pad = jnp.zeros((1, heads, 64), jnp.float32)
        wide = jnp.concatenate([q, pad], -1) if row == 584 else q
        kpe = jnp.zeros((pages, page, 64), jnp.float32) if row == 584 else full[..., 512:576]
        common = {"sm_scale": 0.05}
        wanted = fm.mla_decode(
            wide[..., :512], wide[..., 512:], full[..., :512], kpe, lengths, table, **common
        )
        given = (q[..., :nope], q[..., nope:], jnp.asarray(cache), None)
        if row == 576:
            common["cache_scale"] = jnp.asarray([scale])
        dense = jax.jit(lambda g, o=common: fm.mla_decode(*g, lengths, table, **o))(given)
        chosen = fm.mla_decode(*given, None, None, indices=indices, **common)
        halves = fm.mla_decode(
            *given, None, None, indices=indices, topk_length=jnp.asarray([11], jnp.int32),
            extra_ckv=given[2], extra_indices=indices[..., 11:],
            extra_topk_length=jnp.asarray([[count - 11]], jnp.int32), **common,
        )  # fmt: skip
        for name, found in (("dense", dense), ("selected", chosen), ("of two caches", halves)):
            if row == 584:
                close = np.allclose(found[0], wanted[0], rtol=1e-5, atol=1e-6)
                suite.check(f"rows of {row} bytes, {name}: o", close)
                suite.check(f"rows of {row} bytes, {name}: lse", np.allclose(found[1], wanted[1]))
            else:
                same = list(map(bits, found)) == list(map(bits, wanted))
                suite.check(f"rows of {row} bytes, {name}: the same bits", same)
        sink = jnp.asarray([0.5, jnp.inf, -jnp.inf], jnp.float32)
        left = fm.mla_decode(*given, lengths, table, attention_sink=sink, **common)
        factors = np.asarray(1 / (1 + jnp.exp(sink - wanted[1][0])))[None, :, None]
        same = np.allclose(left[0], np.asarray(wanted[0]) * factors, rtol=1e-5, atol=1e-6)
        suite.check(f"rows of {row} bytes, sinks", same)
        suite.check(f"rows of {row} bytes, sinks: lse", bits(left[1]) == bits(dense[1]))
    latents = jnp.zeros((pages, page, 512)), jnp.zeros((pages, page, 64))
    two = {"extra_ckv": latents[0], "extra_kpe": latents[1], "extra_indices": indices}
    query = jnp.zeros((1, heads, 512)), jnp.zeros((1, heads, 64))
    o, lse = fm.mla_decode(*query, *latents, None, None, indices=indices, sm_scale=0.05, **two)
    close = np.allclose(lse, np.log(2 * count))
    suite.check("two caches of rows", close and not np.asarray(o).any(), lse)
    for name, text, broken in (
        ("rows of other bytes", "ckv.shape is [4, 8, 583] and its dtype is uint8; required: "
         "[pages, page, row] with rows of 656, 576, 584 bytes",
         lambda: fm.mla_decode(*given[:2], given[2][..., 1:], None, lengths, table, sm_scale=1.0)),
        ("lengths and indices", "kv_len is given and indices is given",
         lambda: fm.mla_decode(*given, lengths, table, indices=indices, sm_scale=1.0)),
    ):  # fmt: skip
        suite.raises(name, fj.FastnormError, text, broken)


def test_vmap(suite):
    """One call for each part of the batch."""
    batch = Batch([(20, 1), (3, 1)], 2, 4, "float16")
    queries = jnp.stack([batch.arrays["q_nope"], batch.arrays["q_nope"][::-1]])

    def one(q):
        return fm.mla_decode(**{**batch.arrays, "q_nope": q}, **batch.options)[0]

    found = jax.vmap(one)(queries)
    suite.check("vmap", bits(found) == bits(jnp.stack([one(q) for q in queries])))


def test_errors(suite):
    batch = Batch([(20, 1), (3, 1)], 2, 4, "bfloat16")
    a = batch.arrays

    def call(options=None, **arrays):
        return fm.mla_decode(**{**a, **arrays}, **{**batch.options, **(options or {})})

    for name, kind, text, broken in (
        ("no scale", fj.FastnormError, "sm_scale", lambda: call({"sm_scale": 0.0})),
        ("a base", ValueError, "lse_base is 'e'; required: one of natural, 2",
         lambda: call({"lse_base": "e"})),
        ("a traced scale", TypeError, "sm_scale is a traced value",
         lambda: jax.jit(lambda s: call({"sm_scale": s}))(1.0)),
        ("a wrong width", fj.FastnormError, "FASTNORM_ERROR_UNSUPPORTED",
         lambda: call(q_pe=a["q_pe"][..., :32])),
        ("another dtype", fj.FastnormError, "FASTNORM_ERROR_DTYPE: kpe",
         lambda: call(kpe=a["kpe"].astype(jnp.float32))),
        ("a rank", fj.FastnormError, "FASTNORM_ERROR_SHAPE: page_table",
         lambda: call(page_table=a["page_table"][..., None])),
        ("qo_indptr without max_s_q", fj.FastnormError, "max_s_q",
         lambda: call(qo_indptr=jnp.asarray([0, 1, 2], jnp.int32))),
        ("a split", fj.FastnormError, "split_tokens", lambda: call({"split_tokens": 63})),
        ("no query", fj.FastnormError, "q_pe is None; required: an array",
         lambda: call(q_pe=None)),
        ("a gradient", ValueError, "cannot be differentiated",
         lambda: jax.grad(lambda q: call(q_nope=q)[1].sum())(a["q_nope"])),
    ):  # fmt: skip
        suite.raises(name, kind, text, broken)
    if DEVICE == "cpu":
        for name, text, change in (
            ("a length behind the table", "kv_len", {"kv_len": a["kv_len"] + 100}),
            ("a page that is not there", "page 0 of request 0",
             {"page_table": a["page_table"] + 100}),
        ):  # fmt: skip
            suite.raises(
                name,
                jax.errors.JaxRuntimeError,
                text,
                lambda change=change: jax.block_until_ready(call(**change)),
            )


if __name__ == "__main__":
    suite, options, _ = start(__doc__, "jax mla_decode", "mla_decode for JAX")
    DEVICE = options.device
    import jax
    import jax.numpy as jnp
    import numpy as np

    import fastnorm.jax as fj
    import fastnorm.jax.mla_decode as fm

    suite.run([test_values, test_bytes, test_vmap, test_errors])
    suite.finish()
