"""The stages of fastnorm_norm as PyTorch operators: gated norm, sandwich and adaLN.

The library, the streams and the views are those of fastnorm.torch. Tensors keep the strides they
have. docs/gated_norm.md, docs/sandwich_norm.md and docs/adaln.md say what each setting means.

All have a backward, but for sum_scale, and for an activation of gated_norm's result. A modulation's
is that of a weight 1 + scale and a bias shift.
"""

import ast
from typing import Any, NamedTuple, Optional, Tuple, Union

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
}
_RENAMED = {
    "gate_before": "gate_position",
    "gate_from_rounded": "gate_source",
    "plain_scale": "flags",
}
# The settings of a Quant by what the operators call them.
_CODES = {
    s.field if s.field.startswith("quant_") else "static_scale" if s.name == "scale" else s.name: s
    for s in _stages.SETTINGS
}
_RENAMED.update({name: s.field for name, s in _CODES.items() if s.kind is not None})
_WORDS.update({name: s.words for name, s in _CODES.items() if s.words is not None})


def _field(name, value):
    if name in _WORDS:
        value = _shared._word(_WORDS[name], name, value)
    elif name in ("eps", "branch_eps") and value is None:
        value = _shared._DEFAULT_EPS
    return _RENAMED.get(name, name), int(value) if isinstance(value, bool) else value


class _Arguments:
    """The arguments of a schema. PyTorch leaves out those at the end that have their defaults."""

    def __init__(self, *schemas):
        self.schema = ", ".join(schemas)
        self.kinds, self.defaults = {}, {}
        for argument in self.schema.split(", "):
            described, _, default = argument.partition("=")
            kind, _, name = described.rpartition(" ")
            self.kinds[name] = kind
            if default:
                self.defaults[name] = ast.literal_eval(default)

    def named(self, given):
        """All arguments by name."""
        found = {**self.defaults, **dict(zip(self.kinds, given))}
        return {name: found[name] for name in self.kinds}

    def split(self, given, *apart):
        """Tensors and options by name, without the names that stand apart."""
        found = {n: v for n, v in self.named(given).items() if n not in apart}
        tensors = {n: v for n, v in found.items() if self.kinds[n].startswith("Tensor")}
        return tensors, {n: v for n, v in found.items() if n not in tensors}


def _names(schema):
    return tuple(_Arguments(schema).kinds)


class _Schema(NamedTuple):
    """An operator: what its schema says, and options that all its calls have besides."""

    tensors: str
    options: str
    results: Tuple[str, ...]
    fixed: dict = {}
    more: Tuple[str, ...] = ()  # arguments at the end


_BRANCH = ("Tensor? branch_bias=None", "str branch_kind='rms'")
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
        {"branch_norm": True},
        (*_BRANCH, "Tensor? bias=None", "str kind='rms'"),
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
        {},
        _BRANCH,
    ),
}
# Where a tensor requires grad, an operator calls its twin "_with_statistics". That returns y, the
# sum and these, each empty where the call has none.
_STATISTICS = ("branch_rstd", "mean", "rstd")


def _facts(options):
    """Of a call: whether it has a branch norm, whether a mean, and whether that norm has one."""
    layers = (options.get(name) == "layer" for name in ("kind", "branch_kind"))
    return (options.get("branch_norm", False), *layers)


# An operator "_outputs" stores what is asked for, in these cases y and sumsq. Its last arguments
# are settings with their defaults. The first of them keep their places; what a Quant has besides
# follows in the order there.
_REQUIRED = ("static_scale", "quant_scheme", "quant_block_size", "quant_division")
_FIRST = (
    "clamp_scale", "global_scale", "amax", "quant_source", "layout", "pow2", "amax_floor", "clamp",
    "rotation_signs",
)  # fmt: skip
_STORED = (
    "Tensor? static_scale",
    "str? quant_scheme, int quant_block_size, str quant_division, ScalarType codes, bool y, "
    "bool sumsq, ScalarType? y_dtype",
    ", ".join(
        f"{_CODES[name].kind.__name__ if _CODES[name].kind else 'Tensor?'} {name}="
        f"{_CODES[name].default!r}"
        for name in dict.fromkeys((*_FIRST, *_CODES))
        if name not in _REQUIRED
    ),
)
_APART = ("codes", "y", "sumsq", "y_dtype")
_OUTPUTS = ("quantized", "scale", "y", "residual_out", "sumsq", "amax")


