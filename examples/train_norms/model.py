"""A small transformer whose norms are given, and the text that it learns."""

import math
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = 128  # ASCII; other bytes become 127


def text():
    """The repository's own README and docs as numbers of characters."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    data = b"\n".join(page.read_bytes() for page in pages)
    return torch.tensor([min(byte, VOCABULARY - 1) for byte in data], dtype=torch.int64)


def batch(data, step, seed, count, length):
    """Inputs [count, length] and the characters after them; the same for each call with these
    arguments."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    starts = torch.randint(len(data) - length - 1, (count,), generator=generator)
    rows = data[starts[:, None] + torch.arange(length + 1)]
    return rows[:, :-1], rows[:, 1:]


class Attention(nn.Module):
    """Causal attention with an RMSNorm on each head's queries and keys."""

    def __init__(self, width, heads, make_norm):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(
            width, width, bias=False
        )
        self.query_norm, self.key_norm = make_norm("rms", self.size), make_norm("rms", self.size)

    def forward(self, x):
        requests, length, width = x.shape
        # The norms read their part of the fused tensor where it lies.
        query, key, value = self.qkv(x).view(requests, length, 3, self.heads, self.size).unbind(2)
        query, key = self.query_norm(query).transpose(1, 2), self.key_norm(key).transpose(1, 2)
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.size)
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        return self.out(
            (weights @ value.transpose(1, 2)).transpose(1, 2).reshape(requests, length, width)
        )


class Block(nn.Module):
    """Both halves add to the residual stream in the norm before them."""

    def __init__(self, width, heads, make_norm):
        super().__init__()
        self.attention_norm, self.mlp_norm = make_norm("add", width), make_norm("layer", width)
        self.attention = Attention(width, heads, make_norm)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, residual):
        """What is to be added to the residual stream, and the stream."""
        y, residual = self.attention_norm(x, residual)
        residual = residual + self.attention(y)
        return self.down(functional.gelu(self.up(self.mlp_norm(residual)))), residual


class Transformer(nn.Module):
    """make_norm(kind, n) gives a norm: kind "rms", "layer", or "add", an RMSNorm of (x, residual)
    that also gives their sum."""

    def __init__(self, make_norm, width=96, heads=4, blocks=3, length=64):
        super().__init__()
        self.characters, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(
            length, width
        )
        self.blocks = nn.ModuleList(Block(width, heads, make_norm) for _ in range(blocks))
        self.last_norm = make_norm("layer", width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.characters(tokens)
        residual = self.positions(torch.arange(tokens.shape[1], device=tokens.device)).expand_as(x)
        for block in self.blocks:
            x, residual = block(x, residual)
        return self.head(self.last_norm(x + residual))

    def loss(self, tokens, targets):
        return functional.cross_entropy(self(tokens).flatten(0, 1), targets.flatten())
