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
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp

from fastnorm import jax as _shared
from fastnorm import stages as _stages

__all__ = [
    "Part",
    "Result",
    "norm_heads",
    "statistics_of_sums",
]

_c, FastnormError = _shared._c, _shared.FastnormError
_KINDS = {None: None, "rms": _c.RMS, "layer": _c.LAYER}
_ROPE_ROUNDINGS = {"once": 0, "every_step": 1}
# Tensors of a part beside x, in the order of XLA's operands and results.
_INPUTS = (
    "weight", "bias", "cache", "cache_scale", "mean_in", "rstd_in", "cache_rotation_signs",
    "head_weights", "cache_tail",
)  # fmt: skip
_OUTPUTS = (
    "y", "cache", "cache_scale", "mean", "rstd", "sumsq", "quantized", "scale", "amax",
    "head_weights_out", "cache_tail",
)  # fmt: skip
_SCHEMES = {None: 0, **_stages.SCHEMES}
_SHARED = ("cos", "sin", "positions", "slots")


@_stages.part_of_heads
class Part(NamedTuple):
    """One tensor of heads and what is done to its rows: norm, then rope, then the stores.

    Codes of the result have the settings of a fastnorm.stages.Quant but for dtype and y; source is
    called quant_source, and also that of a cache, as division and amax_floor are.
    """

    x: Any  # [tokens, heads, d]; float32, float16 or bfloat16
    norm: Optional[str] = None  # "rms" or "layer"; None: no norm
    weight: Any = None  # [d] or [heads, d]; None stands for ones
    bias: Any = None  # [d] or [heads, d]; None stands for zeros
    eps: float = 0.0  # added to the mean of squares, or to the variance
    weight_offset: float = 0.0  # added to the weight in float32
    rounding: str = "once"  # as for rms_norm
    across_heads: bool = False  # one statistic for all heads of a token
    rope: bool = False  # whether rope rotates columns
    rope_offset: int = 0  # first column that is rotated; -1: the last ones
    interleaved: bool = False  # pairs are neighbours, as in GPT-J; else R columns apart
    inverse: bool = False  # rotates back
    from_rounded: bool = False  # rope rotates the norm as rounded to x's dtype
    rope_rounding: str = "once"  # or "every_step": the products of rope are rounded, too
    y: bool = True  # whether the result is returned
    y_dtype: Any = None  # of the result: x's, or float32
    cache: Any = None  # [pages, page, heads, d] of x's dtype, float8 or int8
    cache_scale: Any = None  # of codes: [1], read
    cache_block: int = 0  # 64 or 128: cache_scale is [pages, page, heads, blocks] and written
    division: str = "reciprocal"  # codes of x * (1 / scale); "divide": of x / scale, as vLLM
    heads: Any = None  # (first, number): some heads of x, such as the queries of a fused buffer
    mean: bool = False  # "layer": whether it is returned, float32 [tokens, heads] or [tokens]
    rstd: bool = False  # whether it is returned, of the shape of mean
    sumsq: bool = False  # the sum of squares is returned; "layer": [.., 2], the mean and M
    mean_in: Any = None  # of the shape of mean; read, in place of one computed; with rstd_in
    rstd_in: Any = None  # of the shape of mean; read, in place of one computed
    codes: Any = jnp.float8_e4m3fn  # or float8_e5m2 or int8; their dtype
    cache_pow2: bool = False  # with cache_block: scales of the cache are powers of two
    cache_rotation: int = 0  # of the cache's codes: as rotation
    cache_rotation_signs: Any = None  # of the cache's codes
    head_weights: Any = None  # of an indexer's queries, [tokens, heads]; with codes of one scale
    head_weights_factor: float = 0.0  # what they are multiplied by, besides the scale; 0: 1
    # the last columns beside a cache of codes of the others: [pages, page, heads, e] of x's dtype
    cache_tail: Any = None


