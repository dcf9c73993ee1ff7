"""The formula as models write it when weights are wanted: the whole matrix, in torch operations."""

from __future__ import annotations

import math

import torch

from harness import Contender, Result
from workload import Workload

NAME = "torch eager"


def weights_and_logits(work: Workload, allowed: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    key = (
        work.key.repeat_interleave(work.query.shape[1] // work.key.shape[1], 1) if work.grouped else work.key
    )
    logits = work.query @ key.mT * work.scale
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -math.inf)
    return logits.softmax(-1), logits


def output(work: Workload) -> Contender:
    """The output, with the weights at hand, as `output_attentions=True` gives them."""
    allowed = work.allowed(torch.arange(work.length))

    def run() -> Result:
        weights, _ = weights_and_logits(work, allowed)
        value = work.value
        if work.grouped:
            value = value.repeat_interleave(work.query.shape[1] // value.shape[1], 1)
        return {"output": weights @ value, "weights": weights}

    return run


def statistics(work: Workload) -> Contender:
    """The output and what regard's contender asks of the weights, from the matrix."""
    position = torch.arange(work.length)
    allowed = work.allowed(position)
    distance = (position[:, None] - position).abs().to(work.query.dtype)

    def run() -> Result:
        weights, logits = weights_and_logits(work, allowed)
        return {
            "output": weights @ work.value,
            "entropy": -torch.xlogy(weights, weights).sum(-1),
            "received": weights.sum(-2),
            "max_logit": logits.amax(-1),
            "max_weight": weights.amax(-1),
            "distance": (weights * distance).sum(-1),
            "top_keys": weights.topk(8, -1).values,
            "pooled": block_means(weights, 64),
        }

    return run


def block_means(weights: torch.Tensor, blocks: int) -> torch.Tensor:
    """Means over blocks × blocks equal blocks; the length must be a multiple of `blocks`."""
    return weights.unflatten(-1, (blocks, -1)).unflatten(-3, (blocks, -1)).mean((-3, -1))
