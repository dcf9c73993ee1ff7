"""Runs of keys that move with the query: what causal, window and band masks are where their sizes are ints.

Two integers say what tables of bounds would, so such a mask costs a call nothing.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from regard.intervals import Intervals


class Run(NamedTuple):
    """A query at position p may attend the keys from p − `before` to p + `after`; None is no bound."""

    before: int | None = None
    after: int | None = None

    def __and__(self, other: Run) -> Run:
        return Run(_least(self.before, other.before), _least(self.after, other.after))

    def columns(self, first: int, n_keys: int) -> tuple[int, int, int, int]:
        """The run in a call whose first query stands at column `first`: see `MovingRun.affine`."""
        start = (0, 0) if self.before is None else (first - self.before, 1)
        end = (n_keys, 0) if self.after is None else (first + self.after + 1, 1)
        return *start, *end


def _least(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


class MovingRun(Intervals):
    """A run in one call. Its tensors are made when somebody asks for them.

    `affine` is (first start, start step, first end, end step): row i holds the columns
    `[first start + i · start step, first end + i · end step)`, clipped to those there are.
    """

    affine: tuple[int, int, int, int]
    _rows: int
    _device: torch.device

    def __init__(
        self, affine: tuple[int, int, int, int], n_queries: int, n_keys: int, device: torch.device
    ) -> None:
        # The way around a frozen class, once, to fill it.
        self.__dict__.update(affine=affine, n_keys=n_keys, _rows=n_queries, _device=device)

    def _bound(self, first: int, step: int) -> Tensor:
        bound = torch.arange(self._rows, device=self._device) * step + first
        return bound.clamp_(0, self.n_keys).view(1, 1, -1, 1)

    @cached_property
    def _bounds(self) -> tuple[Tensor, Tensor]:
        start, end = self._bound(*self.affine[:2]), self._bound(*self.affine[2:])
        empty = end <= start
        return start.masked_fill_(empty, self.n_keys), end.masked_fill_(empty, self.n_keys)

    @property
    def starts(self) -> Tensor:
        return self._bounds[0]

    @property
    def ends(self) -> Tensor:
        return self._bounds[1]

    @property
    def n_queries(self) -> int:
        return self._rows

    @property
    def batch_size(self) -> int:
        return 1

    @property
    def num_heads(self) -> int:
        return 1

    def select(
        self,
        batch: slice = slice(None),
        heads: slice | list[int] = slice(None),
        rows: slice | Tensor = slice(None),
    ) -> Intervals:
        """The same sets for some rows; batch items and heads all share them."""
        if isinstance(rows, Tensor):
            return super().select(batch, heads, rows)
        taken = range(self.n_queries)[rows]
        if taken.step != 1:
            return super().select(batch, heads, rows)
        start, start_step, end, end_step = self.affine
        moved = start + taken.start * start_step, start_step, end + taken.start * end_step, end_step
        return MovingRun(moved, len(taken), self.n_keys, self._device)
