#!/usr/bin/env python3
"""Tests of the PyTorch operators of MLA decode, on the CPU or a CUDA device. The last line is the
count.

Values are compared with double precision: each element of o within (|o| + sum of p|v|) times the
tolerance of its dtype. Run with a Python that has PyTorch and NumPy.
"""

import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.append(str(Path(__file__).resolve().parents[1]))
from norm_testing import ROOT, Suite, arguments, missing, use_library  # noqa: E402

TOLERANCE = {"float32": 2.0**-16, "float16": 2.0**-10, "bfloat16": 2.0**-8}
LATENT, WIDE = 512, 576
SCALE = 192**-0.5


class Batch:
    """Requests of (cached, new) tokens. Pages are in random order, free rows NaN, unused entries of
    the table no page. The query and the cache are fused unless `separate`."""

    def __init__(
        self, requests, heads, page, dtype, csr=False, ragged=False, separate=False, seed=1
    ):
        generator = torch.Generator().manual_seed(seed)
        self.requests, self.heads, self.page = requests, heads, page
        self.lengths = [length for length, _ in requests]
        own = [-(-length // page) for length in self.lengths]
        total, width = max(1, sum(own)), max(1, *own)
        order = torch.randperm(total, generator=generator).tolist()
        starts = [sum(own[:b]) for b in range(len(own) + 1)]
        self.lists = [order[starts[b] : starts[b + 1]] for b in range(len(own))]
        cache = torch.full((total, page, WIDE), math.nan)
        for length, pages in zip(self.lengths, self.lists):
            for j in range(length):
                cache[pages[j // page], j % page] = torch.randn(WIDE, generator=generator)
        tokens = sum(new for _, new in requests)
        query = torch.randn(tokens, heads, WIDE, generator=generator)
        self.query, self.cache = query.to(dtype).to(DEVICE), cache.to(dtype).to(DEVICE)

        def int32(values):
            return torch.tensor(values, dtype=torch.int32, device=DEVICE)

        def parts(fused):
            both = fused[..., :LATENT], fused[..., LATENT:]
            return [part.contiguous() for part in both] if separate else both

        table = (
            order if csr else [pages + [2147480000] * (width - len(pages)) for pages in self.lists]
        )
        self.arguments = (*parts(self.query), *parts(self.cache), int32(self.lengths), int32(table))
        self.options = {"sm_scale": SCALE}
        if csr:
            self.options["kv_indptr"] = int32(starts)
        if ragged:
            self.options["qo_indptr"] = int32(
                [sum(new for _, new in requests[:b]) for b in range(len(requests) + 1)]
            )
            self.options["max_s_q"] = max(new for _, new in requests)

    def exact(self, causal):
        """o, its tolerance's factor and lse in double precision."""
        query, cache = self.query.cpu().double(), self.cache.cpu().double()
        o, magnitude, lse, token = [], [], [], 0
        for (length, new), pages in zip(self.requests, self.lists):
            keys = cache[pages].reshape(-1, WIDE)[:length]
            for i in range(new):
                seen = keys[: max(0, length - new + i + 1)] if causal else keys
                scores = query[token] @ seen.T * SCALE
                log = (
                    torch.logsumexp(scores, -1)
                    if len(seen)
                    else torch.full((self.heads,), -math.inf).double()
                )
                weights = torch.exp(scores - log[:, None])
                o.append(weights @ seen[:, :LATENT])
                magnitude.append(weights @ seen[:, :LATENT].abs())
                lse.append(log)
                token += 1
        return torch.stack(o), torch.stack(magnitude), torch.stack(lse)


def dtypes():
    return (torch.bfloat16, torch.float16) + ((torch.float32,) if DEVICE.type == "cpu" else ())


def check_values(suite, name, batch, causal, found, base=1.0):
    (o, lse), (exact, magnitude, log) = found, batch.exact(causal)
    tolerance = TOLERANCE[str(o.dtype).removeprefix("torch.")]
    error = (o.cpu().double() - exact).abs() / (tolerance * (exact.abs() + magnitude)).clamp_min(
        1e-300
    )
    suite.check(f"{name}: o", bool((error <= 1).all()), f"{error.max()} of what is allowed")
    log = log / base
    same = (lse.cpu().double() == log) | (
        (lse.cpu().double() - log).abs() <= 2.0**-13 * log.abs().clamp_min(1)
    )
    suite.check(f"{name}: lse", bool(same.all()))


def test_values(suite):
    for dtype in dtypes():
        for name, requests, options in (
            ("one token each", [(65, 1), (7, 1), (128, 1)], {"page": 16}),
            ("two tokens each, pages apart", [(33, 2), (2, 2)], {"page": 64, "separate": True}),
            (
                "ragged, a list of pages",
                [(9, 3), (0, 0), (21, 1), (5, 5)],
                {"page": 5, "csr": True, "ragged": True},
            ),
            (
                "an empty cache, more new tokens than cached",
                [(0, 1), (1, 3)],
                {"page": 1, "ragged": True},
            ),
        ):
            for causal in (False, True):
                batch = Batch(requests, 3, dtype=dtype, **options)
                found = fm.mla_decode(*batch.arguments, causal=causal, **batch.options)
                check_values(
                    suite, f"{dtype} {name}{' causal' if causal else ''}", batch, causal, found
                )
    batch = Batch([(40, 1)], 16, 8, torch.bfloat16)
    check_values(
        suite,
        "base 2",
        batch,
        False,
        fm.mla_decode(*batch.arguments, lse_base="2", **batch.options),
        math.log(2),
    )
    one = fm.mla_decode(*batch.arguments, split_tokens=64, **batch.options)
    other = fm.mla_decode(*batch.arguments, split_tokens=64, **batch.options)
    suite.check("equal calls give equal bits", all(torch.equal(a, b) for a, b in zip(one, other)))


def test_workspace(suite):
    batch = Batch([(300, 1), (70, 1)], 16, 64, torch.bfloat16)
    workspace = fm.workspace_for(*batch.arguments, **batch.options)
    suite.check("a workspace on a GPU only", (workspace.numel() > 0) == (DEVICE.type == "cuda"))
    plain = fm.mla_decode(*batch.arguments, **batch.options)
    version = workspace._version
    for reuse in (False, True, True):
        found = fm.mla_decode(
            *batch.arguments, workspace=workspace, reuse_plan=reuse, **batch.options
        )
        suite.check(
            f"with a workspace, reuse_plan {reuse}: the same bits",
            all(torch.equal(a, b) for a, b in zip(plain, found)),
        )
    suite.equal("autograd's version of the workspace", workspace._version, version + 3)
    suite.raises(
        "a plan without a workspace",
        ValueError,
        "reuse_plan is True without a workspace",
        lambda: fm.mla_decode(*batch.arguments, reuse_plan=True, **batch.options),
    )


def test_layouts(suite):
    """FlashMLA's layouts: a query of four dimensions, and both tensors in one."""
    batch = Batch([(70, 2), (33, 2)], 16, 8, torch.bfloat16)
    query, cache = batch.query.view(2, 2, 16, WIDE), batch.cache
    q_nope, q_pe, ckv, kpe, *rest = batch.arguments
    o, lse = fm.mla_decode(*batch.arguments, causal=True, **batch.options)
    for name, given in (
        ("a query of 576 columns", (query, None, ckv, kpe)),
        ("a query in two", (query[..., :LATENT], query[..., LATENT:], ckv, kpe)),
        ("query and cache of 576", (query, None, cache.unsqueeze(2), None)),
        ("a cache with a head", (query, None, ckv.unsqueeze(2), kpe.unsqueeze(2))),
    ):
        found = fm.mla_decode(*given, *rest, causal=True, **batch.options)
        suite.check(
            name,
            found[0].shape == (2, 2, 16, LATENT)
            and found[1].shape == (2, 2, 16)
            and torch.equal(found[0].flatten(0, 1), o)
            and torch.equal(found[1].flatten(0, 1), lse),
        )
        workspace = fm.workspace_for(*given, *rest, causal=True, **batch.options)
        again = fm.mla_decode(*given, *rest, causal=True, workspace=workspace, **batch.options)
        suite.check(f"{name}, with a workspace", all(map(torch.equal, again, found)))
    flat = fm.mla_decode(batch.query, None, cache, None, *rest, causal=True, **batch.options)
    suite.check("three dimensions", all(map(torch.equal, flat, (o, lse))))
    for name, text, given in (
        ("half a query", "q_pe is None and q_nope.shape is [4, 16, 512]; required: a last "
         "dimension of 576, or q_pe", (q_nope, None, ckv, kpe)),
        ("half a cache", "kpe is None and ckv.shape is", (q_nope, q_pe, ckv, None)),
        ("two ranks", "q_pe.shape is [4, 16, 64]; required: [2, 2, 16, 64], as q_nope",
         (query[..., :LATENT], q_pe, ckv, kpe)),
        ("five dimensions", "q_nope.shape is [1, 2, 2, 16, 512]; required: [N, H, columns]",
         (query[None], None, ckv, kpe)),
        ("no query", "q_nope is None; required: a tensor", (None, q_pe, ckv, kpe)),
    ):  # fmt: skip
        suite.raises(
            name, fm.FastnormError, text, lambda: fm.mla_decode(*given, *rest, **batch.options)
        )
    ragged = Batch([(70, 2), (33, 2)], 16, 8, torch.bfloat16, ragged=True)
    suite.raises(
        "four dimensions with qo_indptr",
        fm.FastnormError,
        "q_nope.shape is [2, 2, 16, 512] with qo_indptr; required: [N, H, columns]",
        lambda: fm.mla_decode(query, None, cache, None, *ragged.arguments[4:], **ragged.options),
    )


def test_errors(suite):
    batch = Batch([(20, 1), (3, 1)], 2, 4, torch.bfloat16)

    def call(position=None, value=None, **options):
        arguments = list(batch.arguments)
        if position is not None:
            arguments[position] = value
        return fm.mla_decode(*arguments, **{**batch.options, **options})

    q_nope, q_pe, ckv, kpe, kv_len, table = batch.arguments
    for name, text, change in (
        ("no scale", "sm_scale", lambda: call(sm_scale=0.0)),
        ("a base", "lse_base is 'e'", lambda: call(lse_base="e")),
        ("a wrong width", "FASTNORM_ERROR_UNSUPPORTED", lambda: call(1, q_pe[..., :32])),
        ("another dtype", "FASTNORM_ERROR_DTYPE", lambda: call(3, kpe.float())),
        (
            "a dtype without a word",
            "kv_len.dtype is torch.bool; required: one of",
            lambda: call(4, kv_len.bool()),
        ),
        ("64-bit lengths", "FASTNORM_ERROR_DTYPE: kv_len", lambda: call(4, kv_len.long())),
        ("a rank", "FASTNORM_ERROR_SHAPE", lambda: call(5, table[:, :, None])),
        (
            "qo_indptr without max_s_q",
            "max_s_q",
            lambda: call(qo_indptr=torch.tensor([0, 1, 2], dtype=torch.int32, device=DEVICE)),
        ),
        ("a split", "split_tokens", lambda: call(split_tokens=63)),
    ):
        suite.raises(name, (RuntimeError, ValueError), text, change)
    if DEVICE.type == "cpu":
        suite.raises(
            "a length behind the table", RuntimeError, "kv_len", lambda: call(4, kv_len + 100)
        )
        suite.raises(
            "a page that is not there",
            RuntimeError,
            "page 0 of request 0",
            lambda: call(5, table + 100),
        )
    grad = q_nope.clone().requires_grad_()
    suite.raises(
        "a gradient", RuntimeError, "fastnorm::mla_decode has no backward", lambda: call(0, grad)
    )
    with torch.no_grad():
        suite.check("under no_grad", torch.equal(call(0, grad)[0], call()[0]))


def placed(t):
    """A tensor, or None, on the device, with the same strides."""
    if t is None or t.device == DEVICE:
        return t
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=DEVICE).copy_(t)


class Selected:
    """Two requests of two new tokens that select rows of a cache of bytes, or of T (`row` 0), and
    with `extra` those of a second cache. What is not selected is NaN."""

    def __init__(self, row, dtype, extra, seed=3):
        self.row, self.dtype, self.heads = row, dtype, 3
        self.generator = torch.Generator().manual_seed(seed)
        self.nope = 448 if row == 584 else LATENT
        query = self.normal(2, 2, self.heads, self.nope + 64).to(dtype)
        self.query = query
        self.scale = torch.tensor([2.0**-7])
        self.sink = self.normal(self.heads) * 3
        self.caches = [self.make_cache(5, 7, 9)] + ([self.make_cache(3, 2, 4)] if extra else [])
        self.lengths = torch.tensor([[9, 3], [0, 8]], dtype=torch.int32)

    def normal(self, *shape):
        return torch.randn(shape, generator=self.generator)

    def make_cache(self, pages, page, topk):
        """(values, stored, indices): the rows in double, and the cache as the operator takes it."""
        indices = torch.randint(-1, pages * page, (2, 2, topk), generator=self.generator)
        indices = indices.to(torch.int32)
        used = indices.unique()
        used = used[used >= 0].long()
        rows = pages * page
        values = torch.full((rows, WIDE), math.nan, dtype=torch.float64)
        if not self.row:
            stored = torch.full((rows, WIDE), math.nan, dtype=self.dtype)
            stored[used] = self.normal(len(used), WIDE).to(self.dtype)
            values[used] = stored[used].double()
            return values, stored.view(pages, page, WIDE), indices
        count = {656: 512, 576: 576, 584: 448}[self.row]
        codes = (self.normal(rows, count) * 100).clamp(-448, 448).to(torch.float8_e4m3fn)
        rope = self.normal(rows, 64).bfloat16()
        exponents = torch.randint(-8, -5, (rows, 7), generator=self.generator)
        # Pages begin at multiples of 16 bytes, as a GPU needs them.
        stored = torch.full((pages, -(-page * self.row // 16) * 16), 255, dtype=torch.uint8)
        stored = stored[:, : page * self.row]
        for r in used.tolist():
            base, in_page = stored[r // page], r % page
            width = {656: 128, 576: 576, 584: 64}[self.row]
            blocks = count // width
            scales = (
                self.scale.double()
                if self.row == 576
                else torch.ldexp(torch.ones(7), exponents[r]).double()[:blocks]
            )
            values[r, :count] = codes[r].double() * scales.repeat_interleave(width)
            at = in_page * (576 if self.row == 584 else self.row)
            base[at : at + count] = codes[r].view(torch.uint8)
            if self.row == 576:
                continue
            values[r, count : count + 64] = rope[r].double()
            values[r, count + 64 :] = 0
            if self.row == 656:
                base[at + 512 : at + 528] = scales.float().view(torch.uint8)
                base[at + 528 : at + 656] = rope[r].view(torch.uint8)
            else:
                base[at + 448 : at + 576] = rope[r].view(torch.uint8)
                behind = page * 576 + in_page * 8
                base[behind : behind + 7] = (exponents[r] + 127).to(torch.uint8)
        return values, stored.unflatten(1, (page, self.row)), indices

    def options(self):
        found = {
            "indices": placed(self.caches[0][2]),
            "topk_length": placed(self.lengths),
            "attention_sink": placed(self.sink),
            "sm_scale": SCALE,
        }
        if self.row == 576:
            found["cache_scale"] = placed(self.scale)
        if len(self.caches) > 1:
            extra = self.caches[1]
            found.update(extra_ckv=placed(extra[1]), extra_indices=placed(extra[2]))
        return found

    def run(self, **more):
        cache = placed(self.caches[0][1]).unsqueeze(2)
        query = placed(self.query)
        return fm.mla_decode(query, None, cache, None, None, None, **self.options(), **more)

    def operator_arguments(self):
        query, options = placed(self.query).flatten(0, 1), self.options()
        return (
            query[..., : self.nope],
            query[..., self.nope :],
            placed(self.caches[0][1]),
            *(None,) * 5,
            options.get("cache_scale"),
            options["indices"],
            options["topk_length"],
            options["attention_sink"],
            options.get("extra_ckv"),
            None,
            options.get("extra_indices"),
            None,
        )

    def exact(self, b, i):
        """o, the factor of its tolerance and lse of one new token."""
        rows = []
        for number, (values, _, indices) in enumerate(self.caches):
            chosen = indices[b, i]
            chosen = chosen[: int(self.lengths[b, i])] if number == 0 else chosen
            rows.append(values[chosen[chosen >= 0].long()])
        keys = torch.cat(rows)
        query = self.query[b, i].double()
        scores = query @ keys[:, : query.shape[-1]].T * SCALE
        lse = torch.logsumexp(scores, -1)
        left = 1 / (1 + torch.exp(self.sink.double() - lse))
        weights = torch.exp(scores - lse[:, None]) * left[:, None]
        values = keys[:, :LATENT]
        return weights @ values, weights @ values.abs(), lse


def test_selected(suite):
    for row in (0, 656, 576, 584):
        for dtype in dtypes():
            for extra in (False, True):
                sparse = Selected(row, dtype, extra)
                name = f"rows of {row} bytes, {dtype}" if row else f"selected rows, {dtype}"
                name += ", two caches" if extra else ""
                o, lse = (t.cpu() for t in sparse.run())
                suite.check(f"{name}: again", torch.equal(o, sparse.run()[0].cpu()))
                if DEVICE.type == "cpu":  # which needs no workspace
                    again = sparse.run(workspace=torch.empty(0, dtype=torch.uint8))
                    suite.check(f"{name}: in a workspace", torch.equal(o, again[0]))
                tolerance = TOLERANCE[str(dtype).removeprefix("torch.")]
                for b, i in ((0, 0), (0, 1), (1, 0), (1, 1)):
                    exact, magnitude, log = sparse.exact(b, i)
                    error = (o[b, i].double() - exact).abs()
                    suite.check(
                        f"{name}: o[{b}][{i}]",
                        bool((error <= tolerance * (exact.abs() + magnitude)).all()),
                        error.max(),
                    )
                    same = (lse[b, i].double() == log) | ((lse[b, i].double() - log).abs() <= 2e-4)
                    suite.check(f"{name}: lse[{b}][{i}]", bool(same.all()), lse[b, i])
    compiled = torch.compile(lambda: sparse.run()[0] + 1, fullgraph=True, backend="aot_eager")
    suite.check("compile of selected rows", torch.equal(compiled(), sparse.run()[0] + 1))
    if DEVICE.type != "cpu":
        return
    sparse = Selected(656, torch.bfloat16, True)
    cache = sparse.caches[0][1]
    dense = [torch.tensor(v, dtype=torch.int32) for v in ([9, 9], [[0, 1], [2, 3]])]
    for name, text, call in (
        ("rows of other bytes", "ckv.shape is [5, 7, 655] and its dtype is uint8; required: "
         "[pages, page, row] with rows of 656, 576, 584 bytes",
         lambda: fm.mla_decode(sparse.query, None, cache[..., 1:], None, *dense, sm_scale=SCALE)),
        ("bytes with kpe", "kpe is given and cache is given",
         lambda: fm.mla_decode(sparse.query, None, cache, sparse.query[..., 512:].flatten(0, 1),
                               *dense, sm_scale=SCALE)),
        ("lengths and indices", "kv_len is given and indices is given",
         lambda: fm.mla_decode(sparse.query, None, cache, None, *dense, **sparse.options())),
        ("an index that is not there", "indices[0][0][0] is 35; required: -1, or 0 to 34",
         lambda: fm.mla_decode(sparse.query, None, cache, None, None, None, **{
             **sparse.options(), "indices": torch.full((2, 2, 9), 35, dtype=torch.int32)})),
        ("a scale of other rows", "cache_scale is given and cache_format is",
         lambda: sparse.run(cache_scale=sparse.scale)),
    ):  # fmt: skip
        suite.raises(name, fm.FastnormError, text, call)


def test_opcheck(suite):
    batch = Batch([(20, 2), (3, 2)], 2, 4, torch.bfloat16)
    rest = (None,) * 8  # of a dense call with rows
    arguments = (*batch.arguments, None, None, *rest, SCALE, True, 0, "natural", 0)
    workspace = fm.workspace_for(*batch.arguments, **batch.options)
    workspace = (
        workspace if workspace.numel() else torch.empty(256, dtype=torch.uint8, device=DEVICE)
    )
    calls = [("mla_decode", arguments), ("mla_decode_planned", (workspace, False, *arguments))]
    if DEVICE.type == "cpu":
        sparse = Selected(656, torch.bfloat16, True)
        given = [*sparse.operator_arguments(), SCALE, False, 0, "natural", 0]
        calls += [("mla_decode", given), ("mla_decode_planned", (workspace, False, *given))]
    for name, args in calls:
        found = torch.library.opcheck(
            getattr(torch.ops.fastnorm, name).default, args, raise_exception=False
        )
        suite.check(
            f"opcheck of {name}",
            len(found) == 4 and all(v == "SUCCESS" for v in found.values()),
            found,
        )


def test_compile(suite):
    """Attention within pointwise work that the compiler fuses; the workspace is written in
    place."""
    backends = ["aot_eager"]
    if shutil.which("g++"):
        backends.append("inductor")
    else:
        suite.skip("compile, inductor", "no C++ compiler for it")
    batch = Batch([(20, 2), (33, 2)], 2, 16, torch.bfloat16)
    workspace = fm.workspace_for(*batch.arguments, **batch.options)

    def block(q_nope, q_pe, *rest):
        o, lse = fm.mla_decode(
            q_nope * 2, q_pe * 2, *rest, causal=True, workspace=workspace, **batch.options
        )
        again, _ = fm.mla_decode(
            q_nope + q_nope,
            q_pe * 2,
            *rest,
            causal=True,
            workspace=workspace,
            reuse_plan=True,
            **batch.options,
        )
        free, _ = fm.mla_decode(q_nope * 2, q_pe * 2, *rest, causal=True, **batch.options)
        return torch.relu(o), lse + 1, again - o, free - o

    wanted = block(*batch.arguments)
    suite.check("equal calls, eager", not wanted[2].any() and not wanted[3].any())
    for backend in backends:
        torch._dynamo.reset()
        found = torch.compile(block, fullgraph=True, backend=backend)(*batch.arguments)
        suite.check(f"compile, {backend}", all(torch.equal(a, b) for a, b in zip(wanted, found)))
    suite.raises(
        "compile, the library's error",
        RuntimeError,
        "FASTNORM_ERROR_UNSUPPORTED",
        lambda: torch.compile(
            lambda *a: fm.mla_decode(*a, **batch.options), fullgraph=True, backend="aot_eager"
        )(batch.arguments[0], batch.arguments[1][..., :32], *batch.arguments[2:]),
    )


def test_threads(suite):
    batch = Batch([(50, 1), (9, 1)], 4, 16, torch.bfloat16)
    wanted, wrong = fm.mla_decode(*batch.arguments, **batch.options), []

    def work():
        stream = (
            torch.cuda.stream(torch.cuda.Stream()) if DEVICE.type == "cuda" else torch.no_grad()
        )
        with stream:
            for _ in range(50):
                found = fm.mla_decode(*batch.arguments, **batch.options)
                if DEVICE.type == "cuda":
                    torch.cuda.current_stream().synchronize()
                if not all(torch.equal(a, b) for a, b in zip(wanted, found)):
                    wrong.append(1)

    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    suite.check("four threads: the same bits", not wrong)


def test_graph(suite):
    """A captured call, replayed with other lengths, queries and pages than it was captured with."""
    if DEVICE.type != "cuda":
        suite.skip("a CUDA graph with lengths that change", "needs a CUDA device")
        return
    batch = Batch([(300, 1), (20, 1), (100, 1)], 16, 64, torch.bfloat16)
    other = Batch([(11, 1), (320, 1), (64, 1)], 16, 64, torch.bfloat16, seed=2)
    held = [t.clone() for t in (batch.query, batch.cache, batch.arguments[4], batch.arguments[5])]
    query, cache, lengths, table = held
    arguments = (
        query[..., :LATENT],
        query[..., LATENT:],
        cache[..., :LATENT],
        cache[..., LATENT:],
        lengths,
        table,
    )
    workspace = fm.workspace_for(*arguments, **batch.options)
    fm.mla_decode(*arguments, workspace=workspace, **batch.options)  # loads the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, lse = fm.mla_decode(*arguments, workspace=workspace, **batch.options)
    for name, now in (("as captured", batch), ("others", other)):
        query.copy_(now.query)
        cache.fill_(math.nan)
        cache[: len(now.cache)].copy_(now.cache)
        lengths.copy_(now.arguments[4])
        table.fill_(2147480000)
        table[:, : now.arguments[5].shape[1]].copy_(now.arguments[5])
        graph.replay()
        torch.cuda.synchronize()
        check_values(suite, f"a CUDA graph, {name}", now, False, (o, lse))


def test_compare(suite):
    """bench/compare_mla_decode.py: this library and PyTorch are right and timed, whoever else is
    there."""
    if not (ROOT / "bench").is_dir():
        suite.skip("compare", "there is no folder bench beside the examples")
        return
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "run.csv"
        program = [
            sys.executable,
            str(ROOT / "bench" / "compare_mla_decode.py"),
            "--device",
            DEVICE.type,
            "--library",
            os.environ["FASTNORM_LIBRARY"],
            "--repeats",
            "2",
            "--csv",
            str(path),
        ]
        ran = subprocess.run(
            [*program, "--shapes", "2x100:4", "3x65:2:3cp7"], capture_output=True, text=True
        )
        if not suite.check("compare: runs", ran.returncode == 0, ran.stdout + ran.stderr):
            return
        sys.path.insert(0, str(ROOT / "bench"))
        from compare import lines

        for row in lines.read(path)["results"]:
            if row["provider"] in ("fastnorm", "torch"):
                suite.check(
                    f"compare: {row['shape']} of {row['provider']}",
                    row.get("us", 0) > 0 and row["time_over_fastnorm"] > 0,
                    row,
                )
        ran = subprocess.run([*program, "--shapes", "2x100"], capture_output=True, text=True)
        suite.check(
            "compare: a wrong shape",
            ran.returncode == 2 and "is no shape" in ran.stderr,
            ran.stderr,
        )


if __name__ == "__main__":
    parser = arguments(__doc__.splitlines()[0])
    options = parser.parse_args()
    why = missing("torch", "numpy")
    suite = Suite("torch mla_decode", options)
    if why:
        suite.skip("the PyTorch operators of MLA decode", why)
        suite.write()
        suite.finish()
    import torch

    if options.device == "cuda" and (
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0)
    ):
        suite.skip("the PyTorch operators of MLA decode", "needs a GPU of compute capability 9.0")
        suite.write()
        suite.finish()
    os.environ["FASTNORM_LIBRARY"] = use_library(options)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages" / "python"))
    import fastnorm.torch.mla_decode as fm

    DEVICE = torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")
    suite.results["versions"]["torch"] = torch.__version__
    suite.run(
        [
            test_values,
            test_workspace,
            test_layouts,
            test_errors,
            test_selected,
            test_opcheck,
            test_compile,
            test_threads,
            test_graph,
            test_compare,
        ]
    )
    suite.finish()
