"""Sets of keys, one set per query row, as a few sorted, disjoint, half-open intervals `[start, end)`.

Every structured attention mask (causal, window, padding, packed documents, prefix, sinks) lets a query
attend one or two runs of keys, so a mask costs O(N) numbers instead of N x M bits, and a kernel decides
whether a tile is excluded, whole or cut by comparing integers. The algebra below is tensor code without a
loop over rows. Slots that a row does not use hold the empty interval `[n_keys, n_keys)`, which sorts last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# A dense mask whose rows have more runs than this stays dense: beyond it, comparing a tile with every
# interval costs more than reading the tile's bits.
MAX_SCANNED_INTERVALS = 8


@dataclass(frozen=True, eq=False)
class Intervals:
    """For each query row, the keys it may attend.

    `starts` and `ends` are int64 tensors `[B or 1, Hq or 1, N, K]` of key columns in `[0, n_keys]`; in each
    row the K intervals are sorted, disjoint and not adjacent, empty ones last.
    """

    starts: Tensor
    ends: Tensor
    n_keys: int

    @classmethod
    def between(cls, starts: Tensor, ends: Tensor, n_keys: int) -> Intervals:
        """One interval a row, from `[..., N]` bounds of any range: clipped, and empty where reversed."""
        starts, ends = torch.broadcast_tensors(starts, ends)
        return _tidy(starts.unsqueeze(-1), ends.unsqueeze(-1), n_keys)

    @classmethod
    def everything(cls, n_queries: int, n_keys: int, device: torch.device | str = "cpu") -> Intervals:
        """Every row holds every key. Rows share their storage."""
        shape = (1, 1, n_queries, 1)
        starts = torch.zeros((), dtype=torch.int64, device=device).expand(shape)
        return cls(starts, torch.full((), n_keys, dtype=torch.int64, device=device).expand(shape), n_keys)

    @property
    def n_queries(self) -> int:
        return self.starts.shape[2]

    @property
    def batch_size(self) -> int:
        return self.starts.shape[0]

    @property
    def num_heads(self) -> int:
        return self.starts.shape[1]

    def __and__(self, other: Intervals) -> Intervals:
        """Intersection: every pair of intervals, of which at most K₁ + K₂ − 1 a row are not empty."""
        starts = torch.maximum(self.starts.unsqueeze(-1), other.starts.unsqueeze(-2)).flatten(-2)
        ends = torch.minimum(self.ends.unsqueeze(-1), other.ends.unsqueeze(-2)).flatten(-2)
        return _tidy(starts, ends, self.n_keys)

    def __or__(self, other: Intervals) -> Intervals:
        """Union: sort by start, then join whatever overlaps or touches what came before."""
        shape = torch.broadcast_shapes(self.starts.shape[:-1], other.starts.shape[:-1])
        pieces = (self.starts, other.starts), (self.ends, other.ends)
        starts, ends = (torch.cat([t.expand(*shape, t.shape[-1]) for t in pair], -1) for pair in pieces)
        starts, order = starts.sort(dim=-1, stable=True)
        reach = ends.gather(-1, order).cummax(-1).values
        opens = torch.ones_like(starts, dtype=torch.bool)
        opens[..., 1:] = starts[..., 1:] > reach[..., :-1]
        slot = opens.cumsum(-1) - 1
        # Within one joined run starts are ascending and reach only grows: its first start, its last reach.
        joined_starts = torch.full_like(starts, self.n_keys).scatter_reduce_(-1, slot, starts, "amin")
        joined_ends = torch.zeros_like(ends).scatter_reduce_(-1, slot, reach, "amax")
        return _tidy(joined_starts, joined_ends, self.n_keys)

    def __invert__(self) -> Intervals:
        """Complement: the gaps before, between and after the intervals."""
        edge = self.starts[..., :1]
        starts = torch.cat([torch.zeros_like(edge), self.ends], -1)
        ends = torch.cat([self.starts, torch.full_like(edge, self.n_keys)], -1)
        return _tidy(starts, ends, self.n_keys)

    @classmethod
    def from_slots(cls, starts: Tensor, ends: Tensor, n_keys: int) -> Intervals:
        """From `[..., N, K]` disjoint, not adjacent bounds in any order and range."""
        return _tidy(starts, ends, n_keys)

    def contains(self, columns: slice) -> Tensor:
        """Which of some key columns each row holds: bool `[B or 1, Hq or 1, N, C]`."""
        starts, ends = narrowed(self.starts, dims=2), narrowed(self.ends, dims=2)
        width = columns.stop - columns.start
        if starts.shape[-1] <= MAX_SCANNED_INTERVALS:
            keys = torch.arange(columns.start, columns.stop, device=starts.device)
            inside = torch.zeros((*starts.shape[:-1], width), dtype=torch.bool, device=starts.device)
            for slot in range(starts.shape[-1]):
                inside |= (keys >= starts[..., slot, None]) & (keys < ends[..., slot, None])
        else:  # many intervals: how many have opened and not closed by each column
            starts, ends = ((t - columns.start).clamp(0, width) for t in (starts, ends))
            steps = torch.zeros((*starts.shape[:-1], width + 1), dtype=torch.int32, device=starts.device)
            one = torch.ones((), dtype=torch.int32, device=starts.device).expand_as(starts)
            steps.scatter_add_(-1, starts, one).scatter_add_(-1, ends, -one)
            inside = steps.cumsum(-1, dtype=torch.int32)[..., :width] > 0
        return inside.expand(*self.starts.shape[:2], -1, -1)

    def to_dense(self) -> Tensor:
        """The bool matrix `[B or 1, Hq or 1, N, n_keys]`."""
        return self.contains(slice(0, self.n_keys))

    def counts(self) -> Tensor:
        """How many keys each row holds: int64 `[B or 1, Hq or 1, N]`."""
        return (self.ends - self.starts).sum(-1)

    def select(
        self,
        batch: slice = slice(None),
        heads: slice | list[int] = slice(None),
        rows: slice | Tensor = slice(None),
    ) -> Intervals:
        """The same sets for some batch items, heads and rows (views where slices allow)."""
        batch = batch if self.batch_size > 1 else slice(None)
        heads = heads if self.num_heads > 1 else slice(None)
        return Intervals(self.starts[batch, heads, rows], self.ends[batch, heads, rows], self.n_keys)

    def tiles(self, rows: slice, width: int) -> Iterator[tuple[int, int, bool]]:
        """The column tiles `(first, last, whole)` that any of these rows reaches, in ascending order.

        `whole` says that every one of the rows holds the whole tile. Tiles that are not yielded hold
        nothing for any of the rows, and were never looked at.
        """
        starts, ends = self.starts[:, :, rows], self.ends[:, :, rows]
        if starts.numel() == 0:
            return
        used = ends > starts
        slots = torch.stack(
            [
                starts.amin((0, 1, 2)),  # an unused slot starts at n_keys: it never lowers the minimum ...
                starts.amax((0, 1, 2)),  # ... and never lets a tile pass for whole
                ends.where(used, 0).amax((0, 1, 2)),
                ends.where(used, 0).amin((0, 1, 2)),
            ],
            dim=-1,
        ).tolist()
        reached: set[int] = set()
        for least_start, _, greatest_end, _ in slots:
            if greatest_end > least_start:
                reached.update(range(least_start // width, -(-greatest_end // width)))
        for tile in sorted(reached):
            first, last = tile * width, min(tile * width + width, self.n_keys)
            yield first, last, any(first >= slot[1] and last <= slot[3] for slot in slots)


def stack(parts: list[Intervals], dim: int) -> Intervals:
    """Join the sets of several batch items (`dim` 0) or heads (`dim` 1) into one."""
    n_keys, slots = parts[0].n_keys, max(part.starts.shape[-1] for part in parts)
    shape = list(torch.broadcast_shapes(*(part.starts.shape[:3] for part in parts)))
    shape[dim] = 1

    def joined(tensors: list[Tensor]) -> Tensor:
        padded = [torch.nn.functional.pad(t, (0, slots - t.shape[-1]), value=n_keys) for t in tensors]
        return torch.cat([t.expand(*shape, slots) for t in padded], dim)

    return Intervals(joined([p.starts for p in parts]), joined([p.ends for p in parts]), n_keys)


def varies(tensor: Tensor, dim: int) -> bool:
    """Whether a dimension holds more than one thing, and not one thing repeated by a stride of 0."""
    return tensor.shape[dim] > 1 and tensor.stride(dim) != 0


def narrowed(tensor: Tensor, dims: int) -> Tensor:
    """The tensor with those of its first dimensions that only repeat something narrowed to 1."""
    for dim in range(dims):
        if tensor.shape[dim] > 1 and not varies(tensor, dim):
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _tidy(starts: Tensor, ends: Tensor, n_keys: int) -> Intervals:
    """Clip to the keys there are, move empty intervals last, and drop slots that no row uses."""
    starts, ends = starts.clamp(0, n_keys), ends.clamp(0, n_keys)
    empty = ends <= starts
    starts, ends = starts.masked_fill(empty, n_keys), ends.masked_fill(empty, n_keys)
    if starts.shape[-1] > 1:
        starts, order = starts.sort(dim=-1, stable=True)
        ends = ends.gather(-1, order)
        used = int((~empty).sum(-1).max()) if empty.numel() else 1
        starts, ends = starts[..., : max(used, 1)], ends[..., : max(used, 1)]
    return Intervals(starts, ends, n_keys)
