"""libfastnorm under the norms of SGLang: RMSNorm, GemmaRMSNorm, Gemma3RMSNorm and LayerNorm.

install() registers hooks around the methods that compute on a CPU and on a GPU. What a hook does
not serve goes to SGLang's own method: an override of the row's part for the variance, the result's
dtype or the residual's, a quantised output, and dtypes of their own. So does everything in SGLang's
batch-invariant mode, whose bits are SGLang's to choose.

On a GPU the arithmetic is that of SGLang's kernels, which are FlashInfer's: one rounding, and
statistics of the sum in float32. On a CPU it is that of forward_native.
"""

import torch
from torch import Tensor

import fastnorm.torch as _ft

__all__ = [
    "install",
]

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_LAYERS = "sglang.srt.layers.layernorm"
# Methods and the device whose tensors a hook serves there. forward_native with tensors of a GPU is
# what SGLang asks for where it wants no kernel.
_METHODS = {"forward_cuda": "cuda", "forward_cpu": "cpu", "forward_native": "cpu"}


def _serves(device, x, weight, residual=None):
    return (
        isinstance(x, Tensor)
        and x.dtype in _DTYPES
        and x.device.type == device
        and x.numel() > 0
        and not torch.compiler.is_compiling()
        and (weight is None or weight.dtype in (x.dtype, torch.float32))
        and (weight is None or weight.shape == x.shape[-1:])
        and (residual is None or (residual.dtype == x.dtype and residual.shape == x.shape))
    )


def _batch_invariant():
    from sglang.srt.batch_invariant_ops import is_batch_invariant_mode_enabled

    return is_batch_invariant_mode_enabled()


def _norm(x, residual, in_place, weight, eps, **options):
    """The norm, and with a residual the sum: in its memory, or in new memory."""
    residual_rounding = options.pop("residual_rounding")
    if residual is None:
        return _ft.rms_norm(x, weight, eps, **options)
    options["residual_rounding"] = residual_rounding
    if in_place:
        return _ft.fused_add_rms_norm(x, residual, weight, eps, **options), residual
    return _ft.add_rms_norm(x, residual, weight, eps, **options)


def rms_norm(device):
    """The hook around RMSNorm's method, which on a GPU replaces the residual."""
    in_place = device == "cuda"

    def hook(
        original, self, x, residual=None, post_residual_addition=None, quant_linear=None, **named
    ):
        weight = self.weight.data if self.has_weight else None
        casts = self.cast_x_before_out_mul
        if (
            named
            or post_residual_addition is not None
            or quant_linear is not None
            or getattr(self, "_quant_linear", None) is not None
            or self.variance_size_override is not None
            or self.fp32_residual
            or self.override_orig_dtype is not None
            or getattr(self, "x_pad_to_multiple", 0)
            or (casts and weight is not None and weight.dtype != x.dtype)
            or (casts and residual is not None and in_place)
            or not _serves(device, x, weight, residual)
            or _batch_invariant()
        ):
            extra = {} if quant_linear is None else {"quant_linear": quant_linear}
            return original(self, x, residual, post_residual_addition, **extra, **named)
        return _norm(
            x,
            residual,
            in_place,
            weight,
            self.variance_epsilon,
            rounding="normalized" if casts else "once",
            residual_rounding="exact",
        )

    return hook


def gemma_rms_norm(device):
    """The hook around GemmaRMSNorm's method. On a CPU the sum is rounded before its statistics."""
    in_place = device == "cuda"

    def hook(original, self, x, residual=None, post_residual_addition=None, **named):
        weight = self.weight.data
        if (
            named
            or post_residual_addition is not None
            or not _serves(device, x, weight, residual)
            or _batch_invariant()
        ):
            return original(self, x, residual, post_residual_addition, **named)
        return _norm(
            x,
            residual,
            in_place,
            weight,
            self.variance_epsilon,
            weight_offset=1.0,
            residual_rounding="exact" if in_place else "before_statistics",
        )

    return hook


def gemma3_rms_norm(device):
    """The hook around Gemma3RMSNorm's method, as that of GemmaRMSNorm."""
    in_place = device == "cuda"

    def hook(original, self, x, residual=None, **named):
        weight = self.weight.data
        if named or not _serves(device, x, weight, residual) or _batch_invariant():
            more = () if residual is None else (residual,)
            return original(self, x, *more, **named)
        return _norm(
            x,
            residual,
            in_place,
            weight,
            self.eps,
            weight_offset=1.0,
            residual_rounding="exact" if in_place else "before_statistics",
        )

    return hook


def layer_norm(device):
    """The hook around LayerNorm's method. Its parameters are in float32 unless told otherwise."""

    def hook(original, self, x, **named):
        weight = self.weight if self.elementwise_affine else None
        bias = self.bias if self.use_bias else None
        if (
            named
            or not _serves(device, x, weight)
            or self.dtype not in (torch.float32, x.dtype)
            or (weight is None and bias is not None)
            or _batch_invariant()
        ):
            return original(self, x, **named)
        return _ft.layer_norm(x, weight, bias, self.variance_epsilon)

    return hook


HOOKS = {
    "RMSNorm": rms_norm,
    "GemmaRMSNorm": gemma_rms_norm,
    "Gemma3RMSNorm": gemma3_rms_norm,
    "LayerNorm": layer_norm,
}
_installed = []


def install() -> None:
    """Registers the hooks; SGLang applies them after all plug-ins are loaded. A second call changes
    nothing.

    Raises:
        ImportError: SGLang is not installed.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if _installed:
        return
    for name, hook in HOOKS.items():
        for method, device in _METHODS.items():
            HookRegistry.register(f"{_LAYERS}.{name}.{method}", hook(device), HookType.AROUND)
    _installed.append(True)
