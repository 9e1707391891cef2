"""The stages of fastnorm_norm as PyTorch operators: the gated norm, and norm, residual, norm.

The library, the streams and the views are those of fastnorm.torch. Tensors keep the strides they
have. docs/gated_norm.md and docs/sandwich_norm.md say what each setting means.

Both have a backward, of tensors but sum_scale: gated_norm by one call, but for an activation of the
result; sandwich_norm by two calls of fastnorm_norm_backward, the second norm first.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor

from fastnorm import torch as _shared

_c = _shared._c
_KINDS = {"rms": _c.RMS, "layer": _c.LAYER}
_ACTS = {"identity": 0, "silu": 1, "sigmoid": 2, "tanh": 3}
_SUM_ROUNDING = {"once": 0, "every_step": 1}


def _gate_options(gate_act, gate_before, gate_from_rounded, group_size):
    return (
        ("gate_act", _shared._word(_ACTS, "gate_act", gate_act)),
        ("gate_position", int(gate_before)),
        ("gate_source", int(gate_from_rounded)),
        ("group_size", group_size),
    )


# Where a tensor requires grad, gated_norm calls gated_norm_with_statistics. It also returns what
# the backward wants of each group: rstd, and mean for "layer", else an empty tensor.


def _statistics(x, kind, group_size):
    n = x.shape[-1] if x.dim() else 0
    groups = n // group_size if group_size > 0 else 1
    make = lambda: x.new_empty((*x.shape[:-1], groups), dtype=torch.float32)  # noqa: E731
    return make() if kind == "layer" else None, make()


@_shared._operator(
    "gated_norm_backward(Tensor x, Tensor dy, Tensor gate, Tensor? weight, Tensor? bias, "
    "Tensor? mean, Tensor rstd, float? eps, str kind, str gate_act, bool gate_before, "
    "bool gate_from_rounded, int group_size, float weight_offset, str rounding, bool[4] wanted) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    backward=_shared._no_second,
)
def _gated_norm_backward(
    run,
    x,
    dy,
    gate,
    weight,
    bias,
    mean,
    rstd,
    eps,
    kind,
    gate_act,
    gate_before,
    gate_from_rounded,
    group_size,
    weight_offset,
    rounding,
    wanted,
):
    """dx, dgate, dweight and dbias, which are empty where not wanted."""
    # x decides what dx's dtype is, also where it is not wanted.
    dx, dgate, dweight, dbias = (
        _shared._like(t) if want else None
        for t, want in zip((x, gate, weight, bias), wanted)
    )
    run(
        _shared._options(_shared._word(_KINDS, "kind", kind), eps, weight_offset, rounding)[:4]
        + _gate_options(gate_act, gate_before, gate_from_rounded, group_size),
        ("x", "dy", "gate", "weight", "bias", "mean", "rstd", "dx", "dgate", "dweight", "dbias"),
        (x, dy, gate, weight, bias, mean, rstd, dx, dgate, dweight, dbias),
    )
    return _shared._some(x, (dx, dgate, dweight, dbias))


def _gated_norm_context(ctx, inputs, output):
    x, gate, weight, bias = inputs[:4]
    ctx.set_materialize_grads(False)
    mean = output[1] if inputs[5] == "layer" else None
    ctx.save_for_backward(x, gate, weight, bias, mean, output[2])
    ctx.options, ctx.wanted = inputs[4:], ctx.needs_input_grad[1:5]


def _gated_norm_gradients(ctx, dy, dmean, drstd):
    _shared._refuse_statistics(mean=dmean, rstd=drstd)
    nothing = (None,) * len(ctx.options)
    if dy is None or not any(ctx.wanted):
        return (None,) * 4 + nothing
    x, gate, weight, bias, mean, rstd = ctx.saved_tensors
    eps, kind, gate_act, gate_before, gate_from_rounded, group_size, weight_offset, rounding, _ = (
        ctx.options
    )
    found = _gated_norm_backward(
        x,
        dy,
        gate,
        weight,
        bias,
        mean,
        rstd,
        eps,
        kind,
        gate_act,
        gate_before,
        gate_from_rounded,
        group_size,
        weight_offset,
        rounding,
        list(ctx.wanted),
    )
    return tuple(t if want else None for t, want in zip(found, ctx.wanted)) + nothing


@_shared._operator(
    "gated_norm_with_statistics(Tensor x, Tensor gate, Tensor? weight, Tensor? bias, float? eps, "
    "str kind, str gate_act, bool gate_before, bool gate_from_rounded, int group_size, "
    "float weight_offset, str rounding, ScalarType? y_dtype) -> (Tensor, Tensor, Tensor)",
    backward=_gated_norm_gradients,
    setup_context=_gated_norm_context,
)
def _gated_norm_with_statistics(
    run,
    x,
    gate,
    weight,
    bias,
    eps,
    kind,
    gate_act,
    gate_before,
    gate_from_rounded,
    group_size,
    weight_offset,
    rounding,
    y_dtype,
):
    """y, mean and rstd."""
    y, (mean, rstd) = _shared._like(x, y_dtype), _statistics(x, kind, group_size)
    run(
        _shared._options(_shared._word(_KINDS, "kind", kind), eps, weight_offset, rounding)
        + _gate_options(gate_act, gate_before, gate_from_rounded, group_size),
        ("x", "gate", "weight", "bias", "y", "mean", "rstd"),
        (x, gate, weight, bias, y, mean, rstd),
    )
    return (y, *_shared._some(x, (mean,)), rstd)


def _differentiable_gated_norm(
    x,
    gate,
    weight,
    bias,
    eps,
    kind,
    gate_act,
    gate_before,
    gate_from_rounded,
    group_size,
    activation,
    weight_offset,
    rounding,
    y_dtype,
):
    if activation != "identity":
        raise RuntimeError(
            f"fastnorm::gated_norm has no backward for activation {activation!r}: apply it to the "
            "result, or call under torch.no_grad() or torch.inference_mode()"
        )
    return _gated_norm_with_statistics(
        x,
        gate,
        weight,
        bias,
        eps,
        kind,
        gate_act,
        gate_before,
        gate_from_rounded,
        group_size,
        weight_offset,
        rounding,
        y_dtype,
    )[0]


@_shared._operator(
    "gated_norm(Tensor x, Tensor gate, Tensor? weight, Tensor? bias, float? eps, str kind, "
    "str gate_act, bool gate_before, bool gate_from_rounded, int group_size, str activation, "
    "float weight_offset, str rounding, ScalarType? y_dtype) -> Tensor",
    differentiable=_differentiable_gated_norm,
)
def _gated_norm(
    run,
    x,
    gate,
    weight,
    bias,
    eps,
    kind,
    gate_act,
    gate_before,
    gate_from_rounded,
    group_size,
    activation,
    weight_offset,
    rounding,
    y_dtype,
):
    y = _shared._like(x, y_dtype)
    run(
        _shared._options(_shared._word(_KINDS, "kind", kind), eps, weight_offset, rounding)
        + _gate_options(gate_act, gate_before, gate_from_rounded, group_size)
        + (("activation", _shared._word(_ACTS, "activation", activation)),),
        ("x", "gate", "weight", "bias", "y"),
        (x, gate, weight, bias, y),
    )
    return y


def _sandwich_run(
    run, x, residual, branch_weight, weight, sum_scale, options, y_dtype, statistics
):
    (
        branch_eps,
        eps,
        branch_weight_offset,
        weight_offset,
        branch_rounding,
        rounding,
        branch_rounded,
        residual_rounding,
        alpha,
        sum_rounding,
    ) = options
    y, total = _shared._like(x, y_dtype), _shared._like(residual)
    branch = dict(_shared._options(_c.RMS, branch_eps, branch_weight_offset, branch_rounding))
    found = (_shared._statistics(x), _shared._statistics(x)) if statistics else ()
    run(
        _shared._options(_c.RMS, eps, weight_offset, rounding, residual_rounding)
        + (
            ("branch_norm", 1),
            ("branch_kind", branch["kind"]),
            ("branch_eps", branch["eps"]),
            ("branch_weight_offset", branch["weight_offset"]),
            ("branch_rounding", branch["rounding"]),
            ("branch_rounded", int(branch_rounded)),
            ("alpha", alpha),
            ("sum_rounding", _shared._word(_SUM_ROUNDING, "sum_rounding", sum_rounding)),
        ),
        ("x", "residual", "branch_weight", "weight", "sum_scale", "y", "residual_out")
        + (("branch_rstd", "rstd") if statistics else ()),
        (x, residual, branch_weight, weight, sum_scale, y, total, *found),
    )
    return y, total, *found


def _sandwich_context(ctx, inputs, output):
    x, residual, branch_weight, weight, sum_scale = inputs[:5]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, branch_weight, weight, sum_scale, *output[1:])
    ctx.options, ctx.wanted = inputs[5:], ctx.needs_input_grad[1:5]
    ctx.residual_dtype = residual.dtype


def _scaled(gradient, scale, alpha):
    """gradient * scale * alpha. None and 0 stand for 1."""
    if scale is None and alpha in (0.0, 1.0):
        return gradient
    product = gradient.float() * (1.0 if scale is None else scale)
    return (product if alpha == 0.0 else product * alpha).to(gradient.dtype)


def _sandwich_gradients(ctx, dy, dtotal, dbranch_rstd, drstd):
    _shared._refuse_statistics(branch_rstd=dbranch_rstd, rstd=drstd)
    x, branch_weight, weight, sum_scale, total, branch_rstd, rstd = ctx.saved_tensors
    wants_x, wants_residual, wants_branch_weight, wants_weight = ctx.wanted
    branch_eps, eps, branch_offset, offset, branch_rounding, rounding = ctx.options[:6]
    alpha = ctx.options[8]
    of_sum, dweight = dtotal, None
    if dy is not None:
        # The gradient of the sum has the sum's dtype, as that of a second operator would.
        other = ctx.residual_dtype != x.dtype
        of_sum, of_total, dweight, _ = _shared._norm_backward(
            total,
            dy,
            weight,
            None,
            None,
            rstd,
            dtotal,
            _c.RMS,
            eps,
            offset,
            rounding,
            x.dtype,
            ctx.residual_dtype if other else None,
            (True, wants_weight, False),
        )
        of_sum = of_total if other else of_sum
    elif wants_weight:
        dweight = _shared._zeros(weight)
    dx = dbranch_weight = None
    if of_sum is not None and (wants_x or wants_branch_weight):
        branch = _scaled(of_sum, sum_scale, alpha)
        dx, _, dbranch_weight, _ = _shared._norm_backward(
            x,
            branch if branch.dtype in (x.dtype, torch.float32) else branch.to(x.dtype),
            branch_weight,
            None,
            None,
            branch_rstd,
            None,
            _c.RMS,
            branch_eps,
            branch_offset,
            branch_rounding,
            x.dtype,
            None,
            (wants_x, wants_branch_weight, False),
        )
    dresidual = _scaled(of_sum, sum_scale, 0.0) if wants_residual and of_sum is not None else None
    return (
        dx if wants_x else None,
        dresidual,
        dbranch_weight if wants_branch_weight else None,
        dweight if wants_weight else None,
        *(None,) * (1 + len(ctx.options)),
    )


@_shared._operator(
    "sandwich_norm_with_statistics(Tensor x, Tensor residual, Tensor? branch_weight, "
    "Tensor? weight, Tensor? sum_scale, float? branch_eps, float? eps, "
    "float branch_weight_offset, float weight_offset, str branch_rounding, str rounding, "
    "bool branch_rounded, str residual_rounding, float alpha, str sum_rounding, "
    "ScalarType? y_dtype) -> (Tensor, Tensor, Tensor, Tensor)",
    backward=_sandwich_gradients,
    setup_context=_sandwich_context,
)
def _sandwich_norm_with_statistics(run, x, residual, branch_weight, weight, sum_scale, *options):
    """y, the sum, and rstd of the branch and of the sum."""
    return _sandwich_run(
        run, x, residual, branch_weight, weight, sum_scale, options[:-1], options[-1], True
    )


def _differentiable_sandwich(x, residual, branch_weight, weight, sum_scale, *options):
    if sum_scale is not None and sum_scale.requires_grad:
        raise RuntimeError(
            "sum_scale.requires_grad is True; required: False, since fastnorm::sandwich_norm has "
            "no gradient of it"
        )
    return _sandwich_norm_with_statistics(
        x, residual, branch_weight, weight, sum_scale, *options
    )[:2]


@_shared._operator(
    "sandwich_norm(Tensor x, Tensor residual, Tensor? branch_weight, Tensor? weight, "
    "Tensor? sum_scale, float? branch_eps, float? eps, float branch_weight_offset, "
    "float weight_offset, str branch_rounding, str rounding, bool branch_rounded, "
    "str residual_rounding, float alpha, str sum_rounding, ScalarType? y_dtype) "
    "-> (Tensor, Tensor)",
    differentiable=_differentiable_sandwich,
)
def _sandwich_norm(run, x, residual, branch_weight, weight, sum_scale, *options):
    return _sandwich_run(
        run, x, residual, branch_weight, weight, sum_scale, options[:-1], options[-1], False
    )


def gated_norm(
    x: Tensor,
    gate: Tensor,
    weight: Optional[Tensor] = None,
    eps: Optional[float] = 1e-6,
    *,
    bias: Optional[Tensor] = None,
    kind: str = "rms",
    gate_act: str = "silu",
    gate_before: bool = False,
    gate_from_rounded: bool = False,
    group_size: int = 0,
    activation: str = "identity",
    weight_offset: float = 0.0,
    rounding: str = "once",
    y_dtype: Optional[torch.dtype] = None,
) -> Tensor:
    """norm(x) * act(gate), or with gate_before norm(x * act(gate)).

    gate has x's shape and x's dtype or float32. kind is "rms" or "layer", gate_act and activation
    are "identity", "silu", "sigmoid" or "tanh". group_size columns share a statistic, 0: all.
    Weight and bias are [n], or [group_size] for all groups alike."""
    return _gated_norm(
        x,
        gate,
        weight,
        bias,
        eps,
        kind,
        gate_act,
        gate_before,
        gate_from_rounded,
        group_size,
        activation,
        weight_offset,
        rounding,
        y_dtype,
    )


def sandwich_norm(
    x: Tensor,
    residual: Tensor,
    branch_weight: Optional[Tensor] = None,
    weight: Optional[Tensor] = None,
    eps: Optional[float] = 1e-6,
    *,
    branch_eps: Optional[float] = None,
    branch_weight_offset: float = 0.0,
    weight_offset: float = 0.0,
    branch_rounding: str = "once",
    rounding: str = "once",
    branch_rounded: bool = False,
    residual_rounding: str = "exact",
    alpha: float = 0.0,
    sum_scale: Optional[Tensor] = None,
    sum_rounding: str = "once",
    y_dtype: Optional[torch.dtype] = None,
) -> Tuple[Tensor, Tensor]:
    """(rms_norm of the sum, sum) with sum = (alpha * rms_norm(x) + residual) * sum_scale.

    The sum is a new tensor of residual's dtype. branch_eps None is eps. alpha 0 means 1. sum_scale
    is a float32 tensor [1]. sum_rounding is "once" or "every_step"."""
    return _sandwich_norm(
        x,
        residual,
        branch_weight,
        weight,
        sum_scale,
        eps if branch_eps is None else branch_eps,
        eps,
        branch_weight_offset,
        weight_offset,
        branch_rounding,
        rounding,
        branch_rounded,
        residual_rounding,
        alpha,
        sum_rounding,
        y_dtype,
    )
