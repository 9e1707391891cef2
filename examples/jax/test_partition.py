#!/usr/bin/env python3
"""Tests of the JAX functions under jit with shardings, on several CPU devices or GPUs. The last
line is the count.

Rows that are cut over devices are computed where they are: the compiled program has no collective
but the sum of a parameter's gradient. So are tokens, heads and requests. A last dimension that is
cut is gathered, and so are tokens that are written to a cache. Results are those of whole arrays.
Run with a Python that has JAX and NumPy; --plugin names libfastnorm_xla.so.
"""

import re
import sys
from typing import Any, NamedTuple

sys.dont_write_bytecode = True
import jax_testing  # noqa: E402
from jax_testing import bits, f64, start  # noqa: E402

DEVICES = 8
MESH = (4, 2)  # over axes d and t
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")


class Case(NamedTuple):
    name: str
    function: Any  # of arrays
    shapes: tuple  # of random arrays, or the arrays themselves
    specs: tuple  # of the arrays
    results: tuple  # specs
    collectives: dict = {}
    same_bits: bool = True  # as of whole arrays


def normal(shape, seed):
    return jax_testing.normal(shape, "float32", seed)


def squares(results):
    return sum((y.astype(jnp.float32) ** 2).sum() for y in jax.tree.leaves(results))


def gradient(function, count):
    return jax.grad(lambda *arrays: squares(function(*arrays)), tuple(range(count)))


def cases():
    x, w, heads = (8, 16, 64), (64,), (16, 64)
    none, rows, both, last = P(), P("d"), P("d", "t"), P("d", None, "t")
    one = {"all-reduce": 1}
    yield Case("rms_norm", fj.rms_norm, (x, w), (rows, none), (rows,))
    yield Case("rms_norm over two axes", fj.rms_norm, (x, w), (both, none), (both,))
    yield Case(
        "rms_norm, rows over two axes at once",
        fj.rms_norm,
        (x, w),
        (P(("d", "t")), none),
        (P(("d", "t")),),
    )
    yield Case("layer_norm", fj.layer_norm, (x, w, w), (both, none, none), (both,))
    for name in ("add_rms_norm", "fused_add_rms_norm"):
        of = getattr(fj, name)
        yield Case(name, of, (x, x, w), (both, both, none), (both, both))
    yield Case(
        "add_rms_norm, a whole residual",
        fj.add_rms_norm,
        (x, x, w),
        (both, none, none),
        (both, both),
    )
    yield Case("rms_norm, a weight for each head", fj.rms_norm, (x, heads), (both, P("t")), (both,))
    yield Case(
        "rms_norm_quant",
        lambda x, w: fj.rms_norm_quant(x, w, scheme="per_row"),
        (x, w),
        (both, none),
        (both, both),
    )
    yield Case(
        "gated_norm",
        lambda x, gate, w: fs.gated_norm(x, gate, w),
        (x, x, w),
        (both, both, none),
        (both,),
    )
    yield Case(
        "sandwich_norm",
        lambda x, r, v, w: fs.sandwich_norm(x, r, v, w),
        (x, x, w, w),
        (both, both, none, none),
        (both, both),
    )
    of_batch = (8, 1, 64)
    yield Case("adaln", fs.adaln, (x, of_batch, of_batch), (both, rows, rows), (both,))
    yield Case("vmap", jax.vmap(fj.rms_norm, (0, None)), (x, w), (rows, none), (rows,))
    yield Case("vmap of rows", jax.vmap(fj.rms_norm, (0, 0)), ((8, 64),) * 2, (rows, rows), (rows,))
    yield Case(
        "vmap of a stage",
        jax.vmap(lambda x, gate, w: fs.gated_norm(x, gate, w), (0, 0, None)),
        (x, x, w),
        (none, none, none),
        (none,),
    )
    yield Case(
        "the last dimension", fj.rms_norm, (x, w), (last, P("t")), (rows,), {"all-gather": 2}
    )
    yield Case("one row", fj.rms_norm, (w, w), (rows, none), (none,), {"all-gather": 1})

    def of_gradient(name, function, shapes, specs, results, collectives):
        made = gradient(function, len(shapes))
        return Case(f"gradient of {name}", made, shapes, specs, results, collectives, False)

    yield of_gradient("rms_norm", fj.rms_norm, (x, w), (both, none), (both, none), one)
    yield of_gradient(
        "layer_norm", fj.layer_norm, (x, w, w), (both, none, none), (both, none, none), one
    )
    yield of_gradient(
        "add_rms_norm", fj.add_rms_norm, (x, x, w), (both, both, none), (both, both, none), one
    )
    yield of_gradient(
        "rms_norm, a weight for each head",
        fj.rms_norm,
        (x, heads),
        (both, P("t")),
        (both, P("t")),
        one,
    )
    yield of_gradient(
        "rms_norm without a weight", lambda x: fj.rms_norm(x), (x,), (both,), (both,), {}
    )
    yield of_gradient(
        "gated_norm",
        lambda x, gate, w: fs.gated_norm(x, gate, w),
        (x, x, w),
        (both, both, none),
        (both, both, none),
        one,
    )
    yield of_gradient(
        "adaln", fs.adaln, (x, of_batch, of_batch), (both, rows, rows), (both, rows, rows), one
    )
    yield of_gradient(
        "vmap", jax.vmap(fj.rms_norm, (0, None)), (x, w), (rows, none), (rows, none), one
    )
    yield of_gradient(
        "the last dimension",
        fj.rms_norm,
        (x, w),
        (last, P("t")),
        (rows, none),
        {"all-gather": 2, "all-reduce": 1},
    )


