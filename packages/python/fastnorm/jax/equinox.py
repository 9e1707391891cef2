"""RMSNorm and LayerNorm of Equinox by libfastnorm: the classes of equinox.nn with another __call__.

Arguments, fields and the dtype of the result are those of equinox.nn. As there, a call takes one
row, and jax.vmap makes it one call for many. x in float64 runs as in equinox.nn.
"""

import equinox as _eqx
import jax.numpy as jnp

from fastnorm import jax as _fj

__all__ = ["LayerNorm", "RMSNorm"]

_DTYPES = ("float32", "float16", "bfloat16")
_NOTHING = object()  # in place of a state


def _serves(module, x):
    """Whether the library computes this call."""
    present = [t for t in (module.weight, module.bias) if t is not None]
    return x.shape == module.shape and all(t.dtype.name in _DTYPES for t in (x, *present))


def _row(t):
    return None if t is None else t.ravel()


def _with(y, state):
    return y if state is _NOTHING else (y, state)


class RMSNorm(_eqx.nn.RMSNorm):
    """equinox.nn.RMSNorm by libfastnorm. A bias is added to the row in float32."""

    def __call__(self, x, state=_NOTHING, *, key=None):
        """The norm of x by the library; what it does not serve, such as float64, runs as in
        equinox.nn.

        Args:
            x: One row, of the module's shape. jax.vmap makes it many.
            state: Given back beside y, as equinox.nn does.
            key: Not used.

        Returns:
            y, of x's shape and dtype; with a state (y, state).

        Raises:
            ValueError: x does not have the module's shape.
        """
        x = jnp.asarray(x)
        if not _serves(self, x):  # the error of a wrong shape, too
            return _with(super().__call__(x), state)
        weight, bias = _row(self.weight), _row(self.bias)
        if bias is None:
            y = _fj.rms_norm(x.ravel(), weight, self.eps)
        else:
            y = _fj.rms_norm(x.ravel(), weight, self.eps, y_dtype=jnp.float32)
            y = (y + bias.astype(jnp.float32)).astype(x.dtype)
        return _with(y.reshape(x.shape), state)


class LayerNorm(_eqx.nn.LayerNorm):
    """equinox.nn.LayerNorm by libfastnorm."""

    def __call__(self, x, state=_NOTHING, *, key=None):
        """The norm of x by the library; what it does not serve, such as float64, runs as in
        equinox.nn.

        Args:
            x: One row, of the module's shape. jax.vmap makes it many.
            state: Given back beside y, as equinox.nn does.
            key: Not used.

        Returns:
            y, of x's shape and dtype; with a state (y, state).

        Raises:
            ValueError: x does not have the module's shape.
        """
        x = jnp.asarray(x)
        if not _serves(self, x):
            return _with(super().__call__(x), state)
        y = _fj.layer_norm(x.ravel(), _row(self.weight), _row(self.bias), self.eps)
        return _with(y.reshape(x.shape), state)
