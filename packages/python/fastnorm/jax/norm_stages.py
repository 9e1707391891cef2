"""The stages of fastnorm_norm as JAX functions, through XLA's foreign function interface: gated
norm, sandwich and adaLN. The library and the devices are those of fastnorm.jax.

docs/gated_norm.md, docs/sandwich_norm.md and docs/adaln.md say what each setting means. All have
gradients, but of sum_scale, and through an activation of gated_norm's result. A modulation's are
those of a weight 1 + scale and a bias shift. Under vmap a function runs once for each element.
"""

import functools
from typing import Any, Optional, Tuple

import jax
import jax.numpy as jnp

from fastnorm import jax as _shared
from fastnorm import stages as _stages
from fastnorm.stages import Quant, Quantized

__all__ = ["Quant", "Quantized", "adaln", "gated_norm", "gated_norm_sums", "sandwich_norm"]

_c, FastnormError = _shared._c, _shared.FastnormError


# Tensors of a call, in the order of XLA's operands and results.
_INPUTS = (
    "x",
    "residual",
    "weight",
    "bias",
    "gate",
    "branch_weight",
    "branch_bias",
    "sum_scale",
    "residual_gate",
    "residual_gate_table",
    "modulation_scale",
    "scale_table",
    "modulation_shift",
    "shift_table",
    "modulation_index",
    "mean_in",
    "rstd_in",
)
_BACKWARD_WORDS = (
    "kind",
    "rounding",
    "gate_act",
    "gate_position",
    "gate_source",
    "group_size",
    "branch_kind",
    "branch_rounding",
    "branch_norm",
    "branch_rounded",
    "residual_gate_act",
    "eps",
    "weight_offset",
    "branch_eps",
    "branch_weight_offset",
    "alpha",
)

_BACKWARD_TENSORS = _c.tensor_names(_c.NormBackwardArgs)


def _run(family, options, inputs, outputs):
    """One call. inputs: arrays by name, outputs: shapes with dtypes. The outputs by name."""
    at = {name: i for i, name in enumerate(outputs)}
    tensors = [
        _shared.Tensor(name, value, result=at[name], seen=False)
        if name in at
        else _shared.Tensor(name, value)
        for name, value in inputs.items()
    ]
    results = [_shared.Tensor(name, form) for name, form in outputs.items()]
    return dict(zip(outputs, _shared.run(family, options, tensors, results)))


def _norm(call, inputs, statistics=False):
    """One fastnorm_norm. call: options and y's dtype. y, the sum and what the backward wants, by
    name."""
    options, y_dtype = dict(call[0]), call[1]
    x = inputs["x"]
    outputs = {"y": _shared._like(x, y_dtype)}
    if "residual" in inputs:
        outputs["residual_out"] = _shared._like(inputs["residual"])
    if statistics:
        groups = x.shape[-1] // (options.get("group_size") or x.shape[-1])
        rows = jax.ShapeDtypeStruct((*x.shape[:-1], groups), jnp.float32)
        outputs.update({name: rows for name in _stages.statistics(*_facts(options))})
    return _run("fastnorm_norm", options, inputs, outputs)


def _facts(options):
    """Of a call: whether it has a branch norm, whether a mean, and whether the branch has one."""
    is_layer = options["kind"] == _c.LAYER
    return options.get("branch_norm", 0), is_layer, options.get("branch_kind") == _c.LAYER


def _results(found):
    return tuple(found[name] for name in ("y", "residual_out") if name in found)


# --- gradients ---

@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable(call, inputs):
    return _results(_norm(call, inputs))


