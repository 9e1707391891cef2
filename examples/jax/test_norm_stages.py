#!/usr/bin/env python3
"""Tests of norm_stages for JAX, on the CPU or a CUDA device. The last line is the count.

A result is compared with the formula in double precision. On the CPU all results have the bits of
the C ABI called directly. Run with a Python that has JAX and NumPy; --plugin names
libfastnorm_xla.so.
"""

import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.append(str(Path(__file__).resolve().parents[1]))
from norm_testing import Suite, View, arguments, missing, use_library  # noqa: E402

EPS = 1e-6
BATCH, TOKENS, N, GROUP = 2, 5, 96, 32
DTYPES = ("float32", "float16", "bfloat16")


def f64(a):
    return np.asarray(a).astype(np.float64)


def bits(a):
    return np.ascontiguousarray(np.asarray(a)).tobytes()


def normal(shape, dtype, seed, scale=1.0, offset=0.0):
    values = np.random.default_rng(seed).standard_normal(shape) * scale + offset
    return jnp.asarray(values.astype(np.float32).astype(jnp.dtype(dtype)))


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


def test_modulated(suite):
    for dtype in DTYPES:
        a = Inputs(dtype)

        def call():
            return fs.modulated_norm(
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
            return fs.modulated_norm(
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


def test_vmap(suite):
    a = Inputs("bfloat16")
    both = jax.vmap(lambda x, g, w: fs.gated_norm(x, g, w, EPS), in_axes=(0, 0, None))
    suite.check(
        "vmap: gated",
        bits(both(a.x, a.gate, a.weight)) == bits(fs.gated_norm(a.x, a.gate, a.weight, EPS)),
    )
    each = jax.vmap(lambda x, s, t: fs.modulated_norm(x, s, t, EPS))(a.x, a.scale, a.shift)
    suite.check(
        "vmap: modulators of each",
        bits(each) == bits(fs.modulated_norm(a.x, a.scale, a.shift, EPS)),
    )


def test_nothing(suite):
    x = jnp.zeros((0, N), jnp.bfloat16)
    suite.check("no rows", fs.gated_norm(x, x).shape == (0, N))


def test_errors(suite):
    a = Inputs("float32")
    refused = (
        ("a gate of another shape", "gate.shape", lambda: fs.gated_norm(a.x, a.gate[:1])),
        ("no gate", "gate is None", lambda: fs.gated_norm(a.x, None)),
        ("a group size", "group_size is 7", lambda: fs.gated_norm(a.x, a.gate, group_size=7)),
        ("a scale's shape", "modulation_scale.shape", lambda: fs.modulated_norm(a.x, a.x[:, :3])),
        (
            "a table alone",
            "scale_table is given",
            lambda: fs.modulated_norm(a.x, scale_table=a.table),
        ),
        (
            "an index outside",
            "modulation_index of row 0 is 2",
            lambda: jax.block_until_ready(
                fs.modulated_norm(
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
    suite.raises(
        "a gradient",
        Exception,
        "differentiate",
        lambda: jax.grad(lambda x: fs.gated_norm(x, a.gate).sum())(a.x),
    )


def test_variant_for_graphs(suite):
    """What XLA may record in CUDA graphs has a target of its own, and the same bits."""
    a = Inputs("float32")
    fj.use_command_buffers = True
    try:
        recorded = jax.jit(lambda x, g: fs.gated_norm(x, g)).lower(a.x, a.gate)
    finally:
        fj.use_command_buffers = False
    text = recorded.as_text()
    suite.check("a variant for graphs: target", "@fastnorm_norm_stages_graph(" in text, text)
    suite.check(
        "a variant for graphs: bits",
        bits(recorded.compile()(a.x, a.gate)) == bits(fs.gated_norm(a.x, a.gate)),
    )


def test_handler_for_cuda(suite):
    """It is there, XLA takes it, and without a CUDA stream it says so."""
    if DEVICE != "cpu":
        return
    name = "fastnorm_norm_stages_cuda_on_the_cpu"
    handler = fj._library.fastnorm_xla_norm_stages_cuda
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform="cpu")
    kept, fs._TARGET = fs._TARGET, name
    a = Inputs("float32")
    try:
        suite.raises(
            "the handler for CUDA on the CPU",
            jax.errors.JaxRuntimeError,
            "stream",
            lambda: jax.block_until_ready(fs.gated_norm(a.x, a.gate)),
        )
    finally:
        fs._TARGET = kept


if __name__ == "__main__":
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument(
        "--plugin", type=Path, help="libfastnorm_xla.so (default: FASTNORM_XLA_LIBRARY)"
    )
    options = parser.parse_args()
    DEVICE = options.device
    library = use_library(options)
    if options.plugin:
        os.environ["FASTNORM_XLA_LIBRARY"] = str(options.plugin.resolve())
    os.environ["JAX_PLATFORMS"] = DEVICE
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    suite = Suite("jax norm_stages", options)
    why = missing("jax", "numpy")
    if why is None:
        import jax
        import jax.numpy as jnp
        import numpy as np

        try:
            suite.results["device"] = jax.devices()[0].device_kind
        except Exception as error:  # of several kinds
            why = f"JAX has no {DEVICE} device here: {error}".replace("\n", " ")
    if why:
        suite.skip("norm_stages for JAX", why)
        suite.write()
        suite.finish()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages" / "python"))
    import fastnorm.jax as fj
    import fastnorm.jax.norm_stages as fs

    c = fj._c
    context = c.Context(c.Library(library), c.CPU) if DEVICE == "cpu" else None
    suite.run(
        [
            test_gated,
            test_sandwich,
            test_modulated,
            test_vmap,
            test_nothing,
            test_errors,
            test_variant_for_graphs,
            test_handler_for_cuda,
        ]
    )
    suite.finish()
