"""MLA decode attention of libfastnorm as PyTorch operators.

The library, the contexts and the streams are those of fastnorm.torch. Tensors keep the strides they
have. mla_decode.h says what each tensor is.

There is no backward: decoding has none. An operator refuses tensors that require grad while grad is
enabled.
"""

from typing import NamedTuple, Optional

from torch import Tensor, float32, uint8

from fastnorm import torch as _shared

__all__ = [
    "mla_decode",
    "workspace_for",
]

_c, FastnormError = _shared._c, _shared.FastnormError
_LSE_BASES = {"natural": _c.NATURAL, "2": _c.BASE_2}
_LATENT, _ROPE = 512, 64
_Format = _c.MlaCacheFormat
_FORMATS = {  # by the bytes of a row
    656: _Format.BYTES_656,
    576: _Format.BYTES_576,
    584: _Format.BYTES_584,
}

_REQUIRED = ("q_nope", "q_pe", "ckv")
_INPUTS = (
    *_REQUIRED,
    "kpe",
    "kv_len",
    "page_table",
    "kv_indptr",
    "qo_indptr",
    "cache_scale",
    "indices",
    "topk_length",
    "attention_sink",
    "extra_ckv",
    "extra_kpe",
    "extra_indices",
    "extra_topk_length",
)
_ARGUMENTS = (
    ", ".join(f"Tensor{'' if name in _REQUIRED else '?'} {name}" for name in _INPUTS)
    + ", float sm_scale, bool causal, int max_s_q, str lse_base, int split_tokens, "
    "int total_kv_hint=0"
)


class _Options(NamedTuple):
    """Those of _ARGUMENTS."""

    sm_scale: float
    causal: bool
    max_s_q: int
    lse_base: str = "natural"
    split_tokens: int = 0
    total_kv_hint: int = 0


def _builder(tensors, options, **more):
    """What makes the call of fastnorm.abi for tensors by their names in
    fastnorm_mla_decode_args. more: other fields."""
    if options.lse_base not in _LSE_BASES:
        raise ValueError(
            f"lse_base is {options.lse_base!r}; required: one of {', '.join(_LSE_BASES)}"
        )

    def build(context, stream, view):
        return context.mla_decode(
            stream,
            sm_scale=options.sm_scale,
            causal=int(options.causal),
            max_s_q=options.max_s_q,
            lse_base=_LSE_BASES[options.lse_base],
            split_tokens=options.split_tokens,
            total_kv_hint=options.total_kv_hint,
            **more,
            **{name: view(name) for name in tensors},
        )

    return build


def _named(tensors):
    """Tensors by the names of the C struct, in which caches of bytes are other fields than those of
    rows, and the format of the cache."""
    ckv = tensors["ckv"]
    if ckv.dtype != uint8:
        return tensors, _Format.ROWS
    row = int(ckv.shape[-1])
    if ckv.dim() != 3 or row not in _FORMATS:
        raise FastnormError(
            f"FASTNORM_ERROR_SHAPE: ckv.shape is {list(ckv.shape)} and its dtype is uint8; "
            f"required: [pages, page, row] with rows of {', '.join(map(str, _FORMATS))} bytes"
        )
    names = {"ckv": "cache", "extra_ckv": "extra_cache"}
    return {names.get(n, n): t for n, t in tensors.items()}, _FORMATS[row]


def _outputs(q_nope):
    """Empty o and lse, compact."""
    rows = q_nope.shape[:-1]
    return q_nope.new_empty((*rows, _LATENT)), q_nope.new_empty(rows, dtype=float32)


def _split(arguments):
    """The tensors of _ARGUMENTS by their names in the C struct, the other arguments, and the format
    of the cache."""
    tensors, cache_format = _named(dict(zip(_INPUTS, arguments)))
    return tensors, _Options(*arguments[len(_INPUTS) :]), cache_format


def _decoded(run, arguments, workspace=None, profile=None, **more):
    tensors, options, more["cache_format"] = _split(arguments)
    o, lse = _outputs(tensors["q_nope"])
    tensors.update(o=o, lse=lse, profile=profile)
    key = "mla_decode", options, *more.items()
    run(tensors, _builder(tensors, options, **more), workspace, key=key)
    return o, lse


_RUNS = (_shared._run_call, _shared._check_call)


@_shared._operator(f"mla_decode({_ARGUMENTS}) -> (Tensor, Tensor)", runs=_RUNS)
def _decode(run, *arguments):
    return _decoded(run, arguments)


