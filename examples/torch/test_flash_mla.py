#!/usr/bin/env python3
"""What FlashMLA's tests of decoding ask, of the PyTorch operator: dense requests, and rows with FP8
codes that are selected from one cache or two. The last line is the count.

Shapes, features and tolerances are those of tests/test_flash_mla_dense_decoding.py and
test_flash_mla_sparse_decoding.py of github.com/deepseek-ai/FlashMLA of 2026-04-29, with fewer
requests and shorter ones among the largest. Run with a Python that has PyTorch and NumPy.
"""

import dataclasses
import math
import os
import sys
from pathlib import Path
from typing import Optional

sys.dont_write_bytecode = True
sys.path.append(str(Path(__file__).resolve().parents[1]))
from norm_testing import Suite, arguments, missing, use_library  # noqa: E402

LATENT, ROPE = 512, 64
# Absolute, relative, and of one minus the cosine. An element is right by either of the first two.
DENSE, SPARSE = (8e-4, 2.01 / 128, 5e-6), (1e-3, 2.01 / 128, 5e-6)
LSE = (1e-6, 8.01 / 65536, 5e-6)
NO_PAGE = 2147480000


def flash_mla_with_kvcache(
    q, k_cache, block_table, cache_seqlens, softmax_scale=None, causal=False, indices=None,
    attn_sink=None, extra_k_cache=None, extra_indices=None, topk_length=None,
    extra_topk_length=None,
):  # fmt: skip
    """FlashMLA's function by this library's: a call for each KV head, lse as [batch, heads, new
    tokens], and plus infinity as the lse of an empty row."""
    kv_heads = k_cache.shape[2]
    found = []
    for head, own in enumerate(q.chunk(kv_heads, 2)):
        found.append(
            fm.mla_decode(
                own, None, k_cache[:, :, head], None, cache_seqlens, block_table,
                sm_scale=softmax_scale or q.shape[-1] ** -0.5, causal=causal, indices=indices,
                topk_length=topk_length, attention_sink=attn_sink,
                extra_ckv=None if extra_k_cache is None else extra_k_cache[:, :, head],
                extra_indices=extra_indices, extra_topk_length=extra_topk_length,
            )
        )  # fmt: skip
    o, lse = (torch.cat(parts, 2) for parts in zip(*found))
    return o, torch.where(lse == -math.inf, math.inf, lse).transpose(1, 2)


def spread_out(t):
    """The same numbers as a view of a larger tensor."""
    shape = [n + (128 if d == t.dim() - 1 else 1) for d, n in enumerate(t.shape)]
    view = torch.empty(shape, dtype=t.dtype, device=t.device)[tuple(slice(n) for n in t.shape)]
    return view.copy_(t)


def placed(t):
    """A tensor, or None, on the device, with the same strides."""
    if t is None or t.device == DEVICE:
        return t
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=DEVICE).copy_(t)


def compare(suite, name, found, wanted, tolerance):
    most, relative, cosine = tolerance
    found, wanted = found.double(), wanted.double()
    for value in (math.inf, -math.inf):
        same = (found == value) == (wanted == value)
        if not suite.check(f"{name}: {value} where it belongs", bool(same.all())):
            return
    found, wanted = (torch.where(t.isinf(), 0.0, t) for t in (found, wanted))
    error = (found - wanted).abs()
    right = (error < most) | (error / (wanted.abs() + 1e-6) < relative)
    suite.check(f"{name}: elements", bool(right.all()), f"{error.max()}, {(~right).sum()} wrong")
    if float((wanted * wanted).sum()) > 1e-12:
        apart = 1 - 2 * float((found * wanted).sum() / (found**2 + wanted**2).sum())
        suite.check(f"{name}: cosine", abs(apart) <= cosine, apart)


