"""A mask that was compiled before: the key sets of one call's rows, whatever they came from."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.errors import ArgumentError
from regard.intervals import Intervals
from regard.masks.base import Mask
from regard.masks.compiled import Frame, KeySets


@dataclass(frozen=True, eq=False, repr=False)
class Rows(Mask):
    """The rows and columns of one call, as key sets; positions do not move them."""

    sets: KeySets
    name = "rows"

    def compile(self, frame: Frame) -> KeySets:
        intervals = self.sets.intervals
        if (intervals.n_queries, intervals.n_keys) != (frame.n_queries, frame.n_keys):
            raise ArgumentError(
                f"`mask` was compiled for ({intervals.n_queries}, {intervals.n_keys}) (queries, keys), got a "
                f"call of ({frame.n_queries}, {frame.n_keys})"
            )
        return self.sets if intervals.starts.device == frame.device else self.to(frame.device).sets

    def to(self, device: torch.device | str) -> Rows:
        intervals, dense = self.sets.intervals, self.sets.dense
        moved = Intervals(intervals.starts.to(device), intervals.ends.to(device), intervals.n_keys)
        return Rows(KeySets(moved, None if dense is None else dense.to(device)))

    def natural_size(self) -> tuple[int, int]:
        return self.sets.intervals.n_queries, self.sets.intervals.n_keys

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rows):
            return NotImplemented if not isinstance(other, Mask) else False
        return torch.equal(self.sets.to_dense().cpu(), other.sets.to_dense().cpu())

    def __hash__(self) -> int:
        return hash(("rows", self.natural_size()))

    def __repr__(self) -> str:
        return "rows(<{} queries, {} keys>)".format(*self.natural_size())
