"""The stages of fastnorm_norm as JAX functions, through XLA's foreign function interface: the gated
norm, norm with residual and norm, and the gated residual with a modulation. The library and the
devices are those of fastnorm.jax.

docs/gated_norm.md, docs/sandwich_norm.md and docs/adaln.md say what each setting means. The
functions have no gradient: JAX refuses to differentiate them. Under vmap they run once for each
element.
"""

import functools
from types import SimpleNamespace
from typing import Any, Optional, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from fastnorm import jax as _shared

_c, FastnormError = _shared._c, _shared.FastnormError
_TARGET = "fastnorm_norm_stages"
_KINDS = {"rms": _c.RMS, "layer": _c.LAYER}
_ACTS = {"identity": 0, "silu": 1, "sigmoid": 2, "tanh": 3}
_STEPS = {"once": 0, "every_step": 1}
_PLAIN_SCALE = 8  # FASTNORM_NORM_MODULATION_PLAIN_SCALE
# In the order of the handler.
_INPUTS = (
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
)
_OUTPUTS = ("y", "residual_out")
_WORDS = (
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
)
_SCALARS = ("eps", "weight_offset", "branch_eps", "branch_weight_offset", "alpha")


_shared.register_handlers(_shared._library, _TARGET)


@functools.lru_cache(maxsize=4096)
def _check(tensors, options):
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
    _shared._checker.call(kind, **fields).query()


def _call(options, arrays, y_dtype):
    """One fastnorm_norm. arrays: by name, or None. y, and the sum where there is a residual."""
    inputs = {
        name: _shared._array(name, arrays[name])
        for name in _INPUTS
        if name == "x" or arrays.get(name) is not None
    }
    _shared._check_devices(inputs)
    x = inputs["x"]
    outputs = {"y": _shared._like(x, None if y_dtype is None else jnp.dtype(y_dtype))}
    if "residual" in inputs:
        outputs["residual_out"] = _shared._like(inputs["residual"])
    tensors = tuple(
        (name, a.shape, np.dtype(a.dtype)) for name, a in (*inputs.items(), *outputs.items())
    )
    _check(tensors, tuple(options.items()))
    masks = [
        sum(1 << names.index(name) for name in of)
        for names, of in ((_INPUTS, inputs), (_OUTPUTS, outputs))
    ]
    call = jax.ffi.ffi_call(
        _shared.target_of(_TARGET), list(outputs.values()), vmap_method="sequential"
    )
    found = call(
        *inputs.values(),
        words=np.array([*(options.get(name, 0) for name in _WORDS), *masks], np.int32),
        scalars=np.array([options.get(name, 0.0) for name in _SCALARS], np.float32),
    )
    return tuple(found)


def _options(kind, eps, weight_offset=0.0, rounding="once", residual_rounding="exact"):
    word = _shared._word
    return {
        "kind": word(_KINDS, "kind", kind),
        "eps": _shared._eps(eps),
        "weight_offset": _shared._number("weight_offset", weight_offset, float),
        "rounding": word(_shared._ROUNDING, "rounding", rounding),
        "residual_rounding": word(
            _shared._RESIDUAL_ROUNDING, "residual_rounding", residual_rounding
        ),
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
        "gate_act": word(_ACTS, "gate_act", gate_act),
        "gate_position": int(gate_before),
        "gate_source": int(gate_from_rounded),
        "group_size": _shared._number("group_size", group_size, int),
        "activation": word(_ACTS, "activation", activation),
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
    branch = _options(
        "rms", eps if branch_eps is None else branch_eps, branch_weight_offset, branch_rounding
    )
    options = {
        **_options("rms", eps, weight_offset, rounding, residual_rounding),
        "branch_norm": 1,
        "branch_kind": branch["kind"],
        "branch_eps": branch["eps"],
        "branch_weight_offset": branch["weight_offset"],
        "branch_rounding": branch["rounding"],
        "branch_rounded": int(branch_rounded),
        "alpha": _shared._number("alpha", alpha, float),
        "sum_rounding": _shared._word(_STEPS, "sum_rounding", sum_rounding),
    }
    arrays = {
        "x": x,
        "residual": _shared._array("residual", residual),
        "branch_weight": branch_weight,
        "weight": weight,
        "sum_scale": sum_scale,
    }
    return _call(options, arrays, y_dtype)


def modulated_norm(
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
    plain_scale: bool = False,
    weight_offset: float = 0.0,
    rounding: str = "once",
    residual_rounding: str = "exact",
    sum_rounding: str = "once",
    modulation_rounding: str = "once",
    y_dtype: Any = None,
) -> Any:
    """adaLN: norm(x * residual_gate + residual) * (1 + scale) + shift, and with a residual
    (that, sum).

    residual_gate, scale and shift broadcast against x; with an index they are [m, n] or [m, 1], and
    index has a row's number for each row of x. Each table is [n] and added to its modulator.
    plain_scale: the factor is scale, not 1 + it. sum_rounding and modulation_rounding are "once" or
    "every_step"."""
    word = _shared._word
    options = {
        **_options(kind, eps, weight_offset, rounding, residual_rounding),
        "flags": _PLAIN_SCALE if plain_scale else 0,
        "residual_gate_act": word(_ACTS, "residual_gate_act", residual_gate_act),
        "sum_rounding": word(_STEPS, "sum_rounding", sum_rounding),
        "modulation_rounding": word(_STEPS, "modulation_rounding", modulation_rounding),
    }
    arrays = {
        "x": x,
        "residual": residual,
        "weight": weight,
        "bias": bias,
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