def _forward(call, inputs):
    """The results, and what the backward needs. What is said by the keys of a dictionary is part of
    the program: which gradients are wanted, and each input's shape and dtype."""
    options = dict(call[0])
    if "rstd_in" in inputs:
        raise FastnormError(
            "FASTNORM_ERROR_UNSUPPORTED: a gradient is wanted and rstd_in is given; the backward "
            "is that of statistics of x"
        )
    wanted = {name: () for name, primal in inputs.items() if primal.perturbed}
    inputs = {name: primal.value for name, primal in inputs.items()}
    if "sum_scale" in wanted:
        raise FastnormError(
            "FASTNORM_ERROR_UNSUPPORTED: a gradient of sum_scale is wanted; sandwich_norm has "
            "those of x, residual, weights and biases"
        )
    if options.get("activation"):
        raise FastnormError(
            "FASTNORM_ERROR_UNSUPPORTED: a gradient through an activation of the result is wanted; "
            "nearest: activation='identity', and the activation after it"
        )
    found = _norm(call, inputs, statistics=True)
    read = _stages.read_by_the_backward(inputs, wanted, *_facts(options))
    kept = {name: {**inputs, **found}[name] for name in read}
    forms = {(name, a.shape, a.dtype.name): () for name, a in inputs.items()}
    return _results(found), (wanted, kept, forms)


def _backward(call, kept, gradients):
    zero = jax.custom_derivatives.SymbolicZero
    dy, dtotal = [None if isinstance(g, zero) else g for g in (*gradients, None)][:2]
    wanted, arrays, forms = kept
    found = {}
    if wanted and (dy is not None or dtotal is not None):
        options = dict(call[0])
        inputs = {name: (shape, jnp.dtype(dtype)) for name, shape, dtype in forms}
        plain = options.get("flags", 0) != 0
        found = _Gradients(arrays, options, inputs, wanted, plain).of(dy, dtotal)
    return ({name: found.get(name) for name, _, _ in forms},)


_differentiable.defvjp(_forward, _backward, symbolic_zeros=True)


class _Gradients(_stages.Gradients):
    float32 = jnp.dtype("float32")
    broadcast_shapes = staticmethod(jnp.broadcast_shapes)
    expanded = staticmethod(jnp.broadcast_to)

    def single(self, array):
        return array.astype(jnp.float32)

    def cast(self, array, dtype):
        return array.astype(dtype)

    def summed(self, array, shape):
        if array.shape == shape:
            return array
        more = array.ndim - len(shape)
        axes = [i for i in range(array.ndim) if i < more or shape[i - more] == 1]
        return array.astype(jnp.float32).sum(axes).reshape(shape)

    def scattered(self, array, rows, shape):
        return jnp.zeros(shape, jnp.float32).at[rows].add(array)

    def zeros(self, shape):
        return jnp.zeros(shape, jnp.float32)

    def act(self, array):
        acts = (lambda v: v, jax.nn.silu, jax.nn.sigmoid, jnp.tanh)
        return acts[self.options["residual_gate_act"]](array)

    def backward(self, arrays, offset, forms):
        options = {**self.options, "weight_offset": offset}
        outputs = {name: jax.ShapeDtypeStruct(*form) for name, form in forms.items()}
        fields = {name: options[name] for name in _BACKWARD_WORDS if name in options}
        read = [name for name in arrays if name in _BACKWARD_TENSORS]
        arrays = {name: arrays[name] for name in ("x", *(n for n in read if n != "x"))}
        return _run("fastnorm_norm_backward", fields, arrays, outputs)


# --- the functions to call ---


def _quantised(options, inputs, y_dtype, quant):
    """One fastnorm_norm that stores codes."""
    x = inputs["x"]
    more, tensors, outputs = _shared.quantising(_stages.SCHEMES, x.shape, quant)
    _shared._check_devices({"x": x, **tensors})
    if quant.y:
        outputs["y"] = _shared._like(x, y_dtype)
    if "residual" in inputs:
        outputs["residual_out"] = _shared._like(inputs["residual"])
    inputs = _shared.together({**inputs, **tensors})
    found = _run("fastnorm_norm", {**options, **more}, inputs, outputs)
    return Quantized(*(found.get(name) for name in Quantized._fields))


