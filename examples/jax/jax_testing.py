"""What the tests of the JAX functions share: how they start, and arrays."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "examples"))
from norm_testing import Suite, arguments, missing, np, use_library  # noqa: E402


def f64(a):
    return None if a is None else np.asarray(a).astype(np.float64)


def bits(a):
    return np.ascontiguousarray(np.asarray(a)).tobytes()


def normal(shape, dtype="float32", seed=1, scale=1.0, offset=0.0):
    import jax.numpy as jnp

    values = np.random.default_rng(seed).standard_normal(shape) * scale + offset
    # Rounded by NumPy: nothing to compile.
    return jnp.asarray(values.astype(np.float32).astype(jnp.dtype(dtype)))


def start(doc, name, tested, packages=(), devices=1, function=None, add_arguments=None):
    """The suite of a program with that docstring, its options, and the path of the library. Where
    JAX, one of the packages, a device or the function of JAX is missing, the suite skips what is
    tested, and the program ends."""
    parser = arguments(doc.splitlines()[0])
    parser.add_argument(
        "--plugin", type=Path, help="libfastnorm_xla.so (default: FASTNORM_XLA_LIBRARY)"
    )
    if add_arguments is not None:
        add_arguments(parser)
    options = parser.parse_args()
    library = use_library(options)
    if options.plugin:
        os.environ["FASTNORM_XLA_LIBRARY"] = str(options.plugin.resolve())
    os.environ["JAX_PLATFORMS"] = options.device
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if devices > 1:
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={devices}"
    suite = Suite(name, options)
    why = missing("jax", "numpy", *packages)
    if why is None:
        import jax
        import jaxlib.version

        suite.results["versions"] = {
            "jax": jax.__version__,
            "jaxlib": jaxlib.version.__version__,
            "numpy": np.__version__,
        }
        try:
            suite.results["device"] = jax.devices()[0].device_kind
            found = len(jax.devices())
            if found < devices:
                why = f"{found} {options.device} devices here; the tests need {devices}"
            elif function is not None and not hasattr(jax, function):
                why = f"JAX {jax.__version__} has no jax.{function}"
        except Exception as error:  # of several kinds
            why = f"JAX has no {options.device} device here: {error}".replace("\n", " ")
    if why:
        suite.skip(tested, why)
        suite.write()
        suite.finish()
    sys.path.insert(0, str(ROOT / "packages" / "python"))
    return suite, options, library
