#!/usr/bin/env python3
"""Tests of the PyTorch operators of norm_heads, on the CPU or a CUDA device with kernels for it.

Values are compared with double precision: each element is within the unit roundoff of its dtype for
each rounding on the way, and 2^-18 for single precision. Both are shares of what the element is the
sum of. Run with a Python that has PyTorch and NumPy. The last line is the count.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.append(str(Path(__file__).resolve().parents[1]))
from norm_testing import Suite, View, arguments, missing, use_library  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
QUERY, KEY, HEAD, PAGE, EPS = 4, 2, 64, 3, 1e-6


def tables(rows, pairs, dtype=None):
    """Cosines and sines of a model with base 10000."""
    turns = 10000.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    angles = torch.arange(rows, dtype=torch.float64)[:, None] * turns
    dtype = dtype or torch.float32
    return angles.cos().to(dtype).to(DEVICE), angles.sin().to(dtype).to(DEVICE)


class Layer:
    """A layer as Qwen3's: one buffer of heads, with a norm of each query and key head."""

    def __init__(self, dtype, tokens=7, seed=1):
        generator = torch.Generator().manual_seed(seed)
        self.qkv = (
            torch.randn(tokens, (QUERY + 2 * KEY) * HEAD, generator=generator).to(dtype).to(DEVICE)
        )
        self.weights = [
            (1 + 0.2 * torch.randn(HEAD, generator=generator)).to(dtype).to(DEVICE)
            for _ in range(2)
        ]
        self.cos, self.sin = tables(50, HEAD // 2)
        self.positions = torch.tensor([3, 49, 0, 7, 8, 9, 10][:tokens], device=DEVICE)
        # The third token is padding; the last one is behind the list.
        self.slots = torch.tensor([8, 0, -1, 5, 4, 2][:tokens], dtype=torch.int32, device=DEVICE)
        self.caches = [
            torch.full((3, PAGE, KEY, HEAD), 7.0, dtype=dtype, device=DEVICE) for _ in range(2)
        ]

    def live(self):
        """The tokens that are no padding."""
        return (self.slots >= 0).nonzero()[:, 0]

    def heads(self):
        """Views of the buffer."""
        rows = self.qkv.view(len(self.qkv), -1, HEAD)
        return rows[:, :QUERY], rows[:, QUERY : QUERY + KEY], rows[:, QUERY + KEY :]

    def parts(self, **more):
        q, k, v = self.heads()
        options = {"norm": "rms", "eps": EPS, "rope": True, **more}
        return [
            fh.Part(q, weight=self.weights[0], **options),
            fh.Part(k, weight=self.weights[1], cache=self.caches[0], **options),
            fh.Part(v, y=False, cache=self.caches[1]),
        ]

    def options(self):
        return {
            "cos": self.cos,
            "sin": self.sin,
            "rope_dim": HEAD,
            "positions": self.positions,
            "slots": self.slots,
        }

    def exact(self):
        """Query and key with what each element is the sum of, in double precision."""
        found = []
        c, s = (t[self.positions].double()[:, None, :] for t in (self.cos, self.sin))
        for x, weight in zip(self.heads(), self.weights):
            x = x.double()
            x = x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight.double()
            first, second = x.chunk(2, -1)
            found.append(
                (
                    torch.cat([first * c - second * s, second * c + first * s], -1),
                    torch.cat(
                        [
                            first.abs() * c.abs() + second.abs() * s.abs(),
                            second.abs() * c.abs() + first.abs() * s.abs(),
                        ],
                        -1,
                    ),
                )
            )
        return found


def dtypes():
    return torch.bfloat16, torch.float16, torch.float32


def close(found, exact, magnitude, roundings=1):
    unit = UNIT[str(found.dtype).removeprefix("torch.")]
    error = (found.double() - exact).abs()
    return bool((error <= (roundings * unit + 2.0**-18) * magnitude + 1e-30).all())


def close_at(tokens, found, exact, magnitude, roundings=1):
    """The same of some tokens: the results of padding may be anything."""
    return close(found[tokens], exact[tokens], magnitude[tokens], roundings)


def cached(cache, slots, rows):
    """Whether the rows of the tokens with a slot are there, and all others are untouched."""
    wanted = torch.full_like(cache, 7.0).view(-1, *cache.shape[2:])
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            wanted[slot] = rows[token]
    return torch.equal(cache.view_as(wanted), wanted)


def test_layer(suite):
    for dtype in dtypes():
        layer = Layer(dtype)
        before, live = layer.qkv.clone(), layer.live()
        exact = layer.exact()
        q, k, v = fh.norm_heads(layer.parts(), **layer.options())
        suite.check(f"{dtype}: query", close_at(live, q, *exact[0]))
        suite.check(f"{dtype}: key", close_at(live, k, *exact[1]))
        suite.check(
            f"{dtype}: no value, the buffer as it was", v is None and torch.equal(layer.qkv, before)
        )
        suite.check(f"{dtype}: the key's cache", cached(layer.caches[0], layer.slots, k))
        suite.check(
            f"{dtype}: the value's cache", cached(layer.caches[1], layer.slots, layer.heads()[2])
        )
        other = Layer(dtype)
        versions = [t._version for t in (other.qkv, *other.caches)]
        fh.norm_heads_(other.parts(), **other.options())
        suite.check(
            f"{dtype}: in place, the same bits",
            all(torch.equal(a[live], b[live]) for a, b in zip(other.heads(), (q, k))),
        )
        suite.check(
            f"{dtype}: in place, the same caches", all(map(torch.equal, other.caches, layer.caches))
        )
        suite.check(
            f"{dtype}: autograd's versions",
            all(t._version > v for t, v in zip((other.qkv, *other.caches), versions)),
        )
        every = fh.norm_heads(
            Layer(dtype).parts(
                rounding="every_step", from_rounded=True, rope_rounding="every_step"
            ),
            **layer.options(),
        )
        suite.check(
            f"{dtype}: rounded at every step", close_at(live, every[0], *exact[0], roundings=6)
        )
        first = fh.norm_heads(Layer(dtype).parts(rounding="once_rw"), **layer.options())
        suite.check(f"{dtype}: the weight first", close_at(live, first[0], *exact[0]))
        back = fh.norm_heads(
            [fh.Part(q, rope=True, inverse=True)],
            cos=layer.cos,
            sin=layer.sin,
            rope_dim=HEAD,
            positions=layer.positions,
        )
        plain = fh.norm_heads(
            [fh.Part(layer.heads()[0], norm="rms", eps=EPS, weight=layer.weights[0])]
        )
        suite.check(
            f"{dtype}: turned back",
            close_at(
                live, back[0], plain[0].double(), 4 * exact[0][1].amax(-1, keepdim=True)
            ),
        )


def test_padding(suite):
    """Positions of padding are not looked at, and nothing of it is written."""
    for dtype in dtypes():
        plain, spoilt, over = Layer(dtype), Layer(dtype), Layer(dtype)
        live = plain.live()
        suite.equal("live tokens", live.tolist(), [0, 1, 3, 4, 5])
        for layer in (spoilt, over):
            layer.positions[2], layer.positions[6] = -(2**40), 2**40
        wanted = fh.norm_heads(plain.parts(), **plain.options())[:2]
        sums = [torch.full(x.shape[:2], 7.0, device=DEVICE) for x in spoilt.heads()[:2]]
        parts = spoilt.parts()
        parts = [*(p._replace(rstd=of) for p, of in zip(parts, sums)), parts[2]]
        found = fh.norm_heads(parts, **spoilt.options())[:2]
        suite.check(
            f"{dtype}: any positions of padding",
            all(torch.equal(a[live], b[live]) for a, b in zip(found, wanted))
            and all(map(torch.equal, spoilt.caches, plain.caches)),
        )
        suite.check(
            f"{dtype}: statistics of padding are left as they are",
            all(bool((of[[2, 6]] == 7).all() and (of[live] != 7).all()) for of in sums),
        )
        fh.norm_heads_(over.parts(), **over.options())
        suite.check(
            f"{dtype}: in place, padding keeps x",
            all(
                torch.equal(a[[2, 6]], b[[2, 6]]) and torch.equal(a[live], y[live])
                for a, b, y in zip(over.heads(), plain.heads(), wanted)
            ),
        )


def test_codes(suite):
    layer = Layer(torch.bfloat16)
    exact = layer.exact()[1][0]
    scale = torch.tensor([1 / 32], device=DEVICE)
    codes = torch.zeros(3, PAGE, KEY, HEAD, dtype=torch.float8_e4m3fn, device=DEVICE)
    k = layer.parts()[1]._replace(cache=codes, cache_scale=scale, y=False)
    v = layer.parts()[2]._replace(
        cache=torch.zeros_like(codes),
        cache_scale=torch.zeros(3, PAGE, KEY, 1, device=DEVICE),
        cache_block=64,
    )
    fh.norm_heads([k, v], **layer.options())
    for token, slot in enumerate(layer.slots.tolist()):
        if slot < 0:
            continue
        found = codes.view(-1, KEY, HEAD)[slot].double() / 32
        allowed = exact[token].abs() / 16 + 2.0**-10 / 32 + 1e-4
        suite.check(
            f"codes of token {token}", bool(((found - exact[token]).abs() <= allowed).all())
        )
        block = v.cache_scale.view(-1, KEY, 1)[slot].double()
        value = layer.heads()[2][token].double()
        suite.check(
            f"scales of token {token}",
            torch.allclose(block[:, 0], value.abs().amax(-1) / 448, rtol=1e-5),
        )
        found = v.cache.view(-1, KEY, HEAD)[slot].double() * block
        suite.check(
            f"block codes of token {token}",
            bool(((found - value).abs() <= value.abs() / 16 + block / 1024).all()),
        )


def test_division(suite):
    """Codes of quotients, against PyTorch's own division and conversion. The values are halfway
    between codes, where the last bit of a quotient decides."""
    scale = torch.tensor([0.0123], device=DEVICE)
    halfway = 1 + (2 * torch.arange(8) + 1) / 16 * torch.ones(8, 1)
    halfway = (halfway * 2.0 ** torch.arange(-3, 5)[:, None]).flatten().to(DEVICE)
    value = (halfway * scale).expand(64, KEY, HEAD)
    slots = torch.arange(64, device=DEVICE)
    found = {}
    for division in ("reciprocal", "divide"):
        codes = torch.zeros(1, 64, KEY, HEAD, dtype=torch.float8_e4m3fn, device=DEVICE)
        fh.norm_heads(
            [fh.Part(value, y=False, cache=codes, cache_scale=scale, division=division)],
            slots=slots,
        )
        found[division] = codes[0].view(torch.uint8)
    wanted = (value / scale).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    suite.check("codes of quotients", torch.equal(found["divide"], wanted))
    suite.check(
        "which are not those of products", not torch.equal(found["divide"], found["reciprocal"])
    )


def direct(part, scheme, outputs):
    """The part by the C ABI alone, on copies in host memory. outputs: tensors by name, whose
    likes are written. Their bytes."""

    def view(t):
        kept.append(t.detach().cpu().contiguous().clone())
        t = kept[-1]
        return View(t.data_ptr(), DTYPES[t.dtype], t.shape, t.stride(), t.element_size())

    kept, inputs = [], {"x": part.x, "weight": part.weight, "rstd_in": part.rstd_in}
    if scheme == "per_tensor":
        inputs["scale"] = part.scale
    fields = {name: view(t) for name, t in inputs.items() if t is not None}
    fields.update({name: view(torch.zeros_like(t.view(torch.uint8)).view(t.dtype))
                   for name, t in outputs.items()})  # fmt: skip
    context = fh._c.Context(fh._shared._library, fh._c.CPU)
    schemes = {None: 0, "per_tensor": 1, "per_row": 2, "per_block": 3, "mxfp8": 4}
    fields["quant_scheme"] = schemes[scheme]
    context.norm_heads(
        [{"flags": fh._c.NORM, "eps": EPS, "quant_block_size": part.block_size, **fields}]
    ).run_on_cpu()
    return [t.view(torch.uint8).numpy().tobytes() for t in kept[-len(outputs) :]]


def bytes_of(t):
    return t.cpu().flatten().contiguous().view(torch.uint8).numpy().tobytes()


def test_quantised(suite):
    """Codes and scales of the result against double precision, and bit by bit against the C
    ABI."""
    e4m3, greatest = torch.float8_e4m3fn, {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
    for dtype in dtypes():
        x = Layer(dtype).heads()[0]
        weight = Layer(dtype).weights[0]
        exact = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + EPS).sqrt()
        exact = exact * weight.double()
        for scheme, codes, block in (
            ("per_tensor", e4m3, 0), ("per_tensor", torch.int8, 0),
            ("per_row", e4m3, 0), ("per_row", torch.int8, 0), ("per_block", e4m3, 64),
            ("per_block", torch.int8, 64), ("mxfp8", e4m3, 0),
        ):  # fmt: skip
            name = f"{dtype}: {scheme} of {codes}"
            quantized = torch.zeros(x.shape, dtype=torch.uint8, device=DEVICE).view(codes)
            columns = {"mxfp8": HEAD // 32}.get(scheme, 1)
            shape = (1,) if scheme == "per_tensor" else (*x.shape[:-1], columns)
            kind = torch.float8_e8m0fnu if scheme == "mxfp8" else torch.float32
            scale = torch.full(shape, 1 / 32, device=DEVICE).to(kind)
            part = fh.Part(
                x, norm="rms", weight=weight, eps=EPS, quantized=quantized, scheme=scheme,
                block_size=block, scale=scale,
            )  # fmt: skip
            (y,) = fh.norm_heads([part])
            suite.check(f"{name}: y", close(y, exact, exact.abs() + 0.1))
            wide = scale.double()
            if scheme != "per_tensor":
                wide = wide.repeat_interleave(HEAD // columns, -1)
            step = 1.0 if codes == torch.int8 else 2.0**-9
            found = quantized.double() * wide
            least = -128.0 if codes == torch.int8 else -greatest[codes]  # saturates
            kept = exact.clamp(least * wide, greatest[codes] * wide)
            share = 0.0 if codes == torch.int8 else 1 / 16
            allowed = kept.abs() * share + wide * (step / 2) + 1e-5
            suite.check(name, bool(((found - kept).abs() <= allowed).all()))
            if scheme in ("per_row", "per_block"):
                wanted = exact.abs().amax(-1, keepdim=True) / greatest[codes]
                suite.check(f"{name}: scales", torch.allclose(wide[..., :1], wanted, rtol=1e-5))
            if DEVICE.type == "cpu":
                outputs = {"quantized": quantized}
                if scheme != "per_tensor":
                    outputs["scale"] = scale
                wanted = direct(part, scheme, outputs)
                found = [bytes_of(t) for t in outputs.values()]
                suite.check(f"{name}: bits of the C ABI", found == wanted)
    buffer = torch.zeros(7, QUERY, 2 * HEAD, dtype=torch.int8, device=DEVICE)
    row_scales = torch.zeros(7, QUERY, device=DEVICE)
    part = fh.Part(
        x, y=False, quantized=buffer[..., HEAD:], scheme="per_row", scale=row_scales
    )
    found = fh.norm_heads([part])
    suite.check(
        "codes into columns of a buffer",
        found == [None]
        and bool((buffer[..., :HEAD] == 0).all())
        and bool((buffer[..., HEAD:].abs().amax(-1) == 127).all()),
    )
    suite.raises(
        "a scheme without a name", ValueError, "scheme is 'fp8'",
        lambda: fh.norm_heads([part._replace(scheme="fp8")]),
    )  # fmt: skip
    suite.raises(
        "codes without a scheme", RuntimeError, "quant",
        lambda: fh.norm_heads([part._replace(scheme=None)]),
    )  # fmt: skip
    suite.raises(
        "a gradient with codes", RuntimeError, "norm_heads has no backward",
        lambda: fh.norm_heads([part._replace(x=x.clone().requires_grad_(), y=True)]),
    )  # fmt: skip


def test_indexer(suite):
    """Scores of a sparse attention's indexer from codes, against double precision without codes and
    without a rotation. A page has the codes of its tokens first, or rows have their own scale."""
    generator = torch.Generator().manual_seed(3)
    tokens, heads, d, page, factor = 9, 6, 128, 4, 128**-0.5

    def random(*shape):
        return torch.randn(*shape, generator=generator).to(torch.bfloat16).to(DEVICE)

    q, k, weights = random(tokens, heads, d), random(tokens, 1, d), random(tokens, heads)
    weight, bias = 1 + 0.2 * random(d), 0.2 * random(d)
    cos, sin = tables(tokens, 32)
    slots = torch.arange(tokens, dtype=torch.int32, device=DEVICE).flip(0)

    def turned(x):
        a, b, c, s = x[..., :32], x[..., 32:64], cos[:, None].double(), sin[:, None].double()
        return torch.cat([a * c - b * s, b * c + a * s, x[..., 64:]], -1)

    exact_k = torch.nn.functional.layer_norm(
        k.double(), (d,), weight.double(), bias.double(), EPS
    )
    exact = torch.einsum("thd,sd->ths", turned(q.double()), turned(exact_k)[:, 0]).relu()
    exact = torch.einsum("ths,th->ts", exact, weights.double()) * factor
    e4m3, rope = torch.float8_e4m3fn, {"cos": cos, "sin": sin, "rope_dim": 64}
    for name in ("codes first", "rows with their scale"):
        buffer = torch.zeros(3, page * 132, dtype=torch.uint8, device=DEVICE)
        if name == "codes first":
            codes = buffer[:, : page * d].unflatten(1, (page, 1, d))
            scales = buffer.view(torch.float32)[:, page * d // 4 :].unflatten(1, (page, 1, 1))
        else:
            codes = buffer.unflatten(1, (page, 1, 132))[..., :d]
            scales = buffer.view(torch.float32).unflatten(1, (page, 1, 33))[..., 32:]
        key = fh.Part(
            k, norm="layer", weight=weight, bias=bias, eps=EPS, rope=True, y=False, cache=codes,
            cache_dtype=e4m3, cache_block=d, cache_scale=scales, cache_rotation=d,
        )  # fmt: skip
        query = fh.Part(
            q, rope=True, y=False, scheme="per_row", rotation=d,
            quantized=torch.zeros(q.shape, dtype=torch.uint8, device=DEVICE).view(e4m3),
            scale=torch.zeros(tokens, heads, device=DEVICE), head_weights=weights,
            head_weights_out=torch.zeros(tokens, heads, device=DEVICE),
            head_weights_factor=factor,
        )  # fmt: skip
        fh.norm_heads([key, query], slots=slots, **rope)
        wanted = weights.float() * query.scale * factor
        suite.check(f"{name}: head weights", torch.equal(query.head_weights_out, wanted))
        rows = codes.flatten(0, 2)[slots].view(e4m3).double()
        found = torch.einsum("thd,sd->ths", query.quantized.double(), rows).relu()
        found = torch.einsum("ths,th->ts", found, query.head_weights_out.double())
        found = found * scales.flatten()[slots].double()
        error = (found - exact).abs().max() / exact.abs().max()
        suite.check(f"{name}: scores", bool(0 < error < 1 / 16), error)
    suite.raises(
        "a gradient with head weights", RuntimeError, "norm_heads has no backward",
        lambda: fh.norm_heads([query._replace(x=q.clone().requires_grad_(), y=True)], **rope),
    )  # fmt: skip
    suite.raises(
        "head weights without their result", RuntimeError, "head_weights_out is NULL",
        lambda: fh.norm_heads([query._replace(head_weights_out=None)], **rope),
    )  # fmt: skip
    suite.raises(
        "head weights of several scales", RuntimeError, "with 2 scales for a row of 128 columns",
        lambda: fh.norm_heads(
            [query._replace(scheme="per_block", block_size=64, rotation=0,
                            scale=torch.zeros(tokens, heads, 2, device=DEVICE))], **rope
        ),
    )  # fmt: skip


def test_rows_of_584_bytes(suite):
    """Heads of 512 columns as rows of MLA decode, by three views of one buffer: codes, the rotated
    columns as they are, and scales behind the rows of a page."""
    generator = torch.Generator().manual_seed(5)
    tokens, page, pages, d, coded = 11, 4, 5, 512, 448
    x, weight = (
        torch.randn(shape, generator=generator).to(torch.bfloat16).to(DEVICE)
        for shape in ((tokens, 1, d), (d,))
    )
    cos, sin = tables(tokens, 32)
    slots = torch.tensor([3, 4, 5, 6, 7, -1, 16, 17, 18, 8, 9], dtype=torch.int32, device=DEVICE)
    buffer = torch.full((pages, page * 584 + 576), 0xff, dtype=torch.uint8, device=DEVICE)
    rows = buffer[:, : page * 576].unflatten(1, (page, 1, 576))
    scales = buffer[:, page * 576 : page * 584].unflatten(1, (page, 1, 8))[..., :7]
    tail = rows[..., coded:].view(torch.bfloat16)
    part = fh.Part(
        x, norm="rms", weight=weight, eps=EPS, rope=True, rope_offset=-1, interleaved=True, y=False,
        cache=rows[..., :coded], cache_dtype=torch.float8_e4m3fn, cache_block=64,
        cache_scale=scales, cache_pow2=True, cache_tail=tail,
    )  # fmt: skip
    fh.norm_heads([part], cos=cos, sin=sin, rope_dim=64, slots=slots)
    exact = x[:, 0].double()
    exact = exact * weight.double() / (exact.pow(2).mean(-1, keepdim=True) + EPS).sqrt()
    a, b, c, s = exact[:, coded::2], exact[:, coded + 1 :: 2], cos.double(), sin.double()
    turned = torch.stack([a * c - b * s, b * c + a * s], -1).flatten(1)
    exact = torch.cat([exact[:, :coded], turned], -1)
    live = slots >= 0
    at = slots[live].long()
    codes = rows[..., :coded].flatten(0, 2)[at].view(torch.float8_e4m3fn).double()
    steps = torch.exp2(scales.flatten(0, 2)[at].double() - 127).repeat_interleave(64, -1)
    found = torch.cat([codes * steps, tail.flatten(0, 2)[at].double()], -1)
    allowed = torch.cat([
        torch.maximum(exact[live, :coded].abs() / 16, steps / 1024),
        exact[live, coded:].abs() * UNIT["bfloat16"],
    ], -1)  # fmt: skip
    error = (found - exact[live]).abs() / (1.01 * allowed + 1e-6)
    suite.check("rows of 584 bytes", bool((error <= 1).all()), error.max())
    unused = torch.ones(pages * page, dtype=torch.bool, device=DEVICE)
    unused[at] = False
    suite.check(
        "rows of 584 bytes: nothing else is written",
        bool((rows.flatten(0, 2)[unused] == 0xff).all())
        and bool((buffer[:, page * 584 :] == 0xff).all()),
    )
    suite.raises(
        "a tail of other columns", RuntimeError, "without those of cache_tail",
        lambda: fh.norm_heads(
            [part._replace(cache_tail=tail[..., 1:])], cos=cos, sin=sin, rope_dim=64, slots=slots
        ),
    )  # fmt: skip
    if DEVICE.type != "cpu":
        suite.skip("rows of 584 bytes, read", "MLA decode reads them on a CPU")
        return
    from fastnorm.torch.mla_decode import mla_decode

    q = torch.randn(2, 1, 3, d, generator=generator).to(torch.bfloat16)
    indices = torch.tensor([[[3, 4, 5, -1]], [[18, 16, 9, 9]]], dtype=torch.int32)
    cache = buffer[:, : page * 584].unflatten(1, (page, 584))
    o, lse = mla_decode(q, None, cache, None, None, None, sm_scale=0.05, indices=indices)
    for b, chosen in enumerate(indices[:, 0]):
        keys = torch.zeros(pages * page, d).double()
        keys[at] = found
        keys = keys[chosen[chosen >= 0].long()]
        scores = q[b, 0].double() @ keys.T * 0.05
        wanted = torch.softmax(scores, -1) @ keys
        bound = 2.0**-8 * (wanted.abs() + torch.softmax(scores, -1) @ keys.abs())
        suite.check("rows of 584 bytes, read", bool(((o[b, 0] - wanted).abs() <= bound).all()))
        log = torch.logsumexp(scores, -1)
        suite.check("rows of 584 bytes, lse", bool(((lse[b, 0] - log).abs() < 1e-4).all()))


def test_settings_of_codes(suite):
    """Each setting of codes gives the codes that rms_norm_quant has of the same rows."""
    x, weight = Layer(torch.bfloat16).heads()[0], Layer(torch.bfloat16).weights[0]
    clamp, half = (torch.tensor([v], device=DEVICE) for v in (0.75, 0.5))
    for scheme, block, options in (
        ("per_row", 0, {}),
        ("per_row", 0, {"quant_source": "rounded"}),
        ("per_row", 0, {"division": "divide", "amax_floor": 8.0}),
        ("per_block", 64, {"pow2": True, "clamp": 0.75}),
        ("per_block", 64, {"layout": "column_major", "clamp_scale": clamp}),
        ("mxfp8", 0, {"layout": "swizzled_128x4"}),
        ("nvfp4", 0, {"global_scale": half}),
    ):
        wanted = fh._shared.rms_norm_quant(
            x, weight, EPS, scheme=scheme, block_size=block, **options
        )
        codes, scale = (torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=DEVICE)
                        for t in wanted)  # fmt: skip
        amax = torch.zeros(1, device=DEVICE)
        part = fh.Part(
            x, norm="rms", weight=weight, eps=EPS, quantized=codes, scheme=scheme, amax=amax,
            block_size=block, scale=scale, y_dtype=torch.float32, **options,
        )  # fmt: skip
        (y,) = fh.norm_heads([part])
        name = f"{scheme} with {options or 'nothing'}"
        suite.check(f"{name}: codes", bytes_of(codes) == bytes_of(wanted[0]))
        suite.check(f"{name}: scales", bytes_of(scale) == bytes_of(wanted[1]))
        y = y.bfloat16().float() if "quant_source" in options else y
        greatest = clamp[0] if {"clamp", "clamp_scale"} & set(options) else y.abs().max()
        suite.check(f"{name}: amax", torch.equal(amax[0], greatest), amax)
    rounded = fh._shared.rms_norm(x, weight, EPS)
    scale = torch.tensor([1 / 64], device=DEVICE)
    slots = torch.arange(7, device=DEVICE)
    for source, rows in (("rounded", rounded), ("unrounded", y)):
        cache = torch.zeros(2, 4, QUERY, HEAD, device=DEVICE).to(torch.float8_e4m3fn)
        part = fh.Part(x, norm="rms", weight=weight, eps=EPS, y=False, cache=cache,
                       cache_scale=scale, quant_source=source)  # fmt: skip
        fh.norm_heads([part], slots=slots)
        wanted = (rows.float() * 64).clamp(-448, 448).to(torch.float8_e4m3fn)
        suite.check(
            f"codes of a cache of the {source} result",
            bytes_of(cache.view(8, QUERY, HEAD)[:7]) == bytes_of(wanted),
        )
    cache = torch.zeros(2, 4, QUERY, HEAD, device=DEVICE).to(torch.float8_e4m3fn)
    scales = torch.zeros(2, 4, QUERY, 1, device=DEVICE)
    part = part._replace(cache=cache, cache_scale=scales, cache_block=64, cache_pow2=True)
    fh.norm_heads([part], slots=slots)
    least = torch.exp2(torch.ceil(torch.log2(y.abs().amax(-1, keepdim=True) / 448)))
    suite.check("cache_pow2", torch.equal(scales.view(8, QUERY, 1)[:7], least))
    for name, text, change in (
        ("a source", "quant_source is 'f16'; required: one of unrounded", {"quant_source": "f16"}),
        ("a layout", "layout is 'tiled'; required: one of row_major", {"layout": "tiled"}),
    ):
        suite.raises(name, ValueError, text, lambda: fh.norm_heads([part._replace(**change)],
                                                                   slots=slots))  # fmt: skip


def test_bytes(suite):
    """A cache of uint8 holds the codes of the dtype that cache_dtype says."""
    layer = Layer(torch.bfloat16)
    scale = torch.tensor([1 / 32], device=DEVICE)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        typed, raw = (torch.zeros(3, PAGE, KEY, HEAD, dtype=torch.uint8, device=DEVICE)
                      for _ in range(2))  # fmt: skip
        part = layer.parts()[1]._replace(y=False, cache_scale=scale)
        fh.norm_heads([part._replace(cache=typed.view(dtype))], **layer.options())
        fh.norm_heads([part._replace(cache=raw, cache_dtype=dtype)], **layer.options())
        suite.check(f"bytes of {dtype}", torch.equal(typed, raw) and bool(raw.any()))
    for name, text, change in (
        ("bytes without a dtype", "parts[0].cache.dtype is torch.uint8; required: with it "
         "cache_dtype, one of torch.float8_e4m3fn, torch.float8_e5m2", {"cache": raw}),
        ("bytes of int8", "parts[0].cache_dtype is torch.int8; required",
         {"cache": raw, "cache_dtype": torch.int8}),
        ("a dtype without a cache", "parts[0].cache_dtype is torch.float8_e5m2; required",
         {"cache": None, "cache_dtype": dtype}),
        ("another cache", "parts[0].cache.dtype is torch.float8_e4m3fn and cache_dtype",
         {"cache": raw.view(torch.float8_e4m3fn), "cache_dtype": dtype}),
    ):  # fmt: skip
        suite.raises(
            name, fh.FastnormError, text,
            lambda: fh.norm_heads([part._replace(**change)], **layer.options()),
        )  # fmt: skip


def test_tables(suite):
    """Tables of [P, 2 R], whose frequencies are repeated, turn 2 R columns; without rope_dim a call
    is refused, since the same width may be [P, R]."""
    x = torch.arange(1.0, 9.0, device=DEVICE).view(1, 1, 8)
    cos, sin = (torch.tensor([[v, v]], device=DEVICE) for v in (0.0, 1.0))  # a quarter turn
    part = fh.Part(x, rope=True)
    (y,) = fh.norm_heads([part], cos=cos, sin=sin, rope_dim=2)
    suite.equal("[P, 2 R]", y.flatten().tolist(), [-2.0, 1.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    (y,) = fh.norm_heads([part], cos=cos, sin=sin, rope_dim=4)
    suite.equal("[P, R]", y.flatten().tolist(), [-3.0, -4.0, 1.0, 2.0, 5.0, 6.0, 7.0, 8.0])
    for call in (fh.norm_heads, fh.norm_heads_):
        suite.raises(
            f"{call.__name__} without rope_dim",
            fh.FastnormError,
            "rope_dim is None and cos.shape is [1, 2]; required: how many columns of a head turn, "
            "4 where the tables are [P, R], 2 where they are [P, 2 R]",
            lambda: call([part], cos=cos, sin=sin),
        )
    suite.equal("x as it was", x.flatten().tolist(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    (y,) = fh.norm_heads([part._replace(rope=False)])
    suite.check("no tables, no rope_dim", torch.equal(y, x))


def test_wide_results(suite):
    """Results of float32, and their gradients."""
    for dtype in dtypes():
        layer = Layer(dtype)
        exact, options = layer.exact(), layer.options()
        part = layer.parts()[0]._replace(y_dtype=torch.float32)
        options.pop("slots")
        (y,) = fh.norm_heads([part], **options)
        suite.check(
            f"{dtype}: a result of float32", y.dtype == torch.float32 and close(y, *exact[0])
        )
        leaf = part._replace(x=part.x.clone().requires_grad_())
        fh.norm_heads([leaf], **options)[0].sum().backward()
        double = part._replace(x=part.x.double().requires_grad_(), weight=part.weight.double())
        formula(double, layer.cos, layer.sin, layer.positions).sum().backward()
        error = (leaf.x.grad.double() - double.x.grad).abs()
        size = double.x.grad.abs().amax() + 1
        unit = UNIT[str(dtype).removeprefix("torch.")]
        suite.check(
            f"{dtype}: its gradient",
            leaf.x.grad.dtype == dtype and bool((error <= (2 * unit + 2.0**-17) * size).all()),
        )
    suite.raises(
        "in place of another dtype",
        RuntimeError,
        "parts[0].y_dtype is torch.float32",
        lambda: fh.norm_heads_([Layer(torch.bfloat16).parts()[0]._replace(y_dtype=torch.float32)]),
    )


def test_ranks(suite):
    """Statistics out and in: heads spread over ranks are normalised as on one."""
    for dtype in dtypes():
        generator = torch.Generator().manual_seed(5)
        x = (0.5 + torch.randn(6, 8, HEAD, generator=generator)).to(dtype).to(DEVICE)
        weight = torch.randn(8, HEAD, generator=generator).to(dtype).to(DEVICE)
        for kind in ("rms", "layer"):
            name = f"{dtype}, {kind}"
            base = fh.Part(x, norm=kind, weight=weight, eps=EPS, across_heads=True)
            mean, rstd = (torch.zeros(6, device=DEVICE) for _ in range(2))
            statistics = {"rstd": rstd} if kind == "rms" else {"mean": mean, "rstd": rstd}
            (whole,) = fh.norm_heads([base._replace(**statistics)])
            wide = x.double().flatten(1)
            exact_mean = wide.mean(1) if kind == "layer" else torch.zeros(6, device=DEVICE).double()
            centred = wide - exact_mean[:, None]
            exact_rstd = 1 / (centred.pow(2).mean(1) + EPS).sqrt()
            exact = (centred * exact_rstd[:, None]).view(x.shape) * weight.double()
            suite.check(
                f"{name}: mean and rstd",
                torch.allclose(rstd.double(), exact_rstd, rtol=1e-6)
                and torch.allclose(mean.double(), exact_mean, rtol=1e-6, atol=1e-6),
            )
            for ranks in (1, 2, 4):
                shape = (6,) if kind == "rms" else (6, 2)
                shards = [base._replace(x=a, weight=w)
                          for a, w in zip(x.chunk(ranks, 1), weight.chunk(ranks, 0))]  # fmt: skip
                sums = [torch.zeros(shape, device=DEVICE) for _ in range(ranks)]
                for part, own in zip(shards, sums):
                    fh.norm_heads([part._replace(y=False, sumsq=own)])
                found = fh.statistics_of_sums(sums, x[0].numel() // ranks, EPS, kind)
                again = fh.statistics_of_sums(torch.stack(sums), x[0].numel() // ranks, EPS, kind)
                pair = (None, found) if kind == "rms" else found
                suite.check(
                    f"{name}: statistics of {ranks} ranks",
                    torch.allclose(pair[1].double(), exact_rstd, rtol=1e-6)
                    and (pair[0] is None
                         or torch.allclose(pair[0].double(), exact_mean, rtol=1e-6, atol=1e-6))
                    and all(map(torch.equal, found, again)),
                )  # fmt: skip
                parts = [part._replace(mean_in=pair[0], rstd_in=pair[1]) for part in shards]
                y = torch.cat([fh.norm_heads([part])[0] for part in parts], 1)
                suite.check(
                    f"{name}: results of {ranks} ranks", close(y, exact, exact.abs() + 0.1)
                )
            given = base._replace(mean_in=mean if kind == "layer" else None, rstd_in=rstd)
            suite.check(
                f"{name}: the library's own statistics give the same bits",
                torch.equal(fh.norm_heads([given])[0], whole),
            )
    leaf = given._replace(x=x.clone().requires_grad_())
    suite.raises(
        "a gradient with given statistics",
        RuntimeError,
        "norm_heads has no backward",
        lambda: fh.norm_heads([leaf]),
    )
    suite.raises(
        "sums of layer without their mean",
        ValueError,
        "required: [.., 2]",
        lambda: fh.statistics_of_sums([torch.ones(3)], 8, EPS, "layer"),
    )
    suite.raises(
        "no ranks", ValueError, "at least 1", lambda: fh.statistics_of_sums([], 8, EPS)
    )
    suite.raises(
        "statistics of a kind", ValueError, "kind is 'l2'",
        lambda: fh.statistics_of_sums([torch.ones(3)], 8, EPS, "l2"),
    )  # fmt: skip


def test_latents(suite):
    """The prologue of DeepSeek's MLA: the norm of 512 latent columns and the rope of 64 behind
    them, into one cache with rows of 576; and the rope of the query's last 64 columns."""
    generator = torch.Generator().manual_seed(3)
    for dtype in dtypes():
        latent = torch.randn(5, 576, generator=generator).to(dtype).to(DEVICE)
        query = torch.randn(5, 3, 192, generator=generator).to(dtype).to(DEVICE)
        weight = (1 + 0.2 * torch.randn(512, generator=generator)).to(dtype).to(DEVICE)
        cache = torch.full((2, 4, 1, 576), 7.0, dtype=dtype, device=DEVICE)
        cos, sin = tables(20, 32)
        positions = torch.tensor([19, 0, 4, 5, 6], dtype=torch.int32, device=DEVICE)
        slots = torch.tensor([7, 1, 0, -1, 2], device=DEVICE)
        kv = latent[:, None, :]
        turned, *_ = fh.norm_heads(
            [
                fh.Part(query, rope=True, rope_offset=-1, interleaved=True),
                fh.Part(
                    kv[..., :512],
                    norm="rms",
                    eps=EPS,
                    weight=weight,
                    y=False,
                    cache=cache[..., :512],
                ),
                fh.Part(
                    kv[..., 512:], rope=True, interleaved=True, y=False, cache=cache[..., 512:]
                ),
            ],
            cos=cos,
            sin=sin,
            rope_dim=64,
            positions=positions,
            slots=slots,
        )
        c, s = (t[positions.long()].double()[:, None, :] for t in (cos, sin))
        kept = slots >= 0

        def rope(x):
            first, second = x[..., 0::2].double(), x[..., 1::2].double()
            return (
                torch.stack([first * c - second * s, second * c + first * s], -1).flatten(-2),
                torch.stack(
                    [
                        first.abs() * c.abs() + second.abs() * s.abs(),
                        second.abs() * c.abs() + first.abs() * s.abs(),
                    ],
                    -1,
                ).flatten(-2),
            )

        suite.check(
            f"{dtype}: the query's rotary part",
            close_at(kept, turned[..., 128:], *rope(query[..., 128:])),
        )
        suite.check(
            f"{dtype}: the rest of the query",
            torch.equal(turned[kept, :, :128], query[kept, :, :128]),
        )
        x = kv[..., :512].double()
        exact = x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight.double()
        rows = cache.view(-1, 1, 576)
        suite.check(
            f"{dtype}: latents", close(rows[slots[kept], :, :512], exact[kept], exact[kept].abs())
        )
        key = [t[kept] for t in rope(kv[..., 512:])]
        suite.check(f"{dtype}: rotary keys", close(rows[slots[kept], :, 512:], *key))
        suite.check(f"{dtype}: free rows", bool((rows[[3, 4, 5, 6]] == 7).all()))


def formula(part, cos, sin, positions):
    """A part in the dtype of its x, which autograd knows."""
    x, n = part.x, part.x.shape[-1]
    if part.norm:
        over = (-2, -1) if part.across_heads else (-1,)
        if part.norm == "layer":
            x = x - x.mean(over, keepdim=True)
        x = x / (x.pow(2).mean(over, keepdim=True) + part.eps).sqrt()
        gain = 1 if part.weight is None else part.weight + part.weight_offset
        x = x * gain + (0 if part.bias is None else part.bias)
    if not part.rope:
        return x
    pairs = cos.shape[-1]
    first = n - 2 * pairs if part.rope_offset == -1 else part.rope_offset
    c, s = (t[positions].to(x.dtype)[:, None, :] for t in (cos, sin))
    s = -s if part.inverse else s
    window = x[..., first : first + 2 * pairs]
    a, b = (window[..., 0::2], window[..., 1::2]) if part.interleaved else window.chunk(2, -1)
    turned = (a * c - b * s, b * c + a * s)
    window = torch.stack(turned, -1).flatten(-2) if part.interleaved else torch.cat(turned, -1)
    return torch.cat([x[..., :first], window, x[..., first + 2 * pairs :]], -1)


def gradient_parts(dtype, generator):
    """Parts of every kind over the same tokens, whose tensors require grad."""

    def leaf(*shape, mean=0.0):
        values = mean + torch.randn(*shape, generator=generator)
        return values.to(dtype).to(DEVICE).requires_grad_()

    def rows(heads=3):
        return leaf(6, heads, HEAD)

    rope = {"rope": True} if DEVICE.type == "cpu" else {}
    parts = [
        fh.Part(rows(), norm="rms", eps=EPS, weight=leaf(HEAD, mean=1), **rope),
        fh.Part(
            rows(2),
            norm="layer",
            eps=EPS,
            weight=leaf(2, HEAD),
            bias=leaf(HEAD),
            weight_offset=1.0,
            **({"interleaved": True} | rope if rope else {}),
        ),
    ]
    if DEVICE.type == "cpu":
        parts += [
            fh.Part(
                rows(),
                norm="rms",
                eps=EPS,
                weight=leaf(3, HEAD),
                bias=leaf(3, HEAD),
                across_heads=True,
                inverse=True,
                **rope,
            ),
            fh.Part(rows(1)),
            fh.Part(rows(), norm="layer", eps=EPS, across_heads=True),
        ]
    return parts


def tensors_of(parts):
    return [t for part in parts for t in (part.x, part.weight, part.bias) if t is not None]


def test_gradients(suite):
    """Gradients against those that autograd finds of the formula in double precision."""
    generator = torch.Generator().manual_seed(11)
    positions = torch.tensor([3, 19, 0, 7, 8, 9], device=DEVICE)
    for dtype in dtypes():
        cos, sin = tables(20, HEAD // 2)
        options = {}
        if DEVICE.type == "cpu":
            options = {"cos": cos, "sin": sin, "rope_dim": HEAD, "positions": positions}
        parts = gradient_parts(dtype, generator)
        twins = []
        for part in parts:
            own = {
                name: None if t is None else t.detach().double().requires_grad_()
                for name, t in (("x", part.x), ("weight", part.weight), ("bias", part.bias))
            }
            twins.append(part._replace(**own))
        found = fh.norm_heads(parts, **options)
        exact = [formula(twin, cos, sin, positions) for twin in twins]
        dys = [torch.randn(y.shape, generator=generator).to(dtype).to(DEVICE) for y in found]
        torch.autograd.backward(found, dys)
        torch.autograd.backward(exact, [dy.double() for dy in dys])
        unit = UNIT[str(dtype).removeprefix("torch.")]
        for i, (part, twin) in enumerate(zip(parts, twins)):
            for name in ("x", "weight", "bias"):
                t, wanted = getattr(part, name), getattr(twin, name)
                if t is None:
                    continue
                error = (t.grad.double() - wanted.grad).abs()
                size = wanted.grad.abs().amax() + 1
                suite.check(
                    f"{dtype}: gradient of parts[{i}].{name}",
                    t.grad.dtype == dtype
                    and bool((error <= 2 * unit * size + 2.0**-17 * size).all()),
                    float(error.amax()),
                )
    frozen = gradient_parts(torch.float32, generator)[:1]
    frozen[0].weight.requires_grad_(False)
    if not frozen[0].rope:
        options = {}
    (y,) = fh.norm_heads(frozen, **options)
    y.sum().backward()  # a gradient of stride 0
    suite.check("a frozen weight", frozen[0].weight.grad is None and frozen[0].x.grad is not None)
    again = fh.norm_heads(frozen, **options)[0].pow(2).sum()
    (dx,) = torch.autograd.grad(again, frozen[0].x, create_graph=True)
    suite.raises(
        "a second derivative", RuntimeError, "has no backward", lambda: dx.sum().backward()
    )

    def loss(x, weight):
        part = frozen[0]._replace(x=x * 2, weight=weight)
        return torch.relu(fh.norm_heads([part], **options)[0]).sum()

    x, weight = frozen[0].x.detach(), frozen[0].weight.detach()
    wanted = torch.autograd.grad(loss(x.requires_grad_(), weight.requires_grad_()), (x, weight))
    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="aot_eager")
    got = torch.autograd.grad(compiled(x, weight), (x, weight))
    suite.check("compiled, aot_eager", all(map(torch.equal, wanted, got)))


def test_errors(suite):
    layer = Layer(torch.bfloat16)
    q, k, v = layer.parts()
    for name, text, parts, change in (
        (
            "a norm without a name",
            "norm is 'l2'; required: one of None, rms, layer",
            [q._replace(norm="l2")],
            {},
        ),
        ("a rounding", "rounding is 'down'", [q._replace(rounding="down")], {}),
        ("a division", "division is 'half'", [q._replace(division="half")], {}),
        (
            "a division of no codes",
            "parts[0].quant.division is FASTNORM_QUANT_DIVIDE (1)",
            [q._replace(division="divide"), k],
            {},
        ),
        ("eps", "FASTNORM_ERROR_ARGUMENT: parts[0].eps is -1", [q._replace(eps=-1.0), k], {}),
        (
            "a window",
            "FASTNORM_ERROR_SHAPE: parts[1].rope_offset is 3",
            [q, k._replace(rope_offset=3)],
            {},
        ),
        ("an output", "parts[0].y, quant.quantized, cache", [q._replace(y=False), k], {}),
        ("tables", "cos is NULL", [q, k], {"cos": None}),
        ("a cache without slots", "slots is NULL", [q, k], {"slots": None}),
        (
            "a dtype",
            "FASTNORM_ERROR_DTYPE: positions",
            [q, k],
            {"positions": layer.positions.float()},
        ),
        (
            "a dtype without a word",
            "positions.dtype is torch.bool; required: one of",
            [q, k],
            {"positions": layer.positions.bool()},
        ),
        ("an odd window", "rope_dim is 3", [q, k], {"rope_dim": 3}),
        (
            "nine parts",
            "count is 9",
            [v._replace(cache=None, y=True)] * 9,
            {"slots": None, "cos": None, "sin": None, "positions": None, "rope_dim": None},
        ),
    ):
        options = {**layer.options(), **change}
        suite.raises(
            name, (RuntimeError, ValueError), text, lambda: fh.norm_heads(parts, **options)
        )
    if DEVICE.type == "cpu":
        suite.raises(
            "a position",
            RuntimeError,
            "the position of token 0, axis 0, is 53",
            lambda: fh.norm_heads(
                layer.parts(), **{**layer.options(), "positions": layer.positions + 50}
            ),
        )
        suite.raises(
            "a slot",
            RuntimeError,
            "slots[0] is 108",
            lambda: fh.norm_heads(layer.parts(), **{**layer.options(), "slots": layer.slots + 100}),
        )
    suite.check("a refusal writes nothing", all(bool((t == 7).all()) for t in layer.caches))
    grad = q._replace(weight=layer.weights[0].clone().requires_grad_())
    suite.raises(
        "a gradient",
        RuntimeError,
        "fastnorm::norm_heads has no backward",
        lambda: fh.norm_heads([grad, k], **layer.options()),
    )
    for name in ("cos", "sin"):
        wanted = {**layer.options(), "slots": None}
        wanted[name] = wanted[name].clone().requires_grad_()
        suite.raises(
            f"a gradient of {name}",
            RuntimeError,
            f"{name}.requires_grad is True; required: False, since fastnorm::norm_heads has no",
            lambda: fh.norm_heads([q], **wanted),
        )
    with torch.no_grad():
        wanted = fh.norm_heads([q, k], **layer.options())
        found, live = fh.norm_heads([grad, k], **layer.options()), layer.live()
        suite.check("under no_grad", torch.equal(found[0][live], wanted[0][live]))


def test_opcheck(suite):
    layer = Layer(torch.bfloat16)
    q, k, v = layer.parts()
    parts = [q._replace(x=q.x.clone()), k._replace(x=k.x.clone()), v]
    cos, sin, rope_dim, positions, slots = layer.options().values()
    results = [torch.empty_like(parts[0].x), torch.empty_like(parts[1].x), None]
    q = parts[0]
    parts[0] = q._replace(
        rstd=torch.zeros(q.x.shape[:2], device=DEVICE),
        quantized=torch.zeros(q.x.shape, dtype=torch.int8, device=DEVICE),
        scheme="per_row",
        scale=torch.zeros(q.x.shape[:2], device=DEVICE),
        head_weights=torch.ones(q.x.shape[:2], device=DEVICE),
        head_weights_out=torch.zeros(q.x.shape[:2], device=DEVICE),
        head_weights_factor=0.5,
    )
    for name, written in (("norm_heads", results), ("norm_heads_", None)):
        args = fh._arguments(parts, written, cos, sin, rope_dim, positions, slots, (), False)
        found = torch.library.opcheck(
            getattr(torch.ops.fastnorm, name).default, args, raise_exception=False
        )
        suite.check(
            f"opcheck of {name}",
            len(found) == 4 and all(v == "SUCCESS" for v in found.values()),
            found,
        )


def test_compare(suite):
    """bench/compare_heads.py: this library and PyTorch are right and timed, whoever else is
    there."""
    if not (ROOT / "bench").is_dir():
        suite.skip("compare", "there is no folder bench beside the examples")
        return
    cases = ["5xqwen3", "70xgemma3:own", "9xllama3:fp8", "5xqwen3:backward", "5xllama3:backward",
             "70xmla:own", "9xmla:fp8"]
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "run.csv"
        program = [
            sys.executable, str(ROOT / "bench" / "compare_heads.py"), "--device", "cpu",
            "--library", os.environ["FASTNORM_LIBRARY"], "--replays", "2", "--cold-mib", "1",
            "--contenders", "fastnorm", "fastnorm-chain", "torch", "vllm", "--csv", str(path),
        ]
        ran = subprocess.run([*program, "--cases", *cases], capture_output=True, text=True)
        if not suite.check("compare: runs", ran.returncode == 0, ran.stdout + ran.stderr):
            return
        sys.path.insert(0, str(ROOT / "bench"))
        from compare import lines

        document = lines.read(path)
        suite.check("compare: every case", len(document["results"]) == len(cases), document)
        for row in document["results"]:
            for name, found in row["contenders"].items():
                has_none = name == "fastnorm-chain" and "backward" in row["op"]
                suite.check(
                    f"compare: {row['op']} of {name}",
                    name == "vllm" or ("unsupported" if has_none else "us") in found,
                    found,
                )
        ran = subprocess.run([*program, "--cases", "5xmla"], capture_output=True, text=True)
        suite.check(
            "compare: a wrong case",
            ran.returncode == 2 and "--cases" in ran.stderr,
            ran.stderr,
        )


def test_compare_indexer(suite):
    """bench/compare_indexer.py: all of its providers are right and timed."""
    if not (ROOT / "bench").is_dir():
        suite.skip("compare_indexer", "there is no folder bench beside the examples")
        return
    if not shutil.which("g++"):
        suite.skip("compare_indexer", "no C++ compiler for torch.compile")
        return
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "run.csv"
        program = [
            sys.executable, str(ROOT / "bench" / "compare_indexer.py"), "--device", "cpu",
            "--library", os.environ["FASTNORM_LIBRARY"], "--repeats", "1", "--csv", str(path),
        ]
        ran = subprocess.run([*program, "--tokens", "70"], capture_output=True, text=True)
        if not suite.check("compare_indexer: runs", ran.returncode == 0, ran.stdout + ran.stderr):
            return
        sys.path.insert(0, str(ROOT / "bench"))
        from compare import lines

        rows = lines.read(path)["results"]
        suite.check(
            "compare_indexer: providers",
            [row["provider"] for row in rows] == ["fastnorm", "steps", "compiled"],
            rows,
        )
        for row in rows:
            timed = row.get("us", 0) > 0 and not row.get("error")
            suite.check(f"compare_indexer: {row['provider']}", timed, row)
        ran = subprocess.run([*program, "--tokens", "0"], capture_output=True, text=True)
        suite.check(
            "compare_indexer: no tokens",
            ran.returncode == 2 and "--tokens 0" in ran.stderr,
            ran.stderr,
        )


def test_kept_calls(suite):
    """A thread keeps the calls that it has made, for tensors of the same forms: others at other
    addresses, other options, errors in between, and streams. Tensors are not kept."""
    made = fh._shared._calls.made

    def run(seed, **more):
        layer = Layer(torch.float32, seed=seed)
        found = fh.norm_heads(layer.parts(**more), **layer.options())
        live = layer.live()
        return [*(t[live] for t in found[:2]), *layer.caches]

    def anew(*given, **more):
        made.clear()
        return run(*given, **more)

    options = [{}, {"eps": 0.5}, {"weight_offset": 1.0}, {"interleaved": True}]
    cases = [(1, {}), (2, {}), *((2, more) for more in options[1:])]
    wanted = [anew(seed, **more) for seed, more in cases]
    made.clear()
    for turn in range(2):
        for (seed, more), exact in zip(cases, wanted):
            found = run(seed, **more)
            same = all(torch.equal(a, b) for a, b in zip(found, exact))
            suite.check(f"kept calls: turn {turn}, tensors {seed}, {more}", same)
            layer = Layer(torch.float32, seed=seed)
            parts = layer.parts(**more)
            parts[1] = parts[1]._replace(weight=layer.weights[1][:8])
            suite.raises(
                "kept calls: an error in between",
                fh.FastnormError,
                "parts[1].weight",
                lambda: fh.norm_heads(parts, **layer.options()),
            )
    suite.equal("kept calls: how many", len(made), len(cases) - 1)
    layer = Layer(torch.float32)
    fh.norm_heads(layer.parts(), **layer.options())
    alive = weakref.ref(layer.qkv)
    del layer
    suite.check("kept calls: tensors are let go", alive() is None)
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            found = run(1)
        torch.cuda.synchronize()
        same = all(torch.equal(a, b) for a, b in zip(found, wanted[0]))
        suite.check("kept calls: on another stream", same)


def test_compile(suite):
    """The call within pointwise work that the compiler fuses, on views of one buffer; caches are
    written."""
    backends = ["aot_eager"]
    if shutil.which("g++"):
        backends.append("inductor")
    else:
        suite.skip("compile, inductor", "no C++ compiler for it")

    def block(qkv, weights, caches, cos, sin, rope_dim, positions, slots, in_place):
        rows = (qkv * 2).view(len(qkv), -1, HEAD)
        q, k, v = rows[:, :QUERY], rows[:, QUERY : QUERY + KEY], rows[:, QUERY + KEY :]
        options = {"norm": "rms", "eps": EPS, "rope": True}
        parts = [
            fh.Part(q, weight=weights[0], **options),
            fh.Part(k, weight=weights[1], cache=caches[0], **options),
            fh.Part(v, y=False, cache=caches[1]),
        ]
        call = fh.norm_heads_ if in_place else fh.norm_heads
        found = call(
            parts, cos=cos, sin=sin, rope_dim=rope_dim, positions=positions, slots=slots
        )
        return torch.relu(q if in_place else found[0]), (k if in_place else found[1]) + 1

    def run(function, in_place):
        layer = Layer(torch.bfloat16)
        found = function(
            layer.qkv, layer.weights, layer.caches, *layer.options().values(), in_place
        )
        live = layer.live()
        return [*(t[live] for t in found), *layer.caches]

    for in_place in (False, True):
        wanted = run(block, in_place)
        for backend in backends:
            torch._dynamo.reset()
            found = run(torch.compile(block, fullgraph=True, backend=backend), in_place)
            name = f"compile, {backend}{', in place' if in_place else ''}"
            suite.check(name, all(torch.equal(a, b) for a, b in zip(wanted, found)))


if __name__ == "__main__":
    parser = arguments(__doc__.splitlines()[0])
    options = parser.parse_args()
    why = missing("torch", "numpy")
    suite = Suite("torch norm_heads", options)
    if why:
        suite.skip("the PyTorch operators of norm_heads", why)
        suite.write()
        suite.finish()
    import torch

    os.environ["FASTNORM_LIBRARY"] = use_library(options)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages" / "python"))
    import fastnorm.torch.norm_heads as fh

    DTYPES = {**fh._shared._DTYPES, torch.float64: fh._c.Dtype(2, 64, 1)}
    DEVICE = torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")
    if options.device == "cuda":
        try:
            one = torch.ones(1, 1, 8, device=DEVICE)
            fh.norm_heads([fh.Part(one)])
        except RuntimeError as error:
            suite.skip("the PyTorch operators of norm_heads", f"no kernels for it: {error}")
            suite.write()
            suite.finish()
    suite.results["versions"]["torch"] = torch.__version__
    suite.run(
        [
            test_layer,
            test_padding,
            test_codes,
            test_division,
            test_quantised,
            test_indexer,
            test_rows_of_584_bytes,
            test_settings_of_codes,
            test_bytes,
            test_tables,
            test_wide_results,
            test_ranks,
            test_latents,
            test_gradients,
            test_errors,
            test_opcheck,
            test_compare,
            test_compare_indexer,
            test_kept_calls,
            test_compile,
        ]
    )
    suite.finish()