def _groups_of(x, options):
    """How many statistics a row has."""
    n = x.shape[-1] if x.dim() else 0
    return n // options["group_size"] if options.get("group_size", 0) > 0 else 1


def _run(run, options, tensors, outputs):
    run(
        tuple(_field(*option) for option in options.items()),
        (*tensors, *outputs),
        (*tensors.values(), *outputs.values()),
    )


def _define(name, schema):
    """The operator and that which stores codes or sums."""
    plain = _Arguments(schema.tensors, schema.options, "ScalarType? y_dtype", *schema.more)
    stored = _Arguments(
        schema.tensors, _STORED[0], schema.options, *_STORED[1:], *schema.more
    )

    def parts(given):
        """Tensors and options by name."""
        tensors, options = plain.split(given, "y_dtype")
        return tensors, {**schema.fixed, **options}

    def call(run, given, statistics):
        tensors, options = parts(given)
        x, residual = tensors["x"], tensors.get("residual")
        outputs = {"y": _shared._like(x, plain.named(given)["y_dtype"])}
        if residual is not None:
            outputs["residual_out"] = _shared._like(residual)
        if statistics:
            groups = _groups_of(x, options)
            for statistic in _stages.statistics(*_facts(options)):
                outputs[statistic] = x.new_empty((*x.shape[:-1], groups), dtype=torch.float32)
        _run(run, options, tensors, outputs)
        results = ("y", "residual_out", *_STATISTICS) if statistics else schema.results
        found = _shared._some(x, (outputs.get(result) for result in results))
        return found if len(results) > 1 else found[0]

    def save(ctx, inputs, output):
        tensors, ctx.options = parts(inputs)
        ctx.set_materialize_grads(False)
        ctx.arguments = tuple(plain.kinds)[: len(inputs)]
        needs = zip(ctx.arguments, ctx.needs_input_grad[1:])
        ctx.wanted = {n for n, need in needs if need}
        ctx.forms = {n: (t.shape, t.dtype) for n, t in tensors.items() if t is not None}
        tensors.update(zip(("residual_out", *_STATISTICS), output[1:]))
        ctx.names = _stages.read_by_the_backward(ctx.forms, ctx.wanted, *_facts(ctx.options))
        ctx.save_for_backward(*(tensors[n] for n in ctx.names))

    def gradients(ctx, dy, dtotal, *of_statistics):
        _shared._refuse_statistics(**dict(zip(_STATISTICS, of_statistics)))
        if "residual" not in ctx.forms:
            dtotal = None  # of the empty second result
        found = {}
        if ctx.wanted and (dy is not None or dtotal is not None):
            saved = dict(zip(ctx.names, ctx.saved_tensors))
            is_plain = ctx.options.get("plain_scale", False)
            found = _Gradients(saved, ctx.options, ctx.forms, ctx.wanted, is_plain).of(dy, dtotal)
        return tuple(found.get(n) for n in ctx.arguments)

    @_shared._operator(
        f"{name}_with_statistics({plain.schema}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        backward=gradients,
        setup_context=save,
    )
    def twin(run, *given):
        return call(run, given, True)

    def differentiable(*given):
        _refuse_without_backward(name, *parts(given))
        found = twin(*given)
        return found[: len(schema.results)] if len(schema.results) > 1 else found[0]

    @_shared._operator(
        f"{name}({plain.schema}) -> ({', '.join(['Tensor'] * len(schema.results))})",
        differentiable=differentiable,
    )
    def operator(run, *given):
        return call(run, given, False)

    @_shared._operator(
        f"{name}_outputs({stored.schema}) -> ({', '.join(['Tensor'] * len(_OUTPUTS))})"
    )
    def outputs(run, *given):
        tensors, options = stored.split(given, *_APART)
        options = {**schema.fixed, **options}
        found = _new_outputs(tensors, options, stored.named(given))
        _run(run, options, tensors, found)
        found["scale"] = found.pop("swizzled_scale", found.get("scale"))
        return _shared._some(tensors["x"], (found.get(result) for result in _OUTPUTS))

    return _Operator(operator, plain), _Operator(outputs, stored)