class Result(NamedTuple):
    """What became of a part; None for what it does not have."""

    y: Any  # [tokens, heads, d]
    cache: Any  # the cache with the tokens' rows
    cache_scale: Any  # of blocks
    mean: Any = None  # float32 [tokens, heads]; across_heads: [tokens]
    rstd: Any = None  # float32, of the shape of mean
    sumsq: Any = None  # float32, of the shape of mean; "layer": [.., 2]
    quantized: Any = None  # codes, [tokens, heads, d]
    scale: Any = None  # of the codes
    amax: Any = None  # Part.amax, raised to the greatest magnitude of what is quantised
    head_weights: Any = None  # float32 [tokens, heads]: those of the part by scale and factor
    cache_tail: Any = None  # Part.cache_tail with the tokens' rows


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


# Settings that codes alone have. Those of a cache, and the layout, stay without a scheme.
_OF_CODES = tuple(
    s.of_part
    for s in _stages.SETTINGS
    if s.name not in ("scheme", "division", "source", "layout", "amax_floor")
)


def _refuse_settings_of_codes(i, part):
    for name in _OF_CODES:
        value = getattr(part, name)
        if value is not None and not isinstance(value, (bool, int, float)) or value:
            raise FastnormError(
                f"FASTNORM_ERROR_ARGUMENT: parts[{i}].{name} is given without a scheme; required: "
                f"one of {', '.join(_stages.SCHEMES)}, whose codes it is about"
            )


def _describe(i, part):
    word, number = _shared._word, _shared._number
    settings = {s.name: getattr(part, s.of_part) for s in _stages.SETTINGS}
    quant = _stages.Quant(**settings, dtype=part.codes, y=part.y)
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
        "cache_pow2": int(part.cache_pow2),
        "cache_rotation": number("cache_rotation", part.cache_rotation, int),
        "head_weights_factor": number("head_weights_factor", part.head_weights_factor, float),
        **_shared.quant_settings(quant),
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
        more, tensors, made = _shared.quantising(_SCHEMES, shape, quant, f"parts[{i}].")
        scalars.update(more)
        inputs.update(tensors)
        outputs.update(made)
        aliases += [name for name in tensors if name == "amax"]
    else:
        _refuse_settings_of_codes(i, part)
    if "head_weights" in inputs:
        outputs["head_weights_out"] = jax.ShapeDtypeStruct((x.shape[0], heads), jnp.float32)
    if "cache_tail" in inputs:
        tail = inputs["cache_tail"]
        outputs["cache_tail"] = jax.ShapeDtypeStruct(tail.shape, tail.dtype)
        aliases.append("cache_tail")
    return _Described(tuple(scalars.items()), (first, heads), inputs, outputs, tuple(aliases))


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


def _some_of(x, heads):
    """(first, number) of x's heads; None where these are all of them."""
    return None if heads == (0, x.shape[1]) else heads


