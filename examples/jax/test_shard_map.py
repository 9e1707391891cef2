#!/usr/bin/env python3
"""Tests of the JAX functions inside jax.shard_map, on several CPU devices or GPUs. The last line is
the count.

Each function runs on parts of its arrays, jitted and eager, with and without JAX's check of manual
axes. Its results and gradients are those of the same function on whole arrays. Run with a Python
that has JAX and NumPy; --plugin names libfastnorm_xla.so.
"""

import sys
from typing import Any, NamedTuple, Tuple

sys.dont_write_bytecode = True
import jax_testing  # noqa: E402
from jax_testing import f64, start  # noqa: E402

DEVICES = 4
ROWS, N, HEADS, D = 8, 32, 4, 16
# Axes over which an array is cut: its first dimension, or none.
CUT, WHOLE = ("d",), ()


def normal(shape, seed, offset=0.0):
    return jax_testing.normal(shape, "float32", seed, offset=offset)


class Function(NamedTuple):
    call: Any  # of arrays by name, to a tuple of arrays
    arrays: dict  # (array, axes of its first dimension) by name
    wanted: Tuple[str, ...] = ()  # arrays that have a gradient
    by_device: bool = False  # the whole call is that of each device's part: slots are its own
    bits: bool = True  # the same ones; False where JAX computes, too


def row(seed, offset=0.0, n=N):
    return normal((ROWS, n), seed, offset), CUT


