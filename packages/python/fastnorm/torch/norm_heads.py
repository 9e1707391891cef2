"""Norm, rope and paged cache of query and key heads as PyTorch operators.

The library, the contexts and the streams are those of fastnorm.torch. Tensors keep the strides they
have, so query, key and value may be views of one QKV buffer. norm_heads.h says what each one is.

norm_heads has a backward, by fastnorm_norm_heads_backward: gradients have the dtypes of their
tensors. Parts that write a cache, codes or statistics or read statistics have none, nor has the
call in place. They refuse tensors that require grad while grad is enabled.

Heads spread over ranks: each rank writes `sumsq`, all ranks gather it, and statistics_of_sums()
gives `rstd_in`, and `mean_in` where the norm is "layer".
"""

import functools
from typing import NamedTuple, Optional

import torch
from torch import Tensor

from fastnorm import stages as _stages
from fastnorm import torch as _shared

__all__ = [
    "Part",
    "norm_heads",
    "norm_heads_",
    "statistics_of_sums",
]

_c, FastnormError = _shared._c, _shared.FastnormError
_KINDS = {None: None, "rms": _c.RMS, "layer": _c.LAYER}
_CACHE_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)  # of bytes that hold codes
_NONE, _SELF = -1, -2
_word = _shared._word


@_stages.part_of_heads
class Part(NamedTuple):
    """One tensor of heads and what is done to its rows: norm, then rope, then the stores.

    Codes of the result have the settings of a fastnorm.stages.Quant but for dtype and y; source is
    called quant_source, and also that of a cache, as division and amax_floor are. A scale that is
    not "per_tensor" is written.
    """

    x: Tensor  # [tokens, heads, d]; float32, float16 or bfloat16
    norm: Optional[str] = None  # "rms" or "layer"; None: no norm
    weight: Optional[Tensor] = None  # [d] or [heads, d]; None stands for ones
    bias: Optional[Tensor] = None  # [d] or [heads, d]; None stands for zeros
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
    y: bool = True  # whether the result is returned, or in place stored
    # [pages, page, heads, d] of x's dtype, float8 or int8, or of uint8 with cache_dtype; written
    cache: Optional[Tensor] = None
    cache_scale: Optional[Tensor] = None  # of codes: [1], read
    cache_block: int = 0  # 64 or 128: cache_scale is [pages, page, heads, blocks] and written
    division: str = "reciprocal"  # codes of x * (1 / scale); "divide": of x / scale, as vLLM
    y_dtype: Optional[torch.dtype] = None  # of the result: x's, or float32
    # "layer": float32 [tokens, heads], with across_heads [tokens]; written
    mean: Optional[Tensor] = None
    rstd: Optional[Tensor] = None  # of the shape of mean; written
    sumsq: Optional[Tensor] = None  # the sum of squares, "layer": [.., 2], mean and M; written
    mean_in: Optional[Tensor] = None  # as mean; read, in place of one computed; with rstd_in
    rstd_in: Optional[Tensor] = None  # as rstd; read, in place of one computed
    # codes of the result, [tokens, heads, d] of float8, int8 or pairs of 4 bits; written
    quantized: Optional[Tensor] = None
    cache_pow2: bool = False  # with cache_block: scales of the cache are powers of two
    # of a cache of uint8, as vLLM keeps codes: the dtype whose bytes it has, float8_e4m3fn or
    # float8_e5m2
    cache_dtype: Optional[torch.dtype] = None
    cache_rotation: int = 0  # of the cache's codes: as rotation
    cache_rotation_signs: Optional[Tensor] = None  # [d] or [cache_rotation]; read
    head_weights: Optional[Tensor] = None  # of an indexer's query: [tokens, heads]; read
    # float32, head_weights times the scales of quantized and head_weights_factor; written
    head_weights_out: Optional[Tensor] = None
    head_weights_factor: float = 0.0  # of head_weights_out; 0 stands for 1
    # the last columns beside a cache of codes of the others: [pages, page, heads, e]; written
    cache_tail: Optional[Tensor] = None


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
_CODES = tuple(s for s in _stages.SETTINGS if s.kind in (str, int, bool))
_NUMBERS = (
    "flags",
    "kind",
    "rounding",
    "rope_rounding",
    "rope_offset",
    "cache_scheme",
    "cache_block_size",
    "cache_pow2",
    "cache_rotation",
    *(s.field for s in _CODES),
)
_SCALARS = (
    "eps",
    "weight_offset",
    "head_weights_factor",
    *(s.field for s in _stages.SETTINGS if s.kind is float),
)
_READ = (
    "weight",
    "bias",
    "mean_in",
    "rstd_in",
    "head_weights",
    "cache_rotation_signs",
    *(s.field for s in _stages.SETTINGS if s.kind is None and s.field not in ("scale", "amax")),
)
_WRITTEN = (
    "mean", "rstd", "sumsq", "quantized", "cache", "amax", "head_weights_out", "cache_tail",
)  # fmt: skip
_SCALES = ("scale", "cache_scale")  # read or written, by the scheme
_PLACES = ("y", *_READ, *_WRITTEN, *_SCALES)
_ROPE = "int rope_dim, int[] mrope, bool mrope_interleaved"
_LISTS = (
    "Tensor[] read, Tensor(a!)[] written, Tensor? cos, Tensor? sin, Tensor? positions, "
    f"Tensor? slots, int[] numbers, float[] scalars, int[] places, {_ROPE}"
)


