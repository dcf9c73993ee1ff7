"""What the layers are given in numbers, checked, each with its sentence."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from regard.errors import ArgumentError, ArgumentTypeError
from regard.masks import Mask, dense
from regard.masks.checks import integers


def check_size(name: str, size: int, *, least: int = 1) -> None:
    """Raise unless `size` is an int of at least `least`."""
    if isinstance(size, bool) or not isinstance(size, int):
        raise ArgumentTypeError(f"`{name}` must be an int, got {size!r}")
    if size < least:
        raise ArgumentError(f"`{name}` must be at least {least}, got {size}")


def for_each_item(name: str, value: int | Sequence[int] | Tensor, batch_size: int) -> list[int]:
    """An int of at least 0 for each batch item, from one for all or from integers `[B]`."""
    numbers: list[int] = integers(value, name, ranks=(1,), least=0).tolist()
    if isinstance(value, int):
        return numbers * batch_size
    if len(numbers) != batch_size:
        raise ArgumentError(f"`{name}` must be an int or have shape ({batch_size},), got ({len(numbers)},)")
    return numbers


def batch_items(name: str, value: Sequence[int] | Tensor, batch_size: int) -> list[int]:
    """Indices of batch items, each in 0 to B − 1."""
    picked: list[int] = integers(value, name, ranks=(1,), least=0).tolist()
    if max(picked, default=-1) >= batch_size:
        raise ArgumentError(f"`{name}` must name batch items from 0 to {batch_size - 1}, got {max(picked)}")
    return picked


def as_mask(mask: Mask | Tensor | None) -> Mask | None:
    """The mask as a value; a boolean tensor is a dense one."""
    mask = dense(mask) if isinstance(mask, Tensor) else mask
    if not isinstance(mask, Mask | None):
        raise ArgumentTypeError(
            f"`mask` must be a mask from regard.masks or a boolean tensor, got a {type(mask).__name__}"
        )
    return mask


def both(one: Mask | None, other: Mask | None) -> Mask | None:
    """What the two allow; None allows everything."""
    return other if one is None else one if other is None else one & other
