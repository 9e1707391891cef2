"""libfastnorm as a provider of vLLM's operators rms_norm and fused_add_rms_norm.

Every RMSNorm and GemmaRMSNorm of vLLM calls them, with a residual and without one, on rows and on
heads of query and key. install() registers the provider and puts it before those that the platform
has by default. Providers that --ir-op-priority names stay before it.

Tensors of a GPU get the arithmetic of vLLM's CUDA kernels: one rounding, and statistics of the
rounded sum. Those of a CPU get that of its native implementation: a row is rounded to the weight's
dtype before the product, and statistics are those of the sum in float32. FASTNORM_VLLM_ROUNDING,
"cuda" or "native", sets one for both. A weight in float32, as GemmaRMSNorm makes it, is rounded
once, with statistics of the sum in float32.
"""

import functools
import os
from typing import Optional, Tuple

import torch
from torch import Tensor

import fastnorm.torch as _ft

__all__ = [
    "install",
]

PROVIDER = "fastnorm"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# rounding and residual_rounding of rows whose weight has x's dtype
_ROUNDINGS = {"native": ("normalized", "exact"), "cuda": ("once", "before_statistics")}


def _word():
    word = os.environ.get("FASTNORM_VLLM_ROUNDING")
    if word is not None and word not in _ROUNDINGS:
        raise ValueError(
            f"FASTNORM_VLLM_ROUNDING is {word!r}; required: one of {', '.join(_ROUNDINGS)}"
        )
    return word


def _roundings(x, weight):
    """How a call rounds."""
    if weight is not None and weight.dtype != x.dtype:
        return "once", "exact"
    rounding, residual_rounding = _ROUNDINGS[_WORD or ("cuda" if x.is_cuda else "native")]
    return "once" if weight is None else rounding, residual_rounding


def _serves(x, weight, variance_size):
    return (
        variance_size is None
        and x.dtype in _DTYPES
        and x.device.type in ("cpu", "cuda")
        and x.dim() > 0
        and (weight is None or weight.dtype in (x.dtype, torch.float32))
        and (weight is None or weight.shape == x.shape[-1:])
    )


def supports_rms_norm(
    x: Tensor, weight: Optional[Tensor], epsilon: float, variance_size: Optional[int] = None
) -> bool:
    return _serves(x, weight, variance_size)


def supports_fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Optional[Tensor],
    epsilon: float,
    variance_size: Optional[int] = None,
) -> bool:
    return (
        _serves(x, weight, variance_size)
        and x_residual.shape == x.shape
        and x_residual.dtype == x.dtype
    )


def rms_norm(
    x: Tensor, weight: Optional[Tensor], epsilon: float, variance_size: Optional[int] = None
) -> Tensor:
    return _ft.rms_norm(x, weight, epsilon, rounding=_roundings(x, weight)[0])


def fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Optional[Tensor],
    epsilon: float,
    variance_size: Optional[int] = None,
) -> Tuple[Tensor, Tensor]:
    """The sum replaces x_residual, which vLLM copies before where it may not."""
    rounding, residual_rounding = _roundings(x, weight)
    y = _ft.fused_add_rms_norm(
        x,
        x_residual,
        weight,
        epsilon,
        rounding=rounding,
        residual_rounding=residual_rounding,
    )
    return y, x_residual


def _with_provider(original):
    """A platform's get_default_ir_op_priority with this provider first."""

    @functools.wraps(original)
    def priorities(*arguments, **named):
        found = original(*arguments, **named)
        for name in ("rms_norm", "fused_add_rms_norm"):
            listed = getattr(found, name)
            if PROVIDER not in listed:
                setattr(found, name, [PROVIDER, *listed])
        return found

    priorities._fastnorm = True
    return priorities


def install() -> None:
    """Registers the provider with vLLM and makes it the first one. A second call changes nothing.

    Raises:
        ImportError: vLLM is not installed.
    """
    from vllm import ir
    from vllm.platforms import current_platform

    operators = ir.ops
    for operator, function, supports, in_place in (
        (operators.rms_norm, rms_norm, supports_rms_norm, False),
        (operators.fused_add_rms_norm, fused_add_rms_norm, supports_fused_add_rms_norm, True),
    ):
        if PROVIDER not in operator.impls:
            operator.register_impl(PROVIDER, supports_args=supports, inplace=in_place)(function)
    platform = type(current_platform)
    original = platform.get_default_ir_op_priority
    if not getattr(original, "_fastnorm", False):
        platform.get_default_ir_op_priority = staticmethod(_with_provider(original))


_WORD = _word()
