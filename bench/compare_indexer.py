#!/usr/bin/env python3
"""Times the heads of a sparse attention's indexer beside PyTorch, in one process.

  compare_indexer.py --library build/src/libfastnorm.so.1 --tokens 1 4096 --csv indexer.csv

A token has 64 query heads and one key of 128 columns. The key gets a LayerNorm; then both get rope
of their first 64 columns (rotate-half), a Hadamard matrix of 128 and e4m3 codes with a scale a row,
a power of two for the key. Codes of the key go to a paged cache of 132 bytes a token. The weight of
a head is multiplied by its query's scale. Providers are

  fastnorm  one call of norm_heads
  steps     LayerNorm, rope, Hadamard, codes and stores: each a function of PyTorch, compiled by
            torch.compile where it is not one kernel already; the rotation is a matrix product
  compiled  the same functions as one, compiled by torch.compile

Results are compared with double precision before they are timed: a row's codes times its scale. One
that is wrong is not timed. Calls are in a CUDA graph over distinct tensors, more than the L2 cache
holds; figures are medians of replays in an order that changes. It needs PyTorch.
"""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from compare.beside import Clock, add_options, measured, run  # noqa: E402

HEADS, D, ROTARY, PAGE, ROW, EPS = 64, 128, 64, 64, 132, 1e-6
FACTOR = D**-0.5 * HEADS**-0.5
MOST = 448.0  # of e4m3
COLD_BYTES, MOST_SETS = 400 << 20, 64
TOKENS = (1, 16, 64, 256, 1024, 4096, 16384)


def bytes_moved(tokens):
    """Read and written: heads, codes, scales and weights. Tables and slots are not counted."""
    return tokens * (2 * (HEADS + 1) * D + 2 * HEADS + HEADS * (D + 8) + ROW)


