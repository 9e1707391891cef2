"""Decodes with two attention layers of random weights whose heads libfastnorm prepares.

qwen3: QK norm, rope and the paged cache write of a layer as Qwen3's, from one QKV buffer.
mla: the prologue of DeepSeek's MLA, latent norm and rope into one cache, then MLA decode.

Each layer sees a prompt and then single tokens. Its outputs are compared with the same layer in
double precision without a cache.
"""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packages" / "python"))

from fastnorm import abi as fn  # noqa: E402

PROMPT, STEPS, PAGE, EPS = 13, 6, 4, 1e-6
BOTH = fn.NORM | fn.ROPE
# An output is off by the roundings of its terms: the library's, and NumPy's products in float32.
BOUND = 2.0 ** -19  # of the largest output; room of about 4


def tables(rows, pairs):
    """Cosines and sines in float32."""
    turns = 10000.0 ** (-np.arange(pairs) / pairs)
    angles = np.arange(rows)[:, None] * turns
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def normed(x, weight):
    return x / np.sqrt((x ** 2).mean(-1, keepdims=True) + np.float64(np.float32(EPS))) * weight


def turned(x, first, second, cos, sin):
    """Rope of the pairs (first, second) of columns, for x of [tokens, heads, d]."""
    o, c, s = x.copy(), cos[:, None, :].astype(x.dtype), sin[:, None, :].astype(x.dtype)
    o[..., first] = x[..., first] * c - x[..., second] * s
    o[..., second] = x[..., second] * c + x[..., first] * s
    return o


