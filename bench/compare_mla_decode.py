#!/usr/bin/env python3
"""Times MLA decode of this library beside others, in one process and on the same caches.

  compare_mla_decode.py --library build/src/libfastnorm.so.1 --shapes 128x4096:128 64x1024:64p1
  --csv run.csv

A shape is BATCHxLENGTH:HEADS[:NEW][c][pPAGE][f656][kTOPK], as fastnorm_bench takes it. Others
are FlashInfer's kernels fa3 and FlashMLA (pages of 64), where they are installed or were compiled
before (compare/mla_peers.py), and PyTorch's own operators. Rows of codes (f656) are timed beside
FlashMLA's compiled kernel for selected rows; without k it selects all. Results are compared with
double precision before they are timed; one that is wrong is not timed. Each provider's plan is
made before and not timed; a merge is. On a GPU calls are in CUDA graphs over distinct caches.
Graphs are replayed one after the other, in an order that changes; figures are medians. It needs
PyTorch.
"""

import argparse
import math
import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from compare.beside import Clock, add_options, measured, run  # noqa: E402
from compare.mla_peers import (  # noqa: E402
    LATENT,
    SCALE,
    WIDE,
    FlashInferModule,
    FlashMlaLibrary,
    compact_parts,
    require_numbers,
)

TOLERANCE = {"bf16": 2.0 ** -8, "f16": 2.0 ** -10, "f32": 2.0 ** -16}
SHAPES = (
    "128x4096:128 128x8192:128 128x4096:128:2c 128x8192:64 128x4096:16 32x4096:128 64x1024:64 "
    "1x4096:128 1x131072:16 128x8192:64f656 128x4096:128f656 128x8192:64f656k2048 "
    "128x8192:128f656k2048"
).split()
CODE_BYTES, BLOCK = 656, 128  # of a row with codes: 512, a scale for each block, RoPE in bf16
COLD_BYTES, MOST_SETS = 1300 << 20, 256


