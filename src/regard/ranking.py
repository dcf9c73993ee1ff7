"""The k largest logits of each row, exact in their order: by logit, ties by lower index."""

from __future__ import annotations

import torch
from torch import Tensor

_SIGN = 1 << 31
_LOW = (1 << 32) - 1
_NOTHING = -(1 << 63)


class Ranking:
    """Running top k of rows `[..., N]` whose logits arrive in pieces of ascending columns.

    `torch.topk` leaves the order of ties open. So a float32 logit and its index are packed into one int64
    that orders as (logit, −index) and has no ties; float64 logits, which do not fit, are sorted stably.
    """

    def __init__(self, shape: tuple[int, ...], k: int, dtype: torch.dtype, device: torch.device) -> None:
        self.packed = dtype == torch.float32
        self.logits = torch.full((*shape, k), -torch.inf, dtype=dtype, device=device)
        self.indices = torch.full((*shape, k), -1, dtype=torch.int64, device=device)
        if self.packed:
            self.keys = torch.full((*shape, k), _NOTHING, dtype=torch.int64, device=device)

    def add(self, where: tuple[slice, slice, slice], logits: Tensor, first: int) -> None:
        """Rank the logits `[..., R, C]` of the columns from `first` on; −∞ ranks nowhere."""
        k = self.logits.shape[-1]
        columns = torch.arange(first, first + logits.shape[-1], device=logits.device)
        if self.packed:
            candidates = torch.cat([self.keys[where], _pack(logits, columns)], -1)
            # From 64 k candidates on, torch keeps a heap of k instead of partitioning: three times as fast.
            missing = 64 * k - candidates.shape[-1]
            if 0 < missing <= candidates.shape[-1]:
                candidates = torch.nn.functional.pad(candidates, (0, missing), value=_NOTHING)
            self.keys[where] = candidates.topk(k, dim=-1).values
            return
        excluded = logits == -torch.inf
        indices = columns.expand_as(logits).masked_fill(excluded, -1)
        logits = torch.cat([self.logits[where], logits], -1)
        indices = torch.cat([self.indices[where], indices], -1)
        order = logits.argsort(dim=-1, descending=True, stable=True)[..., :k]
        self.logits[where], self.indices[where] = logits.gather(-1, order), indices.gather(-1, order)

    def result(self) -> tuple[Tensor, Tensor]:
        """Logits and key indices `[..., N, k]`; −∞ and −1 where fewer keys are allowed."""
        return _unpack(self.keys) if self.packed else (self.logits, self.indices)


def _pack(logits: Tensor, columns: Tensor) -> Tensor:
    bits = (logits + 0.0).view(torch.int32).to(torch.int64)  # + 0.0 makes −0 and 0 the same number
    ordered = torch.where(bits < 0, (~bits & (_SIGN - 1)) - _SIGN, bits)
    packed = (ordered << 32) | (_LOW - columns)
    return packed.masked_fill_(logits == -torch.inf, _NOTHING)


def _unpack(keys: Tensor) -> tuple[Tensor, Tensor]:
    ordered = keys >> 32
    bits = torch.where(ordered < 0, ~(ordered + _SIGN) & (_SIGN - 1) | _SIGN, ordered)
    bits = torch.where(bits >= _SIGN, bits - (1 << 32), bits)
    logits = bits.to(torch.int32).view(torch.float32)
    nothing = keys == _NOTHING
    return logits.masked_fill(nothing, -torch.inf), (_LOW - (keys & _LOW)).masked_fill(nothing, -1)
