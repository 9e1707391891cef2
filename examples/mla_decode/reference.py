"""The model in double precision, as its paper writes it: every head has keys and values of its own,
made from the latents (not absorbed), and a whole sequence is one pass without a cache. It shares
weights with model.py, and no norm and no attention."""

import numpy as np

from weights import rotate, rotation, silu


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


class Reference:
    def __init__(self, config, weights):
        self.config = config
        self.weights = {name: value.astype(np.float64) for name, value in weights.items()}

    def logits(self, tokens):
        """Logits after each token of one sequence, [tokens, vocabulary]."""
        c, w = self.config, self.weights
        x = w["embedding"][np.asarray(tokens)]
        for block in range(c.blocks):
            x = x + self._attention(block, rms_norm(x, w[f"{block}.attention_norm"], c.eps))
            y = rms_norm(x, w[f"{block}.ffn_norm"], c.eps)
            x = (
                x
                + (silu(y @ w[f"{block}.gate"].T) * (y @ w[f"{block}.up"].T)) @ w[f"{block}.down"].T
            )
        return rms_norm(x, w["output_norm"], c.eps) @ w["output"].T

    def _attention(self, block, y):
        c, count = self.config, len(y)
        cos, sin = rotation(c, np.arange(count))

        def weight(name):
            return self.weights[f"{block}.{name}"]

        def heads(x, size):
            return x.reshape(count, c.heads, size).swapaxes(0, 1)

        query = (
            rms_norm(y @ weight("query_down").T, weight("query_norm"), c.eps) @ weight("query_up").T
        )
        query = heads(query, c.nope_dim + c.rope_dim)
        query = np.concatenate(
            (query[..., : c.nope_dim], rotate(query[..., c.nope_dim :], cos, sin)), -1
        )
        down = y @ weight("kv_down").T
        latent = rms_norm(down[:, :c.kv_rank], weight("kv_norm"), c.eps)
        shared = np.broadcast_to(
            rotate(down[:, c.kv_rank :], cos, sin), (c.heads, count, c.rope_dim)
        )
        keys = np.concatenate((heads(latent @ weight("key_up").T, c.nope_dim), shared), -1)
        values = heads(latent @ weight("value_up").T, c.value_dim)
        scores = query @ keys.swapaxes(1, 2) * c.scale
        scores = np.where(np.tri(count, dtype=bool), scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        return (scores @ values).swapaxes(0, 1).reshape(count, -1) @ weight("attention_out").T