class _Call:
    """The tensors of a call by the names that errors have for them, and how fastnorm.abi makes the
    call. names: of the numbers and the scalars that each part has."""

    def __init__(self, method, tables, rope, names, numbers, scalars):
        rope_dim, mrope, mrope_interleaved = rope
        self._tables, self._parts, self._tensors = tables, [], {}
        self._names, self._numbers, self._scalars = names, numbers, scalars
        self._method, self._rope = method, (rope_dim, tuple(mrope), mrope_interleaved)

    def add(self, tensors):
        """The tensors of the next part by the names of its struct."""
        prefix = f"parts[{len(self._parts)}]."
        own = {prefix + name: t for name, t in tensors.items() if t is not None}
        self._tensors.update(own)
        self._parts.append(own)

    def _build(self, context, stream, view):
        rope_dim, mrope, mrope_interleaved = self._rope
        of_numbers, of_scalars = self._names
        parts = [
            {
                **_of_part(of_numbers, self._numbers, i),
                **_of_part(of_scalars, self._scalars, i),
                **{name.rpartition(".")[2]: view(name) for name in own},
            }
            for i, own in enumerate(self._parts)
        ]
        fields = {
            "flags": _c.MROPE_INTERLEAVED if mrope_interleaved else 0,
            "rope_dim": rope_dim,
            **{f"mrope_{axis}": pairs for axis, pairs in enumerate(mrope)},
            **{name: view(name) for name in self._tables},
        }
        return getattr(context, self._method)(parts, stream, **fields)

    def give_to(self, run):
        key = self._method, self._rope, tuple(self._numbers), tuple(self._scalars)
        run({**self._tensors, **self._tables}, self._build, key=key)


def _of_part(names, values, i):
    """The values of a part, by name."""
    return dict(zip(names, values[i * len(names) : (i + 1) * len(names)]))


def _store(run, x, read, written, cos, sin, positions, slots, numbers, scalars, places, *rope):
    tables = {"cos": cos, "sin": sin, "positions": positions, "slots": slots}
    call = _Call("norm_heads", tables, rope, (_NUMBERS, _SCALARS), numbers, scalars)
    tensors = [*read, *written]
    for i, rows in enumerate(x):
        own = {"x": rows}
        for name, place in _of_part(_PLACES, places, i).items():
            if place != _NONE:
                own[name] = rows if place == _SELF else tensors[place]
        call.add(own)
    call.give_to(run)


# What is written are arguments alone: then a compiler can reuse their memory.
_RUNS = (_shared._run_call, _shared._check_call)
_new = _shared._operator(f"norm_heads(Tensor[] x, {_LISTS}) -> ()", mutated=(2,), runs=_RUNS)(
    _store
)
_in_place = _shared._operator(
    f"norm_heads_(Tensor(b!)[] x, {_LISTS}) -> ()", mutated=(0, 2), runs=_RUNS
)(_store)


# --- the operators with a backward: results are new tensors ---


def _dtype_name(dtype):
    return str(dtype).removeprefix("torch.")