@_shared._operator(
    f"mla_decode_planned(Tensor(a!) workspace, bool reuse_plan, {_ARGUMENTS}, "
    "Tensor(b!)? profile=None, int profile_events=0) -> (Tensor, Tensor)",
    mutated=(0, 2 + len(_INPUTS) + len(_Options._fields)),
    runs=_RUNS,
)
def _decode_planned(run, workspace, reuse_plan, *arguments):
    if workspace.device != arguments[0].device:
        raise FastnormError(
            f"FASTNORM_ERROR_DEVICE: workspace is on {workspace.device}; "
            f"required: {arguments[0].device}, the device of q_nope"
        )
    count = len(_INPUTS) + len(_Options._fields)
    profile = dict(zip(("profile", "profile_events"), arguments[count:]))
    return _decoded(run, arguments[:count], workspace, reuse_plan=int(reuse_plan), **profile)


# --- views of other layouts ---


def _halves(names, whole, rest, columns=_LATENT):
    """A tensor of 512 columns, or of other `columns`, and one of 64. The second may be None: then
    the first has both."""
    if whole is None:
        raise FastnormError(
            f"FASTNORM_ERROR_ARGUMENT: {names[0]} is None; required: a tensor"
        )
    if rest is not None:
        return whole, rest
    if whole.shape[-1] != columns + _ROPE:
        raise FastnormError(
            f"FASTNORM_ERROR_SHAPE: {names[1]} is None and {names[0]}.shape is "
            f"{list(whole.shape)}; required: a last dimension of {columns + _ROPE}, "
            f"or {names[1]}"
        )
    return whole[..., :columns], whole[..., columns:]


def _rows(name, query):
    """A query as [N, H, columns]."""
    if query.dim() not in (3, 4):
        raise FastnormError(
            f"FASTNORM_ERROR_SHAPE: {name}.shape is {list(query.shape)}; "
            "required: [N, H, columns] or [B, s_q, H, columns]"
        )
    return query if query.dim() == 3 else query.flatten(0, 1)


def _pages(name, cache):
    """A cache as [pages, page, columns]: without the dimension of its one head."""
    return cache.squeeze(2) if cache.dim() == 4 and cache.shape[2] == 1 else cache


def _cache(names, ckv, kpe):
    """A cache as the operators take it: rows in two tensors, or bytes in one."""
    if ckv is not None and ckv.dtype == uint8:
        return _pages(names[0], ckv), kpe
    ckv, kpe = _halves(names, ckv, kpe)
    return _pages(names[0], ckv), _pages(names[1], kpe)


def _views(q_nope, q_pe, ckv, kpe, qo_indptr):
    """The query and the cache as the operators take them, and the leading dimensions of the
    query."""
    ckv, kpe = _cache(("ckv", "kpe"), ckv, kpe)
    of_512 = ckv.dtype == uint8 and ckv.shape[-1] == 584  # columns of a head in place of 576
    q_nope, q_pe = _halves(
        ("q_nope", "q_pe"), q_nope, q_pe, _LATENT - _ROPE if of_512 else _LATENT
    )
    if q_nope.shape[:-1] != q_pe.shape[:-1]:
        raise FastnormError(
            f"FASTNORM_ERROR_SHAPE: q_pe.shape is {list(q_pe.shape)}; "
            f"required: {[*q_nope.shape[:-1], _ROPE]}, as q_nope"
        )
    if q_nope.dim() == 4 and qo_indptr is not None:
        raise FastnormError(
            f"FASTNORM_ERROR_SHAPE: q_nope.shape is {list(q_nope.shape)} with qo_indptr; "
            "required: [N, H, columns], since the requests have different numbers of new tokens"
        )
    lead = q_nope.shape[:-1]
    return (
        _rows("q_nope", q_nope),
        _rows("q_pe", q_pe),
        ckv,
        kpe,
    ), lead


def _extra(extra_ckv, extra_kpe):
    if extra_ckv is None:
        return extra_ckv, extra_kpe
    return _cache(("extra_ckv", "extra_kpe"), extra_ckv, extra_kpe)


# --- the functions to call ---


