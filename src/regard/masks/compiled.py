"""A mask as one call sees it: a `Frame` of positions, and the `KeySets` that a mask becomes inside it.

Key sets are intervals of keys for each query row and, only where a dense mask has too many runs a row for
that, the bits themselves beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.errors import ArgumentError, ArgumentTypeError
from regard.intervals import Intervals, hull, scan


@dataclass(frozen=True, eq=False)
class Frame:
    """Where one call's rows and columns stand: query i at `query_start + i`, key j at `key_start + j`.

    The starts are ints, or int64 tensors `[B]`.
    """

    n_queries: int
    n_keys: int
    query_start: int | Tensor
    key_start: int | Tensor
    device: torch.device

    @classmethod
    def of(
        cls,
        n_queries: int,
        n_keys: int,
        query_start: int | Tensor | None,
        key_start: int | Tensor,
        device: torch.device | str = "cpu",
    ) -> Frame:
        """A frame whose queries, unless placed, are the last `n_queries` positions of the keys."""
        for name, count in (("n_queries", n_queries), ("n_keys", n_keys)):
            if isinstance(count, bool) or not isinstance(count, int):
                raise ArgumentTypeError(f"`{name}` must be an int, got {count!r}")
            if count < 0:
                raise ArgumentError(f"`{name}` must be at least 0, got {count}")
        if query_start is None:
            query_start = key_start + n_keys - n_queries
        return cls(n_queries, n_keys, query_start, key_start, torch.device(device))

    def item(self, index: int) -> Frame:
        """The frame of one batch item."""

        def one(start: int | Tensor) -> int | Tensor:
            return start[index if len(start) > 1 else 0 :][:1] if isinstance(start, Tensor) else start

        return replace(self, query_start=one(self.query_start), key_start=one(self.key_start))

    @property
    def first_query(self) -> int | Tensor:
        """The position of the first query: an int, or `[B, 1, 1]`."""
        return _column(self.query_start, self.device)

    @property
    def first_key(self) -> int | Tensor:
        """The position of the first key: an int, or `[B, 1, 1]`."""
        return _column(self.key_start, self.device)

    @property
    def query_positions(self) -> Tensor:
        """The position of every query: int64 `[B or 1, 1, N]`."""
        return torch.arange(self.n_queries, device=self.device).view(1, 1, -1) + self.first_query

    def intervals(self, starts: Tensor | int, ends: Tensor | int) -> Intervals:
        """Intervals of columns from bounds given as positions, broadcastable to `[B, Hq, N]`."""
        rows = torch.zeros((1, 1, self.n_queries), dtype=torch.int64, device=self.device)
        return Intervals.between(starts - self.first_key + rows, ends - self.first_key + rows, self.n_keys)


def _column(start: int | Tensor, device: torch.device) -> int | Tensor:
    return start.to(device, torch.int64).view(-1, 1, 1) if isinstance(start, Tensor) else start


@dataclass(frozen=True, eq=False)
class KeySets:
    """A compiled mask: a row's keys are those inside `intervals` and, if it is there, true in `dense`."""

    intervals: Intervals
    dense: Tensor | None = None

    @classmethod
    def from_dense(cls, mask: Tensor) -> KeySets:
        """From a bool tensor `[B or 1, Hq or 1, N, M]`: intervals where its rows have few runs."""
        intervals = scan(mask)
        return cls(intervals) if intervals is not None else cls(hull(mask), mask)

    def __and__(self, other: KeySets) -> KeySets:
        self._check_agreement(other)
        both = self.dense if other.dense is None else other.dense
        if self.dense is not None and other.dense is not None:
            both = self.dense & other.dense
        return KeySets(self.intervals & other.intervals, both)

    def __or__(self, other: KeySets) -> KeySets:
        self._check_agreement(other)
        if self.dense is None and other.dense is None:
            return KeySets(self.intervals | other.intervals)
        return KeySets.from_dense(self.to_dense() | other.to_dense())

    def __invert__(self) -> KeySets:
        return KeySets(~self.intervals) if self.dense is None else KeySets.from_dense(~self.to_dense())

    def _check_agreement(self, other: KeySets) -> None:
        for axis, one, two in (
            ("batch items", self.batch_size, other.batch_size),
            ("heads", self.num_heads, other.num_heads),
        ):
            if one != two and 1 not in (one, two):
                raise ArgumentError(
                    f"masks that are combined must be for the same number of {axis}, got {one} and {two}"
                )

    @property
    def batch_size(self) -> int:
        return max(self.intervals.batch_size, 1 if self.dense is None else self.dense.shape[0])

    @property
    def num_heads(self) -> int:
        return max(self.intervals.num_heads, 1 if self.dense is None else self.dense.shape[1])

    def to_dense(self) -> Tensor:
        """The bool tensor `[B or 1, Hq or 1, N, M]`."""
        dense = self.intervals.to_dense()
        return dense if self.dense is None else dense & self.dense

    def select(
        self, batch: slice = slice(None), heads: slice = slice(None), rows: slice | Tensor = slice(None)
    ) -> KeySets:
        """The same sets for some batch items, heads and rows."""
        dense = self.dense
        if dense is not None:
            dense = dense[
                batch if dense.shape[0] > 1 else slice(None), heads if dense.shape[1] > 1 else slice(None)
            ]
            dense = dense[:, :, rows]
        return KeySets(self.intervals.select(batch, heads, rows), dense)

    def tiles(self, rows: slice, width: int) -> Iterator[tuple[int, int, bool]]:
        """The column tiles `(first, last, whole)` that these rows reach (see `Intervals.tiles`)."""
        if self.dense is None:
            yield from self.intervals.tiles(rows, width)
            return
        reached = self.dense[:, :, rows].any(2).any(1).any(0)
        for first, last, _ in self.intervals.tiles(rows, width):
            if bool(reached[first:last].any()):
                yield first, last, False

    def allowed(self, rows: slice | Tensor, columns: Tensor) -> Tensor:
        """Who may attend whom among these rows and `[C]` columns: bool `[B or 1, Hq or 1, R, C]`."""
        allowed = self.intervals.select(rows=rows).contains(columns)
        return allowed if self.dense is None else allowed & self.dense[:, :, rows][..., columns]

    def counts(self) -> Tensor:
        """How many queries may attend each key: int64 `[B or 1, Hq or 1, M]` (rows in pieces: O(N + M))."""
        n_rows, n_keys = self.intervals.n_queries, self.intervals.n_keys
        if self.dense is not None:
            piece = max(1, (1 << 22) // max(1, n_keys))
            parts = [self.select(rows=slice(i, i + piece)).to_dense().sum(2) for i in range(0, n_rows, piece)]
            return torch.stack(parts).sum(0) if parts else self.dense.sum(2)
        starts, ends = self.intervals.starts.flatten(2), self.intervals.ends.flatten(2)
        steps = torch.zeros((*starts.shape[:2], n_keys + 1), dtype=torch.int64, device=starts.device)
        one = torch.ones((), dtype=torch.int64, device=starts.device)
        steps.scatter_add_(2, starts, one.expand_as(starts)).scatter_add_(2, ends, -one.expand_as(ends))
        return steps.cumsum(-1)[..., :n_keys]