def _heads_gradients(ctx, *gradients):
    """For each tensor of _results."""
    count, (rope_dim, mrope, interleaved) = len(gradients), ctx.rope
    *saved, cos, sin, positions = ctx.saved_tensors
    x, weight, bias = (saved[i * count : (i + 1) * count] for i in range(3))
    needs = [ctx.needs_input_grad[1 + i * count : 1 + (i + 1) * count] for i in range(3)]
    wanted = [
        i for i, dy in enumerate(gradients) if dy is not None and any(need[i] for need in needs)
    ]
    found = [[None] * count for _ in range(3)]
    if wanted:
        parts, dy = [ctx.parts[i] for i in wanted], [gradients[i] for i in wanted]
        numbers, turns = [p[0] for p in parts], any(p[0]["flags"] & _c.ROPE for p in parts)
        own = [need[i] for i in wanted for need in needs]
        given = _backward(
            [t if t.stride(-1) in (0, 1) else t.contiguous() for t in dy],
            [x[i] for i in wanted],
            [weight[i] for i in wanted],
            [bias[i] for i in wanted],
            *((cos, sin, positions) if turns else (None, None, None)),
            [of[name] for of in numbers for name in _BACKWARD_NUMBERS],
            [p[1][name] for p in parts for name in _BACKWARD_SCALARS],
            [ctx.dtypes[i] for i in wanted],
            own,
            rope_dim if turns else 0,
            mrope if turns else [],
            interleaved and turns,
        )
        given = iter(given)
        for i in wanted:
            for of, need in zip(found, needs):
                of[i] = next(given) if need[i] else None
    return (*found[0], *found[1], *found[2], *(None,) * ctx.others)


def _save(ctx, arguments, results):
    x, weight, bias, cos, sin, positions, numbers, scalars, _, *rope = arguments
    first = 1 + 3 * len(x)
    for name, need in zip(("cos", "sin"), ctx.needs_input_grad[first : first + 2]):
        if need:
            raise RuntimeError(
                f"{name}.requires_grad is True; required: False, since fastnorm::norm_heads has no "
                "gradient of tables"
            )
    ctx.set_materialize_grads(False)
    ctx.parts = [
        (_of_part(_NUMBERS, numbers, i), _of_part(_SCALARS, scalars, i)) for i in range(len(x))
    ]
    ctx.dtypes, ctx.rope, ctx.others = [_dtype_name(t.dtype) for t in x], rope, len(arguments) - 3
    # Without a norm x is not read.
    kept = [t if numbers["flags"] & _c.NORM else None for t, (numbers, _) in zip(x, ctx.parts)]
    ctx.save_for_backward(*kept, *weight, *bias, cos, sin, positions)


def _run_results(
    run, x, weight, bias, cos, sin, positions, numbers, scalars, y_dtypes, rope_dim, mrope,
    mrope_interleaved,
):  # fmt: skip
    """y of each part."""
    found = [t.new_empty(t.shape, dtype=getattr(torch, d)) for t, d in zip(x, y_dtypes)]
    tables = {"cos": cos, "sin": sin, "positions": positions}
    rope, names = (rope_dim, mrope, mrope_interleaved), (_NUMBERS, _SCALARS)
    call = _Call("norm_heads", tables, rope, names, numbers, scalars)
    for tensors in zip(x, weight, bias, found):
        call.add(dict(zip(("x", "weight", "bias", "y"), tensors)))
    call.give_to(run)
    return found


_results = _shared._operator(
    "norm_heads_results(Tensor[] x, Tensor?[] weight, Tensor?[] bias, Tensor? cos, Tensor? sin, "
    f"Tensor? positions, int[] numbers, float[] scalars, str[] y_dtypes, {_ROPE}) -> Tensor[]",
    backward=_heads_gradients,
    setup_context=_save,
    runs=_RUNS,
)(_run_results)


_BACKWARD_NUMBERS = ("flags", "kind", "rounding", "rope_offset")
_BACKWARD_SCALARS = ("eps", "weight_offset")


