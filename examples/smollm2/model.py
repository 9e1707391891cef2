"""A Llama model in NumPy. Its norms and its rope are done by whatever object is handed in."""

import numpy as np


class Cache:
    """Keys and values of all tokens so far, of every block."""

    def __init__(self, config, capacity):
        shape = (config.blocks, config.kv_heads, capacity, config.head_dim)
        self.keys, self.values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self.length = 0


class Model:
    def __init__(self, config, weights):
        self.config, self.weights = config, weights

    def rope_tables(self, length):
        """Cosines and sines of the pairs of a head's columns, for the first `length` positions, in
        double precision."""
        pairs = np.arange(0, self.config.head_dim, 2, dtype=np.float64) / self.config.head_dim
        angles = np.arange(length)[:, None] * self.config.rope_base ** -pairs
        return np.cos(angles), np.sin(angles)

    def norm_weights(self):
        """Weights of the norms in the order in which a forward pass uses them."""
        names = [f"blk.{b}.{part}_norm.weight" for b in range(self.config.blocks)
                 for part in ("attn", "ffn")]
        return [self.weights[name] for name in [*names, "output_norm.weight"]]

    def forward(self, tokens, cache, norms):
        """Scores for the token after `tokens`, which are appended to the cache.

        norms.first(y) and norms.next(index, x, residual) normalise the rows of x, or of x +
        residual, of which next() stores the sum over `residual`. norms.turn(query, key, positions)
        applies rope to heads [tokens, heads, head_dim], on neighbouring pairs of columns, as GGUF's
        Llama files order them."""
        c = self.config
        residual = self.weights["token_embd.weight"][tokens].copy()
        y = norms.first(residual)
        for block in range(c.blocks):
            x = self._attention(block, y, cache, norms)
            y = norms.next(2 * block + 1, x, residual)
            x = self._feed_forward(block, y)
            y = norms.next(2 * block + 2, x, residual)
        cache.length += len(tokens)
        return self.weights["token_embd.weight"] @ y[-1]

    def _linear(self, block, name, x):
        return x @ self.weights[f"blk.{block}.{name}.weight"].T

    def _feed_forward(self, block, y):
        gate = self._linear(block, "ffn_gate", y)
        inner = gate / (1 + np.exp(-gate)) * self._linear(block, "ffn_up", y)
        return self._linear(block, "ffn_down", inner)

    def _attention(self, block, y, cache, norms):
        c, count, start = self.config, len(y), cache.length
        end = start + count

        def heads(name, number):
            return self._linear(block, name, y).reshape(count, number, c.head_dim)

        positions = np.arange(start, end, dtype=np.int32)
        query, key = norms.turn(heads("attn_q", c.heads), heads("attn_k", c.kv_heads), positions)
        query = query.swapaxes(0, 1)
        cache.keys[block, :, start:end] = key.swapaxes(0, 1)
        cache.values[block, :, start:end] = heads("attn_v", c.kv_heads).swapaxes(0, 1)
        keys, values = cache.keys[block, :, :end], cache.values[block, :, :end]
        group = c.heads // c.kv_heads  # query heads that share a key head
        query = query.reshape(c.kv_heads, group * count, c.head_dim)
        scores = query @ keys.swapaxes(1, 2) * np.float32(c.head_dim ** -0.5)
        scores = scores.reshape(c.kv_heads, group, count, end)
        future = np.arange(end) > start + np.arange(count)[:, None]
        scores = np.where(future, np.float32(-np.inf), scores)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        mixed = scores.reshape(c.kv_heads, group * count, end) @ values
        mixed = mixed.reshape(c.heads, count, c.head_dim).swapaxes(0, 1).reshape(count, c.hidden)
        return self._linear(block, "attn_output", mixed)


def generate(model, prompt, count, end_token, norms):
    """The `count` most likely tokens after `prompt`, or fewer if the end token comes."""
    cache = Cache(model.config, len(prompt) + count)
    tokens, made = prompt, []
    while len(made) < count:
        token = int(np.argmax(model.forward(tokens, cache, norms)))
        if token == end_token:
            break
        made.append(token)
        tokens = [token]
    return made
