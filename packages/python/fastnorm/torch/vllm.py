"""libfastnorm as a provider of vLLM's operators rms_norm and fused_add_rms_norm.

Every RMSNorm and GemmaRMSNorm of vLLM calls them, with a residual and without one, on rows and on
heads of query and key. install() registers the provider and puts it before those that the platform
has by default. Providers that --ir-op-priority names stay before it.

Tensors of a GPU get the arithmetic of vLLM's CUDA kernels: one rounding, and statistics of the
rounded sum. Those of a CPU get that of its native implementation: a row is rounded to the weight's
dtype before the product, and statistics are those of the sum in float32. FASTNORM_VLLM_ROUNDING,
"cuda" or "native", sets one for both. A weight in float32, as GemmaRMSNorm makes it, is rounded
once, with statistics of the sum in float32.

On a GPU vLLM's compiler pass puts a norm and the fp8 quantisation after it into one kernel. It
takes that kernel from a table, in which install() replaces those of a static scale, of a scale per
token and of one per block of 64 or 128 columns by operators with vLLM's signatures and arithmetic.
"""

import functools
import importlib
import os
from typing import Optional, Tuple

import torch
from torch import Tensor

import fastnorm.torch as _ft
from fastnorm import abi as _c

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


# --- a norm and fp8 codes, in the place of vLLM's kernels of the same names ---

_PASS = "vllm.compilation.passes.fusion.rms_quant_fusion"
_LEAST_SCALE = 2.0**-9  # vLLM's least scale is 1 / (448 * 512)


def _as_vllm(rounding, residual_rounding, eps, scheme, division, **more):
    """Options of a norm with codes of its result in x's dtype, as an unfused chain has them. A
    static scale divides by its reciprocal."""
    return (
        *_ft._options(_c.RMS, eps, 0.0, rounding, residual_rounding),
        ("quant_scheme", scheme),
        ("quant_source", _ft._stages.SOURCES["rounded"]),
        ("quant_division", _ft._stages.DIVISIONS[division]),
        *more.items(),
    )


def _run_quantised(run, options, result, x, residual, weight, **scales):
    tensors = {"x": x, "residual": residual, "weight": weight, "residual_out": residual}
    tensors = {name: t for name, t in tensors.items() if t is not None}
    tensors.update(quantized=result, **scales)
    run(options, tuple(tensors), tuple(tensors.values()))


@_ft._operator(
    "vllm_rms_norm_static_fp8_quant(Tensor(a!) result, Tensor input, Tensor weight, Tensor scale, "
    "float epsilon) -> ()",
    mutated=(0,),
)
def _static_quant(run, result, x, weight, scale, epsilon):
    options = _as_vllm("once", "exact", epsilon, _c.PER_TENSOR, "reciprocal")
    _run_quantised(run, options, result, x, None, weight, static_scale=scale.view(1))


@_ft._operator(
    "vllm_fused_add_rms_norm_static_fp8_quant(Tensor(a!) result, Tensor input, Tensor(b!) residual, "
    "Tensor weight, Tensor scale, float epsilon) -> ()",
    mutated=(0, 2),
)
def _add_static_quant(run, result, x, residual, weight, scale, epsilon):
    options = _as_vllm("once", "before_statistics", epsilon, _c.PER_TENSOR, "reciprocal")
    _run_quantised(run, options, result, x, residual, weight, static_scale=scale.view(1))


def _dynamic(scheme, epsilon, **more):
    """Options of a scale that the call makes: the greatest magnitude / 448. codes = y / scale"""
    floor = ("amax_floor", _LEAST_SCALE)
    return (*_as_vllm("normalized", "exact", epsilon, scheme, "divide", **more), floor)


def _bound(scale_ub):
    """The tensors of vLLM's bound of a scale."""
    return {} if scale_ub is None else {"clamp_scale": scale_ub.view(1)}


@_ft._operator(
    "vllm_rms_norm_dynamic_per_token_quant(Tensor(a!) result, Tensor input, Tensor weight, "
    "Tensor(b!) scale, float epsilon, Tensor? scale_ub, Tensor(c!)? residual) -> ()",
    mutated=(0, 3, 6),
)
def _token_quant(run, result, x, weight, scale, epsilon, scale_ub, residual):
    options = _dynamic(_ft._SCHEMES["per_row"], epsilon)
    scale = scale.view(*x.shape[:-1], 1)
    _run_quantised(run, options, result, x, residual, weight, scale=scale, **_bound(scale_ub))


@_ft._operator(
    "vllm_rms_norm_per_block_quant(Tensor(a!) result, Tensor input, Tensor weight, "
    "Tensor(b!) scale, float epsilon, Tensor? scale_ub, Tensor(c!)? residual, int group_size, "
    "bool is_scale_transposed) -> ()",
    mutated=(0, 3, 6),
)
def _block_quant(
    run, result, x, weight, scale, epsilon, scale_ub, residual, group_size, is_scale_transposed
):
    layout = "column_major" if is_scale_transposed else "row_major"
    options = _dynamic(
        _ft._SCHEMES["per_block"],
        epsilon,
        quant_block_size=group_size,
        scale_layout=_ft._stages.LAYOUTS[layout],
    )
    _run_quantised(run, options, result, x, residual, weight, scale=scale, **_bound(scale_ub))


def _replace_quantised(fusion) -> int:
    """Puts the operators above into the table of vLLM's compiler pass; how many entries there are.
    The pass names its version to vLLM's cache of compiled code, which then is another one."""
    count = 0
    for key, operator in fusion.FUSED_OPS.items():
        name = f"vllm_{operator._schema.name.split('::')[-1]}"
        ours = getattr(torch.ops.fastnorm, name, None)
        if ours is not None and operator._schema.name.startswith("_C::"):
            fusion.FUSED_OPS[key] = ours.default
            count += 1
    if count:
        kind = fusion.RMSNormQuantFusionPass
        original = kind.uuid
        kind.uuid = lambda self: f"{original(self)}-fastnorm-{_ft.version()}"
    return count


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
    if current_platform.is_cuda():
        _replace_quantised(importlib.import_module(_PASS))
    platform = type(current_platform)
    original = platform.get_default_ir_op_priority
    if not getattr(original, "_fastnorm", False):
        platform.get_default_ir_op_priority = staticmethod(_with_provider(original))


_WORD = _word()
