"""Maps on a grid of cells whose sides are powers of two: levels of zoom, down to single weights.

A cell of height s holds the queries from r·s up to (r + 1)·s, the last row of cells what is left, and along
the keys alike; its value is the mean of its weights, masked pairs counting 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.viewer.server.head import Head

# Cells of a tile, along either side.
TILE = 256
# A whole head is kept with up to this many cells a side, and none smaller than the core pools at full speed;
# finer ones are computed where somebody looks.
MOST_CELLS, SMALLEST_CELL = 1024, 16
THUMBNAIL_CELLS = 64
MASKED = -1.0
# A step looks at about this many pairs of one head: what is more urgent waits no longer than for one of them.
PAIRS_A_STEP = 1 << 27


@dataclass(frozen=True)
class Grid:
    """Cells of `height` queries and `width` keys over a map of `n_queries` x `n_keys`."""

    n_queries: int
    n_keys: int
    height: int
    width: int

    @classmethod
    def coarse(cls, n_queries: int, n_keys: int, most: int) -> Grid:
        """The finest grid of at most `most` cells a side."""
        return cls(n_queries, n_keys, _size(n_queries, most), _size(n_keys, most))

    @classmethod
    def kept(cls, n_queries: int, n_keys: int) -> Grid:
        """The grid of the whole maps, of which everything coarser is made, thumbnails too."""
        sizes = (
            min(max(_size(length, MOST_CELLS), SMALLEST_CELL), _size(length, THUMBNAIL_CELLS))
            for length in (n_queries, n_keys)
        )
        return cls(n_queries, n_keys, *sizes)

    @property
    def rows(self) -> int:
        return -(-self.n_queries // self.height)

    @property
    def columns(self) -> int:
        return -(-self.n_keys // self.width)

    @property
    def exact(self) -> bool:
        """Whether each cell is one pair."""
        return self.height == self.width == 1

    def heights(self, first: int = 0, last: int | None = None) -> Tensor:
        """How many queries some rows of cells hold, float64."""
        return _sizes(self.n_queries, self.height, first, self.rows if last is None else last)

    def widths(self, first: int = 0, last: int | None = None) -> Tensor:
        """How many keys some columns of cells hold, float64."""
        return _sizes(self.n_keys, self.width, first, self.columns if last is None else last)

    def tile(self, row: int, column: int) -> tuple[slice, slice] | None:
        """The rows and columns of cells of one tile; None outside the map."""
        rows = slice(row * TILE, min((row + 1) * TILE, self.rows))
        columns = slice(column * TILE, min((column + 1) * TILE, self.columns))
        inside = 0 <= rows.start < rows.stop and 0 <= columns.start < columns.stop
        return (rows, columns) if inside else None

    def pairs(self, rows: slice, columns: slice) -> tuple[slice, slice]:
        """The queries and keys of some cells; the last cell counted as if it were whole."""
        return (
            slice(rows.start * self.height, rows.stop * self.height),
            slice(columns.start * self.width, columns.stop * self.width),
        )


def means(head: Head, grid: Grid, rows: slice, columns: slice) -> Tensor:
    """The cells of a part of the grid, `[rows, columns]`: one pass over its pairs, and no other."""
    queries, keys = grid.pairs(rows, columns)
    shape = rows.stop - rows.start, columns.stop - columns.start
    pooled = head.part(queries, keys).weights.pooled(*shape)[0, 0].double()
    return unpadded(pooled, grid, rows, columns).float()


def whole_map(head: Head, grid: Grid) -> Iterator[Tensor | None]:
    """All cells of a head, `[rows, columns]`, after a None for each step on the way."""
    cells = max(1, PAIRS_A_STEP // (grid.n_keys * grid.height))
    found = torch.empty(grid.rows, grid.columns)
    for first in range(0, grid.rows, cells):
        rows = slice(first, min(first + cells, grid.rows))
        found[rows] = means(head, grid, rows, slice(0, grid.columns))
        yield None
    yield found


def unpadded(pooled: Tensor, grid: Grid, rows: slice, columns: slice) -> Tensor:
    """Means over the pairs that there are, from means `[..., rows, columns]` over whole cells."""
    heights = grid.heights(rows.start, rows.stop) / grid.height
    widths = grid.widths(columns.start, columns.stop) / grid.width
    return pooled / (heights[:, None] * widths)


def coarser(cells: Tensor, fine: Grid, grid: Grid, rows: slice, columns: slice) -> Tensor:
    """The cells of a coarser grid, `[..., rows, columns]`, from all those of a finer one, `[..., R, C]`."""
    up, across = grid.height // fine.height, grid.width // fine.width
    high = slice(rows.start * up, min(rows.stop * up, fine.rows))
    wide = slice(columns.start * across, min(columns.stop * across, fine.columns))
    shape = rows.stop - rows.start, columns.stop - columns.start
    some = pad(
        cells[..., high, wide],
        (0, shape[1] * across - (wide.stop - wide.start), 0, shape[0] * up - (high.stop - high.start)),
    )
    # Every cell counts as a whole one, but for what is left at the far ends.
    if (last := fine.n_queries % fine.height) and high.stop == fine.rows:
        some[..., high.stop - high.start - 1, :] *= last / fine.height
    if (last := fine.n_keys % fine.width) and wide.stop == fine.columns:
        some[..., wide.stop - wide.start - 1] *= last / fine.width
    sums = some.reshape(*some.shape[:-2], shape[0], up, shape[1], across).sum((-3, -1), dtype=torch.float64)
    areas = grid.heights(rows.start, rows.stop)[:, None] * grid.widths(columns.start, columns.stop)
    return (sums * (fine.height * fine.width) / areas).float()


def exact(head: Head, queries: slice, keys: slice) -> Tensor:
    """Single weights, `[queries, keys]`, with `MASKED` where a pair takes no part."""
    some = head.weights
    values = some[0, 0, queries, keys]
    return values.masked_fill(some.logits(0, 0, queries, keys) == -torch.inf, MASKED).float()


def _size(length: int, most: int) -> int:
    size = 1
    while -(-length // size) > most:
        size *= 2
    return size


def _sizes(length: int, size: int, first: int, last: int) -> Tensor:
    starts = torch.arange(first, last, dtype=torch.float64) * size
    return (length - starts).clamp(max=size)
