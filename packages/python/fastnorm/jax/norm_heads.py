"""Norm, rope and paged cache of query and key heads as a JAX function, through XLA's foreign
function interface. The library and the devices are those of fastnorm.jax.

A cache is an argument and a result: XLA writes it in place where nothing else needs the argument,
such as one that donate_argnums gives away, and copies it first elsewhere. norm_heads.h says what
each tensor is.

Gradients of y reach x, weight and bias: one fastnorm_norm_heads_backward for all parts, which
computes the statistics again. Caches and tables have none, and a gradient that would need one is a
FastnormError.
"""

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np

from fastnorm import jax as _shared
from fastnorm import stages as _stages

_c, FastnormError = _shared._c, _shared.FastnormError
_TARGET, _BACKWARD_TARGET = "fastnorm_norm_heads", "fastnorm_norm_heads_backward"
_KINDS = {None: None, "rms": _c.RMS, "layer": _c.LAYER}
_ROPE_ROUNDINGS = {"once": 0, "every_step": 1}
# What a part's masks tell of, in the order of the handler's operands and results behind x.
_INPUTS = ("weight", "bias", "cache", "cache_scale", "mean_in", "rstd_in", "scale")
_OUTPUTS = ("y", "cache", "cache_scale", "mean", "rstd", "sumsq", "quantized", "scale")
_SCHEMES = {None: 0, **_stages.SCHEMES}
_SHARED = ("cos", "sin", "positions", "slots")


_shared.register_handlers(_shared._library, _TARGET)
_shared.register_handlers(_shared._library, _BACKWARD_TARGET, "_graph")


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
    # Statistics, float32 [tokens, heads], with across_heads [tokens]. Whether they are returned:
    mean: bool = False  # "layer"
    rstd: bool = False
    sumsq: bool = False  # the sum of squares; "layer": [.., 2], the mean and M
    mean_in: Any = None  # read, in place of one computed; with rstd_in
    rstd_in: Any = None
    scheme: Optional[str] = None  # codes: "per_tensor", or as of rms_norm_quant; a row is a head
    block_size: int = 0  # "per_block": 64 or 128
    codes: Any = jnp.float8_e4m3fn  # or int8; their dtype
    scale: Any = None  # "per_tensor": [1], read


class Result(NamedTuple):
    """What became of a part; None for what it does not have."""

    y: Any
    cache: Any
    cache_scale: Any  # of blocks
    mean: Any = None
    rstd: Any = None
    sumsq: Any = None
    quantized: Any = None
    scale: Any = None


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
        "quant_division": word(_stages.DIVISIONS, "division", part.division),
        "quant_scheme": word(_SCHEMES, "scheme", part.scheme),
        "quant_block_size": number("block_size", part.block_size, int),
    }
    outputs, aliases = {}, []
    if part.y:
        dtype = x.dtype if part.y_dtype is None else jnp.dtype(part.y_dtype)
        outputs["y"] = jax.ShapeDtypeStruct((x.shape[0], heads, x.shape[2]), dtype)
    for name in ("cache", *(["cache_scale"] if block else [])):
        if name in inputs:
            outputs[name] = jax.ShapeDtypeStruct(inputs[name].shape, inputs[name].dtype)
            aliases.append(name)
    rows = (x.shape[0],) if part.across_heads else (x.shape[0], heads)
    for name in ("mean", "rstd", "sumsq"):
        if getattr(part, name):
            shape = (*rows, 2) if name == "sumsq" and part.norm == "layer" else rows
            outputs[name] = jax.ShapeDtypeStruct(shape, jnp.float32)
    if part.scheme is not None:
        shape = (x.shape[0], heads, x.shape[2])
        made = _shared.quant_outputs(_SCHEMES, shape, part.scheme, part.block_size, part.codes)
        outputs.update(made)
        if "scale" in made and "scale" in inputs:
            raise FastnormError(
                f"FASTNORM_ERROR_ARGUMENT: parts[{i}].scale is given; "
                f"required: None, since {part.scheme} makes the scales"
            )
    return _Described(tuple(scalars.items()), (first, heads), inputs, outputs, tuple(aliases))


@functools.lru_cache(maxsize=4096)
def _check(parts, shared, backward=False, context=_shared._checker):
    """Asks the library what it would say. A part: its scalars, its heads, and (name, shape, dtype)
    of its tensors. shared: fields, and tensors. backward: of norm_heads_backward."""
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
    call = context.norm_heads_backward if backward else context.norm_heads
    return call(described, **dict(fields), **found).query()


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
        "quant_scheme",
        "quant_block_size",
    )
    return [*(scalars[name] for name in names), *p.heads, *masks]