def heads_cases():
    """Query and key heads: 8 tokens of 4 and 2 heads."""
    q, k, w, table = (8, 4, 64), (8, 2, 64), (64,), (16, 32)
    none, tokens, both, heads = P(), P("d"), P("d", "t"), P(None, "t")
    positions, slots = np.array([3, 0, 7, 7, 15, 1, 2, 9]), np.array([5, 0, 11, 3, -1, 6, 2, 15])
    one = {"all-reduce": 1}

    def rotated(q, k, w, cos, sin, positions=None, **more):
        parts = [
            fh.Part(q, "rms", w, eps=1e-6, rope=True, **more),
            fh.Part(k, "layer", eps=1e-6, rope=True),
        ]
        found = fh.norm_heads(parts, cos=cos, sin=sin, rope_dim=64, positions=positions)
        return tuple(r.y for r in found)

    tables, whole = (table, table, positions), (none, none, none)
    shapes = (q, k, w, *tables)
    yield Case("heads", rotated, shapes, (both, both, none, *whole), (both, both))
    yield Case(
        "heads, positions that are cut",
        rotated,
        shapes,
        (tokens, tokens, none, none, none, tokens),
        (tokens, tokens),
    )
    yield Case(
        "heads, of the queries alone", rotated, shapes, (both, none, none, *whole), (both, tokens)
    )
    yield Case(
        "heads without positions",
        rotated,
        (q, k, w, (8, 32), (8, 32)),
        (both, both, none, none, none),
        (both, both),
    )
    yield Case(
        "heads without positions, longer tables",
        rotated,
        (q, k, w, table, table),
        (both, both, none, none, none),
        (heads, heads),
        {"all-gather": 2},
    )
    yield Case(
        "heads with weights of their own",
        rotated,
        (q, k, (4, 64), *tables),
        (both, both, P("t"), *whole),
        (both, both),
    )
    yield Case(
        "heads with one statistic",
        lambda *arrays: rotated(*arrays, across_heads=True),
        shapes,
        (both, both, none, *whole),
        (tokens, both),
        {"all-gather": 1},
    )

    def of_codes(q, signs):
        part = fh.Part(q, "rms", rstd=True, scheme="per_row", rotation=64, rotation_signs=signs)
        (found,) = fh.norm_heads([part])
        return found.y, found.rstd, found.quantized, found.scale

    yield Case("heads to codes", of_codes, (q, np.ones(64, np.float32)), (both, none), (both,) * 4)
    yield Case(
        "heads to codes with an amax",
        lambda q, amax: fh.norm_heads([fh.Part(q, scheme="per_row", amax=amax)])[0].quantized,
        (q, np.zeros(1, np.float32)),
        (tokens, none),
        (none,),
        {"all-gather": 1},
    )
    yield Case(
        "some heads of a buffer",
        lambda x: tuple(
            r.y for r in fh.norm_heads([fh.Part(x, "rms", heads=(0, 4)), fh.Part(x, heads=(4, 2))])
        ),
        ((8, 8, 64),),
        (tokens,),
        (tokens, tokens),
    )

    def cached(k, cache, slots):
        (found,) = fh.norm_heads([fh.Part(k, "rms", cache=cache)], slots=slots)
        # Nothing of padding is written.
        return jnp.where((slots >= 0)[:, None, None], found.y, 0), found.cache

    of_cache = P(None, None, "t")
    cache = ((4, 4, 2, 64), slots)
    yield Case("a cache", cached, (k, *cache), (heads, of_cache, none), (heads, of_cache))
    yield Case(
        "a cache of tokens that are cut",
        lambda *arrays: cached(*arrays)[1],
        (k, *cache),
        (both, of_cache, none),
        (of_cache,),
        {"all-gather": 1},
    )

    def of_gradient(name, function, shapes, specs, results, collectives):
        def loss(*arrays):
            return squares(function(*arrays, *constants))

        constants = [normal(table, 8), normal(table, 9), jnp.asarray(positions)]
        made = jax.grad(loss, tuple(range(len(shapes))))
        return Case(f"gradient of {name}", made, shapes, specs, results, collectives, False)

    yield of_gradient("heads", rotated, (q, k, w), (both, both, none), (both, both, none), one)
    yield of_gradient(
        "heads with weights of their own",
        rotated,
        (q, k, (4, 64)),
        (both, both, P("t")),
        (both, both, P("t")),
        one,
    )
    yield of_gradient(
        "heads with one statistic",
        lambda *arrays: rotated(*arrays, across_heads=True),
        (q, k, w),
        (tokens, tokens, none),
        (tokens, tokens, none),
        one,
    )
    yield of_gradient(
        "heads without a weight",
        lambda q, k, *tables: rotated(q, k, None, *tables),
        (q, k),
        (both, both),
        (both, both),
        {},
    )


