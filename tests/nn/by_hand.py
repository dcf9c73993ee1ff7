"""Multi-head attention written out from its definition, head by head, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.nn import MultiHeadAttention
from regard.testing import textbook_attention


def multi_head(
    layer: MultiHeadAttention,
    x: Tensor,
    allowed: Tensor | None = None,
    context: tuple[Tensor, Tensor] | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Output `[B, N, D]` and weights `[B, Hq, N, M]`; `allowed` and `bias` broadcast to `[B, Hq, N, M]`."""
    key_input, value_input = context or (x, x)
    group = layer.num_heads // layer.num_key_heads
    heads, weights = [], []
    for head in range(layer.num_heads):
        query = project(x, layer.query_projection, head, layer.head_dim)
        key = project(key_input, layer.key_projection, head // group, layer.head_dim)
        value = project(value_input, layer.value_projection, head // group, layer.value_dim)
        if layer.query_norm is not None:
            query = rms(query) * layer.query_norm.weight
            key = rms(key) * layer.key_norm.weight
        if layer.rotary is not None:
            query, key = layer.rotary(query), layer.rotary(key)
        mine = [None if t is None else t[..., min(head, t.shape[-3] - 1), :, :] for t in (allowed, bias)]
        found = textbook_attention(
            query.unsqueeze(1),
            key.unsqueeze(1),
            value.unsqueeze(1),
            *[None if t is None else t.unsqueeze(-3) for t in mine[:1]],
            bias=None if mine[1] is None else mine[1].unsqueeze(-3),
            scale=layer.scale,
            softcap=layer.softcap,
            sink_logits=None if layer.sink_logits is None else layer.sink_logits[head : head + 1],
        )
        heads.append(found.output.squeeze(1))
        weights.append(found.weights.squeeze(1))
    out = torch.cat(heads, -1) @ layer.output_projection.weight.T
    if layer.output_projection.bias is not None:
        out = out + layer.output_projection.bias
    return out, torch.stack(weights, 1)


def project(x: Tensor, projection: torch.nn.Linear, head: int, dim: int) -> Tensor:
    rows = slice(head * dim, (head + 1) * dim)
    out = x @ projection.weight[rows].T
    return out if projection.bias is None else out + projection.bias[rows]


def rms(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
