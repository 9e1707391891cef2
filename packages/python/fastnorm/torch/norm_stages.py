"""The stages of fastnorm_norm as PyTorch operators: gated norm, sandwich and adaLN.

The library, the streams and the views are those of fastnorm.torch. Tensors keep the strides they
have. docs/gated_norm.md, docs/sandwich_norm.md and docs/adaln.md say what each setting means.

All have a backward, but for sum_scale, and for an activation of gated_norm's result. A modulation's
is that of a weight 1 + scale and a bias shift.
"""

from typing import NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from fastnorm import stages as _stages
from fastnorm import torch as _shared
from fastnorm.stages import Quant, Quantized

__all__ = ["Quant", "Quantized", "adaln", "gated_norm", "gated_norm_sums", "sandwich_norm"]
FastnormError = _shared.FastnormError

# --- stages as data ---
#
# An option is a field of fastnorm_norm_args, or is renamed. Words and flags become numbers.

_WORDS = {
    "kind": _stages.KINDS,
    "branch_kind": _stages.KINDS,
    "rounding": _shared._ROUNDING,
    "branch_rounding": _shared._ROUNDING,
    "residual_rounding": _shared._RESIDUAL_ROUNDING,
    "sum_rounding": _stages.STEPS,
    "modulation_rounding": _stages.STEPS,
    "gate_act": _stages.ACTS,
    "residual_gate_act": _stages.ACTS,
    "activation": _stages.ACTS,
    "plain_scale": {False: 0, True: _stages.PLAIN_SCALE},
    "quant_division": _stages.DIVISIONS,
    "quant_scheme": {None: 0, **_stages.SCHEMES},
}
_RENAMED = {
    "gate_before": "gate_position",
    "gate_from_rounded": "gate_source",
    "plain_scale": "flags",
}


def _field(name, value):
    if name in _WORDS:
        value = _shared._word(_WORDS[name], name, value)
    elif name in ("eps", "branch_eps") and value is None:
        value = _shared._DEFAULT_EPS
    return _RENAMED.get(name, name), int(value) if isinstance(value, bool) else value


def _names(schema):
    return tuple(argument.rpartition(" ")[2] for argument in schema.split(", "))


class _Schema(NamedTuple):
    """An operator: what its schema says, and options that all its calls have besides."""

    tensors: str
    options: str
    results: Tuple[str, ...]
    fixed: dict = {}


_OPERATORS = {
    "gated_norm": _Schema(
        "Tensor x, Tensor? gate, Tensor? weight, Tensor? bias, Tensor? mean_in, Tensor? rstd_in",
        "float? eps, str kind, str gate_act, bool gate_before, bool gate_from_rounded, "
        "int group_size, str activation, float weight_offset, str rounding",
        ("y",),
    ),
    "sandwich_norm": _Schema(
        "Tensor x, Tensor residual, Tensor? branch_weight, Tensor? weight, Tensor? sum_scale",
        "float? branch_eps, float? eps, float branch_weight_offset, float weight_offset, "
        "str branch_rounding, str rounding, bool branch_rounded, str residual_rounding, "
        "float alpha, str sum_rounding",
        ("y", "residual_out"),
        {"kind": "rms", "branch_norm": True, "branch_kind": "rms"},
    ),
    "adaln": _Schema(
        "Tensor x, Tensor? residual, Tensor? residual_gate, Tensor? residual_gate_table, "
        "Tensor? modulation_scale, Tensor? scale_table, Tensor? modulation_shift, "
        "Tensor? shift_table, Tensor? modulation_index, Tensor? weight, Tensor? bias, "
        "Tensor? branch_weight",
        "float? eps, str kind, str residual_gate_act, float alpha, bool plain_scale, "
        "float weight_offset, str rounding, str residual_rounding, str sum_rounding, "
        "str modulation_rounding, bool branch_norm, float? branch_eps, "
        "float branch_weight_offset, str branch_rounding, bool branch_rounded",
        ("y", "residual_out"),
        {"branch_kind": "rms"},
    ),
}
# Where a tensor requires grad, an operator calls its twin "_with_statistics". That returns y, the
# sum and these, each empty where the call has none.
_STATISTICS = ("branch_rstd", "mean", "rstd")


def _facts(options):
    """Of a call: whether it has a branch norm, and whether a mean."""
    return options.get("branch_norm", False), options.get("kind") == "layer"


