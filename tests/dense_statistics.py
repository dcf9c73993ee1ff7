"""Every question that the weights answer, asked of a dense matrix in the plainest way."""

from itertools import pairwise

import torch
from torch import Tensor


def entropy(weights: Tensor) -> Tensor:
    return -torch.where(weights == 0, 0.0, weights * weights.log()).sum(-1)


def max_weight(weights: Tensor) -> Tensor:
    return weights.amax(-1) if weights.shape[-1] else weights.sum(-1)


def max_logit(logits: Tensor) -> Tensor:
    return logits.amax(-1) if logits.shape[-1] else logits.sum(-1) - torch.inf


def received(weights: Tensor, queries=slice(None)) -> Tensor:
    return weights[..., queries, :].sum(-2)


def mean_received(weights: Tensor, allowed: Tensor, queries=slice(None)) -> Tensor:
    """Divided by the number of chosen rows that may attend the key; 0 where none may."""
    seen = allowed.expand_as(weights)[..., queries, :].sum(-2)
    return received(weights, queries) / seen.clamp_min(1)


def mass(weights: Tensor, keys) -> Tensor:
    return weights[..., keys].sum(-1)


def distance(weights: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    return (weights * (query_positions[..., :, None] - key_positions[..., None, :]).abs()).sum(-1)


def diagonals(weights: Tensor) -> Tensor:
    n_queries, n_keys = weights.shape[-2:]
    sums = [weights.diagonal(n_keys - 1 - r, -2, -1).sum(-1) for r in range(n_queries + n_keys - 1)]
    return torch.stack(sums, -1)


def pooled(weights: Tensor, rows: int, cols: int) -> Tensor:
    """Block means; a block without entries is 0."""
    n_queries, n_keys = weights.shape[-2:]
    result = weights.new_zeros(*weights.shape[:-2], rows, cols)
    for r, (top, bottom) in enumerate(pairwise(i * n_queries // rows for i in range(rows + 1))):
        for c, (left, right) in enumerate(pairwise(i * n_keys // cols for i in range(cols + 1))):
            if top < bottom and left < right:
                result[..., r, c] = weights[..., top:bottom, left:right].mean((-2, -1))
    return result


def top_keys(weights: Tensor, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Each row sorted in Python by falling logit, then rising index; −1 where no allowed key is left."""
    flat_weights, flat_logits = weights.flatten(0, -2).tolist(), logits.flatten(0, -2).tolist()
    chosen_weights, chosen = [], []
    for row, scores in zip(flat_weights, flat_logits, strict=True):
        order = sorted(
            (j for j, s in enumerate(scores) if s != -torch.inf), key=lambda j, s=scores: (-s[j], j)
        )
        order = (order + [-1] * k)[:k]
        chosen.append(order)
        chosen_weights.append([row[j] if j >= 0 else 0.0 for j in order])
    shape = (*weights.shape[:-1], k)
    return torch.tensor(chosen_weights, dtype=weights.dtype).view(shape), torch.tensor(chosen).view(shape)
