"""The numbers that masks are built from and placed by, as checked int64 tensors.

In a graph that is being traced numbers have no values yet: the operator checks them as it builds the mask.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.compiling import without_values
from regard.errors import ArgumentError, ArgumentTypeError

Integers = int | Sequence[int] | Sequence[Sequence[int]] | Tensor

# Positions and distances beyond this would wrap around when they are added up in 64 bits.
_FARTHEST = 2**61


def integers(value: Integers, name: str, *, ranks: tuple[int, ...], least: int | None = None) -> Tensor:
    """A new int64 tensor of one of these ranks, every entry at least `least`; an int becomes length 1."""
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ArgumentTypeError(f"`{name}` must be integers, got {value!r} ({error})") from None
    if tensor.numel() == 0 and not isinstance(value, Tensor):
        tensor = tensor.to(torch.int64)
    if tensor.dtype == torch.bool or tensor.is_floating_point() or tensor.is_complex():
        raise ArgumentTypeError(f"`{name}` must be integers, got dtype {tensor.dtype}")
    tensor = tensor.detach().to(torch.int64)
    if tensor.dim() == 0:
        tensor = tensor.view(1)
    if tensor.dim() not in ranks:
        wanted = " or ".join(str(rank) for rank in ranks)
        raise ArgumentError(f"`{name}` must have rank {wanted}, got shape {tuple(tensor.shape)}")
    if least is not None and not without_values(tensor) and tensor.numel() and int(tensor.min()) < least:
        raise ArgumentError(f"`{name}` must be at least {least}, got {int(tensor.min())}")
    # Nothing lies as far away as that: what reaches further reaches everything.
    return tensor.clamp(-_FARTHEST, _FARTHEST)


def integer_or_per_head(
    value: int | Sequence[int] | Tensor, name: str, *, least: int | None = None
) -> int | Tensor:
    """A plain int where one number serves every head, otherwise an int64 tensor `[Hq]`."""
    if isinstance(value, int) and not isinstance(value, bool):
        if least is not None and value < least:
            raise ArgumentError(f"`{name}` must be at least {least}, got {value}")
        return value if abs(value) <= _FARTHEST else _FARTHEST if value > 0 else -_FARTHEST
    tensor = integers(value, name, ranks=(1,), least=least)
    if isinstance(value, Sequence) or tensor.numel() != 1 or without_values(tensor):
        return tensor
    return int(tensor.item())


def start(value: int | Sequence[int] | Tensor, name: str, batch: int | None = None) -> int | Tensor:
    """A position: an int, or an int64 tensor `[batch]` of its own (length 1 serves all)."""
    wanted = f"an int or integers of shape ({'batch' if batch is None else batch},)"
    if isinstance(value, bool | str | float) or (isinstance(value, Tensor) and value.dtype == torch.bool):
        raise ArgumentTypeError(f"`{name}` must be {wanted}, got {value!r}")
    if hasattr(value, "__len__") or not hasattr(value, "__index__"):
        try:
            tensor = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise ArgumentTypeError(f"`{name}` must be {wanted}, got {value!r}") from None
        if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
            raise ArgumentTypeError(f"`{name}` must be {wanted}, got dtype {tensor.dtype}")
        if tensor.dim() == 1 and (batch is None or len(tensor) in (1, batch)):
            if tensor.numel() and int(tensor.abs().max()) > _FARTHEST:
                raise ArgumentError(f"`{name}` must lie within ±2**61, got {tensor.tolist()}")
            return tensor.detach().to(torch.int64, copy=True)
        if tensor.dim() != 0:
            raise ArgumentError(f"`{name}` must be {wanted}, got shape {tuple(tensor.shape)}")
        value = int(tensor)
    position = operator.index(value)
    if abs(position) > _FARTHEST:
        raise ArgumentError(f"`{name}` must lie within ±2**61, got {position}")
    return position


def over_heads(value: int | Tensor, device: torch.device) -> int | Tensor:
    """The value as it broadcasts over `[B, Hq, N]`."""
    return value.to(device).view(1, -1, 1) if isinstance(value, Tensor) else value


def over_batch(value: Tensor, device: torch.device) -> Tensor:
    """A `[B]` tensor as it broadcasts over `[B, Hq, N]`."""
    return value.to(device).view(-1, 1, 1)
