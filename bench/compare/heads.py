"""Query and key heads beside others: cases, tensors, what a result must be, and who computes it.

A case is TOKENSxMODEL[:WHAT]. MODEL is one of MODELS. WHAT is none (in place), own, fp8, backward.
With own and fp8, key and value go to pages of 64 tokens, in bf16 or as e4m3 codes with one scale. A
case's parts go through timing.time_case: heads and latents are one operation each, rows are tokens.

Providers work with the functions of their packages that are nearest to the kernels. One that is not
installed only says so.
"""

import dataclasses
import importlib
import os
import types

from compare import family, tables
from compare.ops import ALIKE, JOINED
from compare.reference import EPS, QMAX
from compare.timing import Unsupported

PAGE, TABLE_ROWS, SCALE = 64, 32768, 1 / 32
LATENT, ROTARY = 512, 64
TOKENS = (1, 16, 64, 256, 1024, 4096, 16384)
WHATS = ("none", "own", "fp8", "backward")


@dataclasses.dataclass(frozen=True)
class Model:
    query: int
    key: int
    columns: int
    norm: bool = True
    weight_offset: float = 0.0

    @property
    def latents(self):
        return self.query == 0


MODELS = {
    "qwen3": Model(32, 8, 128),
    "llama3": Model(32, 8, 128, norm=False),
    "gemma3": Model(8, 4, 256, weight_offset=1.0),
    "mla": Model(0, 1, LATENT + ROTARY),  # the prologue of DeepSeek's latents
}


