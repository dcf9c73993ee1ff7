"""Biases as values: what is added to the scores after scale and softcap, before the mask.

Each holds one tensor, its parameter, through which gradients flow, and can make any tile of itself.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from regard.diagonals import diagonal_sums
from regard.errors import ArgumentError, ArgumentTypeError
from regard.masks.compiled import Frame


@dataclass(frozen=True, eq=False)
class Bias(ABC):
    """Something added to the scores, made tile by tile from a `parameter`."""

    name: ClassVar[str]
    parameter: Tensor

    @abstractmethod
    def tile(self, frame: Frame, rows: slice | Tensor, columns: slice, dtype: torch.dtype) -> Tensor:
        """The bias of some rows and columns, `[B or 1, Hq or 1, R, C]`."""

    @abstractmethod
    def accumulate(
        self, gradient: Tensor, frame: Frame, rows: slice, columns: slice, of_scores: Tensor
    ) -> None:
        """Add what a tile's score gradients `[B, Hq, R, C]` give to `gradient`, shaped like the parameter."""

    @abstractmethod
    def part(self, tensor: Tensor, batch: slice, heads: slice | list[int]) -> Tensor:
        """What belongs to some batch items and heads of a tensor shaped like the parameter (a view)."""

    @property
    @abstractmethod
    def num_heads(self) -> int:
        """How many query heads it is made for; 1 serves any number."""

    def check(self, batch: int, n_queries: int, n_keys: int) -> None:
        """Raise if this bias cannot belong to a call of these sizes."""

    def select(self, batch: slice, heads: slice | list[int]) -> Bias:
        return replace(self, parameter=self.part(self.parameter, batch, heads))


@dataclass(frozen=True, eq=False)
class Alibi(Bias):
    """See `alibi`."""

    name = "alibi"

    def tile(self, frame: Frame, rows: slice | Tensor, columns: slice, dtype: torch.dtype) -> Tensor:
        distance = frame.offsets(rows, columns).abs().to(dtype)
        return distance * -self.parameter.to(dtype).view(1, -1, 1, 1)

    def accumulate(
        self, gradient: Tensor, frame: Frame, rows: slice, columns: slice, of_scores: Tensor
    ) -> None:
        offsets = frame.offsets(rows, columns)
        # Excluded pairs hold exactly 0, and a distance is finite: nothing can leak through the product.
        gradient.add_((of_scores * offsets.abs().to(of_scores.dtype)).sum((0, 2, 3)), alpha=-1)

    def part(self, tensor: Tensor, batch: slice, heads: slice | list[int]) -> Tensor:
        return tensor[heads]

    @property
    def num_heads(self) -> int:
        return self.parameter.shape[0]


@dataclass(frozen=True, eq=False)
class Relative(Bias):
    """See `relative`."""

    name = "relative"

    def _entries(self, offsets: Tensor) -> Tensor:
        reach = self.parameter.shape[1] // 2
        return offsets.clamp(-reach, reach) + reach

    def tile(self, frame: Frame, rows: slice | Tensor, columns: slice, dtype: torch.dtype) -> Tensor:
        entries = self._entries(frame.offsets(rows, columns))[:, 0]
        return self.parameter.to(dtype)[:, entries].transpose(0, 1)

    def accumulate(
        self, gradient: Tensor, frame: Frame, rows: slice, columns: slice, of_scores: Tensor
    ) -> None:
        # All pairs on one diagonal share an entry of the table.
        sums = diagonal_sums(of_scores)
        n_diagonals = sums.shape[-1]
        step = torch.arange(n_diagonals, device=frame.device)
        row_minus_column = step - (columns.stop - columns.start - 1) + rows.start - columns.start
        first = torch.as_tensor(frame.first_key - frame.first_query, device=frame.device)
        entries = self._entries(first.view(-1, 1) - row_minus_column)
        for index in range(len(sums)):
            gradient.index_add_(1, entries[index if len(entries) > 1 else 0], self._per_table(sums[index]))

    def _per_table(self, sums: Tensor) -> Tensor:
        return sums if self.num_heads == len(sums) else sums.sum(0, keepdim=True)

    def part(self, tensor: Tensor, batch: slice, heads: slice | list[int]) -> Tensor:
        return tensor[heads] if self.num_heads > 1 else tensor

    @property
    def num_heads(self) -> int:
        return self.parameter.shape[0]


