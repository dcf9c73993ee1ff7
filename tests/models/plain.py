"""Small models of plain torch, and the weights that the textbook gives for their calls."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention


class Block(nn.Module):
    """Attention as people write it, with the function imported by name; `options` go to it as they are."""

    def __init__(self, heads=4, key_heads=None, dim=8, **options):
        super().__init__()
        self.heads, self.key_heads, self.dim, self.options = heads, key_heads or heads, dim, options
        self.project = nn.Linear(heads * dim, (heads + 2 * self.key_heads) * dim)
        self.merge = nn.Linear(heads * dim, heads * dim)
        self.cache = None

    def split(self, x):
        sizes = [self.heads * self.dim, self.key_heads * self.dim, self.key_heads * self.dim]
        parts = self.project(x).split(sizes, -1)
        return [part.unflatten(-1, (-1, self.dim)).transpose(-3, -2) for part in parts]

    def forward(self, x, **options):
        query, key, value = self.split(x)
        if self.cache is not None:
            key, value = self.cache(key, value)
        output = scaled_dot_product_attention(query, key, value, **(self.options | options))
        return self.merge(output.transpose(-3, -2).flatten(-2))


class Model(nn.Module):
    """Two such blocks."""

    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block(**options), Block(**options)])

    def forward(self, x, **options):
        for block in self.blocks:
            x = x + block(functional.layer_norm(x, x.shape[-1:]), **options)
        return x


def attention(**options):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(32, 4, **{"batch_first": True, **options}).eval()
    for name in ("in_proj_bias", "bias_k", "bias_v"):  # zero at first, which hides mistakes
        if getattr(module, name, None) is not None:
            nn.init.normal_(getattr(module, name))
    return module


class Itself(nn.Module):
    """Self-attention, as a module of one input."""

    def __init__(self, **options):
        super().__init__()
        self.attention = attention(**options)

    def forward(self, x, **options):
        return self.attention(x, x, x, **options)


def encoder(layer=nn.TransformerEncoderLayer, nested=False, **options):
    """Nested tensors are of no use where the fast path is not, and torch warns so."""
    torch.manual_seed(0)
    # The derivative of gelu has no jump, beside which roundings would decide.
    options = {"batch_first": True, "dim_feedforward": 48, "dropout": 0.0, "activation": "gelu", **options}
    return nn.TransformerEncoder(layer(32, 4, **options), 2, enable_nested_tensor=nested).eval()


def textbook(query, key, allowed=None, added=None, scale=None):
    """softmax(Q Kᵀ · scale + added) over the allowed keys, in float64; rows without one are 0."""
    query, key = query.double(), key.double()
    if query.dim() > 2:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if added is None else scores + added.double()
    scores = scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
    return torch.softmax(scores, -1).nan_to_num(0.0)


def assert_weights(call, expected, atol=1e-6):
    torch.testing.assert_close(
        call.weights.to_dense().double(), expected.expand(call.weights.shape), atol=atol, rtol=0
    )


# What `nn.MultiheadAttention` may be made with.
MODULE_OPTIONS = (
    {},
    {"bias": False},
    {"add_bias_kv": True},
    {"add_zero_attn": True},
    {"add_bias_kv": True, "add_zero_attn": True},
    {"kdim": 32, "vdim": 48},
    {"batch_first": False},
)
