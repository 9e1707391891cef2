"""Chooses tokens as the indexer of DeepSeek's sparse attention does, with random weights.

Each step caches keys as codes of 8 bits, makes codes of its queries, adds up the scores of the
heads, and takes the best tokens of all that it may see. The scores and the chosen tokens are
compared with those in double precision, without codes, without a rotation and without a cache.

first: a page of the cache has the codes of its tokens first, and then their scales.
behind: each token's scale lies behind its codes.
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

PROMPT, STEPS, PAGE, EPS, CHOSEN = 40, 6, 16, 1e-6, 8
HEADS, D, ROTARY, HIDDEN, ROW = 8, 128, 64, 256, 132
# What the weights of heads are multiplied by: the factor of the scores, and that of the heads.
FACTOR = D ** -0.5 * HEADS ** -0.5
# A code is off by up to 1 / 16 of its value, and in the root mean square by about 1 / 38, so a
# product of two is off by 1 / 27. The errors of all columns and heads add up as the products do, so
# the largest of a thousand errors is about 3.5 / 27 of a typical score. The largest score is 3 to 4
# of these.
BOUND = 1 / 12  # of the largest score; room of about 2


def tables(rows, pairs):
    """Cosines and sines in float32."""
    turns = 10000.0 ** (-np.arange(pairs) / pairs)
    angles = np.arange(rows)[:, None] * turns
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def values_of_codes():
    """What each of the 256 codes of e4m3 stands for."""
    code = np.arange(256)
    exponent, fraction = code >> 3 & 15, code & 7
    normal = (1 + fraction / 8) * 2.0 ** (exponent - 7)
    magnitude = np.where(exponent == 0, fraction * 2.0**-9, normal)
    magnitude[code & 127 == 127] = np.nan
    return np.where(code >= 128, -magnitude, magnitude)


class Codes:
    """An array of bytes as codes of e4m3, which NumPy lacks."""

    def __init__(self, array):
        self.array, self.dtype, self.itemsize = array, fn.F8_E4M3FN, 1
        self.address, self.shape, self.strides = array.ctypes.data, array.shape, array.strides


class Cache:
    """Pages in random order. Token t of the request lies at slot(t)."""

    def __init__(self, order, tokens, random):
        self.pages = random.permutation(-(-tokens // PAGE) + 1)
        self.bytes = np.full((len(self.pages), PAGE * ROW), 255, np.uint8)
        if order == "first":
            codes, scales = np.split(self.bytes, [PAGE * D], axis=1)
            self.codes = codes.reshape(-1, PAGE, 1, D)
            self.scales = scales.view(np.float32)[..., None, None]
        else:
            rows = self.bytes.reshape(-1, PAGE, 1, ROW)
            self.codes, self.scales = rows[..., :D], rows[..., D:].view(np.float32)

    def slot(self, tokens):
        return (self.pages[tokens // PAGE] * PAGE + tokens % PAGE).astype(np.int32)

    def keys(self, count):
        """Codes and scales of the first tokens."""
        page, row = np.divmod(self.slot(np.arange(count)), PAGE)
        return self.codes[page, row, 0], self.scales[page, row, 0, 0]


class Indexer:
    def __init__(self, order, random, tokens):
        def weights(columns):
            return (random.standard_normal((HIDDEN, columns)) / 16).astype(np.float32)

        self.query, self.key, self.heads = weights(HEADS * D), weights(D), weights(HEADS)
        self.weight = (1 + 0.2 * random.standard_normal(D)).astype(np.float32)
        self.bias = (0.2 * random.standard_normal(D)).astype(np.float32)
        self.cos, self.sin = tables(tokens, ROTARY // 2)
        self.cache, self.codes = Cache(order, tokens, random), values_of_codes()

    def step(self, context, x, positions):
        """The scores of the tokens so far, for each of the new tokens."""
        rope = {"rope_dim": ROTARY, "cos": self.cos, "sin": self.sin, "positions": positions}
        context.norm_heads([{
            "flags": fn.NORM | fn.ROPE, "kind": fn.LAYER, "eps": EPS, "x": (x @ self.key)[:, None],
            "weight": self.weight, "bias": self.bias, "cache": Codes(self.cache.codes),
            "cache_scheme": fn.PER_BLOCK, "cache_block_size": D, "cache_rotation": D,
            "cache_scale": self.cache.scales,
        }], slots=self.cache.slot(positions), **rope).run()  # fmt: skip
        queries = np.empty((len(x), HEADS, D), np.uint8)
        scales, weights = (np.empty((len(x), HEADS), np.float32) for _ in range(2))
        context.norm_heads([{
            "flags": fn.ROPE, "x": (x @ self.query).reshape(-1, HEADS, D),
            "quant_scheme": fn.PER_ROW, "rotation": D, "quantized": Codes(queries), "scale": scales,
            "head_weights": x @ self.heads, "head_weights_out": weights,
            "head_weights_factor": FACTOR,
        }], **rope).run()  # fmt: skip
        keys, key_scales = self.cache.keys(positions[-1] + 1)
        products = np.einsum("thd,sd->ths", self.codes[queries], self.codes[keys])
        return np.einsum("ths,th->ts", np.maximum(products, 0), weights) * key_scales

    def exact(self, x):
        """The scores of all tokens at once."""
        x = x.astype(np.float64)
        query, key = (x @ self.query).reshape(-1, HEADS, D), x @ self.key
        centred = key - key.mean(-1, keepdims=True)
        variance = (centred**2).mean(-1, keepdims=True)
        key = centred / np.sqrt(variance + np.float64(np.float32(EPS))) * self.weight + self.bias
        query, key = (self.turned(t) for t in (query, key[:, None]))
        products = np.einsum("thd,sd->ths", query, key[:, 0])
        return np.einsum("ths,th->ts", np.maximum(products, 0), x @ self.heads) * FACTOR

    def turned(self, x):
        """Rope of the first columns, whose pairs are half of them apart."""
        half, o = ROTARY // 2, x.copy()
        c, s = (t[: len(x), None].astype(np.float64) for t in (self.cos, self.sin))
        first, second = x[..., :half], x[..., half:ROTARY]
        o[..., :half], o[..., half:ROTARY] = first * c - second * s, second * c + first * s
        return o


def best(scores, token):
    """The tokens that a token chooses among those up to itself."""
    return np.argsort(-scores[: token + 1], kind="stable")[:CHOSEN]


def run(order, indexer, context, x):
    """Whether the scores are within the bound, and so are those of the chosen tokens."""
    positions = np.arange(len(x), dtype=np.int32)
    cuts = [PROMPT + i for i in range(STEPS)]
    exact, largest, error, worst, same, rows = indexer.exact(x), 0, 0, 0, 0, 0
    for tokens, at in zip(np.split(x, cuts), np.split(positions, cuts)):
        found = indexer.step(context, tokens, at)
        for scores, token in zip(found, at):
            wanted = exact[token, : token + 1]
            chosen, right = best(scores, token), best(exact[token], token)
            largest = max(largest, np.abs(wanted).max())
            error = max(error, np.abs(scores[: token + 1] - wanted).max())
            # How far the worst chosen token is below the worst one of the right choice.
            worst = max(worst, wanted[right].min() - wanted[chosen].min())
            same, rows = same + len(set(chosen) & set(right)), rows + len(right)
    bound = BOUND * largest
    print(
        f"{order}: {len(cuts) + 1} steps for {len(x)} tokens, largest score {largest:.3g}, largest "
        f"error {error:.3g}, bound {bound:.3g}; {same} of {rows} chosen tokens are those of double "
        f"precision, the others {worst:.3g} below them"
    )
    return bool(error <= bound and worst <= 2 * bound)


def main():
    parser = argparse.ArgumentParser(prog="indexer", description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="folder of a build")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the library")
    parser.add_argument("--seed", type=int, default=1, help="of weights and inputs")
    options = parser.parse_args()
    path = options.build / "src" / "libfastnorm.so.1"
    if not path.exists():
        sys.exit(f"indexer: there is no {path}; required: --build with a build folder")
    context = fn.Context(fn.Library(path), num_threads=options.threads)
    right, tokens = True, PROMPT + STEPS
    for order in ("first", "behind"):
        random = np.random.default_rng(options.seed)
        indexer = Indexer(order, random, tokens)
        x = random.standard_normal((tokens, HIDDEN)).astype(np.float32)
        right = run(order, indexer, context, x) and right
    context.close()
    if not right:
        sys.exit("indexer: an error is larger than the bound")


if __name__ == "__main__":
    main()