def attended(q, k, v, scale):
    """Causal attention of the last tokens: q [n, heads, d], k and v [L, heads, ..]."""
    seen = np.arange(len(k)) <= np.arange(len(k) - len(q), len(k))[:, None]
    scores = np.where(seen[None], np.einsum("nhd,lhd->hnl", q, k) * scale, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hnl,lhe->nhe", weights / weights.sum(-1, keepdims=True), v)


class Pages:
    """Pages in random order; token t of the request lies at slot(t)."""

    def __init__(self, tokens, random):
        self.order = random.permutation(-(-tokens // PAGE) + 1)

    def slot(self, tokens):
        return (self.order[tokens // PAGE] * PAGE + tokens % PAGE).astype(np.int32)


class Qwen3:
    QUERY, KEY, D, HIDDEN = 8, 2, 64, 256

    def __init__(self, random, tokens):
        heads = self.QUERY + 2 * self.KEY
        self.into = (random.standard_normal((self.HIDDEN, heads * self.D)) / 16).astype(np.float32)
        out = random.standard_normal((self.QUERY * self.D, self.HIDDEN)) / 22
        self.out = out.astype(np.float32)
        self.weights = (1 + 0.2 * random.standard_normal((2, self.D))).astype(np.float32)
        self.cos, self.sin = tables(tokens, self.D // 2)
        self.pages = Pages(tokens, random)
        shape = (len(self.pages.order), PAGE, self.KEY, self.D)
        self.keys, self.values = (np.full(shape, np.nan, np.float32) for _ in range(2))

    def step(self, context, x, positions):
        rows = (x @ self.into).reshape(len(x), -1, self.D)
        q, k, v = np.split(rows, [self.QUERY, self.QUERY + self.KEY], axis=1)
        context.norm_heads([
            {"flags": BOTH, "eps": EPS, "x": q, "weight": self.weights[0], "y": q},
            {"flags": BOTH, "eps": EPS, "x": k, "weight": self.weights[1], "cache": self.keys},
            {"x": v, "cache": self.values},
        ], rope_dim=self.D, cos=self.cos, sin=self.sin, positions=positions,
            slots=self.pages.slot(positions)).run()
        seen = self.pages.slot(np.arange(positions[-1] + 1))
        cached = (t.reshape(-1, self.KEY, self.D)[seen] for t in (self.keys, self.values))
        k, v = (np.repeat(t, self.QUERY // self.KEY, axis=1) for t in cached)
        return attended(q, k, v, self.D ** -0.5).reshape(len(x), -1) @ self.out

    def exact(self, x):
        """All tokens at once."""
        rows = (x.astype(np.float64) @ self.into).reshape(len(x), -1, self.D)
        q, k, v = np.split(rows, [self.QUERY, self.QUERY + self.KEY], axis=1)
        half, cos, sin = self.D // 2, self.cos[:len(x)], self.sin[:len(x)]
        q, k = (turned(normed(t, w.astype(np.float64)), slice(0, half), slice(half, None), cos, sin)
                for t, w in zip((q, k), self.weights))
        k, v = (np.repeat(t, self.QUERY // self.KEY, axis=1) for t in (k, v))
        return attended(q, k, v, self.D ** -0.5).reshape(len(x), -1) @ self.out


class Mla:
    HEADS, LATENT, ROTARY, HIDDEN = 4, 512, 64, 256

    def __init__(self, random, tokens):
        wide = self.LATENT + self.ROTARY
        self.into = (random.standard_normal((self.HIDDEN, wide)) / 16).astype(np.float32)
        query = random.standard_normal((self.HIDDEN, self.HEADS * wide)) / 64
        self.query = query.astype(np.float32)
        self.weight = (1 + 0.2 * random.standard_normal(self.LATENT)).astype(np.float32)
        self.cos, self.sin = tables(tokens, self.ROTARY // 2)
        self.pages = Pages(tokens, random)
        self.cache = np.full((len(self.pages.order), PAGE, 1, wide), np.nan, np.float32)
        self.scale = 192 ** -0.5

    def step(self, context, x, positions):
        latent = (x @ self.into)[:, None, :]
        query = (x @ self.query).reshape(len(x), self.HEADS, -1)
        rope = fn.ROPE | fn.ROPE_INTERLEAVED
        context.norm_heads([
            {"flags": rope, "rope_offset": -1, "x": query, "y": query},
            {"flags": fn.NORM, "eps": EPS, "x": latent[..., :self.LATENT], "weight": self.weight,
             "cache": self.cache[..., :self.LATENT]},
            {"flags": rope, "x": latent[..., self.LATENT:], "cache": self.cache[..., self.LATENT:]},
        ], rope_dim=self.ROTARY, cos=self.cos, sin=self.sin, positions=positions,
            slots=self.pages.slot(positions)).run()
        o = np.empty((len(x), self.HEADS, self.LATENT), np.float32)
        cache = self.cache[:, :, 0]
        context.mla_decode(sm_scale=self.scale, causal=1,
                           q_nope=query[..., :self.LATENT], q_pe=query[..., self.LATENT:],
                           ckv=cache[..., :self.LATENT], kpe=cache[..., self.LATENT:],
                           kv_len=np.array([positions[-1] + 1], np.int32),
                           page_table=self.pages.order[None].astype(np.int32), o=o).run()
        return o.reshape(len(x), -1)

    def exact(self, x):
        """All tokens at once."""
        x = x.astype(np.float64)
        latent = (x @ self.into)[:, None, :]
        query = (x @ self.query).reshape(len(x), self.HEADS, -1)
        cos, sin = self.cos[:len(x)], self.sin[:len(x)]
        first, second = (slice(self.LATENT + i, None, 2) for i in range(2))
        query = turned(query, first, second, cos, sin)
        key = turned(latent, first, second, cos, sin)
        key[..., :self.LATENT] = normed(latent[..., :self.LATENT], self.weight.astype(np.float64))
        key = np.repeat(key, self.HEADS, axis=1)
        return attended(query, key, key[..., :self.LATENT], self.scale).reshape(len(x), -1)


def run(name, layer, context, x):
    """Decodes and compares. Whether the largest error is within the bound."""
    positions = np.arange(len(x), dtype=np.int32)
    cuts = [PROMPT + i for i in range(STEPS)]
    outputs = [layer.step(context, rows, at)
               for rows, at in zip(np.split(x, cuts), np.split(positions, cuts))]
    exact = layer.exact(x)
    largest, error = np.abs(exact).max(), np.abs(np.concatenate(outputs) - exact).max()
    bound = BOUND * largest
    print(f"{name}: {len(outputs)} calls for {len(x)} tokens, largest output {largest:.3g}, "
          f"largest error {error:.3g}, bound {bound:.3g}")
    return bool(error <= bound)


def main():
    parser = argparse.ArgumentParser(prog="norm_heads", description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="folder of a build")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the library")
    parser.add_argument("--seed", type=int, default=1, help="of weights and inputs")
    options = parser.parse_args()
    path = options.build / "src" / "libfastnorm.so.1"
    if not path.exists():
        sys.exit(f"norm_heads: there is no {path}; required: --build with a build folder")
    context = fn.Context(fn.Library(path), num_threads=options.threads)
    random, tokens = np.random.default_rng(options.seed), PROMPT + STEPS
    right = True
    for name, kind in (("qwen3", Qwen3), ("mla", Mla)):
        layer = kind(random, tokens)
        x = random.standard_normal((tokens, kind.HIDDEN)).astype(np.float32)
        right = run(name, layer, context, x) and right
    context.close()
    if not right:
        sys.exit("norm_heads: an error is larger than the bound")


if __name__ == "__main__":
    main()
