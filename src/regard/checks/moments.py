"""What a row of weights tells about its gradient: sums over its keys, in one pass over the tiles."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.problem import Problem
from regard.statistics import Statistic, WeightTile
from regard.weights import AttentionWeights


@dataclass(frozen=True, eq=False)
class RowMoments:
    """For each row, `[..., Hq, N]` in float64: its number of keys, its logits' variance, its Jacobian's norm.

    `jacobian` is the Frobenius norm of diag(p) − p pᵀ, the derivative of the weights by the logits: 0 where
    one key has all the weight, at most 1/2 (two keys with a half each), about 1/√n over n equal keys.
    """

    n_keys: Tensor
    variance: Tensor
    jacobian: Tensor


def row_moments(weights: AttentionWeights) -> RowMoments:
    """The moments of every row, in linear memory."""
    (sums,) = weights._fold([_Sums()])
    count, total, squares = sums[..., :3].unbind(-1)
    n = count.clamp(min=1)
    variance = (squares / n - (total / n).square()).clamp(min=0)
    return RowMoments(count, variance, _jacobian(sums[..., 3:]))


def jacobian_norm(weights: Tensor) -> Tensor:
    """‖diag(p) − p pᵀ‖ of rows of weights that are there, `[..., M]` to `[...]`, in float64."""
    return _jacobian(_powers(weights.to(_widest(weights.device))))


def _widest(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def _powers(weights: Tensor) -> Tensor:
    """Of rows `[..., M]`: Σ p²(1 − p)²; the weight beyond 1/2, or 0; Σ p² and Σ p⁴ of the others."""
    squares = weights.square()
    others = squares.masked_fill(weights > 0.5, 0)
    sums = (
        squares * (1 - weights).square(),
        weights.masked_fill(weights <= 0.5, 0),
        others,
        others.square(),
    )
    return torch.stack([each.sum(-1) for each in sums], -1)


def _jacobian(powers: Tensor) -> Tensor:
    # ‖diag(p) − p pᵀ‖² = Σ p²(1 − p)² + Σ over i ≠ j of pᵢ² pⱼ². A weight beyond 1/2 has its pairs apart: in
    # (Σ p²)² − Σ p⁴ they would be lost beside its own fourth power.
    diagonal, top, second, fourth = powers.unbind(-1)
    pairs = 2 * top.square() * second + (second.square() - fourth).clamp(min=0)
    return (diagonal + pairs).sqrt()


class _Sums(Statistic):
    """`[B, Hq, N, 7]`: how many keys; Σ s and Σ s², s from the row's maximum; then the powers of the weights.

    In float64 wherever there is one: a variance is a small difference.
    """

    def begin(self, problem: Problem) -> None:
        shape = problem.batch_size, problem.num_heads, problem.n_queries, 7
        self.result = torch.zeros(shape, dtype=_widest(problem.device), device=problem.device)

    def add(self, tile: WeightTile) -> None:
        dtype = self.result.dtype
        allowed = tile.logits != -torch.inf
        logits = (tile.logits - tile.normalizer.shift.unsqueeze(-1)).to(dtype).masked_fill_(~allowed, 0)
        sums = torch.stack([each.to(dtype).sum(-1) for each in (allowed, logits, logits.square())], -1)
        powers = _powers(tile.weights.to(dtype))
        self.result[tile.batch, tile.heads, tile.rows] += torch.cat([sums, powers], -1)