# Of an operator "_outputs", which stores what is asked for.
_MORE = (
    "str? quant_scheme, int quant_block_size, str quant_division, ScalarType codes, bool y, "
    "bool sumsq"
)
_OUTPUTS = ("quantized", "scale", "y", "residual_out", "sumsq")


def _groups_of(x, options):
    """How many statistics a row has."""
    n = x.shape[-1] if x.dim() else 0
    return n // options["group_size"] if options.get("group_size", 0) > 0 else 1


def _define(name, schema):
    """The operator and that which stores codes or sums."""
    tensor_names, option_names = _names(schema.tensors), _names(schema.options)
    arguments = f"({schema.tensors}, {schema.options}, ScalarType? y_dtype)"

    def parts(given):
        """Tensors and options by name, and y's dtype."""
        options = dict(zip(option_names, given[len(tensor_names) :]))
        return dict(zip(tensor_names, given)), {**schema.fixed, **options}, given[-1]

    def call(run, given, statistics):
        tensors, options, y_dtype = parts(given)
        x, residual = tensors["x"], tensors.get("residual")
        outputs = {"y": _shared._like(x, y_dtype)}
        if residual is not None:
            outputs["residual_out"] = _shared._like(residual)
        if statistics:
            groups = _groups_of(x, options)
            for statistic in _stages.statistics(*_facts(options)):
                outputs[statistic] = x.new_empty((*x.shape[:-1], groups), dtype=torch.float32)
        run(
            tuple(_field(*option) for option in options.items()),
            (*tensors, *outputs),
            (*tensors.values(), *outputs.values()),
        )
        results = ("y", "residual_out", *_STATISTICS) if statistics else schema.results
        found = _shared._some(x, (outputs.get(result) for result in results))
        return found if len(results) > 1 else found[0]

    def save(ctx, inputs, output):
        tensors, ctx.options, _ = parts(inputs)
        ctx.set_materialize_grads(False)
        ctx.wanted = {n for n, need in zip(tensor_names, ctx.needs_input_grad[1:]) if need}
        ctx.forms = {n: (t.shape, t.dtype) for n, t in tensors.items() if t is not None}
        tensors.update(zip(("residual_out", *_STATISTICS), output[1:]))
        ctx.names = _stages.read_by_the_backward(ctx.forms, ctx.wanted, *_facts(ctx.options))
        ctx.save_for_backward(*(tensors[n] for n in ctx.names))

    def gradients(ctx, dy, dtotal, *of_statistics):
        _shared._refuse_statistics(**dict(zip(_STATISTICS, of_statistics)))
        found = {}
        if ctx.wanted and (dy is not None or dtotal is not None):
            saved = dict(zip(ctx.names, ctx.saved_tensors))
            plain = ctx.options.get("plain_scale", False)
            found = _Gradients(saved, ctx.options, ctx.forms, ctx.wanted, plain).of(dy, dtotal)
        return (*(found.get(n) for n in tensor_names), *(None,) * (len(option_names) + 1))

    @_shared._operator(
        f"{name}_with_statistics{arguments} -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        backward=gradients,
        setup_context=save,
    )
    def twin(run, *given):
        return call(run, given, True)

    def differentiable(*given):
        tensors, options, _ = parts(given)
        _refuse_without_backward(name, tensors, options)
        found = twin(*given)
        return found[: len(schema.results)] if len(schema.results) > 1 else found[0]

    @_shared._operator(
        f"{name}{arguments} -> ({', '.join(['Tensor'] * len(schema.results))})",
        differentiable=differentiable,
    )
    def operator(run, *given):
        return call(run, given, False)

    @_shared._operator(
        f"{name}_outputs({schema.tensors}, Tensor? static_scale, {schema.options}, {_MORE}, "
        f"ScalarType? y_dtype) -> ({', '.join(['Tensor'] * len(_OUTPUTS))})"
    )
    def outputs(run, *given):
        names = (*tensor_names, "static_scale", *option_names, *_names(_MORE), "y_dtype")
        given = dict(zip(names, given))
        tensors = {n: given[n] for n in (*tensor_names, "static_scale")}
        fields = ("quant_scheme", "quant_block_size", "quant_division")
        options = {**schema.fixed, **{n: given[n] for n in (*option_names, *fields)}}
        found = _new_outputs(tensors, options, given)
        run(
            tuple(_field(*option) for option in options.items()),
            (*tensors, *found),
            (*tensors.values(), *found.values()),
        )
        return _shared._some(tensors["x"], (found.get(result) for result in _OUTPUTS))

    return operator, outputs


