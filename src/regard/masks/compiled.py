"""A mask as one call sees it: a `Frame` of positions, and the `KeySets` that a mask becomes inside it.

Key sets are intervals of keys for each query row and, only where a dense mask has too many runs a row for
that, the bits themselves beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.errors import ArgumentError, ArgumentTypeError
from regard.intervals import Intervals, varies
from regard.masks.checks import start
from regard.masks.runs import MovingRun, Run
from regard.scanning import hull, scan

# Rows are counted in pieces of about this many entries of a dense mask.
_PIECE_ENTRIES = 1 << 22


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
        query_start: int | Sequence[int] | Tensor | None,
        key_start: int | Sequence[int] | Tensor,
        device: torch.device | str = "cpu",
        batch: int | None = None,
    ) -> Frame:
        """A frame whose queries, unless placed, are the last `n_queries` positions of the keys."""
        device = torch.device(device)
        for name, count in (("n_queries", n_queries), ("n_keys", n_keys)):
            if isinstance(count, bool) or not isinstance(count, int | torch.SymInt):
                raise ArgumentTypeError(f"`{name}` must be an int, got {count!r}")
            if count < 0:
                raise ArgumentError(f"`{name}` must be at least 0, got {count}")
        first_key = start(key_start, "key_start", batch)
        first_query = (
            first_key + n_keys - n_queries
            if query_start is None
            else start(query_start, "query_start", batch)
        )
        first_query, first_key = (
            first.to(device) if isinstance(first, Tensor) else first for first in (first_query, first_key)
        )
        return cls(n_queries, n_keys, first_query, first_key, device)

    def items(self, count: int) -> list[Frame]:
        """The frames of `count` batch items."""
        for name, first in (("query_start", self.query_start), ("key_start", self.key_start)):
            if isinstance(first, Tensor) and len(first) not in (1, count):
                raise ArgumentError(f"`{name}` must be for {count} batch items, got {len(first)}")
        return [self.select(slice(item, item + 1)) for item in range(count)]

    def select(self, batch: slice) -> Frame:
        """The frame of some batch items."""

        def some(first: int | Tensor) -> int | Tensor:
            return first[batch] if isinstance(first, Tensor) and len(first) > 1 else first

        return replace(self, query_start=some(self.query_start), key_start=some(self.key_start))

    @property
    def first_query(self) -> int | Tensor:
        """The position of the first query: an int, or `[B, 1, 1]`."""
        return self.query_start.view(-1, 1, 1) if isinstance(self.query_start, Tensor) else self.query_start

    @property
    def first_key(self) -> int | Tensor:
        """The position of the first key: an int, or `[B, 1, 1]`."""
        return self.key_start.view(-1, 1, 1) if isinstance(self.key_start, Tensor) else self.key_start

    @property
    def query_positions(self) -> Tensor:
        """The position of every query: int64 `[B or 1, 1, N]`."""
        return torch.arange(self.n_queries, device=self.device).view(1, 1, -1) + self.first_query

    def key_positions(self, columns: slice) -> Tensor:
        """The positions of some keys: int64 `[B or 1, 1, C]`."""
        keys = torch.arange(columns.start, columns.stop, device=self.device)
        return keys.view(1, 1, -1) + self.first_key

    def offsets(self, rows: slice | Tensor, columns: slice) -> Tensor:
        """Key position minus query position: int64 `[B or 1, 1, R, C]`."""
        return self.key_positions(columns).unsqueeze(-2) - self.query_positions[..., rows].unsqueeze(-1)

    def intervals(self, starts: Tensor | int, ends: Tensor | int) -> Intervals:
        """Intervals of columns from bounds given as positions, broadcastable to `[B, Hq, N]`."""
        rows = torch.zeros((1, 1, self.n_queries), dtype=torch.int64, device=self.device)
        return Intervals.between(starts - self.first_key + rows, ends - self.first_key + rows, self.n_keys)

    def run(self, run: Run) -> Intervals:
        """The intervals of a run of keys that moves with the query: four ints, where positions are ints."""
        # A frame of another kind may place its queries otherwise than one after another.
        if type(self) is Frame and isinstance(self.query_start, int) and isinstance(self.key_start, int):
            affine = run.columns(self.query_start - self.key_start, self.n_keys)
            return MovingRun(affine, self.n_queries, self.n_keys, self.device)
        positions, first = self.query_positions, self.first_key
        starts = first if run.before is None else positions - run.before
        ends = first + self.n_keys if run.after is None else positions + run.after + 1
        return self.intervals(starts, ends)


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

    def owned(self) -> KeySets:
        """The same without a reference to the tensor of whoever made the mask."""
        return self if self.dense is None else KeySets(self.intervals, self.dense.clone())

    @property
    def affine(self) -> tuple[int, int, int, int] | None:
        """The intervals as (first start, start step, first end, end step), if they are such: see `MovingRun`.

        Who takes these four does not touch `intervals`, whose tensors are then never made.
        """
        return self.intervals.affine if isinstance(self.intervals, MovingRun) else None

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

    def varies(self, dim: int) -> bool:
        """Whether batch items (`dim` 0) or heads (`dim` 1) really differ, and are not one set repeated."""
        return varies(self.intervals.starts, dim) or (self.dense is not None and varies(self.dense, dim))

    def to_dense(self) -> Tensor:
        """The bool tensor `[B or 1, Hq or 1, N, M]`."""
        dense = self.intervals.to_dense()
        return dense if self.dense is None else dense & self.dense

    def select(
        self,
        batch: slice = slice(None),
        heads: slice | list[int] = slice(None),
        rows: slice | Tensor = slice(None),
    ) -> KeySets:
        """The same sets for some batch items, heads and rows."""
        dense = self.dense
        if dense is not None:
            batch_of_dense = batch if dense.shape[0] > 1 else slice(None)
            dense = dense[batch_of_dense, heads if dense.shape[1] > 1 else slice(None)][:, :, rows]
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

    def allowed(self, rows: slice | Tensor, columns: slice) -> Tensor:
        """Who may attend whom among some rows and columns: bool `[B or 1, Hq or 1, R, C]`."""
        allowed = self.intervals.select(rows=rows).contains(columns)
        return allowed if self.dense is None else allowed & self.dense[..., columns][:, :, rows]

    def queries_per_key(self) -> Tensor:
        """How many queries may attend each key: int64 `[B or 1, Hq or 1, M]`, in O(N + M) memory."""
        n_rows, n_keys = self.intervals.n_queries, self.intervals.n_keys
        if self.dense is not None:
            piece = max(1, _PIECE_ENTRIES // max(1, n_keys))
            parts = [self.select(rows=slice(i, i + piece)).to_dense().sum(2) for i in range(0, n_rows, piece)]
            return torch.stack(parts).sum(0) if parts else self.dense.sum(2)
        starts, ends = self.intervals.starts.flatten(2), self.intervals.ends.flatten(2)
        steps = torch.zeros((*starts.shape[:2], n_keys + 1), dtype=torch.int64, device=starts.device)
        one = torch.ones((), dtype=torch.int64, device=starts.device)
        steps.scatter_add_(2, starts, one.expand_as(starts)).scatter_add_(2, ends, -one.expand_as(ends))
        return steps.cumsum(-1)[..., :n_keys]
