"""What the tests of leaks share: inputs, a layer, and torch's own encoder, all small."""

from __future__ import annotations

import torch
from torch import nn

from regard.nn import MultiHeadAttention

N = 12

ENCODER = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()


def inputs(n: int = N, **options) -> torch.Tensor:
    return torch.randn(2, n, 16, generator=torch.Generator().manual_seed(3)).to(**options)


def layer(mask=None, **options) -> MultiHeadAttention:
    return MultiHeadAttention(16, 2, mask=mask, **options)