def _key(i, name):
    return f"parts[{i}].{name}"


class _Program:
    """The parts without their arrays. Shapes with dtypes can be hashed."""

    def __init__(self, parts):
        self.parts = parts

    def __hash__(self):
        return hash(self.parts)

    def __eq__(self, other):
        return self.parts == other.parts

    def described(self, arrays):
        return [
            _Described(
                scalars, heads, {n: arrays[_key(i, n)] for n in inputs}, dict(outputs), aliases
            )
            for i, (scalars, heads, inputs, outputs, aliases) in enumerate(self.parts)
        ]


def _shared_words(fields, tables, names):
    mask = sum(1 << i for i, name in enumerate(names) if name in tables)
    return np.array([*(value for _, value in fields), mask], np.int32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable(call, arrays):
    """norm_heads as a function of its arrays by name. call: parts, and fields of the call."""
    program, fields = call
    described = program.described(arrays)
    tables = {name: arrays[name] for name in _SHARED if name in arrays}
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
    ffi = jax.ffi.ffi_call(
        _shared.target_of(_TARGET),
        outputs,
        vmap_method="sequential",
        input_output_aliases=aliases,
    )
    scalars = [dict(p.scalars)[name] for p in described for name in ("eps", "weight_offset")]
    return tuple(
        ffi(
            *operands,
            *tables.values(),
            words=np.array([word for p in described for word in _words(p)], np.int32),
            scalars=np.array(scalars, np.float32),
            shared=_shared_words(fields, tables, _SHARED),
        )
    )


def _forward(call, arrays):
    wanted = {name: () for name, primal in arrays.items() if primal.perturbed}
    for name in wanted:
        if name.rpartition(".")[2] not in ("x", "weight", "bias"):
            raise FastnormError(
                f"FASTNORM_ERROR_UNSUPPORTED: a gradient of {name} is wanted; "
                "norm_heads has those of x, weight and bias"
            )
        given = name.rpartition(".")[0] + ".rstd_in"
        if given in arrays:
            raise FastnormError(
                f"FASTNORM_ERROR_UNSUPPORTED: a gradient of {name} is wanted and {given} is given; "
                "the backward is that of statistics of x"
            )
    arrays = {name: primal.value for name, primal in arrays.items()}
    # Caches are not needed again, nor slots.
    kept = {
        name: a
        for name, a in arrays.items()
        if name.rpartition(".")[2] in ("x", "weight", "bias", "cos", "sin", "positions")
    }
    return _differentiable(call, arrays), (wanted, kept, {name: () for name in arrays})


_BACKWARD_FLAGS = (
    _c.NORM | _c.ACROSS_HEADS | _c.ROPE | _c.ROPE_INTERLEAVED | _c.ROPE_INVERSE
)
_BACKWARD_WORDS = ("flags", "kind", "rounding", "rope_offset")
_GRADIENTS = {"x": "dx", "weight": "dweight", "bias": "dbias"}


class _Gradient(NamedTuple):
    """A part of the backward call."""

    number: int  # of the forward's part
    scalars: dict
    heads: tuple
    inputs: dict  # dy, x, weight
    outputs: dict  # dx, dweight, dbias


def _gradient_of(i, part, dy, wanted, kept):
    """None where nothing of the part is wanted."""
    scalars, heads, inputs, _, _ = part
    forward = dict(scalars)
    x = kept[_key(i, "x")]
    norm = forward["flags"] & _c.NORM
    arrays = {"dy": dy}
    if norm:
        arrays["x"] = x
        if "weight" in inputs:
            arrays["weight"] = kept[_key(i, "weight")]
    outputs = {}
    if _key(i, "x") in wanted:
        outputs["dx"] = jax.ShapeDtypeStruct((x.shape[0], heads[1], x.shape[2]), x.dtype)
    for name in ("weight", "bias"):
        if norm and _key(i, name) in wanted:
            outputs[_GRADIENTS[name]] = _shared._like(kept[_key(i, name)])
    if not outputs:
        return None
    fields = {
        "flags": forward["flags"] & _BACKWARD_FLAGS,
        "kind": forward["kind"],
        "rounding": forward["rounding"],
        "rope_offset": forward["rope_offset"],
        "eps": forward["eps"] if norm else 0.0,
        "weight_offset": forward["weight_offset"],
    }
    return _Gradient(i, fields, heads, arrays, outputs)


def _run_gradients(parts, fields, tables):
    """The outputs of one norm_heads_backward: for each part, by name."""
    asked = (
        tuple(
            (tuple(p.scalars.items()), p.heads, (*_tensors(p.inputs), *_tensors(p.outputs)))
            for p in parts
        ),
        (fields, _tensors(tables)),
        True,
    )
    _check(*asked)
    results = [shape for p in parts for shape in p.outputs.values()]
    if _shared.use_command_buffers:
        results.append(_shared.workspace(lambda context: _check(*asked, context)))
    words = []
    for p in parts:
        words += [p.scalars[name] for name in _BACKWARD_WORDS]
        words += p.heads
        words.append(sum(1 << i for i, n in enumerate(("x", "weight")) if n in p.inputs))
        words.append(sum(1 << i for i, n in enumerate(_GRADIENTS.values()) if n in p.outputs))
    call = jax.ffi.ffi_call(
        _shared.target_of(_BACKWARD_TARGET), results, vmap_method="sequential"
    )
    found = iter(
        call(
            *(a for p in parts for a in p.inputs.values()),
            *tables.values(),
            words=np.array(words, np.int32),
            scalars=np.array(
                [p.scalars[n] for p in parts for n in ("eps", "weight_offset")], np.float32
            ),
            shared=_shared_words(fields, tables, _SHARED[:3]),
        )
    )
    return [{name: next(found) for name in p.outputs} for p in parts]


def _backward(call, kept, gradients):
    program, fields = call
    wanted, kept, names = kept
    zero = jax.custom_derivatives.SymbolicZero
    gradients, parts = iter(gradients), []
    for i, part in enumerate(program.parts):
        for name, _ in part[3]:
            gradient = next(gradients)
            if isinstance(gradient, zero) or gradient.dtype == jax.dtypes.float0:
                continue
            if name != "y":
                raise FastnormError(
                    f"FASTNORM_ERROR_UNSUPPORTED: a gradient of the {name} that parts[{i}] stored "
                    "is given; norm_heads has those of y"
                )
            parts.append(_gradient_of(i, part, gradient, wanted, kept))
    parts = [part for part in parts if part is not None]
    tables = {name: kept[name] for name in _SHARED[:3] if name in kept}
    result = dict.fromkeys(names)
    for part, found in zip(parts, _run_gradients(parts, fields, tables) if parts else ()):
        for name, of in _GRADIENTS.items():
            if of not in found:
                continue
            key, value = _key(part.number, name), found[of]
            if name == "x" and value.shape != kept[key].shape:
                # Some heads of x: the others' gradient is zero.
                first, heads = part.heads
                others = kept[key].shape[1] - first - heads
                value = jnp.pad(value, ((0, 0), (first, others), (0, 0)))
            result[key] = value
    return (result,)


_differentiable.defvjp(_forward, _backward, symbolic_zeros=True)


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

    # What is no array is part of the program; arrays are by their names.
    program = tuple(
        (p.scalars, p.heads, tuple(p.inputs), tuple(p.outputs.items()), p.aliases)
        for p in described
    )
    arrays = {_key(i, n): a for i, p in enumerate(described) for n, a in p.inputs.items()}
    arrays.update(tables)
    found = iter(_differentiable((_Program(program), tuple(fields.items())), arrays))
    return [Result(*(next(found) if n in p.outputs else None for n in _OUTPUTS)) for p in described]


def statistics_of_sums(sums, columns, eps, kind="rms"):
    """What parts whose columns are spread over ranks take: rstd_in, or with "layer" (mean_in,
    rstd_in), float32.

    sums has `sumsq` of each rank in rank order: a list, or an array whose first dimension is the
    ranks, such as jax.lax.all_gather gives it. columns: those that each rank has summed. "layer"
    merges means and sums by Chan's formula. JAX computes it."""
    is_layer = _shared._word({"rms": _c.RMS, "layer": _c.LAYER}, "kind", kind) == _c.LAYER
    sums = [_shared._array(f"sums[{rank}]", of_rank) for rank, of_rank in enumerate(sums)]
    return _stages.statistics_of_sums(sums, columns, eps, is_layer, jnp.sqrt)