def _arguments(call, arrays):
    """Those of the library's call: scalars of parts, inputs and outputs."""
    program, fields = call
    described = program.described(arrays)
    inputs, outputs = [], []
    for i, p in enumerate(described):
        at = {name: len(outputs) + j for j, name in enumerate(p.outputs)}
        for name, a in p.inputs.items():
            heads = _some_of(a, p.heads) if name == "x" else None
            result = at[name] if name in p.aliases else None
            inputs.append(_shared.Tensor(name, a, i, heads, result, result is None))
        outputs += [_shared.Tensor(name, form, i) for name, form in p.outputs.items()]
    inputs += [_shared.Tensor(name, arrays[name]) for name in _SHARED if name in arrays]
    return dict(fields), inputs, outputs, [dict(p.scalars) for p in described]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable(call, arrays):
    """norm_heads as a function of its arrays by name. call: parts, and fields of the call."""
    return tuple(_shared.run("fastnorm_norm_heads", *_arguments(call, arrays)))


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
    inputs, outputs = [], []
    for i, p in enumerate(parts):
        for name, a in p.inputs.items():
            heads = _some_of(a, p.heads) if name == "x" else None
            inputs.append(_shared.Tensor(name, a, i, heads))
        outputs += [_shared.Tensor(name, form, i) for name, form in p.outputs.items()]
    inputs += [_shared.Tensor(name, a) for name, a in tables.items()]
    scalars = [p.scalars for p in parts]
    found = iter(
        _shared.run("fastnorm_norm_heads_backward", dict(fields), inputs, outputs, scalars)
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


def _no_rope_dim(parts, tables):
    """0 where no part turns. Else an error: a table of W columns may be [P, R] or [P, 2 R], so that
    2 W or W columns may be meant."""
    if "cos" not in tables or not any(part.rope for part in parts):
        return 0
    shape = tables["cos"].shape
    width = shape[-1] if shape else 0
    raise FastnormError(
        f"FASTNORM_ERROR_ARGUMENT: rope_dim is None and cos.shape is {list(shape)}; required: how "
        f"many columns of a head turn, {2 * width} where the tables are [P, R], {width} where they "
        "are [P, 2 R]"
    )


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
    """Norm, rope and the stores of query, key and value heads, in one call.

    With slots, a token is padding if its slot is -1, or if it is behind the last slot. Its
    positions may have any value, except where a gradient is taken. Nothing of it is written: its
    rows of results that are no caches are uninitialised memory. Gradients take padding as other
    tokens, so a loss must not depend on these rows.

    On a CPU positions and slots are checked when the call runs; on a GPU they must be valid.
    norm_heads.h has the formula; the rotary embedding is that of Su et al., "RoFormer" (2021).

    Args:
        parts: Up to 8 parts, whose x have the same tokens and one dtype.
        cos: Cosines, [P, R] or [P, 2 R], or one such table for each head; P positions, R pairs.
        sin: Sines, of the shape of cos.
        rope_dim: Columns of a head that rope rotates, 2 R. Required where a part has rope.
        positions: int32 or int64, [tokens], or [axes, tokens] with mrope: rows of the tables. None
            counts from 0.
        slots: int32 or int64, [at most tokens]: where each token goes in the caches. -1 is padding.
        mrope: Pairs that each axis of positions rotates, at most 4 numbers.
        mrope_interleaved: Whether axes alternate from pair to pair, as in Qwen3-VL.

    Returns:
        A Result for each part, in order.

    Raises:
        FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has the
            status and names the argument.
        ValueError: A word, such as that of rounding, is unknown.
    """
    described = [_describe(i, part) for i, part in enumerate(parts)]
    tables = {
        name: _shared._array(name, value)
        for name, value in zip(_SHARED, (cos, sin, positions, slots))
        if value is not None
    }
    if rope_dim is None:
        rope_dim = _no_rope_dim(parts, tables)
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
    if not described:
        return []

    # What is no array is part of the program; arrays are by their names.
    program = tuple(
        (p.scalars, p.heads, tuple(p.inputs), tuple(p.outputs.items()), p.aliases)
        for p in described
    )
    arrays = {_key(i, n): a for i, p in enumerate(described) for n, a in p.inputs.items()}
    arrays = _shared.together({**arrays, **tables})
    call = _Program(program), tuple(fields.items())
    found = iter(_shared.differentiable(_differentiable, call, arrays))
    return [Result(*(next(found) if n in p.outputs else None for n in _OUTPUTS)) for p in described]


def statistics_of_sums(sums, columns, eps, kind="rms"):
    """What parts whose columns are spread over ranks take for their statistics.

    "layer" merges means and sums by Chan's formula, which peer.h states. JAX computes it.

    Args:
        sums: `sumsq` of each rank in rank order: a list, or an array whose first dimension is the
            ranks, as jax.lax.all_gather gives it.
        columns: How many columns each rank has summed.
        eps: Added to the mean of squares, or to the variance, before the root.
        kind: "rms" or "layer", as the sums were made.

    Returns:
        rstd_in, or for "layer" (mean_in, rstd_in), in float32.

    Raises:
        ValueError: sums is empty, has another shape, or kind is unknown.
    """
    is_layer = _shared._word({"rms": _c.RMS, "layer": _c.LAYER}, "kind", kind) == _c.LAYER
    sums = [_shared._array(f"sums[{rank}]", of_rank) for rank, of_rank in enumerate(sums)]
    return _stages.statistics_of_sums(sums, columns, eps, is_layer, jnp.sqrt)