def _call(options, arrays, y_dtype, quant=None):
    """One fastnorm_norm. arrays: by name, or None. y, and the sum where there is a residual; with a
    Quant a Quantized."""
    inputs = {
        name: _shared._array(name, arrays[name])
        for name in _INPUTS
        if name == "x" or arrays.get(name) is not None
    }
    _shared._check_devices(inputs)
    y_dtype = None if y_dtype is None else jnp.dtype(y_dtype)
    if quant is not None:
        return _quantised(options, inputs, y_dtype, quant)
    call = tuple(options.items()), y_dtype
    return _shared.differentiable(_differentiable, call, _shared.together(inputs))


def _options(kind, eps, weight_offset=0.0, rounding="once", residual_rounding="exact"):
    word = _shared._word
    return {
        "kind": word(_stages.KINDS, "kind", kind),
        "eps": _shared._eps(eps),
        "weight_offset": _shared._number("weight_offset", weight_offset, float),
        "rounding": word(_shared._ROUNDING, "rounding", rounding),
        "residual_rounding": word(
            _shared._RESIDUAL_ROUNDING, "residual_rounding", residual_rounding
        ),
    }


def _branch_options(kind, eps, branch_eps, weight_offset, rounding, rounded):
    _shared._word(_stages.KINDS, "branch_kind", kind)
    branch_eps = eps if branch_eps is None else branch_eps
    branch = _options(kind, branch_eps, weight_offset, rounding)
    fields = ("kind", "eps", "weight_offset", "rounding")
    return {
        "branch_norm": 1,
        "branch_rounded": int(rounded),
        **{f"branch_{field}": branch[field] for field in fields},
    }


def gated_norm(
    x: Any,
    gate: Any = None,
    weight: Any = None,
    eps: Optional[float] = 1e-6,
    *,
    bias: Any = None,
    kind: str = "rms",
    gate_act: Optional[str] = None,
    gate_before: bool = False,
    gate_from_rounded: bool = False,
    group_size: int = 0,
    activation: str = "identity",
    weight_offset: float = 0.0,
    rounding: str = "once",
    mean_in: Any = None,
    rstd_in: Any = None,
    y_dtype: Any = None,
    quant: Optional[Quant] = None,
) -> Any:
    """A norm with a gate and an activation: activation(norm(x) * gate_act(gate)).

    With gate_before it is activation(norm(x * gate_act(gate))), without a gate activation(norm(x)).
    docs/gated_norm.md has the formula and says which models use it.

    Args:
        x: The rows, [.., n], in float32, float16 or bfloat16. A row is the last dimension.
        gate: What is multiplied, of x's shape, in x's dtype or float32. None for no gate.
        weight: [.., n], or [group_size] for all groups alike. None stands for ones.
        eps: Added to the mean of squares, or to the variance, before the root. None is the epsilon
            of float32.
        bias: As weight. None stands for zeros.
        kind: "rms" or "layer".
        gate_act: The activation of the gate: "identity", "silu", "sigmoid" or "tanh". None stands
            for "silu" where there is a gate.
        gate_before: Whether the gate multiplies x before the norm, and not the result.
        gate_from_rounded: Whether a gate after the norm multiplies the result as rounded to x's
            dtype.
        group_size: Columns that share a statistic, a divisor of n. 0 stands for n.
        activation: The activation of the result: "identity", "silu", "sigmoid" or "tanh".
        weight_offset: Added to the weight in float32: 0, or 1 for Gemma.
        rounding: Where the row is rounded to x's dtype on its way: "once" when y is stored,
            "normalized" also before the weight, "every_step" after each operation, "once_rw" once
            with rstd * weight multiplied first.
        mean_in: float32, x.shape[:-1], or that and the groups: the mean to use, for "layer" and
            with rstd_in.
        rstd_in: float32, x.shape[:-1], or that and the groups: the reciprocal standard deviation to
            use in place of one of x.
        y_dtype: The dtype of y: None for that of x, or float32.
        quant: How the result becomes codes. None for no codes.

    Returns:
        y of x's shape, or with quant a Quantized.

    Raises:
        FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has the
            status and names the argument.
        ValueError: A word, such as that of rounding, is unknown.
    """
    word = _shared._word
    options = {
        **_options(kind, eps, weight_offset, rounding),
        "gate_act": word(_stages.ACTS, "gate_act", _stages.act_of_gate(gate_act, gate)),
        "gate_position": int(gate_before),
        "gate_source": int(gate_from_rounded),
        "group_size": _shared._number("group_size", group_size, int),
        "activation": word(_stages.ACTS, "activation", activation),
    }
    arrays = {"x": x, "gate": gate, "weight": weight, "bias": bias}
    arrays.update(mean_in=mean_in, rstd_in=rstd_in)
    found = _call(options, arrays, y_dtype, quant)
    return found[0] if quant is None else found


