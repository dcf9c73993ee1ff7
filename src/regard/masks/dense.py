"""Masks given as a tensor of this call's rows and columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.compiling import without_values
from regard.errors import ArgumentError, ArgumentTypeError
from regard.intervals import Intervals
from regard.masks.base import Mask
from regard.masks.compiled import Frame, KeySets
from regard.versions import version_of


@dataclass(frozen=True, eq=False, repr=False)
class Dense(Mask):
    """See `dense`. What its scan found is kept until the tensor changes."""

    tensor: Tensor
    _scanned: list[tuple[int, KeySets]] = field(default_factory=list, init=False)
    name = "dense"

    def compile(self, frame: Frame) -> KeySets:
        n_queries, n_keys = self.tensor.shape[-2:]
        if (n_queries, n_keys) != (frame.n_queries, frame.n_keys):
            raise ArgumentError(
                f"`masks.dense` must have the call's rows and columns, (queries, keys) = "
                f"({frame.n_queries}, {frame.n_keys}), got a tensor of shape {tuple(self.tensor.shape)}"
            )
        version = version_of(self.tensor)
        for kept, sets in list(self._scanned):
            if version is not None and kept == version and sets.intervals.starts.device == frame.device:
                return sets
        sets = KeySets.from_dense(_four_dimensional(self.tensor.to(frame.device)))
        if version is not None:
            self._scanned[:] = [(version, sets)]
        return sets

    def required_size(self) -> tuple[int, int]:
        return self.tensor.shape[-2], self.tensor.shape[-1]

    def to(self, device: torch.device | str) -> Dense:
        return Dense(self.tensor.to(device))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Dense):
            return NotImplemented if not isinstance(other, Mask) else False
        mine, theirs = self.tensor, other.tensor
        return mine.shape == theirs.shape and torch.equal(mine.cpu(), theirs.cpu())

    def __hash__(self) -> int:
        return hash(("dense", tuple(self.tensor.shape)))

    def __getstate__(self) -> dict[str, Any]:
        return {"tensor": self.tensor, "_scanned": []}

    def __repr__(self) -> str:
        if self.tensor.numel() <= 64:
            return f"dense({self.tensor.int().tolist()})"
        return f"dense(<{list(self.tensor.shape)} tensor>)"


@dataclass(frozen=True, eq=False, repr=False)
class Scanned(Mask):
    """What a scan of a dense mask found, for who has no use for the tensor itself.

    `starts` and `ends` `[B or 1, Hq or 1, N, K]` are those of `Intervals` over `count` keys.
    """

    starts: Tensor
    ends: Tensor
    count: int
    name = "scanned"

    def compile(self, frame: Frame) -> KeySets:
        rows, needed = self.starts.shape[2], (frame.n_queries, frame.n_keys)
        if (rows, self.count) != needed:
            raise ArgumentError(f"a mask of {rows} rows and {self.count} columns came to a call of {needed}")
        return KeySets(Intervals(self.starts.to(frame.device), self.ends.to(frame.device), self.count))

    def required_size(self) -> tuple[int, int]:
        return self.starts.shape[2], self.count


def _four_dimensional(mask: Tensor) -> Tensor:
    return mask if mask.dim() == 4 else mask[None, None]


def dense(mask: Tensor) -> Mask:
    """Any mask at all, as a tensor: bool, or integers 0 and 1; True = may attend.

    Shape `[N, M]` or `[B or 1, Hq or 1, N, M]`, of the rows and columns of the call (positions do not move
    it). Scanned once: where its rows are a few runs of keys, excluded tiles cost nothing, as with any mask.
    A boolean tensor is not copied: change it in place, and the mask changes.
    """
    if not isinstance(mask, Tensor):
        try:
            mask = torch.as_tensor(mask)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ArgumentTypeError(f"`mask` must be a tensor, got {mask!r} ({error})") from None
    if mask.is_floating_point() or mask.is_complex():
        raise ArgumentTypeError(
            f"`mask` must be boolean, or integers 0 and 1, got dtype {mask.dtype}: a tensor that is added to "
            "the scores goes to `bias=`"
        )
    if mask.dim() not in (2, 4):
        reason = ": with rank 3 it is not clear which axis that would be" if mask.dim() == 3 else ""
        raise ArgumentError(
            f"`mask` must have shape (queries, keys) or (batch or 1, heads or 1, queries, keys), got "
            f"{tuple(mask.shape)}{reason}"
        )
    if mask.dtype != torch.bool and not without_values(mask):
        if mask.numel() and not (int(mask.min()) >= 0 and int(mask.max()) <= 1):
            raise ArgumentError(
                f"`mask` of integers must hold only 0 (excluded) and 1, got values from {int(mask.min())} to "
                f"{int(mask.max())}"
            )
        mask = mask != 0
    return Dense(mask.detach())
