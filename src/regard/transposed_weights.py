"""Pᵀ as a lazy linear operator: what `AttentionWeights.mT` gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from regard.weights import AttentionWeights


class TransposedWeights:
    """Pᵀ of an `AttentionWeights`, `[..., Hq, M, N]`: what each key gives back to its queries."""

    def __init__(self, weights: AttentionWeights) -> None:
        self._weights = weights

    @property
    def shape(self) -> torch.Size:
        """`[..., Hq, M, N]`."""
        *lead, n_queries, n_keys = self._weights.shape
        return torch.Size((*lead, n_keys, n_queries))

    @property
    def mT(self) -> AttentionWeights:  # noqa: N802 (torch's name)
        """P again."""
        return self._weights

    def __matmul__(self, x: Tensor) -> Tensor:
        """Pᵀ x for `x` `[..., Hq or 1, N, C]`: `[..., Hq, M, C]` in x's dtype, in linear memory."""
        return self._weights._applied_transposed(x) if isinstance(x, Tensor) else NotImplemented

    def __repr__(self) -> str:
        return f"TransposedWeights(shape={tuple(self.shape)}, dtype={self._weights.dtype})"