@_shared._operator(
    "norm_heads_backward(Tensor[] dy, Tensor?[] x, Tensor?[] weight, Tensor?[] bias, Tensor? cos, "
    "Tensor? sin, Tensor? positions, int[] numbers, float[] scalars, str[] dtypes, bool[] wanted, "
    f"{_ROPE}) -> Tensor[]",
    backward=_shared._no_second,
    runs=_RUNS,
)
def _backward(
    run, dy, x, weight, bias, cos, sin, positions, numbers, scalars, dtypes, wanted, rope_dim,
    mrope, mrope_interleaved,
):  # fmt: skip
    """dx, dweight and dbias of each part, those that are wanted. x is None where a part has no
    norm; dtypes are those of x."""
    found = []
    tables = {"cos": cos, "sin": sin, "positions": positions}
    rope, names = (rope_dim, mrope, mrope_interleaved), (_BACKWARD_NUMBERS, _BACKWARD_SCALARS)
    call = _Call("norm_heads_backward", tables, rope, names, numbers, scalars)
    for i, (rows, dtype) in enumerate(zip(dy, dtypes)):
        dx, dweight, dbias = wanted[3 * i : 3 * i + 3]
        own = {"dy": rows, "x": x[i], "weight": weight[i]}
        outputs = {}
        if dx:
            outputs["dx"] = rows.new_empty(rows.shape, dtype=getattr(torch, dtype))
        if dweight:
            outputs["dweight"] = weight[i].new_empty(weight[i].shape)
        if dbias:
            outputs["dbias"] = bias[i].new_empty(bias[i].shape)
        found += outputs.values()
        call.add({**own, **outputs})
    call.give_to(run)
    return found


# --- arguments ---


def _is_differentiable(part):
    """Whether a part has but what the backward knows of: y from x, weight and bias."""
    others = ("mean_in", "rstd_in", "scheme", "head_weights", *_WRITTEN)
    return part.y and all(getattr(part, name) is None for name in others)


def _number(part, setting):
    value = getattr(part, setting.of_part)
    if setting.words is not None:
        return _word(setting.words, setting.of_part, value)
    return int(value) if setting.kind is bool else value


_TENSORS = {"x", *_READ, *_WRITTEN, *_SCALES}
_NO_TENSORS = dict.fromkeys(_TENSORS & set(Part._fields))


def _numbers(part):
    """By the names of _NUMBERS."""
    without, has_scale = part._replace(**_NO_TENSORS), part.cache_scale is not None
    if torch.compiler.is_compiling():
        return _numbers_of(without, has_scale)
    return _kept_numbers_of(without, has_scale)


def _numbers_of(part, has_cache_scale):
    """_numbers of a part without tensors."""
    scheme = 0
    if has_cache_scale:
        scheme = _c.PER_BLOCK if part.cache_block else _c.PER_TENSOR
    return {
        "flags": _flags(part),
        "kind": _word(_KINDS, "norm", part.norm) or 0,
        "rounding": _word(_shared._ROUNDING, "rounding", part.rounding),
        "rope_rounding": _word(_stages.STEPS, "rope_rounding", part.rope_rounding),
        "rope_offset": part.rope_offset,
        "cache_scheme": scheme,
        "cache_block_size": part.cache_block,
        "cache_pow2": int(part.cache_pow2),
        "cache_rotation": part.cache_rotation,
        **{s.field: _number(part, s) for s in _CODES},
    }


_kept_numbers_of = functools.lru_cache(maxsize=1024)(_numbers_of)


def _scalars(parts):
    return [getattr(part, name) for part in parts for name in _SCALARS]


def _cache_of(i, part):
    """The cache of a part, as the library takes it: bytes as the codes that they are."""
    cache, dtype = part.cache, part.cache_dtype
    if dtype is not None and (dtype not in _CACHE_DTYPES or cache is None):
        raise FastnormError(
            f"FASTNORM_ERROR_DTYPE: parts[{i}].cache_dtype is {dtype}; required: None, or with a "
            f"cache one of {', '.join(map(str, _CACHE_DTYPES))}"
        )
    if cache is None or (cache.dtype != torch.uint8 and dtype in (None, cache.dtype)):
        return cache
    if cache.dtype != torch.uint8:
        raise FastnormError(
            f"FASTNORM_ERROR_DTYPE: parts[{i}].cache.dtype is {cache.dtype} and cache_dtype is "
            f"{dtype}; required: torch.uint8 or {dtype}"
        )
    if dtype is None:
        raise FastnormError(
            f"FASTNORM_ERROR_DTYPE: parts[{i}].cache.dtype is torch.uint8; required: with it "
            f"cache_dtype, one of {', '.join(map(str, _CACHE_DTYPES))}, which says what the bytes "
            "are"
        )
    return cache.view(dtype)


def _tensors(i, part):
    """The tensors of a part but x and y, by name: those read, those written."""
    read = {name: getattr(part, name) for name in _READ}
    written = {name: getattr(part, name) for name in _WRITTEN}
    written["cache"] = _cache_of(i, part)
    (read if part.scheme == "per_tensor" else written)["scale"] = part.scale
    (written if part.cache_block else read)["cache_scale"] = part.cache_scale
    return [{n: t for n, t in of.items() if t is not None} for of in (read, written)]


