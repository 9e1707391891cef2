"""Norm, rope and paged cache of query and key heads as a JAX function, through XLA's foreign
function interface. The library and the devices are those of fastnorm.jax.

A cache is an argument and a result: XLA writes it in place where nothing else needs the argument,
such as one that donate_argnums gives away, and copies it first elsewhere. norm_heads.h says what
each tensor is. JAX refuses to differentiate norm_heads.
"""

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np

from fastnorm import jax as _shared

_c, FastnormError = _shared._c, _shared.FastnormError
_TARGET = "fastnorm_norm_heads"
_KINDS = {None: None, "rms": _c.RMS, "layer": _c.LAYER}
_ROPE_ROUNDINGS = {"once": 0, "every_step": 1}
_DIVISIONS = {"reciprocal": 0, "divide": 1}
# What a part's masks tell of, in the order of the handler's operands and results behind x.
_INPUTS = ("weight", "bias", "cache", "cache_scale")
_OUTPUTS = ("y", "cache", "cache_scale")
_SHARED = ("cos", "sin", "positions", "slots")


def _register():
    for platform, symbol in (("cpu", "cpu"), ("CUDA", "cuda")):
        handler = getattr(_shared._library, f"fastnorm_xla_norm_heads_{symbol}")
        jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(handler), platform=platform)


_register()


class Part(NamedTuple):
    """One tensor of heads and what is done to its rows: norm, then rope, then the stores."""

    x: Any  # [tokens, heads, d]; float32, float16 or bfloat16
    norm: Optional[str] = None  # "rms" or "layer"
    weight: Any = None  # [d] or [heads, d]
    bias: Any = None
    eps: float = 0.0
    weight_offset: float = 0.0
    rounding: str = "once"
    across_heads: bool = False  # one statistic for all heads of a token
    rope: bool = False
    rope_offset: int = 0  # first column that turns; -1: the last ones
    interleaved: bool = False
    inverse: bool = False
    from_rounded: bool = False
    rope_rounding: str = "once"
    y: bool = True  # whether the result is returned
    y_dtype: Any = None  # x's, or float32
    cache: Any = None  # [pages, page, heads, d] of x's dtype, float8 or int8
    cache_scale: Any = None  # of codes: [1], read
    cache_block: int = 0  # 64 or 128: cache_scale is [pages, page, heads, blocks] and written
    division: str = "reciprocal"  # codes of x * (1 / scale); "divide": of x / scale, as vLLM
    heads: Any = None  # (first, number): some heads of x, such as the queries of a fused buffer


class Result(NamedTuple):
    """What became of a part; None for what it does not have."""

    y: Any
    cache: Any
    cache_scale: Any  # of blocks


def _flags(part):
    bits = (
        (part.norm is not None, _c.NORM),
        (part.across_heads, _c.ACROSS_HEADS),
        (part.rope, _c.ROPE),
        (part.interleaved, _c.ROPE_INTERLEAVED),
        (part.inverse, _c.ROPE_INVERSE),
        (part.from_rounded, _c.ROPE_FROM_ROUNDED),
    )
    return sum(bit for on, bit in bits if on)


def _heads(i, part, x):
    if x.ndim != 3:
        raise FastnormError(
            f"FASTNORM_ERROR_SHAPE: parts[{i}].x has {x.ndim} dimensions; "
            "required: 3, [tokens, heads, d]"
        )
    first, number = (0, x.shape[1]) if part.heads is None else map(int, part.heads)
    if first < 0 or number < 0 or first + number > x.shape[1]:
        raise FastnormError(
            f"FASTNORM_ERROR_SHAPE: parts[{i}].heads is ({first}, {number}); "
            f"required: (first, number) of x, which has {x.shape[1]}"
        )
    return first, number


class _Described(NamedTuple):
    """A part as numbers, and its arrays by name. All but the arrays can be hashed."""

    scalars: tuple  # fields of fastnorm_norm_heads_part
    heads: tuple  # (first, number)
    inputs: dict
    outputs: dict  # shapes with dtypes
    aliases: tuple  # names that are both


def _describe(i, part):
    word, number = _shared._word, _shared._number
    kind = word(_KINDS, "norm", part.norm)
    inputs = {"x": _shared._array(f"parts[{i}].x", part.x)}
    for name in _INPUTS:
        if getattr(part, name) is not None:
            inputs[name] = _shared._array(f"parts[{i}].{name}", getattr(part, name))
    x = inputs["x"]
    first, heads = _heads(i, part, x)
    block = number("cache_block", part.cache_block, int)
    scheme = 0 if part.cache_scale is None else _c.PER_BLOCK if block else _c.PER_TENSOR
    scalars = {
        "flags": _flags(part),
        "kind": kind or 0,
        "eps": number("eps", part.eps, float),
        "weight_offset": number("weight_offset", part.weight_offset, float),
        "rounding": word(_shared._ROUNDING, "rounding", part.rounding),
        "rope_rounding": word(_ROPE_ROUNDINGS, "rope_rounding", part.rope_rounding),
        "rope_offset": number("rope_offset", part.rope_offset, int),
        "cache_scheme": scheme,
        "cache_block_size": block,
        "quant_division": word(_DIVISIONS, "division", part.division),
    }
    outputs, aliases = {}, []
    if part.y:
        dtype = x.dtype if part.y_dtype is None else jnp.dtype(part.y_dtype)
        outputs["y"] = jax.ShapeDtypeStruct((x.shape[0], heads, x.shape[2]), dtype)
    for name in ("cache", *(["cache_scale"] if block else [])):
        if name in inputs:
            outputs[name] = jax.ShapeDtypeStruct(inputs[name].shape, inputs[name].dtype)
            aliases.append(name)
    return _Described(tuple(scalars.items()), (first, heads), inputs, outputs, tuple(aliases))