def _new_outputs(tensors, options, given):
    """Empty, by name: what a call stores. given: its arguments by name."""
    x, scheme, found = tensors["x"], given["quant_scheme"], {}
    if scheme is not None:
        _shared._word(_stages.SCHEMES, "scheme", scheme)
    if scheme == "per_tensor":
        found["quantized"] = x.new_empty(x.shape, dtype=given["codes"])
    elif scheme is not None:
        found["quantized"], found["scale"] = _shared._quant_outputs(
            x, scheme, given["quant_block_size"], given["codes"]
        )
        if tensors["static_scale"] is not None:
            raise FastnormError(
                "FASTNORM_ERROR_ARGUMENT: scale is given; "
                f"required: None, since {scheme} makes the scales"
            )
    if given["y"]:
        found["y"] = _shared._like(x, given["y_dtype"])
    if tensors.get("residual") is not None:
        found["residual_out"] = _shared._like(tensors["residual"])
    if given["sumsq"]:
        groups = _groups_of(x, options)
        shape = (*x.shape[:-1], *((groups,) if groups > 1 else ()))
        pair = (2,) if options["kind"] == "layer" else ()
        found["sumsq"] = x.new_empty((*shape, *pair), dtype=torch.float32)
    return found


def _call(operators, tensors, options, y_dtype, quant, has_sum=False):
    """One call; with a Quant that of the operator which stores codes."""
    operator, outputs = operators
    if quant is None:
        return operator(*tensors, *options, y_dtype)
    codes = torch.float8_e4m3fn if quant.dtype is None else quant.dtype
    found = outputs(
        *tensors, quant.scale, *options, quant.scheme, quant.block_size, quant.division, codes,
        quant.y, False, y_dtype,
    )  # fmt: skip
    wanted = (True, quant.scheme != "per_tensor", quant.y, has_sum)
    return Quantized(*(t if want else None for t, want in zip(found, wanted)))


def _refuse_without_backward(name, tensors, options):
    if tensors.get("rstd_in") is not None:
        raise RuntimeError(
            f"fastnorm::{name} has no backward for a given rstd_in: call it without, or under "
            "torch.no_grad() or torch.inference_mode()"
        )
    activation = options.get("activation", "identity")
    if activation != "identity":
        raise RuntimeError(
            f"fastnorm::{name} has no backward for activation {activation!r}: apply it to the "
            "result, or call under torch.no_grad() or torch.inference_mode()"
        )
    sum_scale = tensors.get("sum_scale")
    if sum_scale is not None and sum_scale.requires_grad:
        raise RuntimeError(
            f"sum_scale.requires_grad is True; required: False, since fastnorm::{name} has no "
            "gradient of it"
        )


# --- the backward ---

_GRADIENTS = {  # and whose shape each has
    "dx": "x",
    "dresidual": "x",
    "dgate": "gate",
    "dweight": "weight",
    "dbias": None,
    "dbranch": "x",
    "dbranch_weight": "branch_weight",
    "dresidual_gate": "residual_gate",
}
_BACKWARD_TENSORS = (
    "Tensor x, Tensor dy, Tensor? weight, Tensor? bias, Tensor? mean, Tensor? rstd, "
    "Tensor? dresidual_in, Tensor? gate, Tensor? branch, Tensor? branch_weight, "
    "Tensor? branch_rstd, Tensor? residual_gate, Tensor? sum_scale"
)
_BACKWARD_OPTIONS = (
    "str kind, float? eps, float weight_offset, str rounding, str gate_act, bool gate_before, "
    "bool gate_from_rounded, int group_size, str branch_kind, float? branch_eps, "
    "float branch_weight_offset, str branch_rounding, bool branch_norm, bool branch_rounded, "
    "str residual_gate_act, float alpha"
)
# Of an option that a forward does not have.
_DEFAULTS = {
    "kind": "rms",
    "weight_offset": 0.0,
    "gate_act": "identity",
    "gate_before": False,
    "gate_from_rounded": False,
    "group_size": 0,
    "branch_kind": "rms",
    "branch_eps": 0.0,
    "branch_weight_offset": 0.0,
    "branch_rounding": "once",
    "branch_norm": False,
    "branch_rounded": False,
    "residual_gate_act": "identity",
    "alpha": 0.0,
}


