"""Which rows and columns of the weights an index asks for, by torch's indexing rules."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import ArgumentError, ArgumentTypeError


@dataclass(frozen=True, eq=False)
class Selection:
    """What an index of `[..., N, M]` selects.

    `rows` holds, in the shape of the result without its last dimension, the flat number of each wanted row;
    `first` to `last` are the columns that must be computed, and `columns` picks from them along the last
    dimension.
    """

    rows: Tensor
    first: int
    last: int
    columns: Any

    @property
    def shape(self) -> tuple[int, ...]:
        width = self.last - self.first
        kept = torch.empty(0, width)[:, self.columns].shape[1:]
        return (*self.rows.shape, *kept)


def select(index: Any, shape: tuple[int, ...]) -> Selection:
    """Understand `w[index]` for weights of this shape."""
    parts = [_part(part, "an index of weights") for part in (index if isinstance(index, tuple) else (index,))]
    dots = [i for i, part in enumerate(parts) if part is Ellipsis]
    if len(dots) > 1:
        raise ArgumentError(f"an index may hold one `...`, got {len(dots)}")
    missing = len(shape) - (len(parts) - len(dots))
    if missing < 0:
        raise ArgumentError(
            f"weights of shape {shape} take at most {len(shape)} indices, got {len(parts) - len(dots)}"
        )
    at = dots[0] if dots else len(parts)
    parts[at : at + len(dots)] = [slice(None)] * missing
    *lead, column = (
        _numbers(part, size, "an index of weights") for part, size in zip(parts, shape, strict=True)
    )
    if isinstance(column, Tensor) and any(isinstance(part, Tensor) for part in lead):
        raise ArgumentError(
            "weights take a list of indices for rows or for columns, not both: index one after the other"
        )
    try:
        rows = _flat_numbers(lead, shape[:-1])
        if isinstance(column, slice) and column.step in (
            None,
            1,
        ):  # no table of columns: there may be many
            first, last, _ = column.indices(shape[-1])
            return Selection(rows, first, max(first, last), slice(None))
        wanted = torch.arange(shape[-1])[column]
    except (IndexError, ValueError) as error:
        raise ArgumentError(f"this index does not fit weights of shape {shape}: {error}") from None
    if isinstance(column, int):
        return Selection(rows, int(wanted), int(wanted) + 1, 0)
    return among(rows, wanted)


def among(rows: Tensor, columns: Tensor) -> Selection:
    """The selection of these rows (see `Selection.rows`) and of these columns, int64 `[C]`."""
    if columns.numel() == 0:
        return Selection(rows, 0, 0, slice(0, 0))
    first, last = int(columns.min()), int(columns.max()) + 1
    in_order = columns.numel() == last - first and bool((columns.diff() == 1).all())
    return Selection(rows, first, last, slice(None) if in_order else columns - first)


def _flat_numbers(parts: list[Any], shape: tuple[int, ...]) -> Tensor:
    """The flat numbers of what an index picks from this shape.

    Ints, which torch takes before anything else, and slices narrow the table that is indexed.
    """
    numbers = torch.zeros((), dtype=torch.int64)
    left: list[Any] = []
    for axis, (part, size) in enumerate(zip(parts, shape, strict=True)):
        step = math.prod(shape[axis + 1 :])
        if isinstance(part, int):
            if not -size <= part < size:
                raise IndexError(f"index {part} is out of bounds for dimension {axis} with size {size}")
            numbers = numbers + part % size * step
        else:
            line = torch.arange(size)[part] if isinstance(part, slice) else torch.arange(size)
            left.append(slice(None) if isinstance(part, slice) else part)
            numbers = numbers.unsqueeze(-1) + line * step
    return numbers[tuple(left)]


def members(chosen: Any, size: int, name: str) -> Tensor:
    """A set of rows or columns given as a slice, indices or bools, as a bool tensor `[size]` on the CPU."""
    result = torch.zeros(size, dtype=torch.bool)
    part = _part(chosen, f"`{name}`")
    if part is Ellipsis:
        raise ArgumentTypeError(f"`{name}` must be a slice, or a list of indices or bools, got ...")
    part = _numbers(part, size, f"`{name}`")
    try:
        result[part] = True
    except (IndexError, ValueError):
        raise ArgumentError(f"`{name}` must lie within {size} positions, got {chosen!r}") from None
    return result


def _part(part: Any, what: str) -> Any:
    """One part of an index: an int, a slice, `...`, or a 1-D tensor of integers or bools."""
    wanted = f"{what} must be an int, a slice or a list of indices or bools"
    if isinstance(part, bool | str) or part is None:
        raise ArgumentTypeError(f"{wanted}, got {part!r}")
    if isinstance(part, int | slice) or part is Ellipsis:
        return part
    try:
        tensor = torch.as_tensor(part).cpu()
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentTypeError(f"{wanted}, got {part!r}") from None
    if tensor.numel() == 0 and tensor.dim() == 1:
        return tensor if tensor.dtype == torch.bool else tensor.long()
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dim() > 1:
        raise ArgumentTypeError(f"{wanted}, got {tensor.dtype} of shape {tuple(tensor.shape)}")
    if tensor.dim() == 0:
        if tensor.dtype == torch.bool:
            raise ArgumentTypeError(f"{wanted}, got {part!r}")
        return int(tensor)
    return tensor if tensor.dtype == torch.bool else tensor.long()


def _numbers(part: Any, size: int, what: str) -> Any:
    """Bools as the indices they stand for; everything else as it is."""
    if not isinstance(part, Tensor) or part.dtype != torch.bool:
        return part
    if len(part) != size:
        raise ArgumentError(f"{what} as bools must have shape ({size},), got ({len(part)},)")
    return part.nonzero().flatten()
