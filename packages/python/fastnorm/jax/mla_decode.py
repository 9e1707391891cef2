"""MLA decode attention over a paged cache of latents as a JAX function, through XLA's foreign
function interface. The library and the devices are those of fastnorm.jax.

mla_decode.h says what each tensor is. There is no gradient: decoding has none, and JAX refuses to
differentiate the call. Under vmap it runs once for each part of the batch.
"""

from typing import Any, Tuple

import jax
import jax.numpy as jnp

from fastnorm import jax as _shared

__all__ = ["mla_decode"]

_c = _shared._c
_LSE_BASES = {"natural": _c.NATURAL, "2": _c.BASE_2}
_LATENT = 512
_Format = _c.MlaCacheFormat
_FORMATS = {  # by the bytes of a row
    656: _Format.BYTES_656,
    576: _Format.BYTES_576,
    584: _Format.BYTES_584,
}


def mla_decode(
    q_nope: Any,
    q_pe: Any,
    ckv: Any,
    kpe: Any,
    kv_len: Any,
    page_table: Any,
    *,
    sm_scale: float,
    causal: bool = False,
    kv_indptr: Any = None,
    qo_indptr: Any = None,
    max_s_q: int = 0,
    lse_base: str = "natural",
    split_tokens: int = 0,
    cache_scale: Any = None,
    indices: Any = None,
    topk_length: Any = None,
    attention_sink: Any = None,
    extra_ckv: Any = None,
    extra_kpe: Any = None,
    extra_indices: Any = None,
    extra_topk_length: Any = None,
) -> Tuple[jax.Array, jax.Array]:
    """Attention of new tokens over a paged cache of latents.

    o has the dtype of q_nope and lse is float32, the logarithm of the sum of exponentials of the
    scores. The method is multi-head latent attention in its absorbed form, as DeepSeek-V2
    introduced it; mla_decode.h has the formula.

    On a CPU lengths and page numbers are checked when the call runs; on a GPU they must be valid.
    JAX refuses to differentiate it.

    Args:
        q_nope: [N, H, 512]: the query times W_UK, in bfloat16 or float16, on a CPU also float32.
            [N, H, 448] with rows of 584 bytes.
        q_pe: [N, H, 64]: the query's part after rope, in the dtype of q_nope.
        ckv: [pages, page, 512]: the normalised latents, in the dtype of q_nope. Or an FP8 cache,
            with kpe None: uint8 [pages, page, row] with rows of 656, 576 or 584 bytes, whose
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
        (o, lse), where o is [N, H, 512] and lse [N, H].

    Raises:
        FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has the
            status and names the argument.
        ValueError: A word, such as that of rounding, is unknown.
    """
    arrays = {
        "q_nope": q_nope,
        "q_pe": q_pe,
        "ckv": ckv,
        "kpe": kpe,
        "kv_len": kv_len,
        "page_table": page_table,
        "kv_indptr": kv_indptr,
        "qo_indptr": qo_indptr,
        "cache_scale": cache_scale,
        "indices": indices,
        "topk_length": topk_length,
        "attention_sink": attention_sink,
        "extra_ckv": extra_ckv,
        "extra_kpe": extra_kpe,
        "extra_indices": extra_indices,
        "extra_topk_length": extra_topk_length,
    }
    required = ("q_nope", "q_pe", "ckv")
    inputs = {
        name: _shared._array(name, value)
        for name, value in arrays.items()
        if value is not None or name in required
    }
    cache_format = _Format.ROWS
    if inputs["ckv"].dtype == jnp.uint8:  # other fields of the C struct than those of rows
        shape = inputs["ckv"].shape
        if len(shape) != 3 or shape[-1] not in _FORMATS:
            raise _shared.FastnormError(
                f"FASTNORM_ERROR_SHAPE: ckv.shape is {list(shape)} and its dtype is uint8; "
                f"required: [pages, page, row] with rows of {', '.join(map(str, _FORMATS))} bytes"
            )
        cache_format = _FORMATS[shape[-1]]
        names = {"ckv": "cache", "extra_ckv": "extra_cache"}
        inputs = {names.get(name, name): array for name, array in inputs.items()}
    _shared._check_devices(inputs)
    number, rows = _shared._number, inputs["q_nope"].shape[:-1]
    options = {
        "sm_scale": number("sm_scale", sm_scale, float),
        "causal": int(causal),
        "lse_base": _shared._word(_LSE_BASES, "lse_base", lse_base),
        "max_s_q": number("max_s_q", max_s_q, int),
        "split_tokens": number("split_tokens", split_tokens, int),
        "cache_format": cache_format,
    }
    outputs = {
        "o": jax.ShapeDtypeStruct((*rows, _LATENT), inputs["q_nope"].dtype),
        "lse": jax.ShapeDtypeStruct(rows, jnp.float32),
    }
    return tuple(
        _shared.run(
            "fastnorm_mla_decode",
            options,
            [_shared.Tensor(n, a) for n, a in _shared.together(inputs).items()],
            [_shared.Tensor(n, form) for n, form in outputs.items()],
        )
    )