def mla_decode(
    q_nope: Tensor,
    q_pe: Optional[Tensor],
    ckv: Tensor,
    kpe: Optional[Tensor],
    kv_len: Optional[Tensor],
    page_table: Optional[Tensor],
    *,
    sm_scale: float,
    causal: bool = False,
    kv_indptr: Optional[Tensor] = None,
    qo_indptr: Optional[Tensor] = None,
    max_s_q: int = 0,
    lse_base: str = "natural",
    split_tokens: int = 0,
    workspace: Optional[Tensor] = None,
    reuse_plan: bool = False,
    profile: Optional[Tensor] = None,
    profile_events: int = 0,
    total_kv_hint: int = 0,
    cache_scale: Optional[Tensor] = None,
    indices: Optional[Tensor] = None,
    topk_length: Optional[Tensor] = None,
    attention_sink: Optional[Tensor] = None,
    extra_ckv: Optional[Tensor] = None,
    extra_kpe: Optional[Tensor] = None,
    extra_indices: Optional[Tensor] = None,
    extra_topk_length: Optional[Tensor] = None,
):
    """Attention of new tokens over a paged cache of latents.

    o has the dtype of q_nope and lse is float32, the logarithm of the sum of exponentials of the
    scores. The method is multi-head latent attention in its absorbed form, as DeepSeek-V2
    introduced it; mla_decode.h has the formula.

    There is no gradient. On a CPU lengths and page numbers are checked; on a GPU they must be
    valid.

    Args:
        q_nope: [N, H, 512]: the query times W_UK, in bfloat16 or float16, on a CPU also float32.
            Also [B, s_q, H, 512], and in FlashMLA's layout [B, s_q, H, 576] with q_pe None.
        q_pe: [N, H, 64]: the query's part after rope, in the dtype of q_nope.
        ckv: [pages, page, 512]: the normalised latents, in the dtype of q_nope. In FlashMLA's
            layout [pages, page, 1, 576] with kpe None. Or an FP8 cache, with kpe None: uint8
            [pages, page, row] or [pages, page, 1, row] with rows of 656, 576 or 584 bytes, whose
            meaning mla_decode.h has.
        kpe: [pages, page, 64]: the keys after rope, in the dtype of q_nope.
        kv_len: int32 [B]: cached tokens of each request. None with indices.
        page_table: int32 [B, max_pages], or one list of all pages with kv_indptr. None with
            indices.
        sm_scale: The factor of the scores. It has no default, since models differ.
        causal: Whether a new token sees no later one.
        kv_indptr: int32 [B + 1]: where the pages of each request begin in page_table.
        qo_indptr: int32 [B + 1]: where the new tokens of each request begin. It needs max_s_q.
        max_s_q: The largest number of new tokens of a request. 0 without qo_indptr.
        lse_base: The base of the logarithm: "natural" or "2".
        split_tokens: A multiple of 64: requests are cut at its multiples, so that bits do not
            depend on the batch. 0 leaves the cut to the library.
        workspace: The tensor of workspace_for(), which keeps the plan. None takes memory from
            PyTorch for the call.
        reuse_plan: Whether the workspace has the plan of an equal call, such as that of the layer
            before. Only the contents of query and cache may differ.
        profile: A uint8 tensor on the GPU that receives what each warpgroup did.
        profile_events: How many events of each warpgroup the profile has room for.
        total_kv_hint: The sum of kv_len, which counts in what a query says of bytes.
        cache_scale: float32 [1]: the scale of all codes of rows of 576 bytes. None is 1.
        indices: int32 [B, s_q, topk]: the rows that each new token attends to, page * page_size +
            offset, or -1. In place of kv_len and page_table.
        topk_length: int32 [B] or [B, s_q]: how many indices of a new token count.
        attention_sink: float32 [H]: o is multiplied by exp(lse) / (exp(lse) + exp(sink)).
        extra_ckv: A second cache of the same form, with indices.
        extra_kpe: Its keys, where ckv has kpe.
        extra_indices: int32 [B, s_q, topk]: the rows of the second cache.
        extra_topk_length: int32 [B] or [B, s_q]: how many of them count.

    Returns:
        (o, lse), where o is [N, H, 512] and lse [N, H], or [B, s_q, H, 512] and [B, s_q, H] for a
            query of four dimensions.

    Raises:
        FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has the
            status and names the argument.
        ValueError: A word is unknown, or reuse_plan is True without a workspace.
    """
    views, lead = _views(q_nope, q_pe, ckv, kpe, qo_indptr)
    arguments = (
        *views,
        kv_len,
        page_table,
        kv_indptr,
        qo_indptr,
        cache_scale,
        indices,
        topk_length,
        attention_sink,
        *_extra(extra_ckv, extra_kpe),
        extra_indices,
        extra_topk_length,
        sm_scale,
        causal,
        max_s_q,
        lse_base,
        split_tokens,
        total_kv_hint,
    )
    if reuse_plan and workspace is None:
        raise ValueError(
            "reuse_plan is True without a workspace; "
            "required: the workspace of the call that made the plan"
        )
    if profile is not None or profile_events:
        if workspace is None:
            workspace = _workspace(arguments)
        o, lse = _decode_planned(workspace, reuse_plan, *arguments, profile, profile_events)
    elif workspace is not None:
        o, lse = _decode_planned(workspace, reuse_plan, *arguments)
    else:
        o, lse = _decode(*arguments)
    return o.view(*lead, _LATENT), lse.view(lead)