def _rope_dim(rope_dim, cos, parts):
    """rope_dim, which must be there where a part turns: a table of W columns may be [P, R] or
    [P, 2 R], and so 2 W or W columns may be meant."""
    if rope_dim is not None:
        return rope_dim
    if cos is None or not any(part.rope for part in parts):
        return 0
    width = cos.shape[-1] if cos.dim() else 0
    raise FastnormError(
        f"FASTNORM_ERROR_ARGUMENT: rope_dim is None and cos.shape is {list(cos.shape)}; required: "
        f"how many columns of a head turn, {2 * width} where the tables are [P, R], {width} where "
        "they are [P, 2 R]"
    )


def _arguments(parts, results, cos, sin, rope_dim, positions, slots, mrope, mrope_interleaved):
    """Arguments of an operator. results: where y of each part goes; None for the call in place."""
    tensors = [_tensors(i, part) for i, part in enumerate(parts)]
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
    return (
        [part.x for part in parts],
        read,
        written,
        cos,
        sin,
        positions,
        slots,
        [number for part in parts for number in _numbers(part).values()],
        _scalars(parts),
        places,
        _rope_dim(rope_dim, cos, parts),
        list(mrope),
        mrope_interleaved,
    )


def _listed(parts):
    parts = list(parts)
    for i, part in enumerate(parts):
        if not isinstance(part.x, Tensor):
            raise FastnormError(
                f"FASTNORM_ERROR_ARGUMENT: parts[{i}].x is {part.x!r}; required: a tensor"
            )
    return parts


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
    """Norm, rope and the stores of query, key and value heads, in one call.

    Caches, codes, statistics and scales are written to the tensors of the parts. x, weight and bias
    may require grad where no part has a cache, codes or statistics; the tables may not.

    With slots, a token is padding if its slot is -1, or if it is behind the last slot. Its
    positions may have any value. Nothing of it is written: its rows of a result are uninitialised
    memory, and the tensors of the parts keep what they had.

    On a CPU positions and slots are checked; on a GPU they must be valid. norm_heads.h has the
    formula; the rotary embedding is that of Su et al., "RoFormer" (2021).

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
        The results of the parts in order, of the shapes of their x; None for a part whose y is
            False.

    Raises:
        FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has the
            status and names the argument.
        ValueError: A word, such as that of rounding, is unknown.
    """
    parts = _listed(parts)
    if not parts:
        return []
    if slots is None and all(map(_is_differentiable, parts)):
        x, weight, bias = zip(*((part.x, part.weight, part.bias) for part in parts))
        arguments = (
            x,
            weight,
            bias,
            cos,
            sin,
            positions,
            [number for part in parts for number in _numbers(part).values()],
            _scalars(parts),
            [_dtype_name(part.y_dtype or part.x.dtype) for part in parts],
            _rope_dim(rope_dim, cos, parts),
            list(mrope),
            mrope_interleaved,
        )
        # The dispatcher takes longer than the call.
        if _shared._compiled.is_plain((*x, *weight, *bias, cos, sin, positions)):
            return _run_results(_shared._run_call, *arguments)
        return _results(*arguments)
    results = [
        part.x.new_empty(part.x.shape, dtype=part.y_dtype) if part.y else None for part in parts
    ]
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
    """As norm_heads, with the results over x of the parts whose y is True. Padding keeps x.

    It has no gradient.

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

    Raises:
        FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has the
            status and names the argument.
        ValueError: A word, such as that of rounding, is unknown.
    """
    parts = _listed(parts)
    if not parts:
        return
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
    """What parts whose columns are spread over ranks take for their statistics.

    "layer" merges means and sums by Chan's formula, which peer.h states. PyTorch computes it; there
    is a gradient only if sums has one.

    Args:
        sums: `sumsq` of each rank in rank order: a list, or an array whose first dimension is the
            ranks.
        columns: How many columns each rank has summed.
        eps: Added to the mean of squares, or to the variance, before the root.
        kind: "rms" or "layer", as the sums were made.

    Returns:
        rstd_in, or for "layer" (mean_in, rstd_in), in float32.

    Raises:
        ValueError: sums is empty, has another shape, or kind is unknown.
    """
    is_layer = _word(_KINDS, "kind", kind) == _c.LAYER
    return _stages.statistics_of_sums(list(sums), columns, eps, is_layer, torch.sqrt)
