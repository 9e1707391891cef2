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
    ),
    ("y", "residual_out", "branch_rstd", "mean", "rstd"),
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
        found = _Gradients(dict(call[0]), arrays, forms, wanted).of(dy, dtotal)
    return ({name: found.get(name) for name, _, _ in forms},)


_differentiable.defvjp(_forward, _backward, symbolic_zeros=True)


def _summed(gradient, shape):
    """A gradient of what was broadcast from a shape."""
    if gradient.shape == shape:
        return gradient
    more = gradient.ndim - len(shape)
    axes = [i for i in range(gradient.ndim) if i < more or shape[i - more] == 1]
    return gradient.astype(jnp.float32).sum(axes).reshape(shape)


class _Gradients:
    """The gradients of one call."""

    def __init__(self, options, arrays, forms, wanted):
        self.options, self.arrays, self.wanted = options, arrays, wanted
        self.forms = {name: (shape, jnp.dtype(dtype)) for name, shape, dtype in forms}
        self.x_shape, self.dtype = self.forms["x"]  # the dtype is T
        self.has_branch = _stages.has_branch(
            self.forms, options.get("branch_norm"), options.get("alpha", 0.0)
        )

    def wants(self, *names):
        return [name for name in names if name in self.wanted]

    # Modulators as they broadcast against x: the rows that the index names, and the table's sum.

    def is_indexed(self, name):
        return "modulation_index" in self.forms and _stages.is_modulator(name)

    def rows(self, name):
        """The row of an indexed modulator for each row of x."""
        return self.arrays["modulation_index"].ravel().clip(0, self.forms[name][0][0] - 1)

    def shape(self, name):
        """That with which a parameter broadcasts against x."""
        shape = self.forms[name][0]
        return (*self.x_shape[:-1], shape[-1]) if self.is_indexed(name) else shape

    def modulator(self, names):
        """None where the call has none."""
        array, table = (self.arrays.get(name) for name in names)
        if array is None:
            return None
        if self.is_indexed(names[0]):
            array = array[self.rows(names[0])].reshape(self.shape(names[0]))
        if table is None:
            return array
        return array.astype(jnp.float32) + table.astype(jnp.float32)

    def given_back(self, gradient, names):
        """The gradient of what modulator() returned, to each of the names that is wanted."""
        found = {}
        for name in self.wants(*names):
            shape, dtype = self.forms[name]
            part = _summed(gradient, self.shape(name))
            if self.is_indexed(name):
                part = part.reshape(-1, shape[-1]).astype(jnp.float32)
                part = jnp.zeros(shape, jnp.float32).at[self.rows(name)].add(part)
            found[name] = part.astype(dtype)
        return found

    # The call's parts.

    def scale(self):
        """The scale, and what is added to it for a factor; None where the call has none."""
        return self.modulator(_stages.OF_SCALE), 0.0 if self.options.get("flags", 0) else 1.0

    def factor(self):
        scale, one = self.scale()
        return scale.astype(jnp.float32) + one

    def combined_weight(self):
        """What multiplies the normalised row, which is a weight and its offset."""
        weight, offset = self.arrays.get("weight"), self.options["weight_offset"]
        scale, one = self.scale()
        if scale is None:
            return weight, offset
        if weight is not None:
            scale, one = (weight.astype(jnp.float32) + offset) * self.factor(), 0.0
        return self.as_rows(scale), one

    def as_rows(self, parameter):
        """A parameter [.., n] or [.., 1] as the library takes those that have a gradient."""
        return jnp.broadcast_to(parameter, _stages.joined(self.x_shape, parameter.shape))

    def form_of_dbias(self, weight):
        """Its shape and dtype, or None."""
        names, is_scaled = self.wants("bias", *_stages.OF_SHIFT), "modulation_scale" in self.forms
        if names == ["bias"] and not is_scaled:
            return jax.ShapeDtypeStruct(*self.forms["bias"])
        shapes = [self.shape(name) for name in names]
        # A bias before a scale meets it in both gradients.
        if is_scaled and "bias" in self.forms and self.wants("bias", *_stages.OF_SCALE):
            shapes.append(weight.shape)
        if not shapes:
            return None
        shape = _stages.joined(self.x_shape, jnp.broadcast_shapes(*shapes))
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    def of_parameters(self, dweight, dbias):
        """From the sums over rows of dy * xhat and of dy."""
        arrays, found = self.arrays, {}
        for name, gradient in (("weight", dweight), ("bias", dbias)):
            if name in self.wanted:
                shape, dtype = self.forms[name]
                if "modulation_scale" in arrays:
                    gradient = gradient * self.factor()
                found[name] = _summed(gradient, shape).astype(dtype)
        if self.wants(*_stages.OF_SCALE):
            gradient = dweight
            if "weight" in arrays:
                offset = self.options["weight_offset"]
                gradient = gradient * (arrays["weight"].astype(jnp.float32) + offset)
            if "bias" in arrays:
                gradient = gradient + dbias * arrays["bias"].astype(jnp.float32)
            found.update(self.given_back(gradient, _stages.OF_SCALE))
        found.update(self.given_back(dbias, _stages.OF_SHIFT))
        return found

    def row(self, gate):
        """What was normalised."""
        if "residual_out" in self.arrays or not self.has_branch:
            return self.arrays.get("residual_out", self.arrays.get("x"))
        act = _ACT[self.options["residual_gate_act"]]
        factor = 1.0 if gate is None else act(gate.astype(jnp.float32))
        return self.arrays["x"].astype(jnp.float32) * (factor * (self.options.get("alpha") or 1.0))

    def reads_branch(self):
        return self.options.get("branch_norm") or bool(self.wants(*_stages.OF_GATE))

    def rows_wanted(self, row, dy):
        """Gradients that have x's shape, as names and dtypes."""
        residual = self.forms["residual"][1] if "residual" in self.wanted else None
        found = {}
        if self.has_branch:
            if residual is not None:
                found["dx"] = residual
            # T is the dtype of branch or dbranch.
            if "x" in self.wanted or not self.reads_branch():
                found["dbranch"] = self.dtype
            return found
        # Without dx T would be the dtype of dy, if that has 16 bits, else the row's.
        if self.wants("x", "residual") or self.dtype not in (dy.dtype, row.dtype):
            found["dx"] = self.dtype
        if residual not in (None, self.dtype):
            found["dresidual"] = residual
        return found

    def of(self, dy, dtotal):
        """By name, for the gradients of y and of the sum."""
        float32 = jnp.float32
        if dy is None:
            dy = jnp.zeros(self.x_shape, float32)
        weight, offset = self.combined_weight()
        gate = self.modulator(_stages.OF_GATE)
        row = self.row(gate)
        inputs = {
            **self.arrays,
            "x": row,
            "dy": dy,
            "weight": weight,
            "bias": self.arrays.get("bias") if "gate" in self.arrays else None,
            "dresidual_in": dtotal,
            "branch": self.arrays["x"] if self.has_branch and self.reads_branch() else None,
            "residual_gate": None if gate is None else self.as_rows(gate),
        }
        inputs = {name: array for name, array in inputs.items() if array is not None}
        outputs = {
            name: jax.ShapeDtypeStruct(self.x_shape, dtype)
            for name, dtype in self.rows_wanted(row, dy).items()
        }
        for name in self.wants("gate", "branch_weight"):
            outputs[f"d{name}"] = _shared._like(inputs[name])
        if self.wants("weight", *_stages.OF_SCALE):
            outputs["dweight"] = jax.ShapeDtypeStruct(weight.shape, float32)
        if (dbias := self.form_of_dbias(weight)) is not None:
            outputs["dbias"] = dbias
        if self.wants(*_stages.OF_GATE):
            shape = inputs["residual_gate"].shape
            outputs["dresidual_gate"] = jax.ShapeDtypeStruct(shape, float32)
        options = {**self.options, "weight_offset": offset}
        names = (*_BACKWARD.words, *_BACKWARD.scalars)
        found = _run(_BACKWARD, {n: options.get(n, 0) for n in names}, inputs, outputs)
        gradients = self.of_parameters(found.get("dweight"), found.get("dbias"))
        gradients.update(self.given_back(found.get("dresidual_gate"), _stages.OF_GATE))
        gradients.update(
            x=found.get("dbranch" if self.has_branch else "dx"),
            residual=found.get("dresidual", found.get("dx")),
            gate=found.get("dgate"),
            branch_weight=found.get("dbranch_weight"),
        )
        return {name: gradient for name, gradient in gradients.items() if name in self.wanted}