@_shared._operator(
    f"norm_stages_backward({_BACKWARD_TENSORS}, {_BACKWARD_OPTIONS}, SymInt[] dbias_shape, "
    + ", ".join(f"ScalarType? {name}" for name in _GRADIENTS)
    + f") -> ({', '.join(['Tensor'] * len(_GRADIENTS))})",
    backward=_shared._no_second,
)
def _backward(run, *given):
    """The gradients in these dtypes. None: not wanted, then the tensor is empty."""
    tensors = dict(zip(_names(_BACKWARD_TENSORS), given))
    options = dict(zip(_names(_BACKWARD_OPTIONS), given[len(tensors) :]))
    dbias_shape, *dtypes = given[len(tensors) + len(options) :]
    x = tensors["x"]
    outputs = {
        name: x.new_empty(dbias_shape if of is None else tensors[of].shape, dtype=dtype)
        for (name, of), dtype in zip(_GRADIENTS.items(), dtypes)
        if dtype is not None
    }
    run(
        tuple(_field(*option) for option in options.items()),
        (*tensors, *outputs),
        (*tensors.values(), *outputs.values()),
    )
    return _shared._some(x, (outputs.get(name) for name in _GRADIENTS))


_ACTS = {
    "identity": lambda v: v,
    "silu": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


class _Gradients(_stages.Gradients):
    float32 = torch.float32
    single = staticmethod(Tensor.float)
    cast = staticmethod(Tensor.to)
    broadcast_shapes = staticmethod(torch.broadcast_shapes)

    def expanded(self, tensor, shape):
        whole = tensor if tensor.shape == shape else tensor.expand(shape)
        # A GPU numbers the rows of a parameter by one dimension, which needs compact ones.
        return whole if tensor.shape[:-1] == shape[:-1] else whole.contiguous()

    def summed(self, tensor, shape):
        return tensor if tensor.shape == shape else tensor.float().sum_to_size(shape)

    def scattered(self, tensor, rows, shape):
        # On CUDA PyTorch adds in no fixed order, but with deterministic algorithms.
        return tensor.new_zeros(shape).index_add(0, rows, tensor)

    def zeros(self, shape):
        return self.tensors["rstd"].new_zeros(()).expand(shape)

    def act(self, tensor):
        return _ACTS[self.options["residual_gate_act"]](tensor)

    def backward(self, tensors, offset, forms):
        options = {**_DEFAULTS, **self.options, "weight_offset": offset}
        found = _backward(
            *(tensors.get(name) for name in _names(_BACKWARD_TENSORS)),
            *(options[name] for name in _names(_BACKWARD_OPTIONS)),
            forms["dbias"][0] if "dbias" in forms else (),
            *(forms[name][1] if name in forms else None for name in _GRADIENTS),
        )
        return {name: t for name, t in zip(_GRADIENTS, found) if name in forms}


_gated_norm, _sandwich_norm, _adaln = (
    _define(name, schema) for name, schema in _OPERATORS.items()
)


# --- the functions to call ---


def gated_norm(
    x: Tensor,
    gate: Optional[Tensor] = None,
    weight: Optional[Tensor] = None,
    eps: Optional[float] = 1e-6,
    *,
    bias: Optional[Tensor] = None,
    kind: str = "rms",
    gate_act: Optional[str] = None,
    gate_before: bool = False,
    gate_from_rounded: bool = False,
    group_size: int = 0,
    activation: str = "identity",
    weight_offset: float = 0.0,
    rounding: str = "once",
    mean_in: Optional[Tensor] = None,
    rstd_in: Optional[Tensor] = None,
    y_dtype: Optional[torch.dtype] = None,
    quant: Optional[Quant] = None,
) -> Union[Tensor, Quantized]:
    """activation(norm(x) * gate_act(gate)), or activation(norm(x * gate_act(gate))) with
    gate_before. Without a gate activation(norm(x)).

    gate has x's shape and x's dtype or float32. kind is "rms" or "layer", gate_act and activation
    are "identity", "silu", "sigmoid" or "tanh". gate_act None is "silu" of a gate. group_size
    columns share a statistic, 0: all. Weight and bias are [n], or [group_size] for all groups
    alike.

    mean_in ("layer") and rstd_in are float32, x.shape[:-1] or that and the groups. They take the
    place of statistics of x: see gated_norm_sums. With quant the result is a Quantized."""
    options = (
        eps,
        kind,
        _stages.act_of_gate(gate_act, gate),
        gate_before,
        gate_from_rounded,
        group_size,
        activation,
        weight_offset,
        rounding,
    )
    return _call(
        _gated_norm, (x, gate, weight, bias, mean_in, rstd_in), options, y_dtype, quant
    )


def gated_norm_sums(
    x: Tensor,
    gate: Optional[Tensor] = None,
    *,
    kind: str = "rms",
    gate_act: Optional[str] = None,
    gate_before: bool = False,
    group_size: int = 0,
) -> Tensor:
    """The sums of a norm whose columns are spread over ranks, float32: x.shape[:-1], the sum of
    squares; of "layer" that with a last 2, the mean and the sum of (x - mean)^2. Several groups of
    a row are one more dimension before that.

    norm_heads.statistics_of_sums makes rstd_in and mean_in from those of all ranks."""
    act = _stages.act_of_gate(gate_act, gate)
    _, outputs = _gated_norm
    return outputs(
        *(x, gate, None, None, None, None, None),
        *(0.0, kind, act, gate_before, False, group_size, "identity", 0.0, "once"),
        *(None, 0, "reciprocal", torch.float8_e4m3fn, False, True, None),
    )[_OUTPUTS.index("sumsq")]


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
    quant: Optional[Quant] = None,
) -> Union[Tuple[Tensor, Tensor], Quantized]:
    """(rms_norm of the sum, sum) with sum = (alpha * rms_norm(x) + residual) * sum_scale.

    The sum is a new tensor of residual's dtype. branch_eps None is eps. alpha 0 means 1. sum_scale
    is a float32 tensor [1]. sum_rounding is "once" or "every_step". With quant the result is a
    Quantized."""
    options = (
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
    )
    return _call(
        _sandwich_norm,
        (x, residual, branch_weight, weight, sum_scale),
        options,
        y_dtype,
        quant,
        has_sum=True,
    )


