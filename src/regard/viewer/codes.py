"""Numbers of a view as bytes: 16-bit square-root codes and key indices, split in byte planes, deflated."""

from __future__ import annotations

import ctypes
import zlib

import torch
from torch import Tensor

FULL = 65535


def codes(values: Tensor, top: float) -> Tensor:
    """Non-negative `values` up to `top` as integers: `round(65535 * sqrt(value / top))`, int32, NaN as 0.

    The square root spends the 16 bits where attention weights live, near zero: a decoded value is within
    `1.6e-5 * sqrt(value * top)` of the true one.
    """
    share = (values.detach().double() / top).nan_to_num(nan=0.0).clamp(0.0, 1.0)
    return (share.sqrt() * FULL).round().to(torch.int32)


def indices(keys: Tensor, width: int) -> Tensor:
    """Key indices with −1 (no such key) as the greatest number that `width` bytes can hold."""
    return keys.detach().to(torch.int64).masked_fill(keys < 0, (1 << 8 * width) - 1)


def index_width(n_keys: int) -> int:
    """Bytes a key index takes: 2, or 4 for texts whose indices (or ends of intervals) outgrow 2."""
    return 2 if n_keys < FULL else 4


def pack(*arrays: tuple[Tensor, int]) -> bytes:
    """Integer tensors, each with its width in bytes, as one zlib stream of byte planes (lowest byte first).

    Planes compress better than interleaved bytes: high bytes of neighbours are alike, low bytes are noise.
    """
    return zlib.compress(b"".join(_plane(array, byte) for array, width in arrays for byte in range(width)), 6)


def raw(array: Tensor) -> bytes:
    """The numbers of a tensor as they lie in memory, last axis fastest."""
    array = array.detach().cpu().contiguous()
    return ctypes.string_at(array.data_ptr(), array.nbytes) if array.numel() else b""


def _plane(array: Tensor, byte: int) -> bytes:
    return raw(((array >> 8 * byte) & 255).to(torch.uint8))
