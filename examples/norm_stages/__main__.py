"""Runs layers of random weights whose norms have stages, each in one call of libfastnorm.

gemma: two layers as Gemma's. Post-norm, addition and pre-norm are one call.
delta: a gated delta rule whose output norm is multiplied by silu of a gate, head by head.
dit: two blocks of a diffusion transformer: gated residual, norm, scale and shift are one call.

Outputs are compared with the same layers in double precision.
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

TOKENS, EPS = 21, 1e-6
SILU = 1  # fastnorm_activation
# An output is off by the roundings of its terms: the library's, and NumPy's products in float32.
BOUND = 2.0 ** -18  # of the largest output; room of about 4


def matrix(random, rows, columns):
    return (random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)


def weights(random, *shape):
    return (0.2 * random.standard_normal(shape)).astype(np.float32)


def normed(x, weight=1, mean=False):
    if mean:
        x = x - x.mean(-1, keepdims=True)
    eps = np.float64(np.float32(EPS))
    return x / np.sqrt((x ** 2).mean(-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def attended(q, k, v, causal=True):
    """Attention of one head for each 32 columns."""
    q, k, v = (t.reshape(len(t), -1, 32) for t in (q, k, v))
    scores = np.einsum("nhd,lhd->hnl", q, k) / np.sqrt(q.dtype.type(32))
    if causal:
        scores = np.where(np.tri(len(q), dtype=bool)[None], scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hnl,lhd->nhd", p / p.sum(-1, keepdims=True), v).reshape(len(q), -1)


class Gemma:
    HIDDEN, WIDE, LAYERS = 128, 256, 2

    def __init__(self, random):
        self.qkv, self.out, self.up, self.down = (
            [matrix(random, *shape) for _ in range(self.LAYERS)]
            for shape in ((self.HIDDEN, 3 * self.HIDDEN), (self.HIDDEN, self.HIDDEN),
                          (self.HIDDEN, 2 * self.WIDE), (self.WIDE, self.HIDDEN)))
        # Of a layer: before and after attention, before and after the MLP; then the last norm.
        self.norms = weights(random, 4 * self.LAYERS + 1, self.HIDDEN)
        self.input = random.standard_normal((TOKENS, self.HIDDEN)).astype(np.float32)

    def branch(self, i, x):
        """Attention or MLP number i."""
        layer = i // 2
        if i % 2 == 0:
            return attended(*np.split(x @ self.qkv[layer], 3, axis=1)) @ self.out[layer]
        gate, up = np.split(x @ self.up[layer], 2, axis=1)
        return (silu(gate) * up) @ self.down[layer]

    def run(self, context):
        stream = self.input.copy()
        x = np.empty_like(stream)
        context.call(x=stream, weight=self.norms[0], weight_offset=1, eps=EPS, y=x).run()
        for i in range(2 * self.LAYERS):
            after, following = self.norms[2 * i + 1], self.norms[2 * i + 2]
            context.call(x=self.branch(i, x), branch_norm=1, branch_eps=EPS, branch_weight=after,
                         branch_weight_offset=1, residual=stream, residual_out=stream,
                         weight=following, weight_offset=1, eps=EPS, y=x).run()
        return x

    def exact(self):
        stream, norms = self.input.astype(np.float64), 1 + self.norms.astype(np.float64)
        x = normed(stream, norms[0])
        for i in range(2 * self.LAYERS):
            stream = stream + normed(self.branch(i, x), norms[2 * i + 1])
            x = normed(stream, norms[2 * i + 2])
        return x


class Delta:
    HEADS, D, HIDDEN = 4, 64, 128

    def __init__(self, random):
        size = self.HEADS * self.D
        self.qkvz = matrix(random, self.HIDDEN, 4 * size)
        self.beta, self.decay = (matrix(random, self.HIDDEN, self.HEADS) for _ in range(2))
        self.out = matrix(random, size, self.HIDDEN)
        self.weight = 1 + weights(random, self.D)
        self.input = random.standard_normal((TOKENS, self.HIDDEN)).astype(np.float32)

    def rows(self, x):
        """The rule's outputs and the gates, [tokens, heads, d]."""
        q, k, v, z = (t.reshape(len(x), self.HEADS, self.D)
                      for t in np.split(x @ self.qkvz, 4, axis=1))
        k = k / np.sqrt((k ** 2).sum(-1, keepdims=True))
        beta = 1 / (1 + np.exp(-x @ self.beta))
        decay = 1 / (1 + np.exp(-x @ self.decay - 2))
        state, o = np.zeros((self.HEADS, self.D, self.D), x.dtype), np.empty_like(v)
        for t in range(len(x)):
            state = state * decay[t][:, None, None]
            error = v[t] - np.einsum("hd,hde->he", k[t], state)
            state = state + np.einsum("hd,he->hde", k[t], beta[t][:, None] * error)
            o[t] = np.einsum("hd,hde->he", q[t], state)
        return o, z

    def run(self, context):
        o, z = self.rows(self.input)
        context.call(x=o, weight=self.weight, eps=EPS, gate=z, gate_act=SILU, y=o).run()
        return o.reshape(TOKENS, -1) @ self.out

    def exact(self):
        o, z = self.rows(self.input.astype(np.float64))
        return (normed(o, self.weight.astype(np.float64)) * silu(z)).reshape(TOKENS, -1) @ self.out