@functools.lru_cache(maxsize=4096)
def _check(parts, shared):
    """Asks the library what it would say. A part: its scalars, its heads, and (name, shape, dtype)
    of its tensors. shared: fields, and tensors."""
    used = 0

    def view(name, shape, dtype, heads=None):
        nonlocal used
        used += 1
        strides, stride = [], 1
        for extent in reversed(shape):
            strides.insert(0, stride)
            stride *= extent
        # Stand-in addresses, 2^44 bytes apart: the library does not touch the memory.
        address, shape = used << 44, list(shape)
        if heads is not None:
            address += heads[0] * strides[1] * dtype.itemsize
            shape[1] = heads[1]
        return SimpleNamespace(
            address=address,
            shape=shape,
            strides=strides,
            itemsize=1,
            dtype=_shared._dtype(name, dtype),
        )

    described = []
    for scalars, heads, tensors in parts:
        described.append(
            {
                **dict(scalars),
                **{
                    name: view(name, shape, dtype, heads if name == "x" else None)
                    for name, shape, dtype in tensors
                },
            }
        )
    fields, tensors = shared
    found = {name: view(name, shape, dtype) for name, shape, dtype in tensors}
    _shared._checker.norm_heads(described, **dict(fields), **found).query()


def _tensors(arrays):
    return tuple((name, a.shape, np.dtype(a.dtype)) for name, a in arrays.items())


def _words(p):
    scalars = dict(p.scalars)
    masks = [
        sum(1 << i for i, name in enumerate(names) if name in of)
        for names, of in ((_INPUTS, p.inputs), (_OUTPUTS, p.outputs))
    ]
    names = (
        "flags",
        "kind",
        "rounding",
        "rope_rounding",
        "rope_offset",
        "cache_scheme",
        "cache_block_size",
        "quant_division",
    )
    return [*(scalars[name] for name in names), *p.heads, *masks]


def norm_heads(
    parts,
    *,
    cos=None,
    sin=None,
    rope_dim=None,
    positions=None,
    slots=None,
    mrope=(),
    mrope_interleaved=False,
):
    """A Result for each of up to 8 parts over the same tokens.

    cos and sin are [P, R] or [P, 2 R], or one such for each head. rope_dim is 2 R, by default twice
    the width of cos. positions [tokens], or [axes, tokens] with mrope, and slots [at most tokens]
    are int32 or int64. On the CPU they are checked when the call runs; on a GPU they must be
    valid."""
    described = [_describe(i, part) for i, part in enumerate(parts)]
    tables = {
        name: _shared._array(name, value)
        for name, value in zip(_SHARED, (cos, sin, positions, slots))
        if value is not None
    }
    if rope_dim is None:
        rope_dim = 2 * tables["cos"].shape[-1] if "cos" in tables and tables["cos"].ndim else 0
    sections = [_shared._number("mrope", pairs, int) for pairs in mrope]
    if len(sections) > 4:
        raise FastnormError(
            f"FASTNORM_ERROR_SHAPE: mrope has {len(sections)} sections; required: at most 4"
        )
    sections += [0] * (4 - len(sections))
    fields = {
        "flags": _c.MROPE_INTERLEAVED if mrope_interleaved else 0,
        "rope_dim": _shared._number("rope_dim", rope_dim, int),
        **{f"mrope_{axis}": pairs for axis, pairs in enumerate(sections)},
    }
    _shared._check_devices(
        {
            **{
                f"parts[{i}].{name}": a
                for i, p in enumerate(described)
                for name, a in p.inputs.items()
            },
            **tables,
        }
    )
    _check(
        tuple(
            (
                p.scalars,
                p.heads,
                (
                    *_tensors({n: a for n, a in p.inputs.items() if n not in p.aliases}),
                    *_tensors(p.outputs),
                ),
            )
            for p in described
        ),
        (tuple(fields.items()), _tensors(tables)),
    )
    if not described:
        return []

    operands, outputs, aliases = [], [], {}
    for p in described:
        at = {}
        for name, a in p.inputs.items():
            at[name] = len(operands)
            operands.append(a)
        for name, shape in p.outputs.items():
            if name in p.aliases:
                aliases[at[name]] = len(outputs)
            outputs.append(shape)
    words = [word for p in described for word in _words(p)]
    scalars = [dict(p.scalars)[name] for p in described for name in ("eps", "weight_offset")]
    mask = sum(1 << i for i, name in enumerate(_SHARED) if name in tables)
    call = jax.ffi.ffi_call(
        _TARGET, outputs, vmap_method="sequential", input_output_aliases=aliases
    )
    found = iter(
        call(
            *operands,
            *tables.values(),
            words=np.array(words, np.int32),
            scalars=np.array(scalars, np.float32),
            shared=np.array([*fields.values(), mask], np.int32),
        )
    )
    return [Result(*(next(found) if n in p.outputs else None for n in _OUTPUTS)) for p in described]