def gated_norm_sums(
    x: Any,
    gate: Any = None,
    *,
    kind: str = "rms",
    gate_act: Optional[str] = None,
    gate_before: bool = False,
    group_size: int = 0,
) -> jax.Array:
    """The sums of a norm whose columns are spread over ranks.

    statistics_of_sums() of norm_heads makes rstd_in and mean_in from those of all ranks.

    Args:
        x: The rows, [.., n], in float32, float16 or bfloat16. A row is the last dimension.
        gate: What is multiplied, of x's shape, in x's dtype or float32. None for no gate.
        kind: "rms" or "layer".
        gate_act: The activation of the gate: "identity", "silu", "sigmoid" or "tanh". None stands
            for "silu" where there is a gate.
        gate_before: Whether the gate multiplies x before the norm, and not the result.
        group_size: Columns that share a statistic, a divisor of n. 0 stands for n.

    Returns:
        Sums in float32 of the shape x.shape[:-1], which are sums of squares; for "layer" that with
            a last 2, the mean and the sum of (x - mean)^2. Several groups of a row are one more
            dimension before that.

    Raises:
        FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has the
            status and names the argument.
        ValueError: A word, such as that of rounding, is unknown.
    """
    options = {
        **_options(kind, 0.0),
        "gate_act": _shared._word(
            _stages.ACTS, "gate_act", _stages.act_of_gate(gate_act, gate)
        ),
        "gate_position": int(gate_before),
        "group_size": _shared._number("group_size", group_size, int),
    }
    inputs = {"x": _shared._array("x", x)}
    if gate is not None:
        inputs["gate"] = _shared._array("gate", gate)
    _shared._check_devices(inputs)
    shape = inputs["x"].shape
    if not shape:
        raise FastnormError("FASTNORM_ERROR_SHAPE: x has 0 dimensions; required: at least 1")
    groups = shape[-1] // options["group_size"] if options["group_size"] > 0 else 1
    pair = (2,) if kind == "layer" else ()
    shape = (*shape[:-1], *((groups,) if groups > 1 else ()), *pair)
    outputs = {"sumsq": jax.ShapeDtypeStruct(shape, jnp.float32)}
    return _run("fastnorm_norm", options, _shared.together(inputs), outputs)["sumsq"]


