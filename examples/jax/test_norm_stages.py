#!/usr/bin/env python3
"""Tests of norm_stages for JAX, on the CPU or a CUDA device. The last line is the count.

A result is compared with the formula in double precision. On the CPU all results have the bits of
the C ABI called directly. Run with a Python that has JAX and NumPy; --plugin names
libfastnorm_xla.so.
"""

import functools
import itertools
import sys

sys.dont_write_bytecode = True
from jax_testing import bits, f64, normal, start  # noqa: E402
from norm_testing import View  # noqa: E402

EPS = 1e-6
BATCH, TOKENS, N, GROUP = 2, 5, 96, 32
DTYPES = ("float32", "float16", "bfloat16")


def rms(x, eps=EPS):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def layer(x):
    return rms(x - x.mean(-1, keepdims=True))


def silu(x):
    return x / (1 + np.exp(-x))


def close(found, exact, size=None):
    """Within some roundings of what it is the sum of."""
    unit = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[found.dtype.name]
    size = np.abs(exact) + 1 if size is None else size
    return bool((np.abs(f64(found) - exact) <= size * (unit + 2.0**-18)).all())


class Inputs:
    def __init__(self, dtype):
        shape = (BATCH, TOKENS, N)
        self.x, self.gate, self.residual = (normal(shape, dtype, seed, 2.0) for seed in (1, 2, 3))
        self.weight, self.branch_weight = (normal((N,), dtype, s, 0.2, 1.0) for s in (4, 5))
        self.scale, self.shift, self.factor = (
            normal((BATCH, 1, N), dtype, seed, 0.5) for seed in (6, 7, 8)
        )
        self.table = normal((N,), dtype, 9, 0.5)


def direct(kind, results, **fields):
    """Runs the same call by ctypes on copies in host memory. results: arrays by name. Bytes of the
    results, in order."""
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

    views = {name: view(name, value) for name, value in fields.items()}
    outputs = []
    for name, value in results.items():
        views[name] = view(name, value * 0)
        outputs.append(kept[-1])
    context.call(kind, **views).run()
    return [o.tobytes() for o in outputs]


def same_everywhere(suite, name, call, found, kind, results, **fields):
    """jit, and on the CPU the C ABI, give the same bits."""
    found = found if isinstance(found, tuple) else (found,)
    jitted = jax.jit(call)()
    jitted = jitted if isinstance(jitted, tuple) else (jitted,)
    wanted = list(map(bits, found))
    suite.check(f"{name}: jit gives the same bits", list(map(bits, jitted)) == wanted)
    if context is None:
        return suite.skip(f"{name}: bits of the C ABI", "only on the CPU")
    suite.check(
        f"{name}: bits of the C ABI",
        direct(kind, dict(zip(results, found)), eps=EPS, **fields) == wanted,
    )