def attend(q, rows, allowed, scale, sink=None):
    """o and lse of [new tokens, heads, d] over [rows, d], as FlashMLA's reference in single
    precision has them, in double precision. allowed: [new tokens, rows]."""
    scores = torch.einsum("thd,rd->thr", q.double(), rows.double()) * scale
    scores.masked_fill_(~allowed[:, None], -math.inf)
    lse = torch.logsumexp(scores, -1)
    o = torch.exp(scores - lse[..., None]) @ rows[:, :LATENT].double()
    if sink is not None:
        o *= (1 / (1 + torch.exp(sink.double() - lse)))[..., None]
    empty = lse == -math.inf
    return torch.where(empty[..., None], 0.0, o), torch.where(empty, math.inf, lse)


# --- dense ---


@dataclasses.dataclass
class Dense:
    b: int
    s_q: int
    s_k: int
    h_q: int
    h_kv: int = 1
    varlen: bool = False
    causal: bool = False
    zero_lengths: bool = False


def dense_cases():
    lengths = (20, 140, 1000)
    shapes = [(b, s_q) for b in (1, 2, 6) for s_q in (1, 2, 4)]
    heads = [(1, 1), (3, 1), (3, 3), (9, 1), (9, 3), (63, 1), (64, 1), (64, 2), (64, 8), (126, 2),
             (128, 1), (128, 8)]  # fmt: skip
    # Each of their values of a parameter with each other one, but not all products.
    for i, (h_q, h_kv) in enumerate(heads):
        for j, (b, s_q) in enumerate(shapes):
            if (i + j) % 3 == 0:
                yield Dense(b, s_q, lengths[(i + j // 3) % 3], h_q, h_kv, j % 2 == 1, i % 2 == 1)
    for h_q, h_kv in heads[::2]:
        for causal in (False, True):
            yield Dense(12, 2, 300, h_q, h_kv, True, causal, zero_lengths=True)


def run_dense(suite, case, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    page, wide = 64, LATENT + ROPE

    def numbers(*shape):
        return (torch.randn(shape, generator=generator) / 10).clamp(-1, 1).to(dtype)

    lengths = torch.full((case.b,), case.s_k)
    if case.varlen:
        normal = case.s_k + torch.randn(case.b, generator=generator) * case.s_k / 2
        lengths = normal.long().clamp_min(case.s_q)
    if case.zero_lengths:
        lengths[torch.randn(case.b, generator=generator) > 0] = 0
    width = -(-int(lengths.max()) // 256) * 256 // page
    table = torch.randperm(case.b * width, generator=generator).view(case.b, width)
    q = numbers(case.b, case.s_q, case.h_q, wide)
    cache = numbers(case.b * width, page, case.h_kv, wide)
    keys = []
    for b, length in enumerate(lengths.tolist()):
        pages = -(-length // page)
        keys.append(cache[table[b, :pages]].flatten(0, 1)[:length].clone())
        cache[table[b, pages:]] = math.nan
        if length % page:
            cache[table[b, pages - 1], length % page :] = math.nan
        table[b, pages:] = NO_PAGE
    o, lse = flash_mla_with_kvcache(
        q.to(DEVICE), cache.to(DEVICE), table.int().to(DEVICE), lengths.int().to(DEVICE),
        causal=case.causal,
    )  # fmt: skip
    wanted = []
    for b, length in enumerate(lengths.tolist()):
        last = torch.arange(case.s_q)[:, None] + length - case.s_q
        seen = torch.arange(length)[None] <= (last if case.causal else length)
        of_heads = [
            attend(own, keys[b][:, head], seen, wide**-0.5)
            for head, own in enumerate(q[b].chunk(case.h_kv, 1))
        ]
        wanted.append([torch.cat(parts, 1) for parts in zip(*of_heads)])
    name = f"{str(dtype).removeprefix('torch.')} {case}"
    exact_o, exact_lse = (torch.stack(parts) for parts in zip(*wanted))
    compare(suite, f"{name}: out", o.cpu(), exact_o.to(dtype), DENSE)
    compare(suite, f"{name}: lse", lse.cpu(), exact_lse.transpose(1, 2), LSE)


def test_dense(suite):
    for seed, case in enumerate(dense_cases()):
        run_dense(suite, case, (torch.bfloat16, torch.float16)[seed % 4 == 3], seed)


# --- selected rows ---


@dataclasses.dataclass
class Sparse:
    b: int
    h_q: int
    s_q: int
    d: int
    s_k: int
    topk: int
    page: int
    varlen: bool = True
    topk_length: bool = False
    extra: Optional[tuple] = None  # tokens, topk, tokens of a page
    extra_topk_length: bool = False
    sink: bool = True
    all_invalid: bool = False
    zero_lengths: bool = False


def sparse_cases():
    shapes = [(512, 64, 2), (512, 64, 64), (512, 64, 69), (1024, 576, 2), (1024, 576, 61)]
    for d in (576, 512):
        for i, shape in enumerate(shapes):
            for s_q in (1, 3):
                yield Sparse(4, 64, s_q, d, *shape, topk_length=d == 512 and i % 2 == 1)
    for i, shape in enumerate(shapes):
        for j, extra in enumerate(shapes):
            if (i + j) % 2 == 0:
                yield Sparse(4, 64, 1 + j % 3, 512, *shape, topk_length=i % 2 == 1, extra=extra,
                             extra_topk_length=j % 2 == 0)  # fmt: skip
    for d, topk_length in ((576, False), (512, True)):
        yield Sparse(2, 128, 1, d, 2046, 2048, 64, False, topk_length)
    yield Sparse(1, 128, 1, 512, 2046, 2048, 576, extra=(2046, 2048, 2))
    yield Sparse(13, 64, 3, 512, 512, 64, 61, False, extra=(650, 576, 53))
    # Nothing to attend to, in some requests or in all.
    for d, extra in ((576, None), (512, None), (512, (512, 64, 61))):
        for all_invalid, zero_lengths, sink in (
            (True, True, True), (True, False, False), (False, True, True), (False, True, False),
        ):  # fmt: skip
            yield Sparse(6, 64, 3, d, 650, 576, 53, topk_length=d == 512, extra=extra, sink=sink,
                         all_invalid=all_invalid, zero_lengths=zero_lengths)  # fmt: skip


def quantised(rows):
    """Codes, scales and numbers of [pages, page, columns] in blocks: powers of two, at least
    those of 1e-4."""
    pages, page, columns = rows.shape
    width = 128 if columns == 512 else 64
    blocks = rows.float().unflatten(-1, (-1, width))
    scales = torch.exp2((blocks.abs().amax(-1) / 448).clamp_min(1e-4).log2().ceil())
    codes = (blocks / scales[..., None]).to(torch.float8_e4m3fn)
    numbers = (codes.float() * scales[..., None]).flatten(-2).bfloat16()
    return codes.flatten(-2).view(torch.uint8), scales, numbers


def stored(rows):
    """A cache of bytes for [pages, page, d] of bf16, with unused bytes behind each page as
    FlashMLA's tests have them, and the numbers that it holds."""
    pages, page, d = rows.shape
    codes, scales, numbers = quantised(rows[..., :-ROPE])
    rope = rows[..., -ROPE:].contiguous()
    numbers = torch.cat([numbers, rope], -1)
    if d == LATENT + ROPE:
        cache = torch.empty(pages, page + 1, 656, dtype=torch.uint8)[:, :page]
        cache.copy_(torch.cat([codes, scales.view(torch.uint8), rope.view(torch.uint8)], -1))
        return cache, numbers
    whole = -(-page * 584 // 576) * 576
    cache = torch.empty(pages, whole, dtype=torch.uint8)[:, : page * 584]
    cache[:, : page * 576] = torch.cat([codes, rope.view(torch.uint8)], -1).flatten(1)
    behind = cache[:, page * 576 :].unflatten(1, (page, 8))
    # As bytes: powers of two; NaN has no exponent and becomes NaN.
    exponents = torch.where(scales.isnan(), 255.0, scales.log2() + 127)
    behind[..., :7] = exponents.to(torch.uint8)
    return cache.unflatten(1, (page, 584)), numbers


def make_scope(case, generator, s_k, topk, page, has_length):
    """A cache, the indices of each new token, how many count, and the rows in double precision."""
    lengths = torch.full((case.b,), s_k)
    if case.varlen:
        normal = s_k + torch.randn(case.b, generator=generator) * s_k / 2
        lengths = normal.long().clamp_min(case.s_q)
    if case.zero_lengths:
        lengths[torch.randn(case.b, generator=generator) > 0] = 0
    width = max(-(-int(lengths.max()) // (4 * page)), 1) * 4
    table = torch.randperm(case.b * width, generator=generator).view(case.b, width)
    rows = torch.randn(case.b * width, page, case.d, generator=generator) / 10
    rows = rows.clamp(-1, 1).bfloat16()
    indices = torch.full((case.b, case.s_q, topk), -1)
    for b, length in enumerate(lengths.tolist()):
        for i in range(0 if case.all_invalid else case.s_q):
            chosen = torch.randperm(length, generator=generator)[:topk]
            indices[b, i, : len(chosen)] = table[b, chosen // page] * page + chosen % page
            # Invalid ones lie among the others, too.
            indices[b, i] = indices[b, i, torch.randperm(topk, generator=generator)]
    count = None
    if has_length:
        count = torch.randint(0, topk + 1, (case.b,), generator=generator).int()
    counted = torch.full((case.b,), topk) if count is None else count
    used = indices.masked_fill(torch.arange(topk) >= counted.view(-1, 1, 1), -1)
    unused = torch.ones(rows.shape[0] * page, dtype=torch.bool)
    unused[used[used >= 0]] = False
    rows.view(-1, case.d)[unused] = math.nan
    cache, numbers = stored(rows)
    return cache.unsqueeze(2), indices.int(), count, used, numbers.view(-1, case.d)


def run_sparse(suite, case, seed):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(case.b, case.s_q, case.h_q, case.d, generator=generator).clamp(-1, 1)
    q = q.bfloat16()
    sink = None
    if case.sink:
        sink, kind = torch.randn(2, case.h_q, generator=generator)
        sink = torch.where(kind > 0.5, math.inf, torch.where(kind < -0.5, -math.inf, sink))
    scopes = [make_scope(case, generator, case.s_k, case.topk, case.page, case.topk_length)]
    if case.extra is not None:
        scopes.append(make_scope(case, generator, *case.extra, case.extra_topk_length))
    scale = case.d**-0.55
    cache, indices, count, _, _ = scopes[0]
    extra = scopes[1] if len(scopes) > 1 else (None,) * 5
    found = flash_mla_with_kvcache(
        placed(spread_out(q)), placed(cache), None, None, scale,
        indices=placed(spread_out(indices)), attn_sink=placed(sink),
        extra_k_cache=placed(extra[0]), extra_indices=placed(extra[1]), topk_length=placed(count),
        extra_topk_length=placed(extra[2]),
    )  # fmt: skip
    o, lse = (t.cpu() for t in found)
    wanted = []
    for b in range(case.b):
        for i in range(case.s_q):
            chosen = [numbers[used[b, i][used[b, i] >= 0]] for *_, used, numbers in scopes]
            keys = torch.cat(chosen)
            seen = torch.ones(1, len(keys), dtype=torch.bool)
            wanted.append([t[0] for t in attend(q[b, i][None], keys, seen, scale, sink)])
    exact_o, exact_lse = (torch.stack(t).unflatten(0, (case.b, -1)) for t in zip(*wanted))
    compare(suite, f"{case}: out", o, exact_o.bfloat16(), SPARSE)
    compare(suite, f"{case}: lse", lse, exact_lse.transpose(1, 2), LSE)


def test_sparse(suite):
    for seed, case in enumerate(sparse_cases()):
        run_sparse(suite, case, seed)


if __name__ == "__main__":
    parser = arguments(__doc__.splitlines()[0])
    options = parser.parse_args()
    why = missing("torch", "numpy")
    suite = Suite("torch flash_mla", options)
    if why:
        suite.skip("what FlashMLA's tests ask", why)
        suite.write()
        suite.finish()
    import torch

    os.environ["FASTNORM_LIBRARY"] = use_library(options)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages" / "python"))
    import fastnorm.torch.mla_decode as fm

    DEVICE = torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")
    suite.results["versions"]["torch"] = torch.__version__
    suite.run([test_dense, test_sparse])
    suite.finish()