class HeadsCase:
    dtype = "bf16"
    op = types.SimpleNamespace(heads=False, backward=False)  # of the streams beside it

    def __init__(self, text):
        shape, _, what = text.partition(":")
        tokens, _, name = shape.partition("x")
        self.what = what or "none"
        if not tokens.isdigit() or int(tokens) < 1 or name not in MODELS or self.what not in WHATS:
            raise ValueError(
                f"'{text}' is no case of heads; required: TOKENSxMODEL[:WHAT], MODEL one of "
                f"{', '.join(MODELS)} and WHAT one of {', '.join(WHATS)}, such as 4096xqwen3:fp8"
            )
        self.name, self.model, self.rows = name, MODELS[name], int(tokens)
        if self.model.latents and self.what in ("none", "backward"):
            raise ValueError(f"'{text}': latents go to a cache; required: mla:own or mla:fp8")
        self.n = self.model.columns
        self.op_name = f"heads {name} {self.what}"
        self.key = f"{self.op_name} {self.dtype} {self.rows}x{self.n}"

    @property
    def backward(self):
        return self.what == "backward"

    @property
    def caches(self):
        return self.what in ("own", "fp8")

    @property
    def pages(self):
        return -(-self.rows // PAGE)

    @property
    def heads(self):
        """Of a token's row in the buffer."""
        return 1 if self.model.latents else self.model.query + 2 * self.model.key

    @property
    def bytes_moved(self):
        """Tables, positions, slots, weights and their gradients are few bytes and not counted."""
        m, size = self.model, 2
        turned = (m.query + m.key) * m.columns
        if self.backward:
            return self.rows * turned * size * (3 if m.norm else 2)
        if not self.caches:
            return self.rows * 2 * turned * size
        cached = (1 if m.latents else 2 * m.key) * m.columns * (1 if self.what == "fp8" else size)
        return self.rows * (self.heads * m.columns * size + m.query * m.columns * size + cached)

    @property
    def footprint(self):
        return self.bytes_moved if self.caches or self.backward else self.bytes_moved // 2

    @property
    def stream(self):
        joined = self.backward and self.model.norm
        return family.stream_of(self.bytes_moved, *((2, JOINED) if joined else (1, ALIKE)))

    @property
    def kind(self):
        return "backward" if self.backward else "latents" if self.model.latents else "forward"


def cases_of(models, whats, tokens):
    """All that there are of these, few tokens first."""
    found = []
    for count in tokens:
        for name in models:
            for what in whats:
                if not (MODELS[name].latents and what in ("none", "backward")):
                    found.append(HeadsCase(f"{count}x{name}:{what}"))
    return found


class HeadsBuffers:
    """The tensors of all calls of a chain; lists are indexed by call.

    given               [tokens, heads, columns] of bf16, never written; of latents 576 columns
    qkv                 the same, for those that work in place: what given has, after reset()
    key_cache, value_cache  [pages, PAGE, key heads, columns]; of latents key_cache alone
    dq, dk              gradients of the query's and the key's results
    q_weight, k_weight, table [TABLE_ROWS, rope columns] of f32 (cosines, then sines), positions and
    slots (int64), scale
    """

    def __init__(self, torch, case, chain, inputs, outputs, device):
        m, calls = case.model, chain.calls
        self.torch, self.case, self._outputs = torch, case, outputs
        row = (case.rows, case.heads, m.columns)
        pages = (case.pages, PAGE, m.key, m.columns)
        codes = torch.float8_e4m3fn if case.what == "fp8" else torch.bfloat16
        gradients = [(case.rows, heads, m.columns) for heads in (m.query, m.key)]
        sizes = {
            "given": (inputs, row, torch.bfloat16, True),
            "dq": (inputs, gradients[0], torch.bfloat16, case.backward),
            "dk": (inputs, gradients[1], torch.bfloat16, case.backward),
            "qkv": (outputs, row, torch.bfloat16, not case.backward),
            "key_cache": (outputs, pages, codes, case.caches),
            "value_cache": (outputs, pages, codes, case.caches and not m.latents),
        }
        family.cut(self, calls, inputs, outputs, sizes, case.dtype)
        generator = torch.Generator("cpu").manual_seed(3)
        width = LATENT if m.latents else m.columns
        near = torch.empty(2, width).uniform_(0.5, 1.5, generator=generator) - m.weight_offset
        self.q_weight, self.k_weight = near.to(device, torch.bfloat16)
        rope = ROTARY if m.latents else m.columns
        turns = 10000.0 ** -(torch.arange(rope // 2, dtype=torch.float64) / (rope // 2))
        angles = torch.arange(TABLE_ROWS, dtype=torch.float64)[:, None] * turns
        self.table = torch.cat([angles.cos(), angles.sin()], -1).float().to(device)
        self.positions = (
            torch.arange(case.rows) * (1 if case.rows >= 256 else 1409) % TABLE_ROWS
        ).to(device)
        order = torch.randperm(case.pages, generator=generator)
        token = torch.arange(case.rows)
        self.pages = order.to(device, torch.int32)
        self.slots = (order[token // PAGE] * PAGE + token % PAGE).to(device)
        self.scale = torch.full((1,), SCALE, device=device)

    def parts(self, tensor):
        """(query, key, value) of a packed buffer."""
        m = self.case.model
        return tensor.split([m.query, m.key, m.key], 1)

    def latents(self, tensor):
        """(latent, rotary key)"""
        return tensor.split([LATENT, ROTARY], -1)

    def reset(self):
        """Inputs for those that work in place, and NaN elsewhere in the outputs."""
        self._outputs.refill()
        for source, target in zip(self.given, self.qkv):
            target.copy_(source)


def turned(torch, v, table, positions, interleaved=False):
    """The formula of rope, in v's dtype."""
    c, s = table[positions].to(v.dtype).chunk(2, -1)
    c, s = c[:, None], s[:, None]
    if interleaved:
        first, second = v[..., ::2], v[..., 1::2]
    else:
        first, second = v.chunk(2, -1)
    turned_pair = first * c - second * s, second * c + first * s
    if interleaved:
        return torch.stack(turned_pair, -1).flatten(-2)
    return torch.cat(turned_pair, -1)


def normalised(v, weight, offset):
    """The formula of the norm, in v's dtype."""
    rstd = (v.square().mean(-1, keepdim=True) + EPS).rsqrt()
    return v * rstd * (weight.to(v.dtype) + offset)


def formula(b, i, dtype):
    """What call i gives, in this dtype: {"q", "k", "v"} of all tokens, of latents {"k"}; of a
    backward pass gradients."""
    torch, case, m = b.torch, b.case, b.case.model
    if m.latents:
        latent, rotary = b.latents(b.given[i].to(dtype))
        latent = normalised(latent, b.q_weight, 0.0)
        return {"k": torch.cat([latent, turned(torch, rotary, b.table, b.positions, True)], -1)}
    q, k, v = (part.to(dtype) for part in b.parts(b.given[i]))
    if not case.backward:
        return {"q": forward(b, q, b.q_weight), "k": forward(b, k, b.k_weight), "v": v}
    found = {}
    for name, x, weight, dy in (("q", q, b.q_weight, b.dq[i]), ("k", k, b.k_weight, b.dk[i])):
        x, weight = x.detach().requires_grad_(), weight.to(dtype).detach().requires_grad_()
        with torch.enable_grad():
            y = forward(b, x, weight)
        wanted = [x, weight] if m.norm else [x]
        gradients = torch.autograd.grad(y, wanted, dy.to(dtype))
        found |= dict(zip((f"d{name}", f"d{name}_weight"), gradients))
    return found


def forward(b, x, weight):
    m = b.case.model
    v = normalised(x, weight, m.weight_offset) if m.norm else x
    return turned(b.torch, v, b.table, b.positions)


class HeadsReference(family.FamilyReference):
    def wanted(self, i):
        return formula(self.buffers, i, self.torch.float64)

    def may_miss(self, name):
        return self.case.what == "none" and name == "v"  # stays where it is

    def given(self, i, results):
        """What the contender left: in its own tensors where it returned any, else in the
        buffers."""
        b, case = self.buffers, self.case
        found = {}
        if case.backward:
            return {name: t for name, t in results.items() if t is not None}
        if not case.model.latents:
            q, k, _ = b.parts(b.qkv[i])
            found["q"] = results.get("q", q)
            if not case.caches:
                found["k"] = results.get("k", k)
        if case.caches:
            found["k"] = self._cached(results.get("key_cache", b.key_cache[i]))
            if not case.model.latents:
                found["v"] = self._cached(results.get("value_cache", b.value_cache[i]))
        return found

    def _cached(self, cache):
        """Rows of the tokens; codes times their scale."""
        codes = cache.element_size() == 1
        rows = cache.view(self.torch.uint8 if codes else cache.dtype)
        rows = rows.reshape(-1, *cache.shape[2:])[self.buffers.slots]
        return rows.view(cache.dtype).float() * SCALE if codes else rows

    def magnitude(self, name, exact):
        """Rope adds the products of a pair, whose magnitude it keeps. The gradient of a norm adds
        a term of the row's magnitude."""
        near, m = exact.abs(), self.case.model
        if name == "v":
            return near
        latent = exact.shape[-1] - self.buffers.table.shape[-1]
        rest, turned_part = exact.split((latent, exact.shape[-1] - latent), -1)
        pairs = turned_part.unflatten(-1, (-1, 2) if m.latents else (2, -1))
        dim = -1 if m.latents else -2
        near = self.torch.cat(
            [rest.abs(), pairs.norm(dim=dim, keepdim=True).expand_as(pairs).flatten(-2)], -1
        )
        if self.case.backward and m.norm:
            near = near.maximum(exact.square().mean(-1, keepdim=True).sqrt())
        return near

    def limits(self, name, exact, codes):
        exact, allowed = super().limits(name, exact, codes)
        cached = self.case.what == "fp8" and name != "q"
        if cached or name in codes:
            scale = SCALE if cached else 1.0
            exact = exact.clamp(-QMAX * scale, QMAX * scale)
            allowed = allowed + exact.abs() * 2.0**-4 + scale * 2.0**-9
        return exact, allowed


class HeadsGpu(family.FamilyGpu):
    buffers_kind, reference_kind = HeadsBuffers, HeadsReference


class HeadsHost(family.FamilyHost):
    buffers_kind, reference_kind = HeadsBuffers, HeadsReference


class Provider(family.Provider):
    def _gradients(self, case, b, run):
        """Calls of autograd through run(x, weight), whose forward ran before."""
        torch, norm, calls = self.torch, case.model.norm, []
        for i in range(len(b.given)):
            inputs, results = [], []
            q, k, _ = b.parts(b.given[i])
            for x, weight in ((q, b.q_weight), (k, b.k_weight)):
                x = x.detach().contiguous().requires_grad_()
                weight = weight.detach().clone().requires_grad_()
                inputs.append([x, weight] if norm else [x])
                with torch.enable_grad():
                    results.append(run(x, weight))
            calls.append((results, inputs))

        def body(i):
            (y_q, y_k), (of_q, of_k) = calls[i]
            given = torch.autograd.grad(
                [y_q, y_k], [*of_q, *of_k], [b.dq[i], b.dk[i]], retain_graph=True
            )
            names = ("dq", "dq_weight", "dk", "dk_weight") if norm else ("dq", "dk")
            return dict(zip(names, given))

        return body


class Fastnorm(Provider):
    name, label = tables.OWN, "fastnorm, one call"
    pdl = False

    def __init__(self, torch):
        super().__init__(torch)
        self.module = importlib.import_module("fastnorm.torch.norm_heads")
        self.state = importlib.import_module("fastnorm.torch")
        self.abi = importlib.import_module("fastnorm.abi")
        self.contexts, self.made = {}, {}

    def body(self, case, b):
        """The call, in a context of this contender's, with or without PDL."""
        run, device = super().body(case, b), b.slots.device
        if device.type != "cuda":
            return run
        if device.index not in self.contexts:
            self.contexts[device.index] = self.abi.Context(
                self.state._library, self.abi.CUDA, device.index, pdl=self.pdl
            )

        def body(i):
            calls = self.state._calls
            before = self.state._contexts, calls.made
            self.state._contexts, calls.made = self.contexts, self.made
            try:
                return run(i)
            finally:
                self.state._contexts, calls.made = before

        return body

    def part(self, case, x, weight, norm, rope, **more):
        m = case.model
        if norm:
            more |= {"norm": "rms", "weight": weight, "eps": EPS, "weight_offset": m.weight_offset}
        return self.module.Part(x, rope=rope, **more)

    def shared(self, case, b, slots=True):
        """Keywords of a call, but for those that its parts do without."""
        c, s = b.table.chunk(2, -1)
        found = {"cos": c, "sin": s, "rope_dim": b.table.shape[-1], "positions": b.positions}
        return found | ({"slots": b.slots} if slots and case.caches else {})

    def cached(self, case, b, i):
        """Fields of the key's and the value's part."""
        scale = {"cache_scale": b.scale} if case.what == "fp8" else {}
        caches = [b.key_cache[i]] + ([] if case.model.latents else [b.value_cache[i]])
        return [{"cache": cache, "y": False, **scale} for cache in caches]

    def forward(self, case, b):
        norm, calls = case.model.norm, []
        for i, qkv in enumerate(b.qkv):
            q, k, v = b.parts(qkv)
            key, value = self.cached(case, b, i) if case.caches else ({}, None)
            parts = [
                self.part(case, q, b.q_weight, norm, True),
                self.part(case, k, b.k_weight, norm, True, **key),
            ]
            calls.append(parts + ([self.module.Part(v, **value)] if case.caches else []))
        shared = self.shared(case, b)
        return lambda i: self.module.norm_heads_(calls[i], **shared)

    def latents(self, case, b):
        calls = []
        for i, buffer in enumerate(b.qkv):
            latent, rotary = b.latents(buffer)
            (whole,) = self.cached(case, b, i)
            fields = [whole | {"cache": piece} for piece in b.latents(whole["cache"])]
            calls.append(
                [
                    self.part(case, latent, b.q_weight, True, False, **fields[0]),
                    self.part(case, rotary, None, False, True, interleaved=True, **fields[1]),
                ]
            )
        shared = self.shared(case, b)
        return lambda i: self.module.norm_heads_(calls[i], **shared)

    def backward(self, case, b):
        shared, norm = self.shared(case, b), case.model.norm
        return self._gradients(
            case,
            b,
            lambda x, weight: self.module.norm_heads(
                [self.part(case, x, weight, norm, True)], **shared
            )[0],
        )


class FastnormPdl(Fastnorm):
    name, label = tables.OWN_PDL, "fastnorm, PDL"
    pdl = True

    def backward(self, case, b):
        raise Unsupported("autograd's own thread has the calls of the contender without PDL")


class FastnormChain(Fastnorm):
    """The same in three calls: norm, rope, and the copy to the cache."""

    name, label = "fastnorm-chain", "fastnorm, norm, rope and cache apart"

    def backward(self, case, b):
        raise Unsupported("is the same as the one call's parts, one after the other")

    def _calls(self, steps):
        def run(i):
            for parts, shared in steps[i]:
                self.module.norm_heads_(parts, **shared)

        return run

    def forward(self, case, b):
        steps, turns = [], self.shared(case, b, slots=False)
        for i, qkv in enumerate(b.qkv):
            q, k, v = b.parts(qkv)
            both = ((q, b.q_weight), (k, b.k_weight))
            own = [([self.part(case, x, w, True, False) for x, w in both], {})]
            own = own if case.model.norm else []
            own.append(([self.part(case, x, w, False, True) for x, w in both], turns))
            if case.caches:
                key, value = self.cached(case, b, i)
                own.append(
                    (
                        [self.module.Part(k, **key), self.module.Part(v, **value)],
                        {"slots": b.slots},
                    )
                )
            steps.append(own)
        return self._calls(steps)

    def latents(self, case, b):
        steps, turns = [], self.shared(case, b, slots=False)
        for i, buffer in enumerate(b.qkv):
            latent, rotary = b.latents(buffer)
            (whole,) = self.cached(case, b, i)
            pieces = [whole | {"cache": piece} for piece in b.latents(whole["cache"])]
            steps.append(
                [
                    ([self.part(case, latent, b.q_weight, True, False)], {}),
                    ([self.part(case, rotary, None, False, True, interleaved=True)], turns),
                    (
                        [self.module.Part(x, **p) for x, p in zip((latent, rotary), pieces)],
                        {"slots": b.slots},
                    ),
                ]
            )
        return self._calls(steps)


class FlashInfer(Provider):
    """rmsnorm on the heads, rope in place, and the copy to pages; with an fp8 cache rope, codes of
    the query too and the copy in one."""

    name, label, package = "flashinfer", "FlashInfer", "flashinfer-python"

    def __init__(self, torch):
        super().__init__(torch)
        self.norm = importlib.import_module("flashinfer.norm")
        self.rope = importlib.import_module("flashinfer.rope")
        self.page = importlib.import_module("flashinfer.page")

    def places(self, case, b):
        """One request with all tokens: its pages, and each token's place."""
        torch = self.torch
        whole = lambda *values: torch.tensor(values, dtype=torch.int32, device=b.slots.device)
        token = torch.arange(case.rows, dtype=torch.int32, device=b.slots.device)
        return {
            "batch_indices": torch.zeros_like(token),
            "positions": token,
            "kv_indices": b.pages,
            "kv_indptr": whole(0, case.pages),
        }, whole((case.rows - 1) % PAGE + 1)

    def _normalise(self, case, b, q, k):
        if not case.model.norm:
            return
        norm = self.norm.gemma_rmsnorm if case.model.weight_offset else self.norm.rmsnorm
        norm(q, b.q_weight, EPS, out=q)
        norm(k, b.k_weight, EPS, out=k)

    def forward(self, case, b):
        columns, (places, last) = case.n, self.places(case, b)
        positions = b.positions.to(self.torch.int32)

        def run(i):
            q, k, v = b.parts(b.qkv[i])
            self._normalise(case, b, q, k)
            caches = (b.key_cache[i], b.value_cache[i]) if case.caches else None
            if case.what == "fp8":
                q_codes, _ = self.rope.rope_quantize_fp8_append_paged_kv_cache(
                    q, k, None, None, v, b.table, positions, caches, **places,
                    quantize_dtype=self.torch.float8_e4m3fn, quant_scale_q=1.0,
                    quant_scale_kv=1 / SCALE, page_size=PAGE, kv_layout="NHD",
                )
                return {"q": q_codes}
            self.rope.apply_rope_with_cos_sin_cache_inplace(
                b.positions, q.flatten(1), k.flatten(1), columns, b.table, is_neox=True
            )
            if caches:
                self.page.append_paged_kv_cache(
                    k, v, paged_kv_cache=caches, kv_last_page_len=last, **places
                )

        return run


class VllmHeads(Provider):
    """fused_qk_norm_rope alone, in place: the library that build_vllm.py makes, which
    FASTNORM_VLLM_HEADS names. It is launched with PDL for few tokens."""

    name, label = tables.VLLM_HEADS, "vLLM fused_qk_norm_rope"

    def __init__(self, torch):
        super().__init__(torch)
        built = os.environ.get("FASTNORM_VLLM_HEADS")
        if not built:
            raise ImportError("FASTNORM_VLLM_HEADS names no library; build_vllm.py makes one")
        torch.ops.load_library(built)
        self.run = torch.ops.vllm_heads.fused_qk_norm_rope

    def forward(self, case, b):
        m = case.model
        if case.caches or not m.norm:
            raise Unsupported("the kernel is query and key heads with a norm, in place")
        weights = [(w.float() + m.weight_offset).to(w.dtype) for w in (b.q_weight, b.k_weight)]

        def run(i):
            self.run(
                b.qkv[i].flatten(1), m.query, m.key, m.key, m.columns, EPS, *weights, b.table,
                True, b.positions,
            )

        return run


class Vllm(Provider):
    """fused_qk_norm_rope, or rotary_embedding where there is no norm, and reshape_and_cache_flash;
    for latents rms_norm, rotary_embedding and concat_and_cache_mla."""

    name, label, package = "vllm", "vLLM", "vllm"

    def __init__(self, torch):
        super().__init__(torch)
        importlib.import_module("vllm._custom_ops")
        self.ops, self.cache_ops = torch.ops._C, torch.ops._C_cache_ops
        if not hasattr(self.ops, "fused_qk_norm_rope"):
            raise ImportError("this vLLM has no fused_qk_norm_rope")

    def forward(self, case, b):
        m = case.model
        weights = [(w.float() + m.weight_offset).to(w.dtype) for w in (b.q_weight, b.k_weight)]
        table = b.table.to(self.torch.bfloat16)
        kind = "fp8" if case.what == "fp8" else "auto"

        def run(i):
            q, k, v = b.parts(b.qkv[i])
            if m.norm:
                self.ops.fused_qk_norm_rope(
                    b.qkv[i].flatten(1), m.query, m.key, m.key, m.columns, EPS, *weights, table,
                    True, b.positions,
                )
            else:
                self.ops.rotary_embedding(
                    b.positions, q.flatten(1), k.flatten(1), m.columns, table, True
                )
            if case.caches:
                caches = [b.key_cache[i], b.value_cache[i]]
                if kind == "fp8":
                    caches = [cache.view(self.torch.uint8) for cache in caches]
                self.cache_ops.reshape_and_cache_flash(
                    k, v, *caches, b.slots, kind, b.scale, b.scale
                )

        return run

    def latents(self, case, b):
        table, kind = b.table.to(self.torch.bfloat16), "fp8" if case.what == "fp8" else "auto"

        def run(i):
            latent, rotary = b.latents(b.qkv[i][:, 0])
            normed = self.torch.empty_like(latent)
            self.ops.rms_norm(normed, latent, b.q_weight, EPS)
            self.ops.rotary_embedding(b.positions, rotary, None, ROTARY, table, False)
            cache = b.key_cache[i][:, :, 0]
            if kind == "fp8":
                cache = cache.view(self.torch.uint8)
            self.cache_ops.concat_and_cache_mla(normed, rotary, cache, b.slots, kind, b.scale)

        return run


class TorchNative(Provider):
    """The formula in bf16 by PyTorch's own kernels, one after the other."""

    name, label, package = "torch", "torch", "torch"

    def prepared(self, function):
        return function

    def _stored(self, case, b):
        """Puts rows into a cache, as codes where it has those."""
        torch = self.torch

        def put(cache, rows):
            flat = cache.view(-1, *cache.shape[2:])
            if cache.element_size() == 1:
                codes = (rows.float() / SCALE).clamp(-QMAX, QMAX).to(cache.dtype)
                flat.view(torch.uint8)[b.slots] = codes.view(torch.uint8)
            else:
                flat[b.slots] = rows

        return put

    def _formula(self, case, b):
        m = case.model

        def run(x, weight):
            v = x.float()
            v = normalised(v, weight, m.weight_offset) if m.norm else v
            return turned(self.torch, v, b.table, b.positions).to(x.dtype)

        return run

    def forward(self, case, b):
        of_part, put = self._formula(case, b), self._stored(case, b)

        def whole(qkv, caches):
            q, k, v = b.parts(qkv)
            q, k = of_part(q, b.q_weight), of_part(k, b.k_weight)
            for cache, rows in zip(caches, (k, v)):
                put(cache, rows)
            return q, k

        run = self.prepared(whole)

        def body(i):
            caches = [b.key_cache[i], b.value_cache[i]] if case.caches else []
            return dict(zip("qk", run(b.given[i], caches)))

        return body

    def latents(self, case, b):
        torch, put = self.torch, self._stored(case, b)

        def whole(x, cache):
            latent, rotary = b.latents(x.float())
            latent = normalised(latent, b.q_weight, 0.0)
            rotary = turned(torch, rotary, b.table, b.positions, True)
            put(cache, torch.cat([latent, rotary], -1).to(x.dtype))

        run = self.prepared(whole)
        return lambda i: run(b.given[i], b.key_cache[i])

    def backward(self, case, b):
        return self._gradients(case, b, self.prepared(self._formula(case, b)))


class TorchCompile(TorchNative):
    """What torch.compile makes of the formula, for each shape."""

    name, label, slow = "torch-compile", "torch.compile", True

    def prepared(self, function):
        return family.compiled(self.torch, function)


class Liger(Provider):
    """Its norm and its rope, by autograd."""

    name, label, package = "liger", "Liger", "liger-kernel"

    def __init__(self, torch):
        super().__init__(torch)
        self.norm = importlib.import_module("liger_kernel.ops.rms_norm").LigerRMSNormFunction
        self.rope = importlib.import_module("liger_kernel.ops.rope").LigerRopeFunction

    def backward(self, case, b):
        m, torch = case.model, self.torch
        c, s = b.table[b.positions].chunk(2, -1)
        c, s = (torch.cat([t, t], -1).to(torch.bfloat16)[None] for t in (c, s))
        mode = "gemma" if m.weight_offset else "llama"

        def run(x, weight):
            if m.norm:
                x = self.norm.apply(x, weight, EPS, m.weight_offset, mode, False)
            rows = x.transpose(0, 1)[None]  # [1, heads, tokens, columns]
            # It turns a query and a key at once: the key is one head of zeros.
            other = rows.detach()[:, :1] * 0
            return self.rope.apply(rows, other, c, s)[0][0].transpose(0, 1)

        return self._gradients(case, b, run)


PROVIDERS = (
    Fastnorm,
    FastnormPdl,
    FastnormChain,
    FlashInfer,
    VllmHeads,
    Vllm,
    Liger,
    TorchNative,
    TorchCompile,
)
CASE, GPU, HOST = HeadsCase, HeadsGpu, HeadsHost
