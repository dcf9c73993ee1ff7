"""The formula as models write it when weights are wanted: the whole matrix, in torch operations."""

from __future__ import annotations

import math

import torch

from harness import Contender, Result
from workload import Workload

NAME = "torch eager"


def weights_and_logits(work: Workload, allowed: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    logits = work.query @ work.key.mT * work.scale
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -math.inf)
    return logits.softmax(-1), logits


def output(work: Workload) -> Contender:
    """The output, with the weights at hand, as `output_attentions=True` gives them."""
    allowed = work.allowed(torch.arange(work.length))

    def run() -> Result:
        with torch.no_grad():
            weights, _ = weights_and_logits(work, allowed)
            return {"output": weights @ work.value, "weights": weights}

    return run


def statistics(work: Workload) -> Contender:
    """The output and what regard's contender asks of the weights, from the matrix."""
    position = torch.arange(work.length)
    allowed = work.allowed(position)
    distance = (position[:, None] - position).abs().to(work.query.dtype)

    def run() -> Result:
        with torch.no_grad():
            weights, logits = weights_and_logits(work, allowed)
            return {
                "output": weights @ work.value,
                "entropy": -torch.xlogy(weights, weights).sum(-1),
                "received": weights.sum(-2),
                "max_logit": logits.amax(-1),
                "max_weight": weights.amax(-1),
                "distance": (weights * distance).sum(-1),
                "diagonals": diagonal_sums(weights),
                "top_keys": weights.topk(8, -1).values,
                "pooled": block_means(weights, 64),
                "mass": weights[..., :1].sum(-1),
            }

    return run


def diagonal_sums(weights: torch.Tensor) -> torch.Tensor:
    """Sums over the diagonals, i − j from 1 − N to N − 1, `[1, heads, 2N − 1]`; a head at a time."""
    length = weights.shape[-1]
    sums = []
    for head in weights[0]:
        # Rows of 2N entries read as rows of 2N − 1 shift row i right by i: a diagonal becomes a column.
        padded = torch.nn.functional.pad(head.flip(-1), (0, length))
        sums.append(padded.flatten()[:-length].view(length, 2 * length - 1).sum(0))
    return torch.stack(sums)[None]


def block_means(weights: torch.Tensor, blocks: int) -> torch.Tensor:
    """Means over blocks × blocks equal blocks; the length must be a multiple of `blocks`."""
    return weights.unflatten(-1, (blocks, -1)).unflatten(-3, (blocks, -1)).mean((-3, -1))
