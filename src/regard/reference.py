"""The specification: the textbook equation in plain torch, against which every engine is tested.

Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V        (Vaswani et al. 2017, equation 1)
"""

from __future__ import annotations

import torch
from torch import Tensor


def scaled_dot_product_attention(
    Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Output `[..., N, Ev]` and weights `[..., N, M]` of `Q [..., N, E]`, `K [..., M, E]`, `V [..., M, Ev]`.

    `mask` broadcasts to the weights; where it is 0 (or False) a query may not attend a key. A query that
    may attend nothing gets output 0 and weights 0. Computes in the dtype it is given; uses N · M memory.

    >>> Q = K = V = torch.eye(2).view(1, 1, 2, 2)
    >>> output, weights = scaled_dot_product_attention(Q, K, V, torch.tensor([[1, 0], [1, 1]]))
    >>> weights
    tensor([[[[1.0000, 0.0000],
              [0.3302, 0.6698]]]])
    """
    allowed = (
        torch.ones(Q.shape[-2], K.shape[-2], dtype=torch.bool, device=Q.device) if mask is None else mask != 0
    )
    scores = dot_products(Q, K, allowed) * Q.shape[-1] ** -0.5
    weights = softmax(scores.masked_fill(~allowed, -torch.inf))
    return weighted_sum(weights, V, allowed), weights


def softmax(logits: Tensor, sink: Tensor | None = None) -> Tensor:
    """Weights over keys; 0 wherever a logit is −∞, also in a row that holds nothing else.

    A sink is one more logit in the denominator, and none among the weights.
    """
    n_keys = logits.shape[-1]
    excluded = logits == -torch.inf
    if sink is not None:
        logits = torch.cat([logits, sink.expand(*logits.shape[:-1], 1)], -1)
    empty = (logits == -torch.inf).all(-1, keepdim=True)
    return logits.masked_fill(empty, 0).softmax(-1)[..., :n_keys].masked_fill(excluded, 0)


def dot_products(Q: Tensor, K: Tensor, allowed: Tensor) -> Tensor:
    """Q Kᵀ, without a trace of excluded pairs in the result and in its gradients: 0 × NaN is NaN.

    Vectors that could do harm stay out of the product, in which all others then get what they would get
    anyway, and their allowed pairs are added one by one.
    """
    odd_query, odd_key = _odd(Q), _odd(K)
    scores = Q.masked_fill(odd_query, 0) @ K.masked_fill(odd_key, 0).transpose(-2, -1)
    if bool(odd_query.any() | odd_key.any()):
        pair = (allowed & (odd_query | odd_key.transpose(-2, -1))).unsqueeze(-1)
        scores = scores + (Q.unsqueeze(-2).where(pair, 0) * K.unsqueeze(-3).where(pair, 0)).sum(-1)
    return scores


def weighted_sum(weights: Tensor, V: Tensor, allowed: Tensor) -> Tensor:
    """weights @ V, with the same care."""
    odd = _odd(V)
    output = weights @ V.masked_fill(odd, 0)
    if bool(odd.any()):
        pair = (allowed & odd.transpose(-2, -1)).unsqueeze(-1)
        output = output + (weights.unsqueeze(-1).where(pair, 0) * V.unsqueeze(-3).where(pair, 0)).sum(-2)
    return output


def _odd(vectors: Tensor) -> Tensor:
    """Which vectors hold NaN, infinities or numbers whose products may overflow: bool `[..., L, 1]`."""
    ordinary: Tensor = (vectors.detach().abs() < torch.finfo(vectors.dtype).max ** 0.5).all(-1, keepdim=True)
    return ~ordinary
