"""Runs layers of random weights whose norms have stages, each in one call of libfastnorm.

gemma: two layers as Gemma's. Post-norm, addition and pre-norm are one call.
delta: a gated delta rule whose output norm is multiplied by silu of a gate, head by head.
dit: two blocks of a diffusion transformer: gated residual, norm, scale and shift are one call, and
so are all their gradients.

Outputs, and dit's gradients, are compared with the same layers in double precision.
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


def attended_gradient(q, k, v, d):
    """Gradients of q, k and v side by side for that of attended(.., causal=False)."""
    q, k, v, d = (t.reshape(len(t), -1, 32) for t in (q, k, v, d))
    scale = 1 / np.sqrt(q.dtype.type(32))
    scores = np.einsum("nhd,lhd->hnl", q, k) * scale
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    dp = np.einsum("nhd,lhd->hnl", d, v)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * scale
    dq, dk = np.einsum("hnl,lhd->nhd", ds, k), np.einsum("hnl,nhd->lhd", ds, q)
    dv = np.einsum("hnl,nhd->lhd", p, d)
    return np.concatenate([t.reshape(len(t), -1) for t in (dq, dk, dv)], axis=1)


class Gemma:
    HIDDEN, WIDE, LAYERS = 128, 256, 2

    def __init__(self, random):
        self.qkv, self.out, self.up, self.down = (
            [matrix(random, *shape) for _ in range(self.LAYERS)]
            for shape in ((self.HIDDEN, 3 * self.HIDDEN), (self.HIDDEN, self.HIDDEN),
                          (self.HIDDEN, 2 * self.WIDE), (self.WIDE, self.HIDDEN)))
        # Each layer has four: before and after attention, before and after the MLP. The last is the
        # model's.
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
        return {"gemma": x}

    def exact(self):
        stream, norms = self.input.astype(np.float64), 1 + self.norms.astype(np.float64)
        x = normed(stream, norms[0])
        for i in range(2 * self.LAYERS):
            stream = stream + normed(self.branch(i, x), norms[2 * i + 1])
            x = normed(stream, norms[2 * i + 2])
        return {"gemma": x}


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
        return {"delta": o.reshape(TOKENS, -1) @ self.out}

    def exact(self):
        o, z = self.rows(self.input.astype(np.float64))
        o = normed(o, self.weight.astype(np.float64)) * silu(z)
        return {"delta": o.reshape(TOKENS, -1) @ self.out}


class Fused:
    """Gated residual, norm and modulation, and their gradients: a call of the library each."""

    def __init__(self, context):
        self.context, self.kept = context, []

    def forward(self, branch, gate, stream, shift, scale):
        """x and the new stream. Without a gate the branch is all that is normalised."""
        x = np.empty_like(branch)
        mean, rstd = (np.empty(x.shape[:-1], np.float32) for _ in range(2))
        total = branch if gate is None else np.empty_like(branch)
        added = {} if gate is None else {"residual_gate": gate, "residual": stream,
                                         "residual_out": total}
        modulated = {} if scale is None else {"modulation_shift": shift, "modulation_scale": scale}
        self.context.call(fn.LAYER, x=branch, eps=EPS, y=x, mean=mean, rstd=rstd, **added,
                          **modulated).run()
        self.kept.append((branch, gate, scale, total, mean, rstd))
        return x, total

    def backward(self, dx, dtotal):
        """Gradients of branch, gate, stream, shift and scale, of the last forward that is left."""
        branch, gate, scale, total, mean, rstd = self.kept.pop()
        dbranch, dgate, dshift, dscale = (None if a is None else np.empty_like(a)
                                          for a in (branch, gate, scale, scale))
        dstream = np.empty_like(total)
        added = {} if gate is None else {"branch": branch, "residual_gate": gate,
                                         "dbranch": dbranch, "dresidual_gate": dgate}
        modulated = {} if scale is None else {"weight": scale, "weight_offset": 1,
                                              "dweight": dscale, "dbias": dshift}
        self.context.norm_backward(
            fn.LAYER, dy=dx, x=total, mean=mean, rstd=rstd, dresidual_in=dtotal, dx=dstream,
            **added, **modulated).run_on_cpu()
        return dbranch, dgate, dstream, dshift, dscale


class Plain:
    """The layer and its gradients in double precision."""

    def __init__(self):
        self.kept = []

    def forward(self, branch, gate, stream, shift, scale):
        total = branch if gate is None else branch * gate + stream
        t = normed(total, mean=True)
        self.kept.append((branch, gate, scale, total, t))
        return t if scale is None else t * (1 + scale) + shift, total

    def backward(self, dx, dtotal):
        branch, gate, scale, total, t = self.kept.pop()
        dshift, dscale = (d.sum(1, keepdims=True) for d in (dx, dx * t))
        e = dx if scale is None else dx * (1 + scale)
        e = e - e.mean(-1, keepdims=True) - t * (e * t).mean(-1, keepdims=True)
        eps = np.float64(np.float32(EPS))
        dstream = e / np.sqrt(total.var(-1, keepdims=True) + eps)
        dstream = dstream if dtotal is None else dstream + dtotal
        if gate is None:
            return None, None, dstream, dshift, dscale
        return dstream * gate, (dstream * branch).sum(1, keepdims=True), dstream, dshift, dscale


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
        self.input, self.gradient = (random.standard_normal(shape).astype(np.float32)
                                     for _ in range(2))

    def branch(self, i, x):
        """Attention or MLP number i, of each sample."""
        block = i // 2
        if i % 2 == 0:
            return np.stack([attended(*np.split(rows @ self.qkv[block], 3, axis=1), causal=False)
                             for rows in x]) @ self.out[block]
        return silu(x @ self.up[block]) @ self.down[block]

    def branch_gradient(self, i, x, d):
        """The gradient of x for that of branch(i, x)."""
        block = i // 2
        if i % 2 == 0:
            d = d @ self.out[block].T
            return np.stack([
                attended_gradient(*np.split(rows @ self.qkv[block], 3, axis=1), of_rows)
                for rows, of_rows in zip(x, d)]) @ self.qkv[block].T
        hidden = x @ self.up[block]
        sigmoid = 1 / (1 + np.exp(-hidden))
        slope = sigmoid * (1 + hidden * (1 - sigmoid))
        return (d @ self.down[block].T * slope) @ self.up[block].T

    def modulator(self, modulators, i, which):
        """Shift (0), scale (1) or gate (2) of branch i: a view [samples, 1, hidden]. The last norm
        has no shift and no scale."""
        if i == 2 * self.BLOCKS:
            return None
        return modulators[i // 2][:, i % 2 * 3 + which][:, None]

    def layers(self, norm, dtype):
        """The output, and the gradients of the input and of the modulators."""
        modulators, last = self.modulators.astype(dtype), 2 * self.BLOCKS
        # What branch i reads, and its gate; branch -1 is the input.
        read, branch, gate, stream = [], self.input.astype(dtype), None, None
        for i in range(last + 1):
            x, stream = norm.forward(branch, gate, stream,
                                     *(self.modulator(modulators, i, which) for which in (0, 1)))
            if i < last:
                read.append(x)
                branch, gate = self.branch(i, x), self.modulator(modulators, i, 2)
        gradients, dx, dstream = np.zeros_like(modulators), self.gradient.astype(dtype), None
        for i in range(last, -1, -1):
            dbranch, dgate, dstream, *of_modulation = norm.backward(dx, dstream)
            if i < last:
                for which, gradient in enumerate(of_modulation):
                    self.modulator(gradients, i, which)[:] = gradient
            if i > 0:
                self.modulator(gradients, i - 1, 2)[:] = dgate
                dx = self.branch_gradient(i - 1, read[i - 1], dbranch)
        return {"dit": x, "dit_input_gradient": dstream,
                "dit_modulator_gradient": gradients.reshape(-1, self.HIDDEN)}

    def run(self, context):
        return self.layers(Fused(context), np.float32)

    def exact(self):
        return self.layers(Plain(), np.float64)


def main():
    parser = argparse.ArgumentParser(prog="norm_stages", description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="folder of a build")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the library")
    parser.add_argument("--seed", type=int, default=1, help="of weights and inputs")
    options = parser.parse_args()
    path = options.build / "src" / "libfastnorm.so.1"
    if not path.exists():
        sys.exit(f"norm_stages: there is no {path}; required: --build with a build folder")
    context = fn.Context(fn.Library(path), num_threads=options.threads)
    random, right = np.random.default_rng(options.seed), True
    for kind in (Gemma, Delta, Dit):
        layers = kind(random)
        outputs, wanted = layers.run(context), layers.exact()
        for name, exact in wanted.items():
            largest, error = np.abs(exact).max(), np.abs(outputs[name] - exact).max()
            bound = BOUND * largest
            print(f"{name}: {TOKENS} tokens, largest output {largest:.3g}, "
                  f"largest error {error:.3g}, bound {bound:.3g}")
            right = bool(error <= bound) and right
    context.close()
    if not right:
        sys.exit("norm_stages: an error is larger than the bound")


if __name__ == "__main__":
    main()