def sandwich_norm(
    x: Any,
    residual: Any,
    branch_weight: Any = None,
    weight: Any = None,
    eps: Optional[float] = 1e-6,
    *,
    kind: str = "rms",
    bias: Any = None,
    branch_kind: str = "rms",
    branch_bias: Any = None,
    branch_eps: Optional[float] = None,
    branch_weight_offset: float = 0.0,
    weight_offset: float = 0.0,
    branch_rounding: str = "once",
    rounding: str = "once",
    branch_rounded: bool = False,
    residual_rounding: str = "exact",
    alpha: float = 1.0,
    sum_scale: Any = None,
    sum_rounding: str = "once",
    y_dtype: Any = None,
    quant: Optional[Quant] = None,
) -> Any:
    """Norm of a branch, residual addition and norm of the sum, in one call.

    sum = (alpha * branch_norm(x) + residual) * sum_scale, and y = norm(sum). docs/sandwich_norm.md
    has the formula and says which models use it.

    Args:
        x: The rows, [.., n], in float32, float16 or bfloat16. A row is the last dimension.
        residual: What is added to x before the norm, of x's shape, in float32, float16 or bfloat16.
        branch_weight: [.., n]: the weight of the norm of x before the sum. None stands for ones.
        weight: [.., n], broadcast against x, in float32, float16 or bfloat16. None stands for ones.
        eps: Added to the mean of squares, or to the variance, before the root. None is the epsilon
            of float32.
        kind: "rms" or "layer".
        bias: [.., n], broadcast against x, in float32, float16 or bfloat16. None stands for zeros.
        branch_kind: The kind of that norm: "rms" or "layer".
        branch_bias: [.., n]: the bias of that norm. None stands for zeros.
        branch_eps: The eps of that norm. None stands for eps.
        branch_weight_offset: Added to branch_weight in float32.
        weight_offset: Added to the weight in float32: 0, or 1 for Gemma.
        branch_rounding: The rounding of that norm: "once", "normalized" or "every_step".
        rounding: Where the row is rounded to x's dtype on its way: "once" when y is stored,
            "normalized" also before the weight, "every_step" after each operation, "once_rw" once
            with rstd * weight multiplied first.
        branch_rounded: Whether the result of that norm is rounded to x's dtype before the sum.
        residual_rounding: Which value of the sum is normalised: "exact" the float32 sum,
            "before_apply" the rounded one after statistics of the exact one, "before_statistics"
            the rounded one for both.
        alpha: The factor of the branch in the sum.
        sum_scale: [1] in float32: the factor of the sum, a value on the device. None stands for 1.
        sum_rounding: "once", or "every_step": the products and the sum are each rounded to x's
            dtype.
        y_dtype: The dtype of y: None for that of x, or float32.
        quant: How the result becomes codes. None for no codes.

    Returns:
        (y, sum), where the sum has residual's dtype, or with quant a Quantized.

    Raises:
        FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has the
            status and names the argument.
        ValueError: A word, such as that of rounding, is unknown.
    """
    options = {
        **_options(kind, eps, weight_offset, rounding, residual_rounding),
        **_branch_options(
            branch_kind,
            eps,
            branch_eps,
            branch_weight_offset,
            branch_rounding,
            branch_rounded,
        ),
        "alpha": _shared._number("alpha", alpha, float),
        "sum_rounding": _shared._word(_stages.STEPS, "sum_rounding", sum_rounding),
    }
    arrays = {
        "x": x,
        "residual": _shared._array("residual", residual),
        "branch_weight": branch_weight,
        "branch_bias": branch_bias,
        "weight": weight,
        "bias": bias,
        "sum_scale": sum_scale,
    }
    return _call(options, arrays, y_dtype, quant)