def decode_cases():
    """MLA decode of 4 requests and 4 heads over 6 pages of 16 rows."""
    query, rope, cache, keys = (4, 4, 512), (4, 4, 64), (6, 16, 512), (6, 16, 64)
    lengths = np.array([5, 32, 17, 1], np.int32)
    pages = np.array([[0, 1], [2, 3], [4, 5], [5, 0]], np.int32)
    none, requests, both, heads = P(), P("d"), P("d", "t"), P(None, "t")

    def decode(*arrays):
        return fm.mla_decode(*arrays, sm_scale=0.07)

    shapes = (query, rope, cache, keys, lengths, pages)
    yield Case("mla_decode", decode, shapes, (both, both, none, none, none, none), (both, both))
    yield Case(
        "mla_decode, requests that are cut",
        decode,
        shapes,
        (requests, requests, none, none, requests, requests),
        (requests, requests),
    )
    yield Case(
        "mla_decode, a cache that is cut",
        decode,
        shapes,
        (both, both, none, P(None, "t"), none, none),
        (both, both),
        {"all-gather": 1},
    )
    begins = np.array([0, 1, 2, 3, 4], np.int32)
    yield Case(
        "mla_decode of lists of new tokens",
        lambda *arrays: fm.mla_decode(*arrays, sm_scale=0.07, qo_indptr=jnp.asarray(begins),
                                      max_s_q=1),
        shapes,
        (both, both, none, none, none, none),
        (heads, heads),
        {"all-gather": 2},
    )  # fmt: skip
    indices = np.random.default_rng(5).integers(-1, 96, (4, 1, 24), dtype=np.int32)
    yield Case(
        "mla_decode of chosen rows",
        lambda q, q_pe, ckv, kpe, rows, sink: fm.mla_decode(
            q, q_pe, ckv, kpe, None, None, sm_scale=0.07, indices=rows, attention_sink=sink
        ),
        (query, rope, cache, keys, indices, (4,)),
        (both, both, none, none, none, P("t")),
        (both, both),
    )


    of_two = ((8, 4, 512), (8, 4, 64), cache, keys, indices.reshape(4, 2, 12))
    yield Case(
        "mla_decode of chosen rows, two new tokens of a request",
        lambda q, q_pe, ckv, kpe, rows: fm.mla_decode(
            q, q_pe, ckv, kpe, None, None, sm_scale=0.07, indices=rows
        ),
        of_two,
        (both, both, none, none, none),
        (both, both),
    )
    yield Case(
        "mla_decode of chosen rows, cut requests",
        lambda q, q_pe, ckv, kpe, rows: fm.mla_decode(
            q, q_pe, ckv, kpe, None, None, sm_scale=0.07, indices=rows
        ),
        of_two,
        (both, both, none, none, requests),
        (both, both),
    )


