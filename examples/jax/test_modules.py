#!/usr/bin/env python3
"""Tests of the modules for Flax's nnx and Equinox, on the CPU or a CUDA device. The last line is
the count.

Each is compared with the module that it stands for: values, gradients, parameters, dtypes and
errors. Without Flax or Equinox their cases are skipped. Run with a Python that has JAX and NumPy;
--plugin names libfastnorm_xla.so.
"""

import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.append(str(Path(__file__).resolve().parents[1]))
from norm_testing import Suite, arguments, missing, use_library  # noqa: E402

# Errors are allowed this share of the greatest magnitude of a tensor: XLA fuses products and sums,
# and adds in another order.
TOLERANCE = {"float32": 2e-6, "bfloat16": 2.0**-7, "float16": 2.0**-10}


def normal(shape, dtype, seed, scale=1.0, offset=0.0):
    values = np.random.default_rng(seed).standard_normal(shape) * scale + offset
    return jnp.asarray(values.astype(np.float32)).astype(dtype)


def off(a, b):
    a, b = (np.asarray(t).astype(np.float64) for t in (a, b))
    return np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)


def close(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and off(a, b) <= TOLERANCE[a.dtype.name]


class Calls:
    """Counts the calls of libfastnorm."""

    def __enter__(self):
        self.before, self.count = fj.handler_calls(), None
        return self

    def __exit__(self, *_):
        self.count = fj.handler_calls() - self.before


# --- Flax ---


def nnx_pairs():
    """(name, module of ours, that of flax.nnx) with the same parameters."""
    for name, settings in (
        ("RMSNorm", {}),
        ("RMSNorm", {"use_scale": False}),
        ("RMSNorm", {"dtype": jnp.bfloat16}),
        ("RMSNorm", {"param_dtype": jnp.bfloat16, "epsilon": 1e-3}),
        ("LayerNorm", {}),
        ("LayerNorm", {"use_bias": False}),
        ("LayerNorm", {"use_scale": False, "use_bias": False, "use_fast_variance": False}),
        ("LayerNorm", {"dtype": jnp.bfloat16}),
    ):
        found = []
        for module in (fn, nnx):
            norm = getattr(module, name)(64, rngs=nnx.Rngs(0), **settings)
            if norm.scale is not None:
                norm.scale[...] = normal(64, norm.scale[...].dtype, 1, 0.2, 1.0)
            if getattr(norm, "bias", None) is not None:
                norm.bias[...] = normal(64, norm.bias[...].dtype, 2)
            found.append(norm)
        yield f"nnx.{name} {settings or ''}".strip(), *found


def test_nnx(suite):
    if why := missing("flax"):
        suite.skip("modules for Flax", why)
        return
    for name, ours, theirs in nnx_pairs():
        suite.check(f"{name}: a subclass", isinstance(ours, type(theirs)))
        same = jax.tree.structure(nnx.state(ours)) == jax.tree.structure(nnx.state(theirs))
        suite.check(f"{name}: the state", same)
        for dtype in ("float32", "bfloat16", "float16"):
            x = normal((3, 5, 64), dtype, 3, 2.0)
            with Calls() as calls:
                y = jax.block_until_ready(nnx.jit(lambda m, x: m(x))(ours, x))
            wanted = theirs(x)
            if y.dtype.name not in TOLERANCE:
                suite.check(f"{name} {dtype}", False, y.dtype)
                continue
            suite.check(
                f"{name} {dtype}", close(y, wanted), (y.dtype, wanted.dtype, off(y, wanted))
            )
            suite.equal(f"{name} {dtype}: by fastnorm", calls.count, 1)
        mask = jnp.arange(64) % 3 > 0
        with Calls() as calls:
            y = jax.block_until_ready(ours(x, mask=mask))
        suite.check(f"{name}: a mask", close(y, theirs(x, mask=mask)) and calls.count == 0)

        def loss(module, x):
            return (module(x).astype(jnp.float32) ** 3).sum()

        x = normal((4, 64), "float32", 5)
        found, wanted = (nnx.grad(loss, argnums=(0, 1))(m, x) for m in (ours, theirs))
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted)):
            limit = 2e-2 if "bfloat16" in name else 1e-4
            suite.check(f"{name}: a gradient", a.dtype == b.dtype and off(a, b) < limit, off(a, b))
    ours, theirs = (
        m.RMSNorm(8, reduction_axes=0, feature_axes=0, rngs=nnx.Rngs(0)) for m in (fn, nnx)
    )
    x = normal((8, 3), "float32", 6)
    with Calls() as calls:
        suite.check("nnx: another axis", close(ours(x), theirs(x)))
    suite.equal("nnx: another axis is Flax's", calls.count, 0)
    norm, x = fn.RMSNorm(64, rngs=nnx.Rngs(0)), normal((6, 2, 64), "float32", 7)
    each = nnx.vmap(lambda m, x: m(x), in_axes=(None, 0))(norm, x)
    suite.check("nnx: vmap", close(each, norm(x)))