def test_gated(suite):
    for dtype in DTYPES:
        a = Inputs(dtype)
        x, gate, w = f64(a.x), f64(a.gate), f64(a.weight)

        def after():
            return fs.gated_norm(a.x, a.gate, a.weight, EPS)

        y = after()
        suite.check(f"{dtype}: gate after", close(y, rms(x) * w * silu(gate)))
        same_everywhere(
            suite,
            f"{dtype}: gate after",
            after,
            y,
            c.RMS,
            ("y",),
            x=a.x,
            gate=a.gate,
            weight=a.weight,
            gate_act=1,
        )

        def activated():
            return fs.gated_norm(a.x, None, a.weight, EPS, activation="silu")

        y = activated()
        suite.check(f"{dtype}: silu of a norm", close(y, silu(rms(x) * w)))
        same_everywhere(
            suite,
            f"{dtype}: silu of a norm",
            activated,
            y,
            c.RMS,
            ("y",),
            x=a.x,
            weight=a.weight,
            activation=1,
        )

        def before():
            return fs.gated_norm(
                a.x, a.gate, a.weight[:GROUP], EPS, gate_before=True, group_size=GROUP,
                y_dtype="float32",
            )

        y = before()
        u = (x * silu(gate)).reshape(BATCH, TOKENS, N // GROUP, GROUP)
        suite.check(
            f"{dtype}: gate before groups",
            y.dtype == jnp.float32 and close(y, (rms(u) * w[:GROUP]).reshape(x.shape)),
        )
        same_everywhere(
            suite,
            f"{dtype}: gate before groups",
            before,
            y,
            c.RMS,
            ("y",),
            x=a.x,
            gate=a.gate,
            weight=a.weight[:GROUP],
            gate_act=1,
            gate_position=1,
            group_size=GROUP,
        )


def test_sandwich(suite):
    for dtype in DTYPES:
        a = Inputs(dtype)

        def call():
            return fs.sandwich_norm(
                a.x, a.residual, a.branch_weight, a.weight, EPS, alpha=0.5, weight_offset=1.0
            )

        y, total = call()
        s = 0.5 * rms(f64(a.x)) * f64(a.branch_weight) + f64(a.residual)
        suite.check(f"{dtype}: sum", close(total, s))
        suite.check(f"{dtype}: norm of the sum", close(y, rms(s) * (f64(a.weight) + 1)))
        same_everywhere(
            suite,
            f"{dtype}: sandwich",
            call,
            (y, total),
            c.RMS,
            ("y", "residual_out"),
            x=a.x,
            residual=a.residual,
            branch_weight=a.branch_weight,
            weight=a.weight,
            weight_offset=1.0,
            branch_norm=1,
            branch_eps=EPS,
            alpha=0.5,
        )
        two = fj.rms_norm(a.x, a.branch_weight, EPS), a.residual, a.weight, EPS
        found = fs.sandwich_norm(
            a.x, a.residual, a.branch_weight, a.weight, EPS, branch_rounded=True
        )
        suite.check(
            f"{dtype}: the bits of two calls",
            list(map(bits, found)) == list(map(bits, fj.add_rms_norm(*two))),
        )


def test_adaln(suite):
    for dtype in DTYPES:
        a = Inputs(dtype)

        def call():
            return fs.adaln(
                a.x,
                a.scale,
                a.shift,
                EPS,
                residual=a.residual,
                residual_gate=a.factor,
                scale_table=a.table,
            )

        y, total = call()
        s = f64(a.x) * f64(a.factor) + f64(a.residual)
        k = 1 + f64(a.scale) + f64(a.table)
        suite.check(f"{dtype}: gated sum", close(total, s))
        exact = layer(s) * k + f64(a.shift)
        suite.check(
            f"{dtype}: scale and shift",
            close(y, exact, np.abs(layer(s) * k) + np.abs(f64(a.shift)) + 1),
        )
        same_everywhere(
            suite,
            f"{dtype}: modulated",
            call,
            (y, total),
            c.LAYER,
            ("y", "residual_out"),
            x=a.x,
            residual=a.residual,
            residual_gate=a.factor,
            modulation_scale=a.scale,
            scale_table=a.table,
            modulation_shift=a.shift,
        )
        index = jnp.asarray([[0, 1, 1, 0, 1], [1, 0, 0, 0, 1]], jnp.int32)

        def indexed():
            return fs.adaln(
                a.x,
                a.scale[:, 0],
                index=index,
                kind="rms",
                plain_scale=True,
                modulation_rounding="every_step",
                eps=EPS,
            )

        y = indexed()
        suite.check(
            f"{dtype}: by an index",
            close(y, rms(f64(a.x)) * f64(a.scale)[:, 0][np.asarray(index)], 4 * np.abs(f64(y)) + 1),
        )
        same_everywhere(
            suite,
            f"{dtype}: by an index",
            indexed,
            y,
            c.RMS,
            ("y",),
            x=a.x,
            modulation_scale=a.scale[:, 0],
            modulation_index=index,
            modulation_rounding=1,
            flags=8,
        )


def exact_norm(x, weight, eps, layer=False):
    x = x - x.mean(-1, keepdims=True) if layer else x
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def exact_gated(x, gate, weight, before, group):
    def groups(a):
        return a.reshape(*a.shape[:-1], -1, group)

    u = x * jax.nn.silu(gate) if before else x
    y = exact_norm(groups(u), weight, EPS).reshape(x.shape)
    return y if before else y * jax.nn.silu(gate)


def exact_sandwich(x, residual, branch_weight, weight, branch_bias=0.0, bias=0.0, layer=False):
    total = 0.5 * (exact_norm(x, branch_weight, EPS, layer) + branch_bias) + residual
    return exact_norm(total, weight + 1, EPS, layer) + bias, total


def exact_adaln(
    x, scale=None, shift=None, index=None, act=lambda v: v, layer=True, branch=None, **more
):
    def modulator(value, table):
        if value is None:
            return None
        value = value if index is None else value[index]
        return value + more[table] if table in more else value

    if branch is not None:
        x = exact_norm(x, more.get("branch_weight", 1.0), EPS, branch == "layer")
        x = x + more.get("branch_bias", 0.0)
    gate = modulator(more.get("residual_gate"), "residual_gate_table")
    total = x if gate is None else x * act(gate)
    total = total + more.get("residual", 0.0)
    z = exact_norm(total, more.get("weight", 1.0), EPS, layer) + more.get("bias", 0.0)
    scale, shift = modulator(scale, "scale_table"), modulator(shift, "shift_table")
    z = z if scale is None else z * (1 + scale)
    z = z if shift is None else z + shift
    return (z, total) if "residual" in more else z


def check_gradients(suite, name, ours, exact, inputs):
    """Of a weighted sum of the results, jitted, against JAX's in double precision."""

    def loss(call):
        def of(arrays):
            results = call(**arrays)
            results = results if isinstance(results, tuple) else (results,)
            return sum(
                (r * jnp.asarray(into[: r.size].reshape(r.shape), r.dtype)).sum(dtype=wide)
                for r, into in zip(results, weights)
            )

        return of

    weights = np.random.default_rng(77).standard_normal((2, 4096))
    wide = jnp.float32
    found = jax.jit(jax.grad(loss(ours)))(inputs)
    with jax.enable_x64(True):
        wide = jnp.float64
        # The library's gradients are those of gradients rounded to the results' dtype.
        dtype = inputs["x"].dtype
        weights = np.asarray(jnp.asarray(weights, dtype).astype(jnp.float64))
        doubles = {n: jnp.asarray(f64(a)) for n, a in inputs.items()}
        wanted = {n: np.asarray(g) for n, g in jax.grad(loss(exact))(doubles).items()}
    for of, gradient in found.items():
        shared = max(1, inputs["x"].size // inputs[of].size)
        right = gradient.dtype == inputs[of].dtype and gradient.shape == inputs[of].shape
        size = 6 * (np.abs(wanted[of]) + 2 + shared**0.5)
        suite.check(f"{name}: gradient of {of}", right and close(gradient, wanted[of], size))


def test_gradients(suite):
    for dtype in DTYPES:
        a = Inputs(dtype)
        for before in (False, True):
            check_gradients(
                suite,
                f"{dtype}: gate {'before' if before else 'after'}",
                functools.partial(fs.gated_norm, eps=EPS, gate_before=before, group_size=GROUP),
                functools.partial(exact_gated, before=before, group=GROUP),
                {"x": a.x, "gate": a.gate, "weight": a.weight[:GROUP]},
            )
        check_gradients(
            suite,
            f"{dtype}: sandwich",
            functools.partial(fs.sandwich_norm, eps=EPS, alpha=0.5, weight_offset=1.0),
            exact_sandwich,
            {
                "x": a.x,
                "residual": a.residual,
                "branch_weight": a.branch_weight,
                "weight": a.weight - 1,
            },
        )
        check_gradients(
            suite,
            f"{dtype}: sandwich of LayerNorms",
            functools.partial(
                fs.sandwich_norm, eps=EPS, alpha=0.5, weight_offset=1.0, kind="layer",
                branch_kind="layer",
            ),
            functools.partial(exact_sandwich, layer=True),
            {
                "x": a.x,
                "residual": a.residual,
                "branch_weight": a.branch_weight,
                "weight": a.weight - 1,
                "branch_bias": a.table,
                "bias": a.table,
            },
        )  # fmt: skip
        index = jnp.asarray([[0, 1, 1, 0, 1], [1, 0, 0, 0, 1]], jnp.int32)
        modulators = {"residual_gate": a.factor, "scale": a.scale, "shift": a.shift}
        tables = {n: a.table for n in ("residual_gate_table", "scale_table", "shift_table")}
        both = {"x": a.x, "residual": a.residual}
        for name, inputs, options, of_exact in (
            ("adaLN", {**both, **modulators}, {}, {}),
            (
                "tables and tanh",
                {**both, **modulators, **tables},
                {"residual_gate_act": "tanh"},
                {"act": jnp.tanh},
            ),
            (
                "weight and bias",
                {**both, **modulators, "weight": a.weight, "bias": a.table},
                {},
                {},
            ),
            ("no residual, rms", {"x": a.x, "scale": a.scale}, {"kind": "rms"}, {"layer": False}),
            ("a gate, no residual", {"x": a.x, "residual_gate": a.factor}, {}, {}),
            (
                "a branch norm",
                {**both, **modulators, "branch_weight": a.branch_weight},
                {"branch_norm": True},
                {"branch": "rms"},
            ),
            (
                "a branch norm, no residual",
                {"x": a.x, **modulators, "branch_weight": a.branch_weight},
                {"branch_norm": True, "kind": "rms"},
                {"branch": "rms", "layer": False},
            ),
            (
                "LayerNorm of a branch, no residual",
                {"x": a.x, **modulators, "branch_weight": a.branch_weight, "branch_bias": a.table},
                {"branch_norm": True, "branch_kind": "layer"},
                {"branch": "layer"},
            ),
            (
                "LayerNorm of a branch",
                {**both, **modulators, "branch_weight": a.branch_weight, "branch_bias": a.table},
                {"branch_norm": True, "branch_kind": "layer"},
                {"branch": "layer"},
            ),
            (
                "numbers",
                {**both, "scale": a.scale[..., :1], "residual_gate": a.factor[:1, :, :1]},
                {},
                {},
            ),
            (
                "by an index",
                {**both, **{n: m[:, 0] for n, m in modulators.items()}},
                {"index": index},
                {"index": index},
            ),
        ):
            check_gradients(
                suite,
                f"{dtype}: {name}",
                functools.partial(fs.adaln, eps=EPS, **options),
                functools.partial(exact_adaln, **of_exact),
                inputs,
            )
    # Gradients of one argument, and of one result.
    a = Inputs("float32")

    def total(gate):
        return fs.adaln(a.x, a.scale, residual=a.residual, residual_gate=gate)[1].sum()

    found = jax.grad(total)(a.factor)
    suite.check(
        "a gradient of the sum alone", close(found, f64(a.x).sum(1, keepdims=True), 30)
    )


def test_gradients_by_hand(suite):
    """A branch's norm without a residual: the gradient of the scale is dy * norm(norm(x) * weight).
    A bias before a scale of one row, with a shift of two: the scale's gradient is the sum of
    xhat + bias."""
    x, weight = jnp.array([[1, -2, 0.5, 3]]), jnp.array([1, 2, -1, 0.5])
    scale, into = jnp.array([0.1, 0.2, 0.3, 0.4]), jnp.array([1.0, 2, 3, 4])

    def branch(x, scale):
        y = fs.adaln(x, scale, None, 1e-5, kind="rms", branch_norm=True, branch_weight=weight)
        return (y * into).sum()

    def biased(scale):
        x = jnp.array([[1, -2, 0.5], [3, 1, 0]])
        return fs.adaln(x, scale, jnp.zeros((2, 3)), bias=jnp.ones(3)).sum()

    for how, jit in (("eager", lambda f: f), ("jit", jax.jit)):
        dx, dscale = jit(jax.grad(branch, (0, 1)))(x, scale)
        of_shift = jit(jax.grad(biased))(jnp.zeros(3))
        for name, found, wanted in (
            ("a branch norm: d scale", dscale, [0.453, -3.623, -0.679, 2.717]),
            ("a branch norm: d x", dx[0], [0.546, 1.793, -1.743, 1.304]),
            ("rows of a shift: d scale", of_shift, [4.225, 0.336, 1.439]),
        ):
            suite.check(f"by hand, {how}, {name}", np.allclose(found, wanted, atol=6e-4), found)


def test_gradients_of_rows(suite):
    """Weight, bias, scale and shift with one row and with one for each batch, in all combinations:
    all gradients, and each one alone."""
    a = Inputs("float32")
    rows = {1: (N,), BATCH: (BATCH, 1, N)}
    names = ("weight", "bias", "scale", "shift")
    for number, shapes in enumerate(itertools.product(rows.values(), repeat=4)):
        arrays = {
            name: normal(shape, "float32", 40 + i, 0.5, 1.0)
            for i, (name, shape) in enumerate(zip(names, shapes))
        }
        alone = names[number % 4]
        for wanted in (names, (alone,), ("scale",)):
            others = {n: v for n, v in arrays.items() if n not in wanted}

            def fixed(call, others=others):
                return lambda **of: call(**of, **others)

            check_gradients(
                suite,
                f"rows {[s[0] if len(s) > 1 else 1 for s in shapes]}, of {', '.join(wanted)}",
                fixed(functools.partial(fs.adaln, eps=EPS)),
                fixed(exact_adaln),
                {"x": a.x, **{n: arrays[n] for n in wanted}},
            )


def test_quantised(suite):
    """Codes of each stage: double precision for those of rows, the bits of the C ABI for all."""
    schemes = (
        ("per_tensor", 1, jnp.float8_e4m3fn, 0), ("per_tensor", 1, jnp.int8, 0),
        ("per_row", 2, jnp.float8_e4m3fn, 0), ("per_row", 2, jnp.int8, 0),
        ("per_block", 3, jnp.float8_e4m3fn, 64), ("per_block", 3, jnp.int8, 64),
        ("mxfp8", 4, jnp.float8_e4m3fn, 0), ("nvfp4", 5, jnp.uint8, 0),
    )  # fmt: skip
    for dtype in DTYPES:
        a = Inputs(dtype)
        x, gate, residual, w = map(f64, (a.x, a.gate, a.residual, a.weight))
        u = rms(x) * f64(a.branch_weight) + residual
        cases = (
            (
                "gated_norm",
                lambda q, a=a: fs.gated_norm(a.x, a.gate, a.weight, EPS, quant=q),
                rms(x) * w * silu(gate),
                (c.RMS, {"x": a.x, "gate": a.gate, "weight": a.weight, "gate_act": 1}),
            ),
            (
                "sandwich_norm",
                lambda q, a=a: fs.sandwich_norm(
                    a.x, a.residual, a.branch_weight, a.weight, EPS, quant=q
                ),
                rms(u) * w,
                (
                    c.RMS,
                    {"x": a.x, "residual": a.residual, "branch_weight": a.branch_weight,
                     "weight": a.weight, "branch_norm": 1, "branch_eps": EPS},
                ),
            ),
            (
                "adaln",
                lambda q, a=a: fs.adaln(a.x, a.scale, a.shift, EPS, quant=q),
                layer(x) * (1 + f64(a.scale)) + f64(a.shift),
                (
                    c.LAYER,
                    {"x": a.x, "modulation_scale": a.scale, "modulation_shift": a.shift},
                ),
            ),
        )  # fmt: skip
        for stage, call, exact, (kind, fields) in cases:
            for scheme, number, codes, block in schemes:
                name = f"{dtype}: {stage}, {scheme} of {jnp.dtype(codes).name}"
                static = {"scale": jnp.full(1, 1 / 32)} if scheme == "per_tensor" else {}
                quant = fs.Quant(scheme, block, codes, y=scheme == "per_row", **static)
                found = call(quant)
                suite.check(
                    f"{name}: what is there",
                    (found.scale is None) == bool(static)
                    and (found.y is None) == (scheme != "per_row")
                    and (found.residual_out is None) == ("residual" not in fields),
                )
                if scheme in ("per_tensor", "per_row"):
                    scales = f64(static.get("scale", found.scale))
                    is_i8 = codes == jnp.int8
                    least, greatest = (-128, 127) if is_i8 else (-448, 448)
                    kept = exact.clip(least * scales, greatest * scales)
                    error = abs(f64(found.quantized) * scales - kept)
                    allowed = abs(kept) * (0 if is_i8 else 1 / 16)
                    allowed = allowed + scales * (0.5 if is_i8 else 2.0**-10) + 1e-5
                    suite.check(name, (error <= allowed).all())
                if scheme == "per_row":
                    suite.check(f"{name}: y", close(found.y, exact))
                results = {n: r for n, r in found._asdict().items() if r is not None}

                def run(call=call, quant=quant):
                    return tuple(r for r in call(quant) if r is not None)

                same_everywhere(
                    suite, name, run, tuple(results.values()), kind, results,
                    quant_scheme=number, quant_block_size=block, **fields, **static,
                )  # fmt: skip
    for name, kind, text, broken in (
        ("a scheme", ValueError, "scheme is 'fp8'", fs.Quant("fp8")),
        ("a block", RuntimeError, "block_size is 7", fs.Quant("per_block", 7)),
        ("no scale", RuntimeError, "scale", fs.Quant("per_tensor")),
        ("a scale that is made", RuntimeError, "scale is given", fs.Quant("per_row", scale=1.0)),
        ("a division", ValueError, "division is 'half'", fs.Quant("per_row", division="half")),
    ):
        suite.raises(name, kind, text, lambda: fs.gated_norm(a.x, quant=broken))
    suite.raises(
        "a gradient of codes",
        Exception,
        "cannot be differentiated",
        lambda: jax.grad(lambda x: fs.gated_norm(x, quant=fs.Quant("per_row")).scale.sum())(a.x),
    )


def test_ranks(suite):
    """Sums out, statistics in: columns spread over ranks are normalised as on one."""
    for dtype in DTYPES:
        a = Inputs(dtype)
        u = f64(a.x) * silu(f64(a.gate))
        for kind, exact in (("rms", rms(u)), ("layer", layer(u))):
            for ranks in (1, 3):

                @jax.jit
                def run(x, gate, weight, ranks=ranks, kind=kind):
                    shards = list(zip(*(jnp.split(t, ranks, -1) for t in (x, gate, weight))))
                    options = {"kind": kind, "gate_before": True}
                    sums = jnp.stack([fs.gated_norm_sums(x, g, **options) for x, g, _ in shards])
                    found = fh.statistics_of_sums(sums, N // ranks, EPS, kind)
                    mean, rstd = (None, found) if kind == "rms" else found
                    return jnp.concatenate(
                        [fs.gated_norm(x, g, w, EPS, mean_in=mean, rstd_in=rstd, **options)
                         for x, g, w in shards], -1,
                    )  # fmt: skip

                y = run(a.x, a.gate, a.weight)
                suite.check(
                    f"{dtype}: {kind} of {ranks} ranks", close(y, exact * f64(a.weight))
                )
    sums = fs.gated_norm_sums(a.x, group_size=GROUP)
    exact = (f64(a.x).reshape(BATCH, TOKENS, -1, GROUP) ** 2).sum(-1)
    suite.check("sums of groups", close(sums, exact))
    suite.raises(
        "a gradient with given statistics",
        RuntimeError,
        "rstd_in is given",
        lambda: jax.grad(lambda x: fs.gated_norm(x, rstd_in=sums[..., :1]).sum())(
            a.x.astype(jnp.float32)
        ),
    )


def test_vmap(suite):
    a = Inputs("bfloat16")
    both = jax.vmap(lambda x, g, w: fs.gated_norm(x, g, w, EPS), in_axes=(0, 0, None))
    suite.check(
        "vmap: gated",
        bits(both(a.x, a.gate, a.weight)) == bits(fs.gated_norm(a.x, a.gate, a.weight, EPS)),
    )
    each = jax.vmap(lambda x, s, t: fs.adaln(x, s, t, EPS))(a.x, a.scale, a.shift)
    suite.check(
        "vmap: modulators of each",
        bits(each) == bits(fs.adaln(a.x, a.scale, a.shift, EPS)),
    )


def test_vmap_of_gradients(suite):
    a = Inputs("float32")

    def loss(x, scale, shift):
        return (fs.adaln(x, scale, shift, EPS) ** 3).sum()

    each = jax.vmap(jax.grad(loss, (0, 1, 2)))(a.x, a.scale, a.shift)
    whole = jax.grad(loss, (0, 1, 2))(a.x, a.scale, a.shift)
    suite.check(
        "vmap: gradients",
        all(np.allclose(e, w, rtol=1e-5, atol=1e-5) for e, w in zip(each, whole)),
    )


def test_nothing(suite):
    x = jnp.zeros((0, N), jnp.bfloat16)
    suite.check("no rows", fs.gated_norm(x, x).shape == (0, N))


def test_errors(suite):
    a = Inputs("float32")
    refused = (
        ("a gate of another shape", "gate.shape", lambda: fs.gated_norm(a.x, a.gate[:1])),
        ("an act of no gate", "gate_act is ", lambda: fs.gated_norm(a.x, gate_act="silu")),
        ("a group size", "group_size is 7", lambda: fs.gated_norm(a.x, a.gate, group_size=7)),
        ("a scale's shape", "modulation_scale.shape", lambda: fs.adaln(a.x, a.x[:, :3])),
        (
            "a table alone",
            "scale_table is given",
            lambda: fs.adaln(a.x, scale_table=a.table),
        ),
        (
            "a branch's weight alone",
            "branch_norm is 0",
            lambda: fs.adaln(a.x, a.scale, branch_weight=a.table),
        ),
        (
            "an index outside",
            "modulation_index of row 0 is 2",
            lambda: jax.block_until_ready(
                fs.adaln(
                    a.x, a.scale[:, 0], index=jnp.full((BATCH, TOKENS), 2, jnp.int32)
                )
            ),
        ),
    )
    for name, says, call in refused:
        if name == "an index outside" and DEVICE != "cpu":
            suite.skip(name, "a GPU takes the nearest row")
            continue
        suite.raises(name, RuntimeError, says, call)
    suite.raises(
        "a word",
        ValueError,
        "gate_act is 'relu'",
        lambda: fs.gated_norm(a.x, a.gate, gate_act="relu"),
    )
    for name, says, call in (
        (
            "a gradient through an activation",
            "through an activation",
            lambda x: fs.gated_norm(x, a.gate, activation="silu").sum(),
        ),
        (
            "a second derivative",
            "cannot be differentiated",
            lambda x: jax.grad(lambda v: (fs.adaln(v, a.scale) ** 2).sum())(x).sum(),
        ),
    ):
        suite.raises(name, Exception, says, lambda: jax.grad(call)(a.x))
    suite.raises(
        "a gradient of sum_scale",
        RuntimeError,
        "a gradient of sum_scale is wanted",
        lambda: jax.grad(lambda s: fs.sandwich_norm(a.x, a.residual, sum_scale=s)[0].sum())(
            jnp.ones(1)
        ),
    )


def test_variant_for_graphs(suite):
    """What XLA may record in CUDA graphs has a target of its own, and the same bits."""
    a = Inputs("float32")

    def gradient(x, scale):
        return jax.grad(lambda s: (fs.adaln(x, s, a.shift, EPS) ** 2).sum())(scale)

    for what, target, call, arrays in (
        ("a norm", "", lambda x, g: fs.gated_norm(x, g), (a.x, a.gate)),
        ("gradients", "_backward", gradient, (a.x, a.scale)),
    ):
        fj.use_command_buffers = True
        try:
            recorded = jax.jit(call).lower(*arrays)
        finally:
            fj.use_command_buffers = False
        text = recorded.as_text()
        suite.check(
            f"a variant for graphs of {what}: target",
            f"@fastnorm_norm{target}_graph(" in text,
            text,
        )
        # A function of its own: jit keeps what it has traced.
        plain = jax.jit(lambda *arrays, call=call: call(*arrays))(*arrays)
        suite.check(
            f"a variant for graphs of {what}: bits",
            bits(recorded.compile()(*arrays)) == bits(plain),
        )


if __name__ == "__main__":
    suite, options, library = start(__doc__, "jax norm_stages", "norm_stages for JAX")
    DEVICE = options.device
    import jax
    import jax.numpy as jnp
    import numpy as np

    import fastnorm.jax as fj
    import fastnorm.jax.norm_heads as fh
    import fastnorm.jax.norm_stages as fs

    c = fj._c
    context = c.Context(c.Library(library), c.CPU) if DEVICE == "cpu" else None
    suite.run(
        [
            test_gated,
            test_sandwich,
            test_adaln,
            test_gradients,
            test_gradients_by_hand,
            test_gradients_of_rows,
            test_quantised,
            test_ranks,
            test_vmap,
            test_vmap_of_gradients,
            test_nothing,
            test_errors,
            test_variant_for_graphs,
        ]
    )
    suite.finish()
