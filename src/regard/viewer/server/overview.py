"""The first look at a call: every head's numbers and its map, in one pass that is taken in short steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.viewer.answers import FOR_THE_LINK, Answers
from regard.viewer.induction import Repeats
from regard.viewer.server.head import Head
from regard.viewer.server.tiles import PAIRS_A_STEP, Grid, unpadded
from regard.weights import AttentionWeights


@dataclass(frozen=True, eq=False)
class Overview:
    """What one pass over a call tells; `answers` hold the maps of its heads on `grid`."""

    answers: Answers
    grid: Grid


def overview(weights: AttentionWeights, repeats: Repeats, grid: Grid) -> Iterator[Overview | None]:
    """Yields None after each step but the last, then the overview of batch item 0, with maps on this grid."""
    heads = weights.shape[1]
    found = _empty(heads, grid, repeats)
    cells = max(1, PAIRS_A_STEP // (grid.n_keys * grid.height))
    for number in range(heads):
        head = Head.of(weights, number)
        for first in range(0, grid.rows, cells):
            _look(head, found, number, grid, slice(first, min(first + cells, grid.rows)))
            yield None
        found.induction[number] = repeats.mass(head.weights)[0]
    yield Overview(found, grid)


def _look(head: Head, found: Answers, number: int, grid: Grid, rows: slice) -> None:
    """Add what some rows of cells tell of one head."""
    queries, keys = grid.pairs(rows, slice(0, grid.columns))
    told = head.part(queries, keys).weights.statistics(
        "entropy",
        "distance",
        "received",
        "diagonals",
        mass=slice(0, 1),
        pooled=(rows.stop - rows.start, grid.columns),
        top_keys=FOR_THE_LINK,
    )
    inside = slice(queries.start, min(queries.stop, grid.n_queries))
    count = inside.stop - inside.start
    for name, answer in (("entropy", "entropy"), ("distance", "distance"), ("on_first", "mass")):
        getattr(found, name)[number, inside] = told[answer][0, 0, :count]
    for target, answer in zip((found.top_weights, found.top_keys), told["top_keys"], strict=True):
        target[number, inside] = answer[0, 0, :count].to(target)
    found.received[number] += told["received"][0, 0, : grid.n_keys].to(found.received)
    pooled = told["pooled"][0, 0].double()
    found.pooled[number, rows] = unpadded(pooled, grid, rows, slice(0, grid.columns)).to(found.pooled)
    # Entry r of these rows has i − j = r + first query − (keys, made up ones too, − 1).
    at = inside.start + grid.n_keys - keys.stop
    sums = told["diagonals"][0, 0]
    low, high = max(0, -at), min(len(sums), found.diagonals.shape[1] - at)
    found.diagonals[number, at + low : at + high] += sums[low:high].to(found.diagonals)


def _empty(heads: int, grid: Grid, repeats: Repeats) -> Answers:
    def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros((heads, *shape), dtype=dtype)

    n_queries, n_keys = grid.n_queries, grid.n_keys
    return Answers(
        entropy=zeros(n_queries),
        distance=zeros(n_queries),
        on_first=zeros(n_queries),
        received=zeros(n_keys),
        diagonals=zeros(n_queries + n_keys - 1),
        pooled=zeros(grid.rows, grid.columns),
        top_weights=zeros(n_queries, FOR_THE_LINK),
        top_keys=zeros(n_queries, FOR_THE_LINK, dtype=torch.int64),
        induction=zeros(len(repeats.queries)),
    )