class Batch:
    """`sets` of queries, keys, weights of heads and outputs; all share tables and slots."""

    def __init__(self, torch, tokens, sets, device):
        generator = torch.Generator(device).manual_seed(5)

        def random(*extents):
            return torch.randn(*extents, generator=generator, device=device).to(torch.bfloat16)

        self.torch, self.tokens, self.sets = torch, tokens, sets
        self.queries = [random(tokens, HEADS, D) for _ in range(sets)]
        self.keys = [random(tokens, 1, D) for _ in range(sets)]
        self.weights = [random(tokens, HEADS) for _ in range(sets)]
        self.weight, self.bias = 1 + 0.2 * random(D), 0.2 * random(D)
        turns = 10000.0 ** -(torch.arange(ROTARY // 2, dtype=torch.float64) / (ROTARY // 2))
        angles = torch.arange(tokens, dtype=torch.float64)[:, None] * turns
        self.cos, self.sin = angles.cos().float().to(device), angles.sin().float().to(device)
        order = torch.randperm(tokens, generator=torch.Generator().manual_seed(6))
        self.slots = order.to(device, torch.int32)
        matrix = torch.ones(1, 1, dtype=torch.float64)
        for _ in range(7):
            matrix = torch.cat(
                [torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0
            )
        self.hadamard = (matrix / D**0.5).to(device)
        pages = -(-tokens // PAGE)
        self.codes = [
            torch.zeros(tokens, HEADS, D, dtype=torch.float8_e4m3fn, device=device)
            for _ in range(sets)
        ]
        self.scales, self.scaled = (
            [torch.zeros(tokens, HEADS, device=device) for _ in range(sets)] for _ in range(2)
        )
        self.caches = [
            torch.zeros(pages, PAGE * ROW, dtype=torch.uint8, device=device) for _ in range(sets)
        ]

    def cache_parts(self, i):
        """Codes [pages, page, 1, 128] as bytes, and scales [pages, page, 1, 1]: a page has its
        codes first."""
        cache = self.caches[i]
        codes = cache[:, : PAGE * D].unflatten(1, (PAGE, 1, D))
        return codes, cache.view(self.torch.float32)[:, PAGE * D // 4 :].unflatten(1, (PAGE, 1, 1))

    def exact(self):
        """The rotated queries and keys of set 0 in double precision."""
        torch = self.torch
        key = torch.nn.functional.layer_norm(
            self.keys[0].double(), (D,), self.weight.double(), self.bias.double(), EPS
        )
        c, s = self.cos.double()[:, None], self.sin.double()[:, None]
        found = []
        for x in (self.queries[0].double(), key):
            a, b = x[..., : ROTARY // 2], x[..., ROTARY // 2 : ROTARY]
            x = torch.cat([a * c - b * s, b * c + a * s, x[..., ROTARY:]], -1)
            found.append(x @ self.hadamard)
        return found


class Ours:
    name = "fastnorm"

    def __init__(self, torch):
        sys.path.append(str(HERE.parent / "packages" / "python"))
        import fastnorm
        from fastnorm.torch import norm_heads

        self.heads, self.build = norm_heads, fastnorm.build_info()

    def calls(self, b):
        shared = {"rope_dim": ROTARY, "cos": b.cos, "sin": b.sin, "slots": b.slots}
        parts = []
        for i in range(b.sets):
            codes, scales = b.cache_parts(i)
            key = self.heads.Part(
                b.keys[i], norm="layer", weight=b.weight, bias=b.bias, eps=EPS, rope=True, y=False,
                cache=codes, cache_dtype=b.torch.float8_e4m3fn, cache_block=D, cache_scale=scales,
                cache_pow2=True, cache_rotation=D,
            )  # fmt: skip
            query = self.heads.Part(
                b.queries[i], rope=True, y=False, scheme="per_row", rotation=D,
                quantized=b.codes[i], scale=b.scales[i], head_weights=b.weights[i],
                head_weights_out=b.scaled[i], head_weights_factor=FACTOR,
            )  # fmt: skip
            parts.append([query, key])
        return lambda i: self.heads.norm_heads_(parts[i], **shared)


class Steps:
    name, whole = "steps", False

    def __init__(self, torch):
        self.torch = torch

    def steps(self, b):
        torch, c, s = self.torch, b.cos.bfloat16()[:, None], b.sin.bfloat16()[:, None]
        matrix, slots = b.hadamard.bfloat16(), b.slots.long()
        page, row = (slots // PAGE)[:, None], (slots % PAGE)[:, None]
        # Bytes of a page: codes of its tokens, then scales.
        code_bytes = row * D + torch.arange(D, device=slots.device)
        scale_bytes = PAGE * D + row * 4 + torch.arange(4, device=slots.device)

        def norm(key):
            return torch.nn.functional.layer_norm(key, (D,), b.weight, b.bias, EPS)

        def turn(query, key):
            x = torch.cat([query, key], 1)
            first, second = x[..., : ROTARY // 2], x[..., ROTARY // 2 : ROTARY]
            return torch.cat(
                [first * c - second * s, second * c + first * s, x[..., ROTARY:]], -1
            )

        def rotate(x):
            return x @ matrix

        def store(x, weights, codes, scales, scaled, cache):
            x = x.float()
            most = x.abs().amax(-1).clamp_min(1e-30)
            scale = most / MOST
            power = torch.exp2(torch.ceil(torch.log2(scale[:, HEADS:])))
            scale = torch.cat([scale[:, :HEADS], power], 1)
            made = (x / scale[..., None]).clamp(-MOST, MOST).to(torch.float8_e4m3fn)
            codes.copy_(made[:, :HEADS])
            scales.copy_(scale[:, :HEADS])
            scaled.copy_(weights.float() * scale[:, :HEADS] * FACTOR)
            cache[page, code_bytes] = made[:, HEADS].view(torch.uint8)
            cache[page, scale_bytes] = power.contiguous().view(torch.uint8)

        return norm, turn, rotate, store

    def calls(self, b):
        compile_ = self.torch.compile
        norm, turn, rotate, store = self.steps(b)
        if not self.whole:
            turn, store = compile_(turn), compile_(store)

        def run(query, key, *rest):
            store(rotate(turn(query, norm(key))), *rest)

        run = compile_(run) if self.whole else run
        rest = [
            (b.weights[i], b.codes[i], b.scales[i], b.scaled[i], b.caches[i])
            for i in range(b.sets)
        ]
        return lambda i: run(b.queries[i], b.keys[i], *rest[i])


class Compiled(Steps):
    name, whole = "compiled", True


PROVIDERS = (Ours, Steps, Compiled)


def wrong(b):
    """'' if the codes of set 0 mean the exact values, else how far one is off: a code is off by up
    to 1/16 of itself, and operands in bf16 by 2^-7 of the row's magnitude."""
    torch = b.torch
    query, key = b.exact()
    codes, scales = b.cache_parts(0)
    slots = b.slots.long()
    page, row = slots // PAGE, slots % PAGE
    found = {
        "query": (b.codes[0].double() * b.scales[0].double()[..., None], query),
        "key": (
            codes[page, row].contiguous().view(torch.float8_e4m3fn).double()
            * scales[page, row].double(),
            key,
        ),
        "weights": (
            b.scaled[0].double(),
            b.weights[0].double() * b.scales[0].double() * FACTOR,
        ),
    }
    for name, (got, exact) in found.items():
        magnitude = exact.abs().amax(-1, keepdim=True)
        allowed = exact.abs() / 16 + magnitude * 2.0**-6
        worst = ((got - exact).abs() / allowed.clamp_min(1e-30)).max().item()
        if not worst <= 1:
            return f"wrong: {worst:.2f} of the error that is allowed, in {name}"
    return ""


def compare(torch, tokens, device, repeats, providers):
    one = bytes_moved(tokens)
    sets = max(2, min(MOST_SETS, COLD_BYTES // one + 1)) if device.type == "cuda" else 1
    b = Batch(torch, tokens, sets, device)
    clock = Clock(torch, device, sets, sets * one < COLD_BYTES, chained=True)

    def prepare(provider):
        call = provider.calls(b)
        for outputs in (b.codes, b.caches):
            outputs[0].view(torch.uint8).fill_(0x7F)
        call(0)
        return call, wrong(b)

    def figures(us):
        return {"gb_per_s": one / us / 1e3, "sets": sets}

    return measured(providers, {"tokens": tokens}, prepare, clock, repeats, figures, Ours.name)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS)
    options = parser.parse_args()
    for tokens in options.tokens:
        if tokens < 1:
            parser.error(f"--tokens {tokens}; required: at least 1")

    def shown(tokens, row):
        return f"{tokens:8} {row['provider']:12} " + (
            row["error"]
            if "error" in row
            else f"{row['us']:10.2f} {100 * row['spread']:6.1f}% "
            f"{row.get('time_over_fastnorm', 0):9.2f}"
        )

    return run(
        options,
        PROVIDERS,
        Ours.name,
        options.tokens,
        lambda torch, tokens, device, made: compare(torch, tokens, device, options.repeats, made),
        f"{'tokens':>8} {'provider':12} {'us':>10} {'spread':>7} x fastnorm",
        shown,
    )


if __name__ == "__main__":
    sys.exit(main())
