"""What can be asked of the weights: one small class a question, each a fold over tiles of P.

A statistic is bound to a problem (`begin`), sees every tile that the mask reaches once, in a fixed order
(`add`), and gives its answer (`end`). Tiles it never sees hold zeros. Any set of them shares one pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regard.diagonals import diagonal_sums
from regard.online_softmax import Normalizer
from regard.problem import Problem
from regard.products import load, load_finite, product, product_transposed
from regard.ranking import Ranking
from regard.scores import Tile


@dataclass(eq=False)
class WeightTile:
    """A tile of P, `[B, Hq, R, C]`, with what questions need to know about it."""

    problem: Problem
    tile: Tile
    normalizer: Normalizer  # of these rows
    batch: slice  # where this part of the problem stands in the whole
    heads: slice
    key_heads: slice

    @cached_property
    def aligned(self) -> Tensor:
        """The weights with the tile's zero columns at the end still on: for matrix products."""
        return self.normalizer.weights(self.tile.logits.clone())

    @property
    def weights(self) -> Tensor:
        return self.aligned[..., : self.tile.width]

    @property
    def logits(self) -> Tensor:
        return self.tile.logits[..., : self.tile.width]

    @property
    def rows(self) -> slice:
        assert isinstance(self.tile.rows, slice)
        return self.tile.rows

    @property
    def columns(self) -> slice:
        return self.tile.columns


class Statistic(ABC):
    """A question to the weights. One instance answers one fold."""

    result: Tensor

    @abstractmethod
    def begin(self, problem: Problem) -> None:
        """Allocate the answer for the whole problem."""

    def wants(self, rows: slice, columns: slice) -> bool:
        """Whether a tile of these rows and columns can change the answer; if not, it need not be shown."""
        return True

    @abstractmethod
    def add(self, tile: WeightTile) -> None:
        """Take in one tile."""

    def end(self, normalizer: Normalizer) -> Tensor | tuple[Tensor, Tensor]:
        """The answer, when every tile has been seen."""
        return self.result


class PerRow(Statistic):
    """A statistic with one number for each query: `[B, Hq, N]`."""

    def begin(self, problem: Problem) -> None:
        shape = problem.batch_size, problem.num_heads, problem.n_queries
        self.result = torch.zeros(shape, dtype=problem.compute_dtype, device=problem.device)

    def add(self, tile: WeightTile) -> None:
        self.result[tile.batch, tile.heads, tile.rows] += self.of(tile)

    @abstractmethod
    def of(self, tile: WeightTile) -> Tensor:
        """What the tile adds to each row, `[B, Hq, R]`."""


class Entropy(PerRow):
    """−Σⱼ Pᵢⱼ log Pᵢⱼ in nats, over keys."""

    def of(self, tile: WeightTile) -> Tensor:
        return (tile.weights * tile.normalizer.surprise(tile.logits, tile.weights)).sum(-1)


class Distance(PerRow):
    """Σⱼ Pᵢⱼ · |p − j|: how far, in positions, a query looks on average."""

    def of(self, tile: WeightTile) -> Tensor:
        away = tile.problem.frame.offsets(tile.rows, tile.columns).abs()
        return (tile.weights * away.to(tile.weights.dtype)).sum(-1)