class Shape:
    def __init__(self, text):
        match = re.fullmatch(r"(\d+)x(\d+):(\d+)(?::(\d+))?(c?)(?:p(\d+))?(f656)?(?:k(\d+))?", text
        )
        if (
            not match
            or not all(int(n) for n in match.groups()[:3])
            or match[4] == "0"
            or "0" in (match[6], match[8])
            or (match[5] and match[8])
            or int(match[8] or 0) > int(match[2])
        ):
            raise ValueError(
                f"'{text}' is no shape; required: BATCHxLENGTH:HEADS[:NEW][c][pPAGE][f656][kTOPK], "
                "such as 128x4096:128:2cp64, TOPK at most LENGTH and without c"
            )
        self.text, self.causal = text, bool(match[5])
        self.batch, self.length, self.heads = (int(n) for n in match.groups()[:3])
        self.new, self.page = int(match[4] or 1), int(match[6] or 64)
        self.pages = -(-self.length // self.page)  # of a request
        self.codes, self.topk = bool(match[7]), int(match[8] or 0)

    def selected(self):
        """Rows that a new token attends to."""
        return self.topk or self.length

    def rows(self):
        return self.batch * self.new * self.heads

    def bytes_moved(self, size):
        read = self.batch * (self.new * self.topk if self.topk else self.length)
        row = CODE_BYTES if self.codes else WIDE * size
        return read * row + self.rows() * (WIDE + LATENT) * size

    def flops(self):
        pairs = sum(
            max(0, self.length - self.new + i + 1) if self.causal else self.selected()
            for i in range(self.new)
        )
        return 2 * self.batch * pairs * self.heads * (WIDE + LATENT)


def quantised(torch, rows):
    """Rows of bf16 as codes with power-of-two scales, and what these codes mean."""
    latent, rope = rows[..., :LATENT].float(), rows[..., LATENT:]
    blocks = latent.reshape(*latent.shape[:-1], LATENT // BLOCK, BLOCK)
    scales = torch.exp2(torch.ceil(torch.log2(blocks.abs().amax(-1) / 448)))
    codes = (blocks / scales[..., None]).to(torch.float8_e4m3fn)
    meant = (codes.float() * scales[..., None]).reshape(latent.shape).to(rows.dtype)
    parts = (codes.reshape(latent.shape), scales, rope.contiguous())
    return (
        torch.cat([part.view(torch.uint8) for part in parts], -1),
        torch.cat([meant, rope], -1),
    )


class Batch:
    """`sets` caches with as many queries and outputs; all share lengths, the table of pages and the
    rows that new tokens select."""

    def __init__(self, torch, shape, dtype, device, sets):
        generator = torch.Generator(device=device).manual_seed(7)
        s, self.torch, self.dtype, self.device, self.sets = shape, torch, dtype, device, sets
        self.queries = [
            torch.randn(s.batch * s.new, s.heads, WIDE, generator=generator, device=device).to(
                dtype
            )
            for _ in range(sets)
        ]
        self.caches = [
            torch.randn(s.batch * s.pages, s.page, WIDE, generator=generator, device=device).to(
                dtype
            )
            for _ in range(sets)
        ]
        self.numbers = self.caches[0]
        if s.codes:
            made = [quantised(torch, cache) for cache in self.caches]
            self.caches, self.numbers = [bytes_ for bytes_, _ in made], made[0][1]
        order = torch.randperm(s.batch * s.pages, generator=torch.Generator().manual_seed(8))
        self.table = order.to(device=device, dtype=torch.int32).reshape(s.batch, s.pages)
        self.lengths = torch.full((s.batch,), s.length, dtype=torch.int32, device=device)
        self.indices = self.selected_rows(s) if s.codes or s.topk else None

    def selected_rows(self, s):
        """[batch, new tokens, rows]: all in order, or some at random."""
        torch = self.torch
        within = torch.arange(s.length, device=self.device)
        places = self.table[:, within // s.page] * s.page + (within % s.page).to(torch.int32)
        if not s.topk:
            return places[:, None].expand(s.batch, s.new, s.length).contiguous()
        generator = torch.Generator(device=self.device).manual_seed(9)
        drawn = torch.rand(s.batch, s.new, s.length, generator=generator, device=self.device)
        chosen = drawn.topk(s.topk, -1).indices
        return places[:, None].expand(s.batch, s.new, s.length).gather(-1, chosen).contiguous()

    def exact(self, shape, row):
        """Head 0 .. of new token `row` of set 0 in double precision, and the sum of p|v|."""
        torch, b = self.torch, row // shape.new
        if shape.topk:
            chosen = self.indices[b, row % shape.new].long()
            keys = self.numbers.reshape(-1, WIDE)[chosen].double()
        else:
            keys = self.numbers[self.table[b].long()].double().reshape(-1, WIDE)[:shape.length]
        if shape.causal:
            keys = keys[:max(0, shape.length - shape.new + row % shape.new + 1)]
        weights = torch.softmax(self.queries[0][row].double() @ keys.T * SCALE, -1)
        return weights @ keys[:, :LATENT], weights @ keys[:, :LATENT].abs()


class Ours:
    name = "fastnorm"

    def __init__(self, torch):
        sys.path.append(str(HERE.parent / "packages" / "python"))
        import fastnorm.torch.mla_decode

        self.module = fastnorm.torch.mla_decode
        self.build = fastnorm.build_info()

    def calls(self, shape, b):
        options = {"sm_scale": SCALE, "causal": shape.causal}
        rows = (b.lengths, b.table)
        if shape.topk:
            options["indices"], rows = b.indices, (None, None)
        batches = [
            (
                *(q[..., :LATENT], q[..., LATENT:]),
                *((c, None) if shape.codes else (c[..., :LATENT], c[..., LATENT:])),
                *rows,
            )
            for q, c in zip(b.queries, b.caches)
        ]
        workspace = self.module.workspace_for(*batches[0], **options)
        self.module.mla_decode(*batches[0], workspace=workspace, **options)  # makes the plan
        return lambda i: self.module.mla_decode(
            *batches[i], workspace=workspace, reuse_plan=True, **options
        )[0]


class FlashInfer:
    name = "flashinfer"

    def __init__(self, torch):
        built = os.environ.get("FASTNORM_FLASHINFER_MLA")
        self.module = FlashInferModule(torch, built) if built else None
        if self.module is None:
            import flashinfer

            self.wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(
                torch.empty(128 << 20, dtype=torch.uint8, device="cuda"), backend="fa3")

    def calls(self, shape, b):
        if self.module is not None:
            return self.module.calls(shape, b)
        require_numbers(shape)
        torch = b.torch
        steps = torch.arange(shape.batch + 1, dtype=torch.int32, device=b.device)
        self.wrapper.plan(
            qo_indptr=steps * shape.new,
            kv_indptr=steps * shape.pages,
            kv_indices=b.table.reshape(-1),
            kv_len_arr=b.lengths,
            num_heads=shape.heads,
            head_dim_ckv=LATENT,
            head_dim_kpe=WIDE - LATENT,
            page_size=shape.page,
            causal=shape.causal,
            sm_scale=SCALE,
            q_data_type=b.dtype,
            kv_data_type=b.dtype,
        )
        parts = compact_parts(b)
        return lambda i: self.wrapper.run(*parts[i])


class FlashMla:
    name = "flashmla"

    def __init__(self, torch):
        built = os.environ.get("FASTNORM_FLASHMLA")
        self.library = FlashMlaLibrary(torch, built) if built else None
        if self.library is None:
            import flash_mla

            self.module = flash_mla

    def calls(self, shape, b):
        if shape.page != 64:
            raise ValueError(f"pages have {shape.page} tokens; required: 64")
        if self.library is not None:
            return self.library.calls(shape, b)
        require_numbers(shape)
        plan = self.module.get_mla_metadata(b.lengths, shape.new * shape.heads, 1)
        queries = [q.reshape(shape.batch, shape.new, shape.heads, WIDE) for q in b.queries]
        caches = [c.unsqueeze(2) for c in b.caches]
        return lambda i: self.module.flash_mla_with_kvcache(
            queries[i], caches[i], b.table, b.lengths, LATENT, *plan, softmax_scale=SCALE,
            causal=shape.causal)[0].reshape(-1, shape.heads, LATENT)


class TorchNative:
    """Pages gathered, then two products and a softmax of all requests at once."""

    name = "torch"

    def __init__(self, torch):
        self.torch = torch

    def calls(self, shape, b):
        require_numbers(shape)
        torch, index = self.torch, b.table.long().reshape(-1)
        seen = torch.arange(shape.length, device=b.device) <= (
            torch.arange(shape.new, device=b.device)[:, None] + shape.length - shape.new)
        hidden = ~seen.repeat_interleave(shape.heads, 0)

        def run(i):
            keys = b.caches[i][index].reshape(shape.batch, -1, WIDE)[:, :shape.length]
            query = b.queries[i].reshape(shape.batch, shape.new * shape.heads, WIDE)
            scores = query.float() @ keys.mT.float() * SCALE  # in 16 bits they would be too coarse
            if shape.causal:
                scores = scores.masked_fill(hidden, -math.inf)
            return (torch.softmax(scores, -1).to(b.dtype) @ keys[..., :LATENT]).reshape(
                -1, shape.heads, LATENT
            )

        return run


PROVIDERS = (Ours, FlashInfer, FlashMla, TorchNative)


def wrong(shape, b, o, tolerance):
    """'' if rows of o are within the tolerance, else how far one is off."""
    tokens = shape.batch * shape.new
    for row in sorted({0, tokens // 3, tokens - 1}):
        exact, magnitude = b.exact(shape, row)
        worst = (
            (
                (o[row].double() - exact).abs()
                / (tolerance * (exact.abs() + magnitude)).clamp_min(1e-300)
            )
            .max()
            .item()
        )
        if not worst <= 1:
            return f"wrong: {worst:.2f} of the error that is allowed, in token {row}"
    return ""


def compare(torch, shape, dtype_name, device, repeats, providers):
    """One row a provider."""
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[dtype_name]
    one = shape.bytes_moved(dtype.itemsize)
    sets = max(2, min(MOST_SETS, COLD_BYTES // one + 1)) if device.type == "cuda" else 1
    b = Batch(torch, shape, dtype, device, sets)
    clock = Clock(torch, device, sets, sets * one < COLD_BYTES, chained=False)

    def prepare(provider):
        call = provider.calls(shape, b)
        return call, wrong(shape, b, call(0), TOLERANCE[dtype_name])

    def figures(us):
        return {
            "gb_per_s": one / us / 1e3, "tflop_per_s": shape.flops() / us / 1e6, "sets": sets
        }

    case = {"shape": shape.text, "dtype": dtype_name}
    return measured(providers, case, prepare, clock, repeats, figures, Ours.name)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument(
        "--shapes",
        nargs="+",
        default=SHAPES,
    )
    parser.add_argument(
        "--providers",
        nargs="+",
        choices=[made.name for made in PROVIDERS],
        default=[made.name for made in PROVIDERS],
    )
    parser.add_argument("--dtype", choices=sorted(TOLERANCE), default="bf16")
    options = parser.parse_args()
    try:
        shapes = [Shape(text) for text in options.shapes]
    except ValueError as error:
        parser.error(str(error))
    head = (
        f"{'shape':24} {'provider':12} {'us':>10} {'spread':>7} {'GB/s':>8} {'TFLOP/s':>8} "
        f"{'x fastnorm':>10}"
    )

    def shown(shape, row):
        ratio = row.get("time_over_fastnorm")
        return f"{shape.text:24} {row['provider']:12} " + (
            row["error"]
            if "error" in row
            else f"{row['us']:10.2f} {100 * row['spread']:6.1f}% {row['gb_per_s']:8.1f} "
            f"{row['tflop_per_s']:8.2f} {f'{ratio:.2f}' if ratio else '-':>10}"
        )

    return run(
        options,
        [made for made in PROVIDERS if made.name in options.providers],
        Ours.name,
        shapes,
        lambda torch, shape, device, made: compare(
            torch, shape, options.dtype, device, options.repeats, made
        ),
        head,
        shown,
    )


if __name__ == "__main__":
    sys.exit(main())