def adaln(
    x: Any,
    scale: Any = None,
    shift: Any = None,
    eps: Optional[float] = 1e-6,
    *,
    residual: Any = None,
    residual_gate: Any = None,
    weight: Any = None,
    bias: Any = None,
    kind: str = "layer",
    residual_gate_act: str = "identity",
    residual_gate_table: Any = None,
    scale_table: Any = None,
    shift_table: Any = None,
    index: Any = None,
    alpha: float = 1.0,
    branch_norm: bool = False,
    branch_kind: str = "rms",
    branch_weight: Any = None,
    branch_bias: Any = None,
    branch_eps: Optional[float] = None,
    branch_weight_offset: float = 0.0,
    branch_rounding: str = "once",
    branch_rounded: bool = False,
    plain_scale: bool = False,
    weight_offset: float = 0.0,
    rounding: str = "once",
    residual_rounding: str = "exact",
    sum_rounding: str = "once",
    modulation_rounding: str = "once",
    y_dtype: Any = None,
    quant: Optional[Quant] = None,
) -> Any:
    """Adaptive LayerNorm: norm(sum) * (1 + scale) + shift with sum = x * act(residual_gate) * alpha
    + residual.

    residual_gate, scale and shift broadcast against x; with an index they are [m, n] or [m, 1]. The
    method is adaLN of Peebles and Xie, "Scalable Diffusion Models with Transformers" (2022).
    docs/adaln.md has the formula.

    Args:
        x: The rows, [.., n], in float32, float16 or bfloat16. A row is the last dimension.
        scale: 1 + scale is the factor of the normalised row. In x's dtype or float32, broadcast
            against x.
        shift: What is added to the modulated row. In x's dtype or float32, broadcast against x.
        eps: Added to the mean of squares, or to the variance, before the root. None is the epsilon
            of float32.
        residual: What is added to the branch, of x's shape. None for no addition.
        residual_gate: The factor of x in the sum. In x's dtype or float32, broadcast against x.
        weight: [.., n], broadcast against x, in float32, float16 or bfloat16. None stands for ones.
        bias: [.., n], broadcast against x, in float32, float16 or bfloat16. None stands for zeros.
        kind: "rms" or "layer".
        residual_gate_act: The activation of residual_gate: "identity", "silu", "sigmoid" or "tanh".
        residual_gate_table: [n], added to residual_gate.
        scale_table: [n], added to scale.
        shift_table: [n], added to shift.
        index: int32 or int64: which row of the modulators each row of x takes. They are then [m, n]
            or [m, 1].
        alpha: The factor of the branch in the sum.
        branch_norm: Whether a norm of x takes the place of x in the sum.
        branch_kind: The kind of that norm: "rms" or "layer".
        branch_weight: [.., n]: the weight of the norm of x before the sum. None stands for ones.
        branch_bias: [.., n]: the bias of that norm. None stands for zeros.
        branch_eps: The eps of that norm. None stands for eps where branch_norm is True.
        branch_weight_offset: Added to branch_weight in float32.
        branch_rounding: The rounding of that norm: "once", "normalized" or "every_step".
        branch_rounded: Whether the result of that norm is rounded to x's dtype before the sum.
        plain_scale: Whether the factor is scale, and not 1 + scale.
        weight_offset: Added to the weight in float32: 0, or 1 for Gemma.
        rounding: Where the row is rounded to x's dtype on its way: "once" when y is stored,
            "normalized" also before the weight, "every_step" after each operation, "once_rw" once
            with rstd * weight multiplied first.
        residual_rounding: Which value of the sum is normalised: "exact" the float32 sum,
            "before_apply" the rounded one after statistics of the exact one, "before_statistics"
            the rounded one for both.
        sum_rounding: "once", or "every_step": the products and the sum are each rounded to x's
            dtype.
        modulation_rounding: "once", or "every_step": each operation of the modulation is rounded to
            x's dtype.
        y_dtype: The dtype of y: None for that of x, or float32.
        quant: How the result becomes codes. None for no codes.

    Returns:
        y, or with a residual (y, sum), where the sum has residual's dtype; with quant a Quantized.

    Raises:
        FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has the
            status and names the argument.
        ValueError: A word, such as that of rounding, is unknown.
    """
    word = _shared._word
    options = {
        **_options(kind, eps, weight_offset, rounding, residual_rounding),
        "flags": _stages.PLAIN_SCALE if plain_scale else 0,
        "residual_gate_act": word(_stages.ACTS, "residual_gate_act", residual_gate_act),
        "alpha": _shared._number("alpha", alpha, float),
        "sum_rounding": word(_stages.STEPS, "sum_rounding", sum_rounding),
        "modulation_rounding": word(_stages.STEPS, "modulation_rounding", modulation_rounding),
        **_branch_options(
            branch_kind,
            eps if branch_norm else 0.0,
            branch_eps,
            branch_weight_offset,
            branch_rounding,
            branch_rounded,
        ),
        "branch_norm": int(branch_norm),
    }
    arrays = {
        "x": x,
        "residual": residual,
        "weight": weight,
        "bias": bias,
        "branch_weight": branch_weight,
        "branch_bias": branch_bias,
        "residual_gate": residual_gate,
        "residual_gate_table": residual_gate_table,
        "modulation_scale": scale,
        "scale_table": scale_table,
        "modulation_shift": shift,
        "shift_table": shift_table,
        "modulation_index": index,
    }
    found = _call(options, arrays, y_dtype, quant)
    return found if residual is not None or quant is not None else found[0]