@dataclass(frozen=True, eq=False)
class Dense(Bias):
    """See `dense`. The parameter has rank 4."""

    name = "dense"

    def tile(self, frame: Frame, rows: slice | Tensor, columns: slice, dtype: torch.dtype) -> Tensor:
        return self.parameter[..., columns][:, :, rows].to(dtype)

    def accumulate(
        self, gradient: Tensor, frame: Frame, rows: slice, columns: slice, of_scores: Tensor
    ) -> None:
        shared = [dim for dim in (0, 1) if self.parameter.shape[dim] == 1]
        summed = of_scores.sum(shared, keepdim=True) if shared else of_scores
        gradient[:, :, rows, columns] += summed

    def part(self, tensor: Tensor, batch: slice, heads: slice | list[int]) -> Tensor:
        tensor = tensor[batch] if tensor.shape[0] > 1 else tensor
        return tensor[:, heads] if tensor.shape[1] > 1 else tensor

    @property
    def num_heads(self) -> int:
        return self.parameter.shape[1]

    def check(self, batch: int, n_queries: int, n_keys: int) -> None:
        shape = tuple(self.parameter.shape)
        if shape[2:] != (n_queries, n_keys) or shape[0] not in (1, batch):
            raise ArgumentError(
                f"`bias` must have shape (queries, keys) = ({n_queries}, {n_keys}), before it (batch or 1, "
                f"heads or 1) if of rank 4 (batch is {batch}), got "
                f"{shape if shape[:2] != (1, 1) else shape[2:]}"
            )


@dataclass(frozen=True, eq=False)
class Rest(Dense):
    """What an additive mask adds to what it allows, where nobody could look yet whether that is nothing."""

    name = "rest"


def alibi(slopes: int | Sequence[float] | Tensor) -> Bias:
    """Attention with linear biases: −slope · |p − j| (Press et al. 2022, "Train short, test long").

    `slopes` is a number of heads, which takes the paper's geometric slopes, or the slopes themselves `[Hq]`.

    >>> biases.alibi(4).parameter
    tensor([0.2500, 0.0625, 0.0156, 0.0039])
    """
    if isinstance(slopes, Tensor):
        tensor = slopes
    elif isinstance(slopes, int) and not isinstance(slopes, bool):
        if slopes < 1:
            raise ArgumentError(f"`slopes` as a number of heads must be at least 1, got {slopes}")
        tensor = torch.tensor(_paper_slopes(slopes))
    elif isinstance(slopes, Sequence) and all(isinstance(slope, int | float) for slope in slopes):
        tensor = torch.tensor([float(slope) for slope in slopes])
    else:
        raise ArgumentTypeError(f"`slopes` must be a number of heads, or slopes [Hq], got {slopes!r}")
    _floating(tensor, "slopes")
    if tensor.dim() != 1:
        raise ArgumentError(f"`slopes` must have shape (heads,), got {tuple(tensor.shape)}")
    return Alibi(tensor)


def _paper_slopes(num_heads: int) -> list[float]:
    """2^(−8/n), 2^(−16/n), …; between powers of two, every other slope of the next power is put in."""
    whole = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8 * (i + 1) / whole) for i in range(whole)]
    between = [2.0 ** (-4 * (i + 1) / whole) for i in range(0, 2 * whole, 2)]
    return slopes + between[: num_heads - whole]


def relative(table: Tensor) -> Bias:
    """A learned bias for each relative position: the entry at clamp(j − p, −D, D) + D.

    `table` is floating point `[Hq, 2D + 1]` (Hq may be 1); entry D belongs to the query's own position.
    """
    _floating(table, "table")
    if table.dim() != 2 or table.shape[1] % 2 == 0 or table.shape[0] == 0:
        raise ArgumentError(f"`table` must have shape (heads, 2 * reach + 1), got {tuple(table.shape)}")
    return Relative(table)


def dense(bias: Tensor) -> Bias:
    """Any bias, as a floating-point tensor `[N, M]` or `[B or 1, Hq or 1, N, M]` of this call's rows and
    columns.

    An entry of −inf excludes its pair exactly as a mask does.
    """
    _floating(bias, "bias")
    if bias.dim() not in (2, 4):
        raise ArgumentError(
            f"`bias` must have shape (queries, keys) or (batch or 1, heads or 1, queries, keys), got "
            f"{tuple(bias.shape)}"
        )
    return Dense(bias if bias.dim() == 4 else bias[None, None])


def _floating(tensor: Tensor, name: str) -> None:
    if not isinstance(tensor, Tensor):
        raise ArgumentTypeError(f"`{name}` must be a floating-point tensor, got a {type(tensor).__name__}")
    if not tensor.is_floating_point():
        advice = ": what may be attended goes to `mask=`" if name == "bias" else ""
        raise ArgumentTypeError(f"`{name}` must be floating point, got dtype {tensor.dtype}{advice}")
