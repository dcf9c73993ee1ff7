"""Dropout decided by counting: a function of (seed, batch item, head, query position, key position).

The same pair is dropped by every engine, at every tile size, on every shard, and again in the backward
pass, so no mask is stored. The hash is two rounds of the 32-bit mixer "lowbias32" (C. Wellons, "Prospecting
for hash functions", 2018) under a 64-bit key that each query row derives from the other coordinates.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_ROW_KEYS = (0x243F6A88, 0x85A308D3)  # the first hexadecimal digits of pi: two independent chains


def draw_seed() -> int:
    """A seed from torch's generator, so that `torch.manual_seed` and checkpointing repeat it."""
    return int(torch.randint(0, 2**63 - 1, (), dtype=torch.int64))


def keep(
    seed: int,
    probability: float,
    items: Tensor,
    heads: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
) -> Tensor:
    """Which pairs are kept when each is dropped with `probability`.

    All four coordinates are int64 and broadcast to `[B, Hq, N, M]`; so does the bool result.
    """
    first, second = (_row_key(start, seed, items, heads, query_positions) for start in _ROW_KEYS)
    hashed = _mix((_mix((key_positions & _MASK) ^ first) + second) & _MASK)
    return hashed >= round(probability * 2**32)


def _row_key(start: int, seed: int, items: Tensor, heads: Tensor, query_positions: Tensor) -> Tensor:
    key = torch.full((), start, dtype=torch.int64, device=items.device)
    for word in (seed & _MASK, (seed >> 32) & _MASK, items, heads, query_positions & _MASK):
        key = _mix(key ^ word)
    return key


def _mix(x: Tensor) -> Tensor:
    """lowbias32 on the low 32 bits of non-negative int64 numbers: products wrap and keep those."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _MASK
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _MASK
    return x ^ (x >> 16)
