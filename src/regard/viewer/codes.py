"""Numbers of a view as bytes: 16-bit codes (square root or linear) and key indices, in byte planes."""

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


def linear(values: Tensor) -> list[tuple[Tensor, int]]:
    """Rows `[..., L]` of any numbers, for `pack`: each row's lowest number, its step, 16-bit multiples of it.

    Within half a step of the true ones, a step being 1/65535 of the row's range. A row that holds NaN or an
    infinity is NaN throughout.
    """
    values = values.detach().double().cpu()
    low, high = values.amin(-1, keepdim=True), values.amax(-1, keepdim=True)
    finite = values.isfinite().all(-1, keepdim=True)
    # What a reader multiplies is the step in float32.
    low, step = (each.float().double() for each in (low, (high - low) / FULL))
    multiples = ((values - low) / step).nan_to_num(0.0, 0.0, 0.0).round().clamp(0, FULL).to(torch.int32)
    low, step = low.masked_fill(~finite, torch.nan), step.masked_fill(~finite, 0)
    return [(float_bits(low), 4), (float_bits(step), 4), (multiples, 2)]


def float_bits(numbers: Tensor) -> Tensor:
    """The bits of float32 numbers as integers, for `pack`."""
    return numbers.detach().float().cpu().contiguous().view(torch.int32)


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