class Dit:
    HIDDEN, SAMPLES, BLOCKS = 96, 2, 2

    def __init__(self, random):
        self.qkv, self.out, self.up, self.down = (
            [matrix(random, *shape) for _ in range(self.BLOCKS)]
            for shape in ((self.HIDDEN, 3 * self.HIDDEN), (self.HIDDEN, self.HIDDEN),
                          (self.HIDDEN, 2 * self.HIDDEN), (2 * self.HIDDEN, self.HIDDEN)))
        # Shift, scale and gate of attention and MLP, for each block and sample.
        self.modulators = weights(random, self.BLOCKS, self.SAMPLES, 6, self.HIDDEN)
        shape = (self.SAMPLES, TOKENS, self.HIDDEN)
        self.input = random.standard_normal(shape).astype(np.float32)

    def branch(self, i, x):
        """Attention or MLP number i, of each sample."""
        block = i // 2
        if i % 2 == 0:
            return np.stack([attended(*np.split(rows @ self.qkv[block], 3, axis=1), causal=False)
                             for rows in x]) @ self.out[block]
        return silu(x @ self.up[block]) @ self.down[block]

    def modulator(self, i, which):
        """Shift (0), scale (1) or gate (2) of branch i: a view [samples, 1, hidden]."""
        return self.modulators[i // 2][:, i % 2 * 3 + which][:, None]

    def run(self, context):
        stream = self.input.copy()
        x = np.empty_like(stream)
        shift, scale = (self.modulator(0, which) for which in (0, 1))
        context.call(fn.LAYER, x=stream, eps=EPS, modulation_shift=shift, modulation_scale=scale,
                     y=x).run()
        last = 2 * self.BLOCKS - 1
        for i in range(last + 1):
            gate = self.modulator(i, 2)
            following = {} if i == last else {"modulation_shift": self.modulator(i + 1, 0),
                                              "modulation_scale": self.modulator(i + 1, 1)}
            context.call(fn.LAYER, x=self.branch(i, x), residual_gate=gate, residual=stream,
                         residual_out=stream, eps=EPS, y=x, **following).run()
        return x

    def exact(self):
        stream = self.input.astype(np.float64)
        x = normed(stream, 1 + self.modulator(0, 1), mean=True) + self.modulator(0, 0)
        for i in range(2 * self.BLOCKS):
            stream = stream + self.branch(i, x) * self.modulator(i, 2)
            x = normed(stream, mean=True)
            if i + 1 < 2 * self.BLOCKS:
                x = x * (1 + self.modulator(i + 1, 1)) + self.modulator(i + 1, 0)
        return x


def main():
    parser = argparse.ArgumentParser(prog="norm_stages", description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="folder of a build")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the library")
    parser.add_argument("--seed", type=int, default=1, help="of weights and inputs")
    options = parser.parse_args()
    path = options.build / "src" / "libfastnorm.so.0"
    if not path.exists():
        sys.exit(f"norm_stages: there is no {path}; required: --build with a build folder")
    context = fn.Context(fn.Library(path), num_threads=options.threads)
    random, right = np.random.default_rng(options.seed), True
    for name, kind in (("gemma", Gemma), ("delta", Delta), ("dit", Dit)):
        layers = kind(random)
        found, exact = layers.run(context), layers.exact()
        largest, error = np.abs(exact).max(), np.abs(found - exact).max()
        bound = BOUND * largest
        print(f"{name}: {found.shape[-2]} tokens, largest output {largest:.3g}, "
              f"largest error {error:.3g}, bound {bound:.3g}")
        right = bool(error <= bound) and right
    context.close()
    if not right:
        sys.exit("norm_stages: an error is larger than the bound")


if __name__ == "__main__":
    main()
