"""The model in absorbed form: one latent of a token serves all heads as key and as value.

A key is key_up @ latent, so query . key = (key_up^T query) . latent: the query is multiplied once,
and the cache holds latents only. Values likewise: value_up is applied to the mixed latents. Norms
and attention are done by whatever object is handed in; the rest is NumPy in float32.
"""

import numpy as np

from weights import rotate, rotation, silu


class Pages:
    """Latents of all requests in pages, one table of pages for all blocks of the model. Pages are
    handed out in a random order; the free rows are NaN, and the table's unused entries no valid
    page."""

    GARBAGE = 2147480000

    def __init__(self, config, compute, requests, capacity, page, seed=1):
        self.page, per_request = page, -(-capacity // page)
        order = np.random.default_rng(seed).permutation(requests * per_request)
        self.table = np.full((requests, per_request), self.GARBAGE, np.int32)
        self._order = order.reshape(requests, per_request).astype(np.int32)
        self.lengths = np.zeros(requests, np.int32)
        # Rows of 576: the latent, then the rotary part.
        self.rows = [
            compute.cache(order.size, page, config.kv_rank + config.rope_dim)
            for _ in range(config.blocks)
        ]

    def grow(self, counts):
        """Makes room for counts[i] more tokens of request i; (pages, rows in them) of the new
        tokens."""
        pages, rows = [], []
        for request, count in enumerate(counts):
            positions = np.arange(self.lengths[request], self.lengths[request] + count)
            used = -(-(int(self.lengths[request]) + count) // self.page)
            self.table[request, :used] = self._order[request, :used]
            pages.append(self.table[request, positions // self.page])
            rows.append(positions % self.page)
            self.lengths[request] += count
        return np.concatenate(pages), np.concatenate(rows)


class Model:
    def __init__(self, config, weights, compute):
        self.config, self.weights, self.compute = config, weights, compute
        c = config
        self.key_up = [
            weights[f"{b}.key_up"].reshape(c.heads, c.nope_dim, c.kv_rank) for b in range(c.blocks)
        ]
        self.value_up = [
            weights[f"{b}.value_up"].reshape(c.heads, c.value_dim, c.kv_rank)
            for b in range(c.blocks)
        ]

    def forward(self, tokens, cache):
        """Logits after each new token, [all new tokens, vocabulary]. `tokens` has a list for each
        request; the new tokens are appended to the cache, and each sees those before it and
        itself."""
        c, w, compute = self.config, self.weights, self.compute
        counts = [len(t) for t in tokens]
        positions = np.concatenate(
            [np.arange(n, n + count) for n, count in zip(cache.lengths, counts)]
        )
        slots = cache.grow(counts)
        compute.begin(cache, counts)
        residual = w["embedding"][np.concatenate(tokens)]
        y = compute.norm(residual, w["0.attention_norm"])
        for block in range(c.blocks):
            x = self._attention(block, y, cache, slots, rotation(c, positions))
            y = compute.add_norm(x, residual, w[f"{block}.ffn_norm"])
            x = (silu(y @ w[f"{block}.gate"].T) * (y @ w[f"{block}.up"].T)) @ w[f"{block}.down"].T
            after = f"{block + 1}.attention_norm" if block + 1 < c.blocks else "output_norm"
            y = compute.add_norm(x, residual, w[after])
        return y @ w["output"].T

    def _attention(self, block, y, cache, slots, angles):
        c, w = self.config, {
            name: self.weights[f"{block}.{name}"]
            for name in (
                "query_down",
                "query_norm",
                "query_up",
                "kv_down",
                "kv_norm",
                "attention_out",
            )
        }
        cos, sin = (a.astype(np.float32) for a in angles)
        query = self.compute.norm(y @ w["query_down"].T, w["query_norm"]) @ w["query_up"].T
        query = query.reshape(len(y), c.heads, c.nope_dim + c.rope_dim)
        rotary = rotate(query[..., c.nope_dim:], cos[:, None], sin[:, None])
        # [tokens, heads, nope] by [heads, nope, rank]: the key's matrix, absorbed into the query.
        absorbed = (query[..., :c.nope_dim].swapaxes(0, 1) @ self.key_up[block]).swapaxes(0, 1)
        down = y @ w["kv_down"].T
        latent = self.compute.norm(np.ascontiguousarray(down[:, :c.kv_rank]), w["kv_norm"])
        self.compute.store(
            cache.rows[block],
            slots,
            np.concatenate((latent, rotate(down[:, c.kv_rank :], cos, sin)), -1),
        )
        mixed = self.compute.attend(absorbed, rotary, cache.rows[block])
        values = mixed.swapaxes(0, 1) @ self.value_up[block].swapaxes(1, 2)
        return values.swapaxes(0, 1).reshape(len(y), -1) @ w["attention_out"].T