# --- Equinox ---


def test_equinox(suite):
    if why := missing("equinox"):
        suite.skip("modules for Equinox", why)
        return
    for name, settings in (
        ("RMSNorm", {}),
        ("RMSNorm", {"use_bias": False, "eps": 1e-3}),
        ("RMSNorm", {"use_weight": False, "use_bias": False}),
        ("LayerNorm", {}),
        ("LayerNorm", {"use_bias": False}),
        ("LayerNorm", {"use_weight": False, "use_bias": False}),
    ):
        for shape in (64,) if settings else (64, (4, 16)):
            pair = []
            for module in (fe, eqx.nn):
                norm = getattr(module, name)(shape, **settings)
                leaves = [
                    normal(t.shape, "float32", seed, 0.2, 1.0)
                    for seed, t in enumerate(jax.tree.leaves(norm))
                ]
                pair.append(jax.tree.unflatten(jax.tree.structure(norm), leaves))
            ours, theirs = pair
            label = f"equinox.{name} {shape} {settings or ''}".strip()
            suite.check(f"{label}: a subclass", isinstance(ours, getattr(eqx.nn, name)))
            for dtype in TOLERANCE:
                x = normal((5, *theirs.shape), dtype, 3, 2.0)
                with Calls() as calls:
                    y = jax.block_until_ready(eqx.filter_jit(jax.vmap(ours))(x))
                wanted = jax.vmap(theirs)(x)
                suite.check(f"{label} {dtype}", close(y, wanted), off(y, wanted))
                suite.equal(f"{label} {dtype}: by fastnorm", calls.count, 1)
            y, state = ours(x[0], "state")
            suite.check(f"{label}: a state", state == "state" and close(y, theirs(x[0])))

            def loss(module, x):
                return (jax.vmap(module)(x).astype(jnp.float32) ** 3).sum()

            x = normal((4, *theirs.shape), "float32", 5)
            found, wanted = (eqx.filter_grad(loss)(m, x) for m in (ours, theirs))
            for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted)):
                suite.check(f"{label}: a gradient", off(a, b) < 1e-4, off(a, b))
            found, wanted = (jax.grad(loss, argnums=1)(m, x) for m in (ours, theirs))
            suite.check(f"{label}: x's gradient", off(found, wanted) < 1e-3, off(found, wanted))
    suite.raises("a wrong shape", ValueError, "shape", lambda: fe.RMSNorm(64)(jnp.ones(32)))


# --- devices ---


def test_shard_map(suite):
    """A module inside of jax.shard_map, forward and backward, on a mesh of all devices."""
    if why := missing("equinox"):
        suite.skip("modules in shard_map", why)
        return
    spec = jax.sharding.PartitionSpec
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
    suite.check("several devices", DEVICE != "cpu" or len(jax.devices()) == 4)
    norm = fe.RMSNorm(64, use_bias=False)
    x = normal((8 * len(jax.devices()), 64), "float32", 3)

    def rows(weight, x):
        return jax.vmap(eqx.tree_at(lambda m: m.weight, norm, weight))(x)

    specs = {"in_specs": (spec(), spec("rows")), "out_specs": spec("rows")}
    by_rows = jax.shard_map(rows, mesh=mesh, **specs)
    weight = normal(64, "float32", 1, 0.2, 1.0)
    with Calls() as calls:
        y = jax.block_until_ready(jax.jit(by_rows)(weight, x))
    suite.check("shard_map", close(y, rows(weight, x)))
    suite.equal("shard_map: a call for each device", calls.count, len(jax.devices()))
    found, wanted = (
        jax.grad(lambda w, x, f=f: (f(w, x) ** 2).sum(), (0, 1))(weight, x) for f in (by_rows, rows)
    )
    for name, a, b in zip(("weight", "x"), found, wanted):
        suite.check(f"shard_map: the gradient of {name}", off(a, b) < 1e-4, off(a, b))


if __name__ == "__main__":
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument(
        "--plugin", type=Path, help="libfastnorm_xla.so (default: FASTNORM_XLA_LIBRARY)"
    )
    options = parser.parse_args()
    DEVICE = options.device
    use_library(options)
    if options.plugin:
        os.environ["FASTNORM_XLA_LIBRARY"] = str(options.plugin.resolve())
    os.environ["JAX_PLATFORMS"] = DEVICE
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if DEVICE == "cpu":
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    suite = Suite("jax modules", options)
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
        suite.skip("modules for JAX", why)
        suite.write()
        suite.finish()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages" / "python"))
    import fastnorm.jax as fj

    if not missing("flax"):
        from flax import nnx

        import fastnorm.jax.nnx as fn
    if not missing("equinox"):
        import equinox as eqx

        import fastnorm.jax.equinox as fe
    suite.run([test_nnx, test_equinox, test_shard_map])
    suite.finish()
