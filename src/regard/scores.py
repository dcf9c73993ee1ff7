"""One tile of logits: query · key, times scale, softcap, plus bias, −∞ where the mask excludes.

Tiles are as wide as a multiple of `products.ALIGNMENT`, the columns past the last key holding −∞.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.problem import Problem
from regard.products import load, matmul


@dataclass(frozen=True, eq=False)
class Tile:
    """Logits `[B, Hq, R, C']` of some rows and the columns `first` to `last`; C' is `last − first`, aligned.

    `softcapped` is tanh(score / softcap) before the bias, where there is a softcap.
    """

    rows: slice | Tensor
    first: int
    last: int
    logits: Tensor
    softcapped: Tensor | None

    @property
    def columns(self) -> slice:
        return slice(self.first, self.last)

    @property
    def width(self) -> int:
        return self.last - self.first

    @property
    def allowed(self) -> Tensor:
        """The pairs that take part. A score of −∞ excludes its pair as a mask does; NaN takes part."""
        return self.logits != -torch.inf


def score(problem: Problem, query: Tensor, rows: slice | Tensor, first: int, last: int, whole: bool) -> Tile:
    """The logits of a tile; `query` is `load_query(problem, rows)`; if `whole`, the mask cuts nothing."""
    columns = slice(first, last)
    key = load(problem.key, columns, problem.compute_dtype)
    logits = matmul(query, key.mT).mul_(problem.scale)
    width = last - first
    softcapped = None
    if problem.softcap is not None:
        softcapped = logits.div_(problem.softcap).tanh_()
        logits = softcapped * problem.softcap
    if problem.bias is not None:
        added = problem.bias.tile(problem.frame, rows, columns, problem.compute_dtype)
        logits[..., :width] += added
        # NaN − ∞ is NaN: a bias of −∞ too excludes by selecting.
        logits[..., :width].masked_fill_(added == -torch.inf, -torch.inf)
    if not whole:
        # Selecting, never adding: whatever an excluded key holds, NaN included, is gone here.
        logits[..., :width].masked_fill_(~problem.sets.allowed(rows, columns), -torch.inf)
    logits[..., width:] = -torch.inf
    return Tile(rows, first, last, logits, softcapped)


def kept(problem: Problem, tile: Tile) -> Tensor:
    """What dropout leaves of each pair of a tile: 0 or 1 / (1 − p), `[B, Hq, R, C']`."""
    columns = slice(tile.first, tile.first + tile.logits.shape[-1])
    scale = 1 / (1 - problem.dropout_p) if problem.dropout_p < 1 else 0.0
    return problem.kept(tile.rows, columns).to(problem.compute_dtype) * scale


def load_query(problem: Problem, rows: slice | Tensor) -> Tensor:
    """Some query rows in the computing dtype, head_dim aligned: `[B, Hq, R, E']`."""
    return load(problem.query, rows, problem.compute_dtype, align_rows=False)
