"""Which slot of a cache holds which position: one after another, or sinks and then a ring."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Slots:
    """Position p lies in slot p; in a ring from `sinks` on, in slot sinks + (p − sinks) mod the rest.

    An item of some length holds its positions from `first` on, and before that, where `first` is not 0, only
    its sinks: `first` is then past them, and the positions between are gone.
    """

    capacity: int
    ring: bool
    sinks: int

    @property
    def turning(self) -> int:
        """The slots that are written again and again."""
        return self.capacity - self.sinks

    def runs(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Positions `start` to `stop`, in order, as (position, slot, count) of adjacent slots."""
        position = start
        while position < stop:
            slot, end = position, self.capacity
            if self.ring and position < self.sinks:
                end = self.sinks
            elif self.ring:
                slot = self.sinks + (position - self.sinks) % self.turning
            count = min(stop - position, end - slot)
            yield position, slot, count
            position += count

    def kept(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Those of the new positions `start` to `stop` that stay, as `runs`: a ring keeps only its last."""
        if not self.ring:
            yield from self.runs(start, stop)
        else:
            yield from self.runs(start, min(stop, self.sinks))
            yield from self.runs(max(start, self.sinks, stop - self.turning), stop)

    def first_held(self, first: int, length: int) -> int:
        """`first` once an item has grown to `length`."""
        return max(first, length - self.turning) if self.ring and length > self.capacity else first

    def first_left(self, first: int, length: int) -> int:
        """`first` once an item has been cut to `length`; what is gone up to there stays gone."""
        return min(first, length) if length > self.sinks else 0