def adaln(
    x: Tensor,
    scale: Optional[Tensor] = None,
    shift: Optional[Tensor] = None,
    eps: Optional[float] = 1e-6,
    *,
    residual: Optional[Tensor] = None,
    residual_gate: Optional[Tensor] = None,
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    kind: str = "layer",
    residual_gate_act: str = "identity",
    residual_gate_table: Optional[Tensor] = None,
    scale_table: Optional[Tensor] = None,
    shift_table: Optional[Tensor] = None,
    index: Optional[Tensor] = None,
    alpha: float = 0.0,
    branch_norm: bool = False,
    branch_weight: Optional[Tensor] = None,
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
    y_dtype: Optional[torch.dtype] = None,
    quant: Optional[Quant] = None,
) -> Union[Tensor, Tuple[Tensor, Tensor], Quantized]:
    """norm(sum) * (1 + scale) + shift with sum = x * act(residual_gate) * alpha + residual. y, or
    with a residual (y, sum), where the sum has residual's dtype.

    residual_gate, scale and shift have x's dtype or float32 and broadcast against x. With an index
    they are [m, n] or [m, 1]. It is int32 or int64, the number of such a row for each row of x.

    Each table is [n] and added to its modulator. kind is "rms" or "layer", residual_gate_act
    "identity", "silu", "sigmoid" or "tanh". alpha 0 means 1. plain_scale: the factor is scale, not
    1 + it. sum_rounding and modulation_rounding are "once" or "every_step".

    branch_norm: rms_norm(x) takes the place of x in the sum. branch_eps None is eps. With quant the
    result is a Quantized."""
    if branch_eps is None:
        branch_eps = eps if branch_norm else 0.0
    tensors = (
        x,
        residual,
        residual_gate,
        residual_gate_table,
        scale,
        scale_table,
        shift,
        shift_table,
        index,
        weight,
        bias,
        branch_weight,
    )
    options = (
        eps,
        kind,
        residual_gate_act,
        alpha,
        plain_scale,
        weight_offset,
        rounding,
        residual_rounding,
        sum_rounding,
        modulation_rounding,
        branch_norm,
        branch_eps,
        branch_weight_offset,
        branch_rounding,
        branch_rounded,
    )
    found = _call(_adaln, tensors, options, y_dtype, quant, residual is not None)
    return found[0] if quant is None and residual is None else found
