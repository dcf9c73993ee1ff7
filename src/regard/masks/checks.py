"""The numbers that masks are built from, as checked int64 tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import ArgumentError, ArgumentTypeError

Integers = int | Sequence[int] | Sequence[Sequence[int]] | Tensor


def integers(value: Integers, name: str, *, ranks: tuple[int, ...], least: int | None = None) -> Tensor:
    """An int64 tensor of one of these ranks, every entry at least `least`; an int is one of length 1."""
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentTypeError(f"`{name}` must be integers, got {value!r} ({error})") from None
    if tensor.numel() == 0 and not isinstance(value, Tensor):
        tensor = tensor.to(torch.int64)
    if tensor.dtype == torch.bool or tensor.is_floating_point() or tensor.is_complex():
        raise ArgumentTypeError(f"`{name}` must be integers, got dtype {tensor.dtype}")
    tensor = tensor.to(torch.int64)
    if tensor.dim() == 0:
        tensor = tensor.view(1)
    if tensor.dim() not in ranks:
        wanted = " or ".join(str(rank) for rank in ranks)
        raise ArgumentError(f"`{name}` must have rank {wanted}, got shape {tuple(tensor.shape)}")
    if least is not None and tensor.numel() and int(tensor.min()) < least:
        raise ArgumentError(f"`{name}` must be at least {least}, got {int(tensor.min())}")
    return tensor


def integer_or_per_head(
    value: int | Sequence[int] | Tensor, name: str, *, least: int | None = None
) -> int | Tensor:
    """A plain int where one number serves every head, otherwise an int64 tensor `[Hq]`."""
    tensor = integers(value, name, ranks=(1,), least=least)
    if isinstance(value, Tensor | Sequence) and (tensor.numel() != 1 or isinstance(value, Sequence)):
        return tensor
    return int(tensor.item())


def per_head(value: int | Tensor, device: torch.device) -> int | Tensor:
    """The value as it broadcasts over `[B, Hq, N]`."""
    return value.to(device).view(1, -1, 1) if isinstance(value, Tensor) else value


def per_batch(value: Tensor, device: torch.device) -> Tensor:
    """A `[B]` tensor as it broadcasts over `[B, Hq, N]`."""
    return value.to(device).view(-1, 1, 1)