def _workspace(arguments):
    tensors, options, cache_format = _split(arguments)
    tensors["o"], _ = _outputs(tensors["q_nope"])
    build = _builder(tensors, options, cache_format=cache_format)
    size = _shared._query_call(tensors, build).workspace_bytes
    return tensors["o"].new_empty(size + _shared._ALIGNMENT if size else 0, dtype=uint8)


def workspace_for(
    q_nope,
    q_pe,
    ckv,
    kpe,
    kv_len,
    page_table,
    *,
    sm_scale,
    causal=False,
    kv_indptr=None,
    qo_indptr=None,
    max_s_q=0,
    split_tokens=0,
    cache_scale=None,
    indices=None,
    topk_length=None,
    attention_sink=None,
    extra_ckv=None,
    extra_kpe=None,
    extra_indices=None,
    extra_topk_length=None,
):
    """Memory for mla_decode's workspace. The arguments are those of the calls that will use it.

    Args:
        q_nope: [N, H, 512]: the query times W_UK, in bfloat16 or float16, on a CPU also float32.
            Also [B, s_q, H, 512], and in FlashMLA's layout [B, s_q, H, 576] with q_pe None.
        q_pe: [N, H, 64]: the query's part after rope, in the dtype of q_nope.
        ckv: [pages, page, 512]: the normalised latents, in the dtype of q_nope. In FlashMLA's
            layout [pages, page, 1, 576] with kpe None. Or an FP8 cache, with kpe None: uint8
            [pages, page, row] or [pages, page, 1, row] with rows of 656, 576 or 584 bytes, whose
            meaning mla_decode.h has.
        kpe: [pages, page, 64]: the keys after rope, in the dtype of q_nope.
        kv_len: int32 [B]: cached tokens of each request. None with indices.
        page_table: int32 [B, max_pages], or one list of all pages with kv_indptr. None with
            indices.
        sm_scale: The factor of the scores. It has no default, since models differ.
        causal: Whether a new token sees no later one.
        kv_indptr: int32 [B + 1]: where the pages of each request begin in page_table.
        qo_indptr: int32 [B + 1]: where the new tokens of each request begin. It needs max_s_q.
        max_s_q: The largest number of new tokens of a request. 0 without qo_indptr.
        split_tokens: A multiple of 64: requests are cut at its multiples, so that bits do not
            depend on the batch. 0 leaves the cut to the library.
        cache_scale: float32 [1]: the scale of all codes of rows of 576 bytes. None is 1.
        indices: int32 [B, s_q, topk]: the rows that each new token attends to, page * page_size +
            offset, or -1. In place of kv_len and page_table.
        topk_length: int32 [B] or [B, s_q]: how many indices of a new token count.
        attention_sink: float32 [H]: o is multiplied by exp(lse) / (exp(lse) + exp(sink)).
        extra_ckv: A second cache of the same form, with indices.
        extra_kpe: Its keys, where ckv has kpe.
        extra_indices: int32 [B, s_q, topk]: the rows of the second cache.
        extra_topk_length: int32 [B] or [B, s_q]: how many of them count.

    Returns:
        A uint8 tensor on the device, empty where none is needed.

    Raises:
        FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has the
            status and names the argument.
        ValueError: A word, such as that of rounding, is unknown.
    """
    views, _ = _views(q_nope, q_pe, ckv, kpe, qo_indptr)
    more = (
        kv_len,
        page_table,
        kv_indptr,
        qo_indptr,
        cache_scale,
        indices,
        topk_length,
        attention_sink,
        *_extra(extra_ckv, extra_kpe),
        extra_indices,
        extra_topk_length,
    )
    options = (sm_scale, causal, max_s_q, "natural", split_tokens)
    return _workspace((*views, *more, *options))