def functions():
    """Every function of the modules, by name."""
    x, residual, gate = row(1), row(2), row(3)
    weight, other, bias = ((normal((N,), s, 1.0), WHOLE) for s in (4, 5, 6))
    scale, shift = ((normal((N,), s), WHOLE) for s in (7, 8))
    one = (jnp.ones(1, jnp.float32), WHOLE)
    found = {
        "rms_norm": Function(
            lambda x, weight: (fj.rms_norm(x, weight),), {"x": x, "weight": weight}, ("x", "weight")
        ),
        "rms_norm of float16 with a weight of float32": Function(
            lambda x, weight: (fj.rms_norm(x.astype(jnp.float16), weight).astype(jnp.float32),),
            {"x": x, "weight": weight},
            ("x", "weight"),
        ),
        "rms_norm without a weight": Function(lambda x: (fj.rms_norm(x),), {"x": x}, ("x",)),
        "layer_norm": Function(
            lambda x, weight, bias: (fj.layer_norm(x, weight, bias),),
            {"x": x, "weight": weight, "bias": bias},
            ("x", "weight", "bias"),
        ),
        "rms_norm_quant": Function(
            lambda x, weight: fj.rms_norm_quant(x, weight, scheme="per_row"),
            {"x": x, "weight": weight},
        ),
        "gated_norm": Function(
            lambda x, gate, weight: (fs.gated_norm(x, gate, weight),),
            {"x": x, "gate": gate, "weight": weight},
            ("x", "gate", "weight"),
        ),
        "gated_norm with codes": Function(
            lambda x, weight, scale: fs.gated_norm(
                x, None, weight, quant=fs.Quant("per_tensor", scale=scale, y=True)
            )[:3:2],
            {"x": x, "weight": weight, "scale": one},
        ),
        "gated_norm_sums": Function(lambda x: (fs.gated_norm_sums(x),), {"x": x}),
        "sandwich_norm": Function(
            lambda x, residual, other, weight: fs.sandwich_norm(x, residual, other, weight),
            {"x": x, "residual": residual, "other": other, "weight": weight},
            ("x", "residual", "other", "weight"),
        ),
        "adaln": Function(
            lambda x, scale, shift: (fs.adaln(x, scale, shift),),
            {"x": x, "scale": scale, "shift": shift},
            ("x", "scale", "shift"),
        ),
        "adaln with a residual and a gate": Function(
            lambda x, residual, gate, scale, weight: fs.adaln(
                x, scale, residual=residual, residual_gate=gate, weight=weight
            ),
            {"x": x, "residual": residual, "gate": shift, "scale": gate, "weight": weight},
            ("x", "residual", "gate", "scale", "weight"),
        ),
        "adaln with an index": Function(
            lambda x, scale, index, table: (
                fs.adaln(x, scale, index=index, scale_table=table, kind="rms"),
            ),
            {
                "x": x,
                "scale": (normal((3, N), 9), WHOLE),
                "index": (jnp.asarray(np.arange(ROWS) % 3, jnp.int32), CUT),
                "table": scale,
            },
            ("x", "scale", "table"),
        ),
    }
    for name in ("add_rms_norm", "fused_add_rms_norm"):
        found[name] = Function(
            lambda x, residual, weight, of=name: getattr(fj, of)(x, residual, weight),
            {"x": x, "residual": residual, "weight": weight},
            ("x", "residual", "weight"),
        )
    qkv = normal((ROWS, HEADS, D), 10), CUT
    angles = np.arange(20)[:, None] * 0.3 ** np.arange(D // 2)
    tables = {
        "cos": (jnp.asarray(np.cos(angles), jnp.float32), WHOLE),
        "sin": (jnp.asarray(np.sin(angles), jnp.float32), WHOLE),
        "positions": (jnp.asarray(np.arange(ROWS)[::-1] + 3, jnp.int32), CUT),
    }
    of_heads = {"weight": (normal((D,), 11, 1.0), WHOLE), "bias": (normal((D,), 12), WHOLE)}
    found["norm_heads"] = Function(
        lambda qkv, weight, bias, **tables: tuple(
            part.y
            for part in fh.norm_heads(
                [
                    fh.Part(qkv, "rms", weight, heads=(0, 3), rope=True),
                    fh.Part(qkv, "layer", weight, bias, heads=(3, 1)),
                ],
                rope_dim=D,
                **tables,
            )
        ),
        {"qkv": qkv, **of_heads, **tables},
        ("qkv", "weight", "bias"),
    )

    def cached(qkv, cache, slots, weight):
        part = fh.Part(
            qkv, "rms", weight, y=False, cache=cache, rstd=True, sumsq=True, scheme="per_row"
        )
        (part,) = fh.norm_heads([part], slots=slots)
        return part.cache, part.rstd, part.sumsq, part.quantized, part.scale

    # A page for each row, so that each device has the pages of its rows.
    found["norm_heads with a cache and codes"] = Function(
        cached,
        {
            "qkv": qkv,
            "cache": (normal((ROWS, 1, HEADS, D), 13), CUT),
            "slots": (jnp.asarray(np.arange(ROWS) % (ROWS // 2), jnp.int32), CUT),
            "weight": of_heads["weight"],
        },
        by_device=True,
    )
    found["statistics_of_sums"] = Function(
        lambda x: (
            fs.gated_norm(
                x, rstd_in=fh.statistics_of_sums([fs.gated_norm_sums(x)] * 2, N, 1e-6)
            ),
        ),
        {"x": x},
        bits=False,
    )
    # Each request has a page of its own.
    found["mla_decode"] = Function(
        lambda q, q_pe, lengths, table, ckv, kpe: fm.mla_decode(
            q, q_pe, ckv, kpe, lengths, table, sm_scale=0.1
        ),
        {
            "q": (normal((ROWS, 2, 512), 14), CUT),
            "q_pe": (normal((ROWS, 2, 64), 15), CUT),
            "lengths": (jnp.asarray(np.arange(ROWS) % 4 + 1, jnp.int32), CUT),
            "table": (jnp.asarray(np.arange(ROWS)[:, None], jnp.int32), CUT),
            "ckv": (normal((ROWS, 4, 512), 16), WHOLE),
            "kpe": (normal((ROWS, 4, 64), 17), WHOLE),
        },
    )
    return found


def results_of(function, parts):
    """The results of the whole arrays, or those of each device's part put together."""
    if not function.by_device:
        return function.call(**{n: a for n, (a, _) in function.arrays.items()})
    of_parts = [
        function.call(
            **{
                n: jnp.split(a, parts)[i] if axes else a
                for n, (a, axes) in function.arrays.items()
            }
        )
        for i in range(parts)
    ]
    return [jnp.concatenate(results) for results in zip(*of_parts)]


def mesh_of(shape, names):
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    return jax.sharding.Mesh(devices, names)


def spec(axes):
    return P(axes) if axes else P()


def mapped(function, mesh, check, out):
    """The function under shard_map, of the arrays by name. out: axes of all results."""

    def of(arrays):
        specs = {name: spec(axes) for name, (_, axes) in function.arrays.items()}
        return jax.shard_map(
            lambda of_device: function.call(**of_device),
            mesh=mesh,
            in_specs=(specs,),
            out_specs=spec(out),
            check_vma=check,
        )(arrays)

    return of


def weighed(results):
    """A sum that takes each element with a weight of its own."""
    return sum(
        (r * jnp.cos(jnp.arange(r.size, dtype=r.dtype)).reshape(r.shape)).sum() for r in results
    )


def modes():
    """(name, function that jits or does not, whether JAX checks)."""
    for check in (True, False):
        for jit, of in (("jit", jax.jit), ("eager", lambda f: f)):
            yield f"{jit}, {'checked' if check else 'unchecked'}", of, check


def agree(found, exact, bits=False):
    if bits:
        return all(
            np.ascontiguousarray(np.asarray(a)).tobytes()
            == np.ascontiguousarray(np.asarray(b)).tobytes()
            for a, b in zip(found, exact)
        )
    return all(np.allclose(f64(a), f64(b), rtol=2e-5, atol=2e-5) for a, b in zip(found, exact))


# --- tests ---


def test_by_hand(suite):
    """y = x * rstd, so the gradient of sum(y) by the weight is the sum of rows of x * rstd: rows
    (1, 2) and (3, 5) over roots of 2.5 and 17."""
    x, w = jnp.array([[1.0, 2.0], [3.0, 5.0]]), jnp.ones(2)
    by_w = [1.36006, 2.47759]
    r = np.array([2.5, 17.0]) ** -0.5
    by_x = (r[:, None] - np.array([3.0, 8.0])[:, None] * f64(x) * r[:, None] ** 3 / 2).tolist()
    mesh = mesh_of((2,), ("d",))
    for mode, jit, check in modes():
        f = jax.shard_map(
            lambda x, w: fj.rms_norm(x, w, 1e-6),
            mesh=mesh,
            in_specs=(P("d"), P()),
            out_specs=P("d"),
            check_vma=check,
        )
        dx, dw = jit(jax.grad(lambda x, w: f(x, w).sum(), (0, 1)))(x, w)
        suite.check(f"by hand, {mode}: d weight", np.allclose(dw, by_w, atol=1e-5), dw)
        suite.check(f"by hand, {mode}: d x", np.allclose(dx, by_x, atol=1e-5), dx)
    inner = jax.shard_map(
        lambda x, w: jax.grad(lambda w: fj.rms_norm(x, w, 1e-6).sum())(w),
        mesh=mesh,
        in_specs=(P("d"), P()),
        out_specs=P(),
    )
    for name, f in (("jit", jax.jit(inner)), ("eager", inner)):
        dw = f(x, w)
        suite.check(f"by hand, grad inside, {name}", np.allclose(dw, by_w, atol=1e-5), dw)


def test_results(suite):
    mesh = mesh_of((2,), ("d",))
    for name, function in functions().items():
        arrays = {n: a for n, (a, _) in function.arrays.items()}
        whole = results_of(function, 2)
        for mode, jit, check in modes():
            found = jit(mapped(function, mesh, check, CUT))(arrays)
            suite.check(f"{name}, {mode}: results", agree(found, whole, function.bits))


def test_gradients(suite):
    """Of arrays that are whole and of those that are cut, from outside of shard_map."""
    mesh = mesh_of((2,), ("d",))
    for name, function in functions().items():
        if not function.wanted:
            continue
        arrays = {n: a for n, (a, _) in function.arrays.items()}

        def split(f, arrays=arrays, wanted=function.wanted):
            """f of the arrays that have a gradient."""
            return lambda some: weighed(f({**arrays, **some})), {n: arrays[n] for n in wanted}

        loss, some = split(lambda a, f=function: f.call(**a))
        want = jax.grad(loss)(some)
        for mode, jit, check in modes():
            loss, some = split(mapped(function, mesh, check, CUT))
            found = jit(jax.grad(loss))(some)
            for n in function.wanted:
                suite.check(
                    f"{name}, {mode}: gradient of {n}",
                    agree([found[n]], [want[n]]),
                    f"{found[n]} {want[n]}",
                )


def test_gradients_inside(suite):
    """From inside of shard_map, where the sum over devices has to be in the gradient of what is
    whole; what is cut has its own."""
    mesh = mesh_of((2,), ("d",))
    for name, function in functions().items():
        if not function.wanted:
            continue
        arrays = {n: a for n, (a, _) in function.arrays.items()}
        specs = {n: spec(axes) for n, (_, axes) in function.arrays.items()}

        def gradients(of_device, function=function):
            def loss(some):
                return sum(r.astype(jnp.float32).sum() for r in call(some))

            def call(some):
                return function.call(**{**of_device, **some})

            return jax.grad(loss)({n: of_device[n] for n in function.wanted})

        want = gradients(arrays)
        inner = jax.shard_map(
            gradients,
            mesh=mesh,
            in_specs=(specs,),
            out_specs={n: specs[n] for n in function.wanted},
        )
        for how, f in (("jit", jax.jit(inner)), ("eager", inner)):
            found = f(arrays)
            for n in function.wanted:
                suite.check(
                    f"{name}, grad inside, {how}: gradient of {n}",
                    agree([found[n]], [want[n]]),
                    f"{found[n]} {want[n]}",
                )


def axes_of(a):
    kind = jax.typeof(a)
    return set(kind.manual_axis_type.varying if hasattr(kind, "manual_axis_type") else kind.vma)


def test_axes(suite):
    """Results vary over the axes of all arguments, and unequal copies are not taken for one."""
    mesh = mesh_of((2, 2), ("d", "t"))
    for name, function in functions().items():
        arrays = {n: a for n, (a, _) in function.arrays.items()}
        seen = []

        def watched(_call=function.call, seen=seen, **of_device):
            found = _call(**of_device)
            seen.append([axes_of(a) for a in found])
            return found

        jax.jit(mapped(function._replace(call=watched), mesh, True, CUT))(arrays)
        suite.check(f"{name}: results vary over d", all(a == {"d"} for a in seen[0]), seen)
        for how, jit in (("jit", jax.jit), ("eager", lambda f: f)):
            suite.raises(
                f"{name}, {how}: out_specs=P() of unequal copies",
                ValueError,
                "out_specs",
                lambda jit=jit, f=function, a=arrays: jit(mapped(f, mesh, True, WHOLE))(a),
            )
        if function.by_device:
            arrays["slots"] = jnp.arange(ROWS)
        everything = {n: (a, WHOLE) for n, a in arrays.items()}
        whole = function._replace(call=watched, arrays=everything)
        seen.clear()
        found = jax.jit(mapped(whole, mesh, True, WHOLE))(arrays)
        suite.check(f"{name}: results of whole arrays do not vary", not any(seen[0]), seen)
        suite.check(
            f"{name}: results of whole arrays",
            agree(found, function.call(**arrays), function.bits),
        )


def test_two_axes(suite):
    """Rows over one axis, a weight for each device of the other: each gradient is summed over the
    axis over which its array is whole."""
    mesh = mesh_of((2, 2), ("d", "t"))
    x, w = normal((4, N), 20), normal((2, N), 21, 1.0)

    def inside(x, w):
        return fj.rms_norm(x, w[0])[None]

    def exact(x, w):
        return jnp.stack([fj.rms_norm(x, row) for row in w])

    want = jax.grad(lambda x, w: weighed([exact(x, w)]), (0, 1))(x, w)
    for mode, jit, check in modes():
        f = jax.shard_map(
            inside,
            mesh=mesh,
            in_specs=(P("d"), P("t")),
            out_specs=P("t", "d"),
            check_vma=check,
        )
        suite.check(f"two axes, {mode}: y", agree([jit(f)(x, w)], [exact(x, w)], bits=True))
        found = jit(jax.grad(lambda x, w: weighed([f(x, w)]), (0, 1)))(x, w)
        suite.check(f"two axes, {mode}: gradients", agree(found, want), f"{found} {want}")


def test_control_flow(suite):
    """scan, while_loop, cond, remat and vmap inside: types of carries fit."""
    mesh = mesh_of((2,), ("d",))
    x, w = normal((4, N), 30), normal((3, N), 31, 1.0)

    def scanned(x, w):
        return jax.lax.scan(lambda y, w: (fj.rms_norm(y + x, w), None), x, w)[0]

    def looped(x, w):
        return jax.lax.fori_loop(0, 3, lambda i, y: fj.layer_norm(y + x, w[i]), x)

    def chosen(x, w):
        return jax.lax.cond(w[0, 0] > 9, lambda: x, lambda: fj.rms_norm(x, w[0]))

    def again(x, w):
        return jax.checkpoint(lambda x: fs.gated_norm(fj.rms_norm(x, w[0]), x, w[1]))(x)

    def each(x, w):
        return jax.vmap(fj.rms_norm, (None, 0))(x, w).sum(0)

    def each_stage(x, w):
        return jax.vmap(lambda x, w: fs.adaln(x, w), (None, 0))(x, w).sum(0)

    for name, inside in (
        ("scan", scanned),
        ("fori_loop", looped),
        ("cond", chosen),
        ("remat", again),
        ("vmap", each),
        ("vmap, one after the other", each_stage),
    ):
        whole = inside(x, w)
        differentiable = name != "fori_loop"
        gradients = jax.grad(lambda x, w: weighed([inside(x, w)]), (0, 1))
        want = gradients(x, w) if differentiable else ()
        for mode, jit, check in modes():
            f = jax.shard_map(
                inside, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"), check_vma=check
            )
            suite.check(f"{name}, {mode}", agree([jit(f)(x, w)], [whole]))
            if differentiable:
                found = jit(jax.grad(lambda x, w: weighed([f(x, w)]), (0, 1)))(x, w)
                suite.check(f"{name}, {mode}: gradients", agree(found, want), f"{found} {want}")


def test_meshes(suite):
    """Some axes manual, axes in types (explicit), and pmap."""
    mesh = mesh_of((2, 2), ("d", "t"))
    x, w = normal((4, N), 70), normal((N,), 71, 1.0)
    want = fj.rms_norm(x, w)
    gradients = jax.grad(lambda x, w: fj.rms_norm(x, w).sum(), (0, 1))
    wanted = gradients(x, w)

    def check(name, f, arrays):
        for how, of in (("jit", jax.jit(f)), ("eager", f)):
            suite.check(f"{name}, {how}: y", agree([of(*arrays)], [want]))
            found = jax.grad(lambda x, w, of=of: of(x, w).sum(), (0, 1))(*arrays)
            suite.check(f"{name}, {how}: gradients", agree(found, wanted))

    some = {"in_specs": (P("d"), P()), "out_specs": P("d"), "axis_names": {"d"}}
    check("some axes manual", jax.shard_map(fj.rms_norm, mesh=mesh, **some), (x, w))
    # An eager one without the check is beyond JAX.
    unchecked = jax.jit(jax.shard_map(fj.rms_norm, mesh=mesh, check_vma=False, **some))
    suite.check("some axes manual, unchecked", agree([unchecked(x, w)], [want]))
    found = jax.pmap(gradients, in_axes=(0, None))(x, w)
    suite.check("pmap: gradients", agree([found[0], found[1].sum(0)], wanted))
    if not hasattr(jax, "set_mesh"):
        suite.skip("explicit axes", f"JAX {jax.__version__} has no jax.set_mesh")
        return
    kinds = (jax.sharding.AxisType.Explicit,) * 2
    explicit = jax.make_mesh((2, 2), ("d", "t"), axis_types=kinds)
    with jax.set_mesh(explicit):
        cut = [
            jax.device_put(a, jax.sharding.NamedSharding(explicit, P(*axes)))
            for a, axes in ((x, ("d", "t")), (w, ("t",)))
        ]
        check("explicit axes", fj.rms_norm, cut)
        check("explicit axes, some manual", jax.shard_map(fj.rms_norm, **some), cut)


def test_closed_over(suite):
    """A weight that the function closes over is whole."""
    mesh = mesh_of((2,), ("d",))
    x, w = normal((4, N), 40), normal((N,), 41, 1.0)
    for mode, jit, check in modes():
        f = jax.shard_map(
            lambda x: fj.rms_norm(x, w),
            mesh=mesh,
            in_specs=P("d"),
            out_specs=P("d"),
            check_vma=check,
        )
        suite.check(f"closed over, {mode}", agree([jit(f)(x)], [fj.rms_norm(x, w)], bits=True))


def test_part_of_a_sum(suite):
    """What is a part of a sum has no norm: an error says so."""
    if not hasattr(jax.typeof(jnp.ones(1)), "manual_axis_type"):
        suite.skip("an unreduced x", f"JAX {jax.__version__} has no such type")
        return
    mesh = mesh_of((2,), ("d",))

    def unreduced(x):
        return fj.rms_norm(jax.lax.pcast(x, "d", to="unreduced"))

    suite.raises(
        "an unreduced x",
        fj.FastnormError,
        "x is unreduced over ['d']; required: the sum",
        lambda: jax.jit(
            jax.shard_map(unreduced, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
        )(normal((4, N), 50)),
    )

    def reduced(x, w):
        w = jax.lax.pcast(w, "d", to="reduced")
        return jax.lax.psum(fj.rms_norm(x, w).sum(), "d")

    x, w = normal((4, N), 51), normal((N,), 52, 1.0)
    f = jax.jit(jax.shard_map(reduced, mesh=mesh, in_specs=(P("d"), P()), out_specs=P()))
    suite.check("a reduced weight", agree([f(x, w)], [fj.rms_norm(x, w).sum()]))
    want = jax.grad(lambda w: fj.rms_norm(x, w).sum())(w)
    suite.check("a reduced weight: gradient", agree([jax.grad(f, 1)(x, w)], [want]))


def test_command_buffers(suite):
    """Calls that XLA may record have one more result, which varies, too."""
    mesh = mesh_of((2,), ("d",))
    x, w = normal((4, N), 60), normal((N,), 61, 1.0)
    f = jax.shard_map(fj.rms_norm, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"))
    want = jax.grad(lambda w: weighed([fj.rms_norm(x, w)]))(w)
    fj.use_command_buffers = True
    try:
        for how, jit in (("jit", jax.jit), ("eager", lambda f: f)):
            found = jit(jax.grad(lambda w: weighed([f(x, w)])))(w)
            suite.check(f"variants for graphs, {how}", agree([found], [want]))
    finally:
        fj.use_command_buffers = False


if __name__ == "__main__":
    suite, _, _ = start(
        __doc__,
        "jax shard_map",
        "the functions inside jax.shard_map",
        devices=DEVICES,
        function="shard_map",
    )
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import PartitionSpec as P

    import fastnorm.jax as fj
    import fastnorm.jax.mla_decode as fm
    import fastnorm.jax.norm_heads as fh
    import fastnorm.jax.norm_stages as fs

    suite.run(
        [
            test_by_hand,
            test_results,
            test_gradients,
            test_gradients_inside,
            test_axes,
            test_two_axes,
            test_control_flow,
            test_meshes,
            test_closed_over,
            test_part_of_a_sum,
            test_command_buffers,
        ]
    )
    suite.finish()
