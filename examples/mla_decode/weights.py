"""Random weights of a small model with multi-head latent attention (MLA)."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Config:
    """DeepSeek-V2-Lite's attention; the rest is small, so that a CPU needs seconds. The query has a
    latent of its own, as in DeepSeek-V2 and V3: the Lite model has none, and one norm a block
    less."""

    blocks: int = 3
    hidden: int = 256
    inner: int = 512  # of the feed-forward part
    vocabulary: int = 1024
    heads: int = 16
    nope_dim: int = 128  # of a query or key head, without position
    rope_dim: int = 64  # of a query head, and of the key that all heads share, with position
    value_dim: int = 128
    query_rank: int = 192
    kv_rank: int = 512
    rope_base: float = 10000.0
    eps: float = 1e-6

    @property
    def scale(self):
        """What scores are multiplied by. It follows from the heads before absorption, not from the
        width of the latents."""
        return (self.nope_dim + self.rope_dim) ** -0.5


# Standard deviations of queries and output, which make attention matter: scores spread over about
# +-4, so that few tokens get most of the weight; a block's output is about as large as its input.
QUERY_GAIN = 3.0


def random_weights(config, seed=0):
    """float32 arrays by name, [out, in] for matrices; block b's names begin with `b.`."""
    generator = np.random.default_rng(seed)
    c = config

    def matrix(rows, columns, gain=1.0):
        return (generator.standard_normal((rows, columns)) * (gain * columns**-0.5)).astype(
            np.float32
        )

    def norm(size):
        return generator.uniform(0.5, 1.5, size).astype(np.float32)

    weights = {"embedding": generator.standard_normal((c.vocabulary, c.hidden)).astype(np.float32)}
    for block in range(c.blocks):
        own = {
            "attention_norm": norm(c.hidden),
            "query_down": matrix(c.query_rank, c.hidden),
            "query_norm": norm(c.query_rank),
            "query_up": matrix(c.heads * (c.nope_dim + c.rope_dim), c.query_rank, QUERY_GAIN),
            "kv_down": matrix(c.kv_rank + c.rope_dim, c.hidden),
            "kv_norm": norm(c.kv_rank),
            "key_up": matrix(c.heads * c.nope_dim, c.kv_rank),
            "value_up": matrix(c.heads * c.value_dim, c.kv_rank),
            "attention_out": matrix(c.hidden, c.heads * c.value_dim),
            "ffn_norm": norm(c.hidden),
            "gate": matrix(c.inner, c.hidden),
            "up": matrix(c.inner, c.hidden),
            "down": matrix(c.hidden, c.inner),
        }
        weights |= {f"{block}.{name}": value for name, value in own.items()}
    weights["output_norm"] = norm(c.hidden)
    weights["output"] = matrix(c.vocabulary, c.hidden)
    return weights


def rotation(config, positions):
    """cos and sin, [tokens, rope_dim / 2] in double precision, of tokens at these positions."""
    pairs = np.arange(0, config.rope_dim, 2, dtype=np.float64) / config.rope_dim
    angles = np.asarray(positions, np.float64)[:, None] * config.rope_base ** -pairs
    return np.cos(angles), np.sin(angles)


def rotate(x, cos, sin):
    """Rotary positions on neighbouring pairs of the last dimension."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return np.stack((even * cos - odd * sin, even * sin + odd * cos), axis=-1).reshape(x.shape)


def silu(x):
    return x / (1 + np.exp(-x))