class _Operator(NamedTuple):
    """An operator to call by the names of its arguments."""

    call: Any
    arguments: _Arguments

    def __call__(self, **given):
        given = self.arguments.defaults | given
        return self.call(*(given[name] for name in self.arguments.kinds))


def _new_outputs(tensors, options, given):
    """Empty, by name: what a call stores. given: its arguments by name."""
    x, scheme, found = tensors["x"], given["quant_scheme"], {}
    if scheme is not None:
        _shared._word(_stages.SCHEMES, "scheme", scheme)
    if scheme == "per_tensor":
        found["quantized"] = x.new_empty(x.shape, dtype=given["codes"])
    elif scheme is not None:
        more = (given[name] for name in ("quant_block_size", "codes", "layout", "pow2"))
        found = _shared._quant_outputs(x, scheme, *more)
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
    amax = tensors.pop("amax")
    if amax is not None:
        found["amax"] = amax.clone()  # which is raised
    return found


def _call(operators, quant, has_sum=False, **given):
    """One call; with a Quant that of the operator which stores codes."""
    operator, outputs = operators
    if quant is None:
        return operator(**given)
    found = outputs(
        **given,
        **{name: getattr(quant, setting.name) for name, setting in _CODES.items()},
        codes=torch.float8_e4m3fn if quant.dtype is None else quant.dtype,
        y=quant.y,
        sumsq=False,
    )
    found = dict(zip(_OUTPUTS, found))
    wanted = {
        "quantized": True,
        "scale": quant.scheme != "per_tensor",
        "y": quant.y,
        "residual_out": has_sum,
        "amax": quant.amax is not None,
    }
    return Quantized(**{name: found[name] if want else None for name, want in wanted.items()})


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
    "dbranch_bias": "branch_bias",
    "dresidual_gate": "residual_gate",
}
_BACKWARD_TENSORS = (
    "Tensor x, Tensor dy, Tensor? weight, Tensor? bias, Tensor? mean, Tensor? rstd, "
    "Tensor? dresidual_in, Tensor? gate, Tensor? branch, Tensor? branch_weight, "
    "Tensor? branch_bias, Tensor? branch_rstd, Tensor? residual_gate, Tensor? sum_scale"
)
_BACKWARD_OPTIONS = (
    "str kind, float? eps, float weight_offset, str rounding, str gate_act, bool gate_before, "
    "bool gate_from_rounded, int group_size, str branch_kind, float? branch_eps, "
    "float branch_weight_offset, str branch_rounding, bool branch_norm, bool branch_rounded, "
    "str residual_gate_act, float alpha"
)
# Defaults of options that a forward does not have.
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
    "alpha": 1.0,
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
    return _call(
        _gated_norm,
        quant,
        x=x,
        gate=gate,
        weight=weight,
        bias=bias,
        mean_in=mean_in,
        rstd_in=rstd_in,
        eps=eps,
        kind=kind,
        gate_act=_stages.act_of_gate(gate_act, gate),
        gate_before=gate_before,
        gate_from_rounded=gate_from_rounded,
        group_size=group_size,
        activation=activation,
        weight_offset=weight_offset,
        rounding=rounding,
        y_dtype=y_dtype,
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
    _, outputs = _gated_norm
    found = outputs(
        **dict.fromkeys(("weight", "bias", "mean_in", "rstd_in", "static_scale", "quant_scheme")),
        x=x,
        gate=gate,
        eps=0.0,
        kind=kind,
        gate_act=_stages.act_of_gate(gate_act, gate),
        gate_before=gate_before,
        gate_from_rounded=False,
        group_size=group_size,
        activation="identity",
        weight_offset=0.0,
        rounding="once",
        quant_block_size=0,
        quant_division="reciprocal",
        codes=torch.float8_e4m3fn,
        y=False,
        sumsq=True,
        y_dtype=None,
    )
    return found[_OUTPUTS.index("sumsq")]


def sandwich_norm(
    x: Tensor,
    residual: Tensor,
    branch_weight: Optional[Tensor] = None,
    weight: Optional[Tensor] = None,
    eps: Optional[float] = 1e-6,
    *,
    kind: str = "rms",
    bias: Optional[Tensor] = None,
    branch_kind: str = "rms",
    branch_bias: Optional[Tensor] = None,
    branch_eps: Optional[float] = None,
    branch_weight_offset: float = 0.0,
    weight_offset: float = 0.0,
    branch_rounding: str = "once",
    rounding: str = "once",
    branch_rounded: bool = False,
    residual_rounding: str = "exact",
    alpha: float = 1.0,
    sum_scale: Optional[Tensor] = None,
    sum_rounding: str = "once",
    y_dtype: Optional[torch.dtype] = None,
    quant: Optional[Quant] = None,
) -> Union[Tuple[Tensor, Tensor], Quantized]:
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
    return _call(
        _sandwich_norm,
        quant,
        has_sum=True,
        x=x,
        residual=residual,
        branch_weight=branch_weight,
        branch_bias=branch_bias,
        weight=weight,
        bias=bias,
        sum_scale=sum_scale,
        kind=kind,
        branch_kind=branch_kind,
        branch_eps=eps if branch_eps is None else branch_eps,
        eps=eps,
        branch_weight_offset=branch_weight_offset,
        weight_offset=weight_offset,
        branch_rounding=branch_rounding,
        rounding=rounding,
        branch_rounded=branch_rounded,
        residual_rounding=residual_rounding,
        alpha=alpha,
        sum_rounding=sum_rounding,
        y_dtype=y_dtype,
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
    alpha: float = 1.0,
    branch_norm: bool = False,
    branch_kind: str = "rms",
    branch_weight: Optional[Tensor] = None,
    branch_bias: Optional[Tensor] = None,
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
    if branch_eps is None:
        branch_eps = eps if branch_norm else 0.0
    found = _call(
        _adaln,
        quant,
        has_sum=residual is not None,
        x=x,
        residual=residual,
        residual_gate=residual_gate,
        residual_gate_table=residual_gate_table,
        modulation_scale=scale,
        scale_table=scale_table,
        modulation_shift=shift,
        shift_table=shift_table,
        modulation_index=index,
        weight=weight,
        bias=bias,
        branch_weight=branch_weight,
        branch_bias=branch_bias,
        eps=eps,
        kind=kind,
        residual_gate_act=residual_gate_act,
        alpha=alpha,
        plain_scale=plain_scale,
        weight_offset=weight_offset,
        rounding=rounding,
        residual_rounding=residual_rounding,
        sum_rounding=sum_rounding,
        modulation_rounding=modulation_rounding,
        branch_norm=branch_norm,
        branch_kind=branch_kind,
        branch_eps=branch_eps,
        branch_weight_offset=branch_weight_offset,
        branch_rounding=branch_rounding,
        branch_rounded=branch_rounded,
        y_dtype=y_dtype,
    )
    return found[0] if quant is None and residual is None else found