def all_cases():
    return (*cases(), *heads_cases(), *decode_cases())


def mesh_of(kind=None):
    devices = np.array(jax.devices()[:DEVICES]).reshape(MESH)
    kinds = {} if kind is None else {"axis_types": (kind, kind)}
    return jax.sharding.Mesh(devices, ("d", "t"), **kinds)


def placed(case, mesh):
    arrays = [
        normal(shape, seed) if isinstance(shape, tuple) else jnp.asarray(shape)
        for seed, shape in enumerate(case.shapes)
    ]
    return arrays, [
        jax.device_put(a, jax.sharding.NamedSharding(mesh, spec))
        for a, spec in zip(arrays, case.specs)
    ]


def collectives_of(text):
    found = {name: len(re.findall(rf" {name}(?:-start)?\(", text)) for name in COLLECTIVES}
    return {name: count for name, count in found.items() if count}


def agree(case, found, wanted):
    if case.same_bits:
        return [bits(a) for a in found] == [bits(a) for a in wanted]
    return all(
        np.allclose(f64(a), f64(b), rtol=2e-5, atol=2e-5) and a.dtype == b.dtype
        for a, b in zip(found, wanted)
    )


def calls_of(text):
    return len(re.findall(r'custom_call_target="fastnorm_', text))


# --- tests ---


def test_compiled(suite):
    """The program that jit compiles for arrays that are cut."""
    mesh = mesh_of()
    for case in all_cases():
        whole, parts = placed(case, mesh)
        wanted = jax.tree.leaves(jax.jit(case.function)(*whole))
        program = jax.jit(case.function).lower(*parts).compile()
        text = program.as_text()
        collectives, wanted_ones = collectives_of(text), case.collectives
        if tuple(map(int, jax.__version__.split(".")[:2])) < (0, 7):  # one for each gradient
            collectives, wanted_ones = sorted(collectives), sorted(wanted_ones)
        suite.equal(f"{case.name}: collectives", collectives, wanted_ones)
        suite.check(f"{case.name}: calls the library", calls_of(text) > 0)
        found = jax.tree.leaves(program(*parts))
        suite.check(f"{case.name}: results", agree(case, found, wanted))
        for i, (y, spec) in enumerate(zip(found, case.results, strict=True)):
            like = jax.sharding.NamedSharding(mesh, spec)
            suite.check(
                f"{case.name}: where result {i} is",
                y.sharding.is_equivalent_to(like, y.ndim),
                f"{y.sharding.spec}, not {spec}",
            )


def test_eager(suite):
    """The functions outside of jit."""
    mesh = mesh_of()
    for case in all_cases():
        whole, parts = placed(case, mesh)
        wanted = jax.tree.leaves(case.function(*whole))
        found = jax.tree.leaves(case.function(*parts))
        suite.check(f"{case.name}, eager: results", agree(case, found, wanted))
        spec = case.results[0]
        like = jax.sharding.NamedSharding(mesh, spec)
        suite.check(
            f"{case.name}, eager: where the first result is",
            found[0].sharding.is_equivalent_to(like, found[0].ndim),
            f"{found[0].sharding}, not {spec}",
        )


