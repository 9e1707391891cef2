"""The stages of fastnorm_norm as JAX functions, through XLA's foreign function interface: gated
norm, sandwich and adaLN. The library and the devices are those of fastnorm.jax.

docs/gated_norm.md, docs/sandwich_norm.md and docs/adaln.md say what each setting means. All have
gradients, but of sum_scale, and through an activation of gated_norm's result. A modulation's are
those of a weight 1 + scale and a bias shift. Under vmap a function runs once for each element.
"""

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple, Optional, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from fastnorm import jax as _shared
from fastnorm import stages as _stages
from fastnorm.stages import Quant, Quantized

__all__ = ["Quant", "Quantized", "adaln", "gated_norm", "gated_norm_sums", "sandwich_norm"]

_c, FastnormError = _shared._c, _shared.FastnormError


class _Family(NamedTuple):
    """A handler, and what it takes: names of fields in its order."""

    target: str
    inputs: Tuple[str, ...]
    outputs: Tuple[str, ...]
    words: Tuple[str, ...]
    scalars: Tuple[str, ...]


_FORWARD = _Family(
    "fastnorm_norm_stages",
    (
        "x",
        "residual",
        "weight",
        "bias",
        "gate",
        "branch_weight",
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
        "scale",
    ),
    ("y", "residual_out", "branch_rstd", "mean", "rstd", "sumsq", "quantized", "scale"),
    (
        "kind",
        "rounding",
        "residual_rounding",
        "flags",
        "gate_act",
        "gate_position",
        "gate_source",
        "activation",
        "group_size",
        "branch_norm",
        "branch_kind",
        "branch_rounding",
        "branch_rounded",
        "sum_rounding",
        "residual_gate_act",
        "modulation_rounding",
        "quant_scheme",
        "quant_block_size",
        "quant_division",
    ),
    ("eps", "weight_offset", "branch_eps", "branch_weight_offset", "alpha"),
)
_BACKWARD = _Family(
    "fastnorm_norm_stages_backward",
    (
        "x",
        "dy",
        "weight",
        "bias",
        "mean",
        "rstd",
        "gate",
        "dresidual_in",
        "branch",
        "branch_weight",
        "branch_rstd",
        "residual_gate",
        "sum_scale",
    ),
    (
        "dx",
        "dresidual",
        "dgate",
        "dweight",
        "dbias",
        "dbranch",
        "dbranch_weight",
        "dresidual_gate",
    ),
    (
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
    ),
    ("eps", "weight_offset", "branch_eps", "branch_weight_offset", "alpha"),
)


_shared.register_handlers(_shared._library, _FORWARD.target)
_shared.register_handlers(_shared._library, _BACKWARD.target, "_graph")


@functools.lru_cache(maxsize=4096)
def _check(tensors, options, context=_shared._checker):
    """Asks the library what it would say. tensors: (name, shape, dtype) of each."""
    fields = dict(options)
    kind = fields.pop("kind")
    for i, (name, shape, dtype) in enumerate(tensors):
        strides, stride = [], 1
        for extent in reversed(shape):
            strides.insert(0, stride)
            stride *= extent
        # Stand-in addresses, 2^44 bytes apart: the library does not touch the memory.
        fields[name] = SimpleNamespace(
            address=(i + 1) << 44,
            shape=shape,
            strides=strides,
            itemsize=1,
            dtype=_shared._dtype(name, dtype),
        )
    call = context.norm_backward if "dy" in fields else context.call
    return call(kind, **fields).query()


def _run(family, options, inputs, outputs):
    """One call. inputs: arrays by name, outputs: shapes with dtypes. The outputs by name."""
    inputs = {name: inputs[name] for name in family.inputs if name in inputs}
    outputs = {name: outputs[name] for name in family.outputs if name in outputs}
    asked = (
        tuple((n, a.shape, np.dtype(a.dtype)) for n, a in (*inputs.items(), *outputs.items())),
        tuple(options.items()),
    )
    _check(*asked)
    results = list(outputs.values())
    if _shared.use_command_buffers and family is _BACKWARD:
        results.append(_shared.workspace(lambda context: _check(*asked, context)))
    masks = [
        sum(1 << names.index(name) for name in of)
        for names, of in ((family.inputs, inputs), (family.outputs, outputs))
    ]
    target = _shared.target_of(family.target)
    call = jax.ffi.ffi_call(target, results, vmap_method="sequential")
    found = call(
        *inputs.values(),
        words=np.array([*(options.get(name, 0) for name in family.words), *masks], np.int32),
        scalars=np.array([options.get(name, 0.0) for name in family.scalars], np.float32),
    )
    return dict(zip(outputs, found))


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
    return _run(_FORWARD, options, inputs, outputs)


def _facts(options):
    """Of a call: whether it has a branch norm, and whether a mean."""
    return options.get("branch_norm", 0), options["kind"] == _c.LAYER


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
            "those of x, residual and both weights"
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
        names = (*_BACKWARD.words, *_BACKWARD.scalars)
        outputs = {name: jax.ShapeDtypeStruct(*form) for name, form in forms.items()}
        return _run(_BACKWARD, {n: options.get(n, 0) for n in names}, arrays, outputs)


# --- the functions to call ---