class Mass(PerRow):
    """Σ of Pᵢⱼ over a set of keys, given as a bool tensor `[M]`."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys

    def wants(self, rows: slice, columns: slice) -> bool:
        return bool(self.keys[columns].any())

    def of(self, tile: WeightTile) -> Tensor:
        return tile.weights.masked_fill(~self.keys[tile.columns], 0).sum(-1)


class Received(Statistic):
    """Σᵢ Pᵢⱼ over chosen queries (bool `[N]`); with `mean`, divided by how many of them may attend key j."""

    def __init__(self, queries: Tensor | None, mean: bool) -> None:
        self.queries = queries
        self.mean = mean

    def begin(self, problem: Problem) -> None:
        self.problem = problem
        shape = problem.batch_size, problem.num_heads, problem.n_keys
        self.result = torch.zeros(shape, dtype=problem.compute_dtype, device=problem.device)
        self.allowed = torch.zeros_like(self.result) if self.mean and problem.bias is not None else None

    def wants(self, rows: slice, columns: slice) -> bool:
        return self.queries is None or bool(self.queries[rows].any())

    def add(self, tile: WeightTile) -> None:
        self.result[tile.batch, tile.heads, tile.columns] += self._chosen(tile.weights, tile).sum(-2)
        if self.allowed is not None:
            allowed = tile.tile.allowed[..., : tile.tile.width]
            self.allowed[tile.batch, tile.heads, tile.columns] += self._chosen(allowed, tile).sum(-2)

    def _chosen(self, rows: Tensor, tile: WeightTile) -> Tensor:
        return rows if self.queries is None else rows[:, :, self.queries[tile.rows]]

    def end(self, normalizer: Normalizer) -> Tensor:
        return self.result / self.counts().clamp(min=1) if self.mean else self.result

    def counts(self) -> Tensor:
        """How many of the chosen queries may attend each key, `[B, Hq, M]`, where a mean is asked for."""
        if self.allowed is not None:  # a bias may exclude too: then pairs had to be counted one by one
            return self.allowed
        sets = self.problem.sets
        if self.queries is not None:
            sets = sets.select(rows=self.queries.nonzero().flatten())
        return sets.queries_per_key().to(self.result.dtype).expand_as(self.result)


class TopKeys(Statistic):
    """The k largest logits of each row, ties by lower index: (weights, key indices), `[B, Hq, N, k]`.

    An engine that ranks by itself, and shows no tiles, leaves the answer in `ranked`: weights, indices and,
    if they are wanted (`with_logits`), logits.
    """

    ranked: tuple[Tensor, Tensor, Tensor | None] | None = None

    def __init__(self, k: int, with_logits: bool = False) -> None:
        self.k = k
        self.with_logits = with_logits

    def begin(self, problem: Problem) -> None:
        shape = problem.batch_size, problem.num_heads, problem.n_queries
        self.ranking = Ranking(shape, self.k, problem.compute_dtype, problem.device)

    def add(self, tile: WeightTile) -> None:
        self.ranking.add((tile.batch, tile.heads, tile.rows), tile.logits, tile.columns.start)

    def end(self, normalizer: Normalizer) -> tuple[Tensor, Tensor]:
        if self.ranked is not None:
            return self.ranked[:2]
        logits, indices = self.ranking.result()
        return normalizer.weights(logits), indices

    def logits(self) -> Tensor:
        """The logits that were ranked, `[B, Hq, N, k]`, −∞ where fewer keys are allowed; asked for before."""
        logits = self.ranking.result()[0] if self.ranked is None else self.ranked[2]
        assert logits is not None
        return logits


class Diagonals(Statistic):
    """Entry r is the sum of Pᵢⱼ over i − j = r − (M − 1): `[B, Hq, N + M − 1]`."""

    def begin(self, problem: Problem) -> None:
        self.n_keys = problem.n_keys
        length = max(0, problem.n_queries + problem.n_keys - 1)
        shape = problem.batch_size, problem.num_heads, length
        self.result = torch.zeros(shape, dtype=problem.compute_dtype, device=problem.device)

    def add(self, tile: WeightTile) -> None:
        sums = diagonal_sums(tile.weights)
        first = tile.rows.start - tile.columns.stop + self.n_keys
        self.result[tile.batch, tile.heads, first : first + sums.shape[-1]] += sums


class Pooled(Statistic):
    """Block means of P, `[B, Hq, rows, cols]`, edges at ⌊r·N/rows⌋ and ⌊c·M/cols⌋; an empty block is 0.

    Of a problem that is a part of a whole, `within` has where it begins, (query, key), and the whole's
    (N, M): then it is what the part adds to the means of the whole.
    """

    def __init__(
        self, rows: int, cols: int, within: tuple[tuple[int, int], tuple[int, int]] | None = None
    ) -> None:
        self.shape = rows, cols
        self.within = within

    def begin(self, problem: Problem) -> None:
        part = problem.n_queries, problem.n_keys
        begins, sides = self.within or ((0, 0), part)
        device, dtype = problem.device, problem.compute_dtype
        edges = [
            torch.arange(blocks + 1, device=device) * side // blocks
            for blocks, side in zip(self.shape, sides, strict=True)
        ]
        heights, widths = (edge.diff() for edge in edges)
        self.row_block, self.column_block = (
            torch.repeat_interleave(torch.arange(len(count), device=device), count)[first : first + length]
            for count, first, length in zip((heights, widths), begins, part, strict=True)
        )
        self.areas = (heights[:, None] * widths).clamp(min=1)
        shape = problem.batch_size, problem.num_heads, *self.shape
        self.result = torch.zeros(shape, dtype=dtype, device=device)

    def add(self, tile: WeightTile) -> None:
        row_block, column_block = self.row_block[tile.rows], self.column_block[tile.columns]
        # Only the blocks that the tile touches; sums by index, not by a product with ones and zeros, because
        # 0 × NaN would carry a row's NaN into blocks it has no part in.
        first = int(row_block[0]), int(column_block[0])
        span = int(row_block[-1]) - first[0] + 1, int(column_block[-1]) - first[1] + 1
        weights = tile.weights
        by_row = weights.new_zeros((*weights.shape[:2], span[0], weights.shape[3]))
        by_row.index_add_(2, row_block - first[0], weights)
        sums = weights.new_zeros((*weights.shape[:2], *span))
        sums.index_add_(3, column_block - first[1], by_row)
        rows, columns = (slice(f, f + s) for f, s in zip(first, span, strict=True))
        self.result[tile.batch, tile.heads, rows, columns] += sums

    def end(self, normalizer: Normalizer) -> Tensor:
        return self.result / self.areas


class Applied(Statistic):
    """P x, `[B, Hq, N, C]`, for `x` `[B, Hq or Hkv, M, C]` (`finite` is `products.finite_rows(x)`)."""

    def __init__(self, x: Tensor, finite: Tensor | None) -> None:
        self.x, self.finite = x, finite

    def begin(self, problem: Problem) -> None:
        shape = problem.batch_size, problem.num_heads, problem.n_queries, self.x.shape[-1]
        self.result = torch.zeros(shape, dtype=problem.compute_dtype, device=problem.device)

    def add(self, tile: WeightTile) -> None:
        heads = tile.heads if self.x.shape[1] == self.result.shape[1] else tile.key_heads
        vectors = load(self.x[tile.batch, heads], tile.columns, self.result.dtype)
        finite = None if self.finite is None else load_finite(self.finite[tile.batch, heads], tile.columns)
        sums = product(tile.aligned, vectors, tile.tile, finite)
        self.result[tile.batch, tile.heads, tile.rows] += sums[..., : self.x.shape[-1]]


class AppliedTransposed(Statistic):
    """Pᵀ x, `[B, Hq, M, C]`, for `x` `[B, Hq, N, C]` (`finite` is `products.finite_rows(x)`)."""

    def __init__(self, x: Tensor, finite: Tensor | None) -> None:
        self.x, self.finite = x, finite

    def begin(self, problem: Problem) -> None:
        shape = problem.batch_size, problem.num_heads, problem.n_keys, self.x.shape[-1]
        self.result = torch.zeros(shape, dtype=problem.compute_dtype, device=problem.device)

    def add(self, tile: WeightTile) -> None:
        vectors = load(self.x[tile.batch, tile.heads], tile.rows, self.result.dtype, align_rows=False)
        finite = None if self.finite is None else self.finite[tile.batch, tile.heads, tile.rows]
        sums = product_transposed(tile.aligned, vectors, tile.tile, finite, vectors.shape[1])
        self.result[tile.batch, tile.heads, tile.columns] += sums[:, :, : tile.tile.width, : self.x.shape[-1]]