def test_constraints(suite):
    """A cut in the middle of a program, and one of the results alone."""
    mesh = mesh_of()
    x, w = normal((8, 16, 64), 1), normal((64,), 2)
    spec = jax.sharding.NamedSharding(mesh, P("d", "t"))
    none = jax.sharding.NamedSharding(mesh, P())

    def inside(x, w):
        y = jax.lax.with_sharding_constraint(x * 2, spec)
        return fj.rms_norm(y, w) + 1

    program = jax.jit(inside, in_shardings=(spec, none)).lower(x, w).compile()
    suite.equal("a constraint inside", collectives_of(program.as_text()), {})
    wanted = fj.rms_norm(x * 2, w) + 1
    found = program(jax.device_put(x, spec), jax.device_put(w, none))
    suite.check("a constraint inside: results", bits(found) == bits(wanted))
    program = jax.jit(fj.rms_norm, in_shardings=(none, none), out_shardings=spec).lower(x, w)
    program = program.compile()
    suite.equal("of the result alone", collectives_of(program.as_text()), {})
    found = program(jax.device_put(x, none), jax.device_put(w, none))
    suite.check("of the result alone: results", bits(found) == bits(fj.rms_norm(x, w)))


def test_model(suite):
    """A layer between two products whose weights are cut, as of tensor parallelism with the batch
    over another axis."""
    mesh = mesh_of()
    x, w = normal((8, 16, 64), 1), normal((64,), 2)
    a, b = normal((64, 128), 3) / 8, normal((128, 64), 4) / 8
    specs = [P("d"), P(), P(None, "t"), P("t", None)]

    def loss(x, w, a, b):
        y = fj.rms_norm(x, w) @ a @ b
        y, total = fj.add_rms_norm(y, x, w)
        return (y * total).sum()

    arrays = (x, w, a, b)
    parts = [jax.device_put(v, jax.sharding.NamedSharding(mesh, s)) for v, s in zip(arrays, specs)]
    step = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3)))
    program = step.lower(*parts).compile()
    found = jax.tree.leaves(program(*parts))
    wanted = jax.tree.leaves(step(*arrays))
    suite.check(
        "a model: gradients",
        all(np.allclose(f64(p), f64(q), rtol=1e-3, atol=1e-3) for p, q in zip(found, wanted)),
    )
    suite.check(
        "a model: nothing is gathered", "all-gather" not in collectives_of(program.as_text())
    )


def test_explicit(suite):
    """A mesh whose axes are part of the types."""
    kinds = getattr(jax.sharding, "AxisType", None)
    if kinds is None or not all(hasattr(jax, name) for name in ("shard_map", "set_mesh")):
        suite.skip("axes that are part of types", f"JAX {jax.__version__} has none")
        return
    mesh = mesh_of(kinds.Explicit)
    for case in all_cases():
        whole, parts = placed(case, mesh)
        wanted = jax.tree.leaves(case.function(*whole))
        with jax.set_mesh(mesh):
            program = jax.jit(case.function).lower(*parts).compile()
            found = jax.tree.leaves(program(*parts))
        suite.check(f"{case.name}, explicit: results", agree(case, found, wanted))
        # jax.vmap hides how its batch is cut, and other functions take their arrays whole.
        if not re.search("vmap|gated|sandwich|adaln|heads|cache|mla_decode|buffer", case.name):
            text = program.as_text()
            suite.equal(
                f"{case.name}, explicit: collectives", collectives_of(text), case.collectives
            )


def main():
    global jax, jnp, np, P, fh, fj, fm, fs
    suite, options, library = start(
        __doc__,
        "jax_partition",
        "the functions on cut arrays",
        devices=DEVICES,
    )
    import os

    os.environ["FASTNORM_LIBRARY"] = str(library)
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import PartitionSpec as P

    import fastnorm.jax as fj
    import fastnorm.jax.mla_decode as fm
    import fastnorm.jax.norm_heads as fh
    import fastnorm.jax.norm_stages as fs

    suite.run([test_compiled, test_eager, test_constraints, test_model, test_explicit])
    suite.finish()


if __name__ == "__main__":
    main()