def _quantised(options, inputs, y_dtype, quant):
    """One fastnorm_norm that stores codes."""
    x, options = inputs["x"], dict(options)
    codes = jnp.float8_e4m3fn if quant.dtype is None else quant.dtype
    outputs = _shared.quant_outputs(
        _stages.SCHEMES, x.shape, quant.scheme, quant.block_size, codes
    )
    options["quant_scheme"] = _stages.SCHEMES[quant.scheme]
    options["quant_block_size"] = quant.block_size
    options["quant_division"] = _shared._word(_stages.DIVISIONS, "division", quant.division)
    if quant.scale is not None:
        if "scale" in outputs:
            raise FastnormError(
                "FASTNORM_ERROR_ARGUMENT: scale is given; "
                f"required: None, since {quant.scheme} makes the scales"
            )
        inputs = {**inputs, "scale": _shared._array("scale", quant.scale)}
        _shared._check_devices(inputs)
    if quant.y:
        outputs["y"] = _shared._like(x, y_dtype)
    if "residual" in inputs:
        outputs["residual_out"] = _shared._like(inputs["residual"])
    found = _run(_FORWARD, options, inputs, outputs)
    return Quantized(*(found.get(name) for name in Quantized._fields))


def _call(options, arrays, y_dtype, quant=None):
    """One fastnorm_norm. arrays: by name, or None. y, and the sum where there is a residual; with a
    Quant a Quantized."""
    inputs = {
        name: _shared._array(name, arrays[name])
        for name in _FORWARD.inputs
        if name == "x" or arrays.get(name) is not None
    }
    _shared._check_devices(inputs)
    y_dtype = None if y_dtype is None else jnp.dtype(y_dtype)
    if quant is not None:
        return _quantised(options, inputs, y_dtype, quant)
    return _differentiable((tuple(options.items()), y_dtype), inputs)


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


def _branch_options(eps, branch_eps, weight_offset, rounding, rounded):
    branch = _options("rms", eps if branch_eps is None else branch_eps, weight_offset, rounding)
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
    """activation(norm(x) * gate_act(gate)), or activation(norm(x * gate_act(gate))) with
    gate_before. Without a gate activation(norm(x)).

    gate has x's shape and x's dtype or float32. kind is "rms" or "layer", gate_act and activation
    are "identity", "silu", "sigmoid" or "tanh". gate_act None is "silu" of a gate. group_size
    columns share a statistic, 0: all. Weight and bias are [n], or [group_size] for all groups
    alike.

    mean_in ("layer") and rstd_in are float32, x.shape[:-1] or that and the groups. They take the
    place of statistics of x: see gated_norm_sums. With quant the result is a Quantized."""
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
    """The sums of a norm whose columns are spread over ranks, float32: x.shape[:-1], the sum of
    squares; of "layer" that with a last 2, the mean and the sum of (x - mean)^2. Several groups of
    a row are one more dimension before that.

    norm_heads.statistics_of_sums makes rstd_in and mean_in from those of all ranks."""
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
    return _run(_FORWARD, options, inputs, outputs)["sumsq"]


def sandwich_norm(
    x: Any,
    residual: Any,
    branch_weight: Any = None,
    weight: Any = None,
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
    sum_scale: Any = None,
    sum_rounding: str = "once",
    y_dtype: Any = None,
    quant: Optional[Quant] = None,
) -> Any:
    """(rms_norm of the sum, sum) with sum = (alpha * rms_norm(x) + residual) * sum_scale.

    The sum has residual's dtype. branch_eps None is eps. alpha 0 means 1. sum_scale is float32 [1].
    sum_rounding is "once" or "every_step". With quant the result is a Quantized."""
    options = {
        **_options("rms", eps, weight_offset, rounding, residual_rounding),
        **_branch_options(eps, branch_eps, branch_weight_offset, branch_rounding, branch_rounded),
        "alpha": _shared._number("alpha", alpha, float),
        "sum_rounding": _shared._word(_stages.STEPS, "sum_rounding", sum_rounding),
    }
    arrays = {
        "x": x,
        "residual": _shared._array("residual", residual),
        "branch_weight": branch_weight,
        "weight": weight,
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
    alpha: float = 0.0,
    branch_norm: bool = False,
    branch_weight: Any = None,
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
    """norm(sum) * (1 + scale) + shift with sum = x * act(residual_gate) * alpha + residual. y, or
    with a residual (y, sum), where the sum has residual's dtype.

    residual_gate, scale and shift broadcast against x; with an index they are [m, n] or [m, 1], and
    index has a row's number for each row of x. Each table is [n] and added to its modulator. alpha
    0 means 1. plain_scale: the factor is scale, not 1 + it. sum_rounding and modulation_rounding
    are "once" or "every_step".

    branch_norm: rms_norm(x) takes the place of x in the sum. branch_eps None is eps. With quant the
    result is a Quantized."""
    word = _shared._word
    options = {
        **_options(kind, eps, weight_offset, rounding, residual_rounding),
        "flags": _stages.PLAIN_SCALE if plain_scale else 0,
        "residual_gate_act": word(_stages.ACTS, "residual_gate_act", residual_gate_act),
        "alpha": _shared._number("alpha", alpha, float),
        "sum_rounding": word(_stages.STEPS, "sum_rounding", sum_rounding),
        "modulation_rounding": word(_stages.STEPS, "modulation_rounding", modulation_rounding),
        **_branch_options(
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
