"""RMSNorm and LayerNorm of Flax's nnx by libfastnorm: the classes of flax.nnx with another
__call__.

Arguments, parameters and state are those of flax.nnx, and so is the dtype of the result. What the
library does not compute runs as in flax.nnx: a mask, other axes than the last one, a mean over
devices (axis_name), and dtypes but float32, float16 and bfloat16. With a mask that is the whole
norm, since statistics then leave elements out.

RMSNorm has the order of flax.nnx: x * (rstd * scale), rounded once. LayerNorm computes the variance
from differences, also where use_fast_variance asks for E[x^2] - E[x]^2.
"""

import jax.numpy as jnp
from flax import nnx as _nnx

from fastnorm import jax as _fj

__all__ = ["LayerNorm", "RMSNorm"]

_DTYPES = ("float32", "float16", "bfloat16")


def _serves(module, x, mask):
    """Whether the library computes this call."""
    last = (-1, x.ndim - 1, (-1,), (x.ndim - 1,), [-1], [x.ndim - 1])
    return (
        mask is None
        and x.ndim > 0
        and module.axis_name is None
        and module.reduction_axes in last
        and module.feature_axes in last
    )


def _promoted(module, x, *parameters):
    """x, the parameters and y_dtype for the library, with the dtype of flax.nnx's result; None
    where the library has no such dtype."""
    x, *parameters = module.promote_dtype((x, *parameters), dtype=module.dtype)
    return (x, *parameters) if x.dtype.name in _DTYPES else None


class RMSNorm(_nnx.RMSNorm):
    """flax.nnx.RMSNorm by libfastnorm."""

    def __call__(self, x, mask=None):
        """The norm of x by the library; what it does not serve, such as a mask or float64, runs as
        in flax.nnx.

        Args:
            x: [.., n], normalised over the last dimension.
            mask: Which elements count. A mask makes the call run in flax.nnx.

        Returns:
            y, of x's shape and of the dtype that flax.nnx gives.
        """
        x = jnp.asarray(x)
        found = None
        if _serves(self, x, mask):
            found = _promoted(self, x, self.scale[...] if self.scale is not None else None)
        if found is None:
            return super().__call__(x, mask=mask)
        rounding = "once" if found[1] is None else "once_rw"
        return _fj.rms_norm(*found, self.epsilon, rounding=rounding)


class LayerNorm(_nnx.LayerNorm):
    """flax.nnx.LayerNorm by libfastnorm."""

    def __call__(self, x, *, mask=None):
        """The norm of x by the library; what it does not serve, such as a mask or float64, runs as
        in flax.nnx.

        Args:
            x: [.., n], normalised over the last dimension.
            mask: Which elements count. A mask makes the call run in flax.nnx.

        Returns:
            y, of x's shape and of the dtype that flax.nnx gives.
        """
        x = jnp.asarray(x)
        found = None
        if _serves(self, x, mask):
            found = _promoted(
                self,
                x,
                self.scale[...] if self.scale is not None else None,
                self.bias[...] if self.bias is not None else None,
            )
        if found is None:
            return super().__call__(x, mask=mask)
        return _fj.layer_norm(*found, self.epsilon)
