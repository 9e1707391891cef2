"""Norm, rope and paged cache of query and key heads as PyTorch operators, by ctypes alone.

The library and the streams are those of mla_decode.py. Tensors keep the strides they
have, so query, key and value may be views of one QKV buffer. norm_heads.h says what each one is.

norm_heads has a backward, by fastnorm_norm_heads_backward: gradients have the dtypes of their
tensors. Parts that write a cache, codes or statistics or read statistics have none, nor has the
call in place. They refuse tensors that require grad while grad is enabled.

Heads spread over ranks: each rank writes `sumsq`, all ranks gather it, and statistics_of_sums()
gives `rstd_in`, and `mean_in` where the norm is "layer".
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from fastnorm import stages as _stages
from fastnorm.torch import mla_decode as _shared

_c, FastnormError = _shared._c, _shared.FastnormError
_KINDS = {None: None, "rms": _c.RMS, "layer": _c.LAYER}
_ROUNDINGS = {"once": 0, "normalized": 1, "every_step": 2, "once_rw": 3}
_ROPE_ROUNDINGS = {"once": 0, "every_step": 1}
_SCHEMES = {None: 0, **_stages.SCHEMES}
_NONE, _SELF = -1, -2


class Part(NamedTuple):
    """One tensor of heads and what is done to its rows: norm, then rope, then the stores."""

    x: Tensor  # [tokens, heads, d]; float32, float16 or bfloat16
    norm: Optional[str] = None  # "rms" or "layer"
    weight: Optional[Tensor] = None  # [d] or [heads, d]
    bias: Optional[Tensor] = None
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
    y: bool = True  # whether the result is returned, or in place stored
    cache: Optional[Tensor] = None  # [pages, page, heads, d] of x's dtype, float8 or int8; written
    cache_scale: Optional[Tensor] = None  # of codes: [1], read
    cache_block: int = 0  # 64 or 128: cache_scale is [pages, page, heads, blocks] and written
    division: str = "reciprocal"  # codes of x * (1 / scale); "divide": of x / scale, as vLLM
    y_dtype: Optional[torch.dtype] = None  # of the result: x's, or float32
    # Statistics, float32 [tokens, heads], with across_heads [tokens].
    mean: Optional[Tensor] = None  # "layer"; written
    rstd: Optional[Tensor] = None  # written
    sumsq: Optional[Tensor] = None  # the sum of squares, "layer": [.., 2], mean and M; written
    mean_in: Optional[Tensor] = None  # read, in place of one computed; with rstd_in
    rstd_in: Optional[Tensor] = None
    # Codes of the result, [tokens, heads, d] of float8, int8 or pairs of 4 bits; written.
    quantized: Optional[Tensor] = None
    scheme: Optional[str] = None  # "per_tensor", or as of rms_norm_quant; a row is a head
    block_size: int = 0  # "per_block": 64 or 128
    scale: Optional[Tensor] = None  # "per_tensor": [1], read; else written
    global_scale: Optional[Tensor] = None  # "nvfp4": [1], read


def _word(words, name, value):
    if value not in words:
        known = ", ".join(str(word) for word in words)
        raise ValueError(f"{name} is {value!r}; required: one of {known}")
    return words[value]


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


# Fields of a part in the operators' lists. A tensor has a place: its number in `read` and then
# `written`, _NONE where there is none, _SELF for x.
_NUMBERS = (
    "flags",
    "kind",
    "rounding",
    "rope_rounding",
    "rope_offset",
    "quant_scheme",
    "quant_block_size",
    "quant_division",
    "cache_scheme",
    "cache_block_size",
)
_SCALARS = ("eps", "weight_offset")
_READ = ("weight", "bias", "mean_in", "rstd_in", "global_scale")
_WRITTEN = ("mean", "rstd", "sumsq", "quantized", "cache")
_SCALES = ("scale", "cache_scale")  # read or written, by the scheme
_PLACES = ("y", *_READ, *_WRITTEN, *_SCALES)
_LISTS = (
    "Tensor[] read, Tensor(a!)[] written, Tensor? cos, Tensor? sin, Tensor? positions, "
    "Tensor? slots, int[] numbers, float[] scalars, int[] places, int rope_dim, int[] mrope, "
    "bool mrope_interleaved"
)


def _view(name, t):
    return None if t is None else _shared._View(name, t)


def _require_device(device, first, **tensors):
    for name, group in tensors.items():
        name = "a table, positions or slots" if name == "shared" else name
        for t in group:
            if t is not None and t.device != device:
                raise FastnormError(
                    f"{name} is on {t.device}; required: {device}, as parts[0].{first}"
                )


def _stream(device):
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None


def _shared_fields(cos, sin, positions, rope_dim, mrope, mrope_interleaved):
    """Fields of fastnorm_norm_heads_args."""
    return {
        "flags": _c.MROPE_INTERLEAVED if mrope_interleaved else 0,
        "rope_dim": rope_dim,
        "cos": _view("cos", cos),
        "sin": _view("sin", sin),
        "positions": _view("positions", positions),
        **{f"mrope_{axis}": pairs for axis, pairs in enumerate(mrope)},
    }


def _run_with_workspace(call, like):
    size = call.query().workspace_bytes
    memory = like.new_empty(size + _shared._ALIGNMENT if size else 0, dtype=torch.uint8)
    call.run(_shared._aligned(memory)[0] if size else None, size)


def _of_part(names, values, i):
    """The values of a part, by name."""
    return dict(zip(names, values[i * len(names) : (i + 1) * len(names)]))


def _run(
    x,
    read,
    written,
    cos,
    sin,
    positions,
    slots,
    numbers,
    scalars,
    places,
    rope_dim,
    mrope,
    mrope_interleaved,
):
    if not x:
        return
    device = x[0].device
    _require_device(device, "x", x=x, shared=(cos, sin, positions, slots))
    tensors, parts = [*read, *written], []
    for i, rows in enumerate(x):
        part = {**_of_part(_NUMBERS, numbers, i), **_of_part(_SCALARS, scalars, i)}
        part["x"] = _view("x", rows)
        for name, place in _of_part(_PLACES, places, i).items():
            if place != _NONE:
                t = rows if place == _SELF else tensors[place]
                _require_device(device, "x", **{name: (t,)})
                part[name] = _view(name, t)
        parts.append(part)
    fields = _shared_fields(cos, sin, positions, rope_dim, mrope, mrope_interleaved)
    call = _shared._contexts.of(device).norm_heads(
        parts, _stream(device), slots=_view("slots", slots), **fields
    )
    _run_with_workspace(call, x[0])


# What is written are arguments alone: then a compiler can reuse their memory.
_new = _shared._operator(
    "norm_heads", f"Tensor[] x, {_LISTS}", _run, lambda *a: None, (2,), "()"
)
_in_place = _shared._operator(
    "norm_heads_", f"Tensor(b!)[] x, {_LISTS}", _run, lambda *a: None, (0, 2), "()"
)


_BACKWARD_LISTS = (
    "Tensor[] dy, Tensor?[] x, Tensor?[] weight, Tensor(a!)[] written, Tensor? cos, "
    "Tensor? sin, Tensor? positions, int[] flags, int[] kind, float[] eps, "
    "float[] weight_offset, int[] rounding, int[] rope_offset, int[] dx, "
    "int[] dweight, int[] dbias, int rope_dim, int[] mrope, bool mrope_interleaved"
)


def _run_backward(
    dy,
    x,
    weight,
    written,
    cos,
    sin,
    positions,
    flags,
    kind,
    eps,
    weight_offset,
    rounding,
    rope_offset,
    dx,
    dweight,
    dbias,
    rope_dim,
    mrope,
    mrope_interleaved,
):
    """dx, dweight and dbias are positions in `written`, -1 where there is none."""
    device = dy[0].device
    _require_device(
        device, "dy", dy=dy, x=x, weight=weight, output=written, shared=(cos, sin, positions)
    )
    parts = []
    for i, rows in enumerate(dy):
        part = {
            "flags": flags[i],
            "kind": kind[i],
            "eps": eps[i],
            "weight_offset": weight_offset[i],
            "rounding": rounding[i],
            "rope_offset": rope_offset[i],
            "dy": _view("dy", rows),
            "x": _view("x", x[i]),
            "weight": _view("weight", weight[i]),
        }
        for name, at in (("dx", dx[i]), ("dweight", dweight[i]), ("dbias", dbias[i])):
            if at != _NONE:
                part[name] = _view(name, written[at])
        parts.append(part)
    fields = _shared_fields(cos, sin, positions, rope_dim, mrope, mrope_interleaved)
    call = _shared._contexts.of(device).norm_heads_backward(parts, _stream(device), **fields)
    _run_with_workspace(call, dy[0])


_backward = _shared._operator(
    "norm_heads_backward", _BACKWARD_LISTS, _run_backward, lambda *a: None, (3,), "()"
)


class _Differentiable(torch.autograd.Function):
    """norm_heads of parts without caches. `tensors` are x, weight and bias of each part."""

    @staticmethod
    def forward(ctx, parts, shared, *tensors):
        ctx.parts, ctx.shared = parts, shared
        own = [
            part._replace(
                x=x.detach(),
                weight=None if weight is None else weight.detach(),
                bias=None if bias is None else bias.detach(),
            )
            for part, x, weight, bias in zip(parts, *(tensors[i::3] for i in range(3)))
        ]
        ctx.save_for_backward(*tensors, *shared[:2], shared[3])
        results = _results(own)
        cos, sin, rope_dim, positions, mrope, interleaved = shared
        _new(*_arguments(own, results, cos, sin, rope_dim, positions, None, mrope, interleaved))
        return tuple(results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *gradients):
        *tensors, cos, sin, positions = ctx.saved_tensors
        _, _, rope_dim, _, mrope, interleaved = ctx.shared
        if rope_dim is None:
            rope_dim = 2 * cos.shape[-1] if cos is not None else 0
        given = [None] * len(tensors)
        lists = [[] for _ in range(9)]
        dy, x, weight, flags, options, offsets, *places = lists
        written = []
        for i, (part, gradient) in enumerate(zip(ctx.parts, gradients)):
            needed = ctx.needs_input_grad[2 + 3 * i : 5 + 3 * i]
            own = [t if need else None for t, need in zip(tensors[3 * i : 3 * i + 3], needed)]
            if gradient is None or not any(needed):
                continue
            if gradient.stride(-1) not in (0, 1):
                gradient = gradient.contiguous()
            dy.append(gradient)
            x.append(tensors[3 * i] if part.norm else None)
            weight.append(tensors[3 * i + 1])
            flags.append(_flags(part))
            options.append(part)
            offsets.append(part.rope_offset if part.rope else 0)
            for place, t, at in zip(places, own, range(3 * i, 3 * i + 3)):
                place.append(_NONE if t is None else len(written))
                if t is not None:
                    given[at] = t.new_empty(t.shape)
                    written.append(given[at])
        if dy:
            turns = any(part.rope for part in options)
            tables = (cos, sin, positions) if turns else (None, None, None)
            _backward(
                dy,
                x,
                weight,
                written,
                *tables,
                flags,
                [_word(_KINDS, "norm", part.norm) or 0 for part in options],
                [part.eps for part in options],
                [part.weight_offset for part in options],
                [_word(_ROUNDINGS, "rounding", part.rounding) for part in options],
                offsets,
                *places,
                rope_dim if turns else 0,
                list(mrope) if turns else [],
                interleaved and turns,
            )
        return (None, None, *given)


def _needs_gradient(parts):
    return torch.is_grad_enabled() and any(
        t is not None and t.requires_grad
        for part in parts
        for t in (part.x, part.weight, part.bias)
    )


def _results(parts):
    """Empty, where y of each part goes."""
    return [
        part.x.new_empty(part.x.shape, dtype=part.y_dtype) if part.y else None for part in parts
    ]


def _is_differentiable(part):
    """Whether a part has but what the backward knows of."""
    return all(getattr(part, name) is None for name in ("mean_in", "rstd_in", *_WRITTEN))


def _numbers(part):
    """By the names of _NUMBERS."""
    scheme = 0
    if part.cache_scale is not None:
        scheme = _c.PER_BLOCK if part.cache_block else _c.PER_TENSOR
    return {
        "flags": _flags(part),
        "kind": _word(_KINDS, "norm", part.norm) or 0,
        "rounding": _word(_ROUNDINGS, "rounding", part.rounding),
        "rope_rounding": _word(_ROPE_ROUNDINGS, "rope_rounding", part.rope_rounding),
        "rope_offset": part.rope_offset,
        "quant_scheme": _word(_SCHEMES, "scheme", part.scheme),
        "quant_block_size": part.block_size,
        "quant_division": _word(_stages.DIVISIONS, "division", part.division),
        "cache_scheme": scheme,
        "cache_block_size": part.cache_block,
    }


def _tensors(part):
    """The tensors of a part but x and y, by name: those read, those written."""
    read = {name: getattr(part, name) for name in _READ}
    written = {name: getattr(part, name) for name in _WRITTEN}
    (read if part.scheme == "per_tensor" else written)["scale"] = part.scale
    (written if part.cache_block else read)["cache_scale"] = part.cache_scale
    return [{n: t for n, t in of.items() if t is not None} for of in (read, written)]


def _arguments(parts, results, cos, sin, rope_dim, positions, slots, mrope, mrope_interleaved):
    """Arguments of an operator. results: where y of each part goes; None for the call in place."""
    tensors = [_tensors(part) for part in parts]
    read = [t for of, _ in tensors for t in of.values()]
    written, places, next_read = [], [], 0
    for i, (part, (reads, writes)) in enumerate(zip(parts, tensors)):
        place = dict.fromkeys(_PLACES, _NONE)
        for name in reads:
            place[name], next_read = next_read, next_read + 1
        if part.y and results is not None:
            writes = {"y": results[i], **writes}
        for name, t in writes.items():
            place[name] = len(read) + len(written)
            written.append(t)
        if part.y and results is None:
            place["y"] = _SELF
        places += place.values()
    if rope_dim is None:
        rope_dim = 2 * cos.shape[-1] if cos is not None else 0
    return (
        [part.x for part in parts],
        read,
        written,
        cos,
        sin,
        positions,
        slots,
        [number for part in parts for number in _numbers(part).values()],
        [scalar for part in parts for scalar in (part.eps, part.weight_offset)],
        places,
        rope_dim,
        list(mrope),
        mrope_interleaved,
    )


# --- the functions to call ---


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
    """The results of up to 8 parts over the same tokens, in order, None for a part whose y is
    False. Caches, codes, statistics and scales are written to the tensors of the parts.

    cos and sin are [P, R] or [P, 2 R], or one such for each head. rope_dim is 2 R, by default twice
    the width of cos. positions [tokens], or [axes, tokens] with mrope, and slots [at most tokens]
    are int32 or int64. On the CPU they are checked; on a GPU they must be valid.

    x, weight and bias may require grad where no part has a cache, codes or statistics. Tables and
    positions have no gradient."""
    if _needs_gradient(parts) and slots is None and all(map(_is_differentiable, parts)):
        shared = (cos, sin, rope_dim, positions, tuple(mrope), mrope_interleaved)
        tensors = [t for part in parts for t in (part.x, part.weight, part.bias)]
        return list(_Differentiable.apply(tuple(parts), shared, *tensors))
    results = _results(parts)
    _new(
        *_arguments(parts, results, cos, sin, rope_dim, positions, slots, mrope, mrope_interleaved)
    )
    return results


def norm_heads_(
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
    """As norm_heads, with the results over x of the parts whose y is True."""
    for i, part in enumerate(parts):
        if part.y and part.y_dtype not in (None, part.x.dtype):
            raise FastnormError(
                f"FASTNORM_ERROR_DTYPE: parts[{i}].y_dtype is {part.y_dtype}; "
                f"required: {part.x.dtype} or None, since the result replaces x"
            )
    _in_place(
        *_arguments(parts, None, cos, sin, rope_dim, positions, slots, mrope, mrope_interleaved)
    )


def statistics_of_sums(sums, columns, eps, kind="rms"):
    """What parts whose columns are spread over ranks take: rstd_in, or with "layer" (mean_in,
    rstd_in), float32.

    sums has `sumsq` of each rank in rank order: a list, or a tensor whose first dimension is the
    ranks. columns: those that each rank has summed. "layer" merges means and sums by Chan's
    formula. PyTorch computes it; there is a gradient only if sums has one."""
    is_layer = _word(_KINDS, "kind", kind) == _c.LAYER
    return _stages.statistics_of_sums(list(sums), columns, eps, is_layer, torch.sqrt)
