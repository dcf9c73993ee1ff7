"""A small decoder-only language model of the Llama family, its attention entirely from regard.nn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import silu

from regard import masks
from regard.nn import KVCache, MultiHeadAttention, RotaryEmbedding


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder, and how its positions turn."""

    vocabulary: int
    embed_dim: int
    hidden_dim: int
    num_layers: int
    num_heads: int
    num_key_heads: int
    head_dim: int
    norm_eps: float = 1e-6
    bias: bool = False
    rotary_base: float = 10_000.0
    rotary_scaling: Mapping[str, Any] | None = None


class FeedForward(nn.Module):
    """`[..., D]` to `[..., D]` through a gated hidden layer (SwiGLU)."""

    def __init__(self, embed_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(embed_dim, hidden_dim, bias=False)
        self.up = nn.Linear(embed_dim, hidden_dim, bias=False)
        self.down = nn.Linear(hidden_dim, embed_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """A transformer block: attention, then feed-forward, each on the normalised stream and added to it."""

    def __init__(self, shape: Shape, rotary: RotaryEmbedding, mask: masks.Mask) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.embed_dim, shape.norm_eps)
        self.attention = MultiHeadAttention(
            shape.embed_dim,
            shape.num_heads,
            num_key_heads=shape.num_key_heads,
            head_dim=shape.head_dim,
            bias=shape.bias,
            rotary=rotary,
            mask=mask,
        )
        self.feed_forward_norm = nn.RMSNorm(shape.embed_dim, shape.norm_eps)
        self.feed_forward = FeedForward(shape.embed_dim, shape.hidden_dim)

    def forward(
        self, x: Tensor, cache: KVCache | None = None, lengths: Sequence[int] | None = None
    ) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cache=cache, lengths=lengths)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Decoder(nn.Module):
    """Token ids `[B, N]` to logits `[B, N, vocabulary]`.

    `mask` is causal by default; with `masks.streaming(4, 1024)` the caches are rings, and it may decode
    without end.
    """

    def __init__(self, shape: Shape, mask: masks.Mask | None = None) -> None:
        super().__init__()
        rotary = RotaryEmbedding(shape.head_dim, shape.rotary_base, scaling=shape.rotary_scaling)
        mask = masks.causal() if mask is None else mask
        self.embedding = nn.Embedding(shape.vocabulary, shape.embed_dim)
        self.blocks = nn.ModuleList(Block(shape, rotary, mask) for _ in range(shape.num_layers))
        self.norm = nn.RMSNorm(shape.embed_dim, shape.norm_eps)
        self.head = nn.Linear(shape.embed_dim, shape.vocabulary, bias=False)

    def forward(
        self, ids: Tensor, caches: list[KVCache] | None = None, lengths: Sequence[int] | None = None
    ) -> Tensor:
        """The next positions' logits; `lengths` says how many of each item's ids are real, from the left."""
        x = self.embedding(ids)
        for index, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[index], lengths)
        return self.head(self.norm(x))

    def make_caches(self, batch_size: int, capacity: int) -> list[KVCache]:
        """An empty cache for each block."""
        return [block.attention.make_cache(batch_size, capacity) for block in self.blocks]