_ACT = [lambda v: v, jax.nn.silu, jax.nn.sigmoid, jnp.tanh]


# --- the functions to call ---


def _call(options, arrays, y_dtype):
    """One fastnorm_norm. arrays: by name, or None. y, and the sum where there is a residual."""
    inputs = {
        name: _shared._array(name, arrays[name])
        for name in _FORWARD.inputs
        if name == "x" or arrays.get(name) is not None
    }
    _shared._check_devices(inputs)
    y_dtype = None if y_dtype is None else jnp.dtype(y_dtype)
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
    gate: Any,
    weight: Any = None,
    eps: Optional[float] = 1e-6,
    *,
    bias: Any = None,
    kind: str = "rms",
    gate_act: str = "silu",
    gate_before: bool = False,
    gate_from_rounded: bool = False,
    group_size: int = 0,
    activation: str = "identity",
    weight_offset: float = 0.0,
    rounding: str = "once",
    y_dtype: Any = None,
) -> jax.Array:
    """norm(x) * act(gate), or with gate_before norm(x * act(gate)).

    gate has x's shape and x's dtype or float32. kind is "rms" or "layer", gate_act and activation
    are "identity", "silu", "sigmoid" or "tanh". group_size columns share a statistic, 0: all.
    Weight and bias are [n], or [group_size] for all groups alike."""
    word = _shared._word
    options = {
        **_options(kind, eps, weight_offset, rounding),
        "gate_act": word(_stages.ACTS, "gate_act", gate_act),
        "gate_position": int(gate_before),
        "gate_source": int(gate_from_rounded),
        "group_size": _shared._number("group_size", group_size, int),
        "activation": word(_stages.ACTS, "activation", activation),
    }
    arrays = {"x": x, "gate": _shared._array("gate", gate), "weight": weight, "bias": bias}
    return _call(options, arrays, y_dtype)[0]


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
) -> Tuple[jax.Array, jax.Array]:
    """(rms_norm of the sum, sum) with sum = (alpha * rms_norm(x) + residual) * sum_scale.

    The sum has residual's dtype. branch_eps None is eps. alpha 0 means 1. sum_scale is float32 [1].
    sum_rounding is "once" or "every_step"."""
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
    return _call(options, arrays, y_dtype)


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
) -> Any:
    """norm(sum) * (1 + scale) + shift with sum = x * act(residual_gate) * alpha + residual. y, or
    with a residual (y, sum), where the sum has residual's dtype.

    residual_gate, scale and shift broadcast against x; with an index they are [m, n] or [m, 1], and
    index has a row's number for each row of x. Each table is [n] and added to its modulator. alpha
    0 means 1. plain_scale: the factor is scale, not 1 + it. sum_rounding and modulation_rounding
    are "once" or "every_step".

    branch_norm: rms_norm(x) takes the place of x in the sum. branch_eps None is eps."""
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
    found = _call(options, arrays, y_dtype)
    return found if residual is not None else found[0]
