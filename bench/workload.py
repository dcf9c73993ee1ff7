"""What is to be computed, said once for all contenders: tensors, the kind of mask, and the expected rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Workload:
    """Self-attention of one batch item: query, key and value `[1, heads, length, head_dim]`.

    `pattern` is "dense", "causal" or "window": causal, and each query sees `window` keys, itself included.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    pattern: str
    window: int = 256

    @classmethod
    def random(
        cls,
        pattern: str,
        length: int,
        heads: int = 8,
        head_dim: int = 64,
        dtype: torch.dtype = torch.float32,
        requires_grad: bool = False,
    ) -> Workload:
        """The same normal numbers for the same arguments, on every machine."""
        generator = torch.Generator().manual_seed(length)
        tensors = (torch.randn(1, heads, length, head_dim, generator=generator) for _ in range(3))
        return cls(*(tensor.to(dtype).requires_grad_(requires_grad) for tensor in tensors), pattern)

    @property
    def length(self) -> int:
        """Number of queries, which is the number of keys."""
        return self.query.shape[-2]

    @property
    def scale(self) -> float:
        """1 / √d."""
        return 1 / math.sqrt(self.query.shape[-1])

    def allowed(self, rows: torch.Tensor) -> torch.Tensor | None:
        """Which keys the given query rows may attend, `[rows, length]`; None when all."""
        if self.pattern == "dense":
            return None
        query, key = rows[:, None], torch.arange(self.length)
        allowed = key <= query
        return allowed if self.pattern == "causal" else allowed & (key > query - self.window)

    def expected_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """The output of some query rows by the textbook formula in float64, `[1, heads, rows, head_dim]`."""
        query, key, value = (t.detach().double() for t in (self.query[..., rows, :], self.key, self.value))
        scores = query @ key.mT * self.scale
        allowed = self.allowed(rows)
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -math.inf)
        return scores.softmax(-1) @ value

    def __str__(self) -> str:
        _, heads, length, head_dim = self.query.shape
        dtype = str(self.query.dtype).removeprefix("torch.")
        pattern = f"window {self.window}" if self.pattern == "window" else self.pattern
        return f"{pattern}, N = {length}, {heads} heads × {head_dim}, {dtype}"
