"""A BERT-shaped encoder, its attention entirely from regard.nn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from regard.nn import MultiHeadAttention


@dataclass(frozen=True)
class Shape:
    """The sizes of an encoder."""

    vocabulary: int
    positions: int
    segments: int
    embed_dim: int
    hidden_dim: int
    num_layers: int
    num_heads: int
    norm_eps: float = 1e-12


class Block(nn.Module):
    """A transformer block of the first kind: each part is added to the stream, which is then normalised."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(shape.embed_dim, shape.num_heads)
        self.attention_norm = nn.LayerNorm(shape.embed_dim, shape.norm_eps)
        self.up = nn.Linear(shape.embed_dim, shape.hidden_dim)
        self.down = nn.Linear(shape.hidden_dim, shape.embed_dim)
        self.feed_forward_norm = nn.LayerNorm(shape.embed_dim, shape.norm_eps)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        x = self.attention_norm(x + self.attention(x, lengths=lengths))
        return self.feed_forward_norm(x + self.down(gelu(self.up(x))))


class Encoder(nn.Module):
    """Token ids `[B, N]` to vectors `[B, N, embed_dim]`, each attending all of its item's first `lengths`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, shape.embed_dim)
        self.positions = nn.Embedding(shape.positions, shape.embed_dim)
        self.segments = nn.Embedding(shape.segments, shape.embed_dim)
        self.norm = nn.LayerNorm(shape.embed_dim, shape.norm_eps)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))

    def forward(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        segments = torch.zeros_like(ids)
        x = self.norm(self.words(ids) + self.positions(places) + self.segments(segments))
        for block in self.blocks:
            x = block(x, lengths)
        return x
