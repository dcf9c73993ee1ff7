"""One attention problem, the same for all contenders: tensors, the mask's pattern, the expected rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from patterns import Pattern


@dataclass(frozen=True)
class Workload:
    """Query `[B, Hq, N, E]`, key `[B, Hkv, M, E]`, value `[B, Hkv, M, Ev]`; queries are the last N."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    pattern: Pattern
    dropout_p: float = 0.0

    @classmethod
    def random(
        cls,
        pattern: Pattern,
        length: int,
        *,
        queries: int | None = None,
        batch: int = 1,
        heads: int = 8,
        key_heads: int | None = None,
        head_dim: int = 64,
        value_dim: int | None = None,
        dtype: torch.dtype = torch.float32,
        requires_grad: bool = False,
        dropout_p: float = 0.0,
    ) -> Workload:
        """The same normal numbers for the same arguments, on every machine; `length` counts the keys."""
        generator = torch.Generator().manual_seed(length)
        shapes = (
            (batch, heads, queries or length, head_dim),
            (batch, key_heads or heads, length, head_dim),
            (batch, key_heads or heads, length, value_dim or head_dim),
        )
        tensors = (torch.randn(shape, generator=generator) for shape in shapes)
        return cls(
            *(tensor.to(dtype).requires_grad_(requires_grad) for tensor in tensors), pattern, dropout_p
        )

    def copy(self) -> Workload:
        """The same numbers at another place in memory."""
        return replace(self, query=self.query.clone(), key=self.key.clone(), value=self.value.clone())

    @property
    def length(self) -> int:
        """Number of queries."""
        return self.query.shape[-2]

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self.key.shape[-2]

    @property
    def grouped(self) -> bool:
        """Whether several query heads share a key head."""
        return self.query.shape[1] != self.key.shape[1]

    @property
    def scale(self) -> float:
        """1 / √d."""
        return 1 / math.sqrt(self.query.shape[-1])

    @property
    def flops(self) -> float:
        """Multiplications and additions of both products, over the pairs that the mask allows."""
        batch, heads, queries, head_dim = self.query.shape
        pairs = self.pattern.pairs(queries, self.keys, batch)
        return 2.0 * heads * pairs * (head_dim + self.value.shape[-1])

    @property
    def cache_bytes(self) -> int:
        """Size of the keys and values, which decoding must read once."""
        return self.key.nbytes + self.value.nbytes

    def allowed(self, rows: torch.Tensor) -> torch.Tensor | None:
        """Which keys the given query rows may attend, `[B or 1, 1, rows, M]`; None when all."""
        allowed = self.pattern.allowed(rows + self.keys - self.length, torch.arange(self.keys))
        return None if allowed is None else allowed[:, None]

    def upstream(self) -> torch.Tensor:
        """The gradient that comes in from above, the same normal numbers for all, `[B, Hq, N, Ev]`."""
        shape = (*self.query.shape[:-1], self.value.shape[-1])
        return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(self.query.dtype)

    def rows_to_check(self) -> torch.Tensor:
        """Query rows that are compared with the textbook formula: the first, the last, and some between."""
        return torch.linspace(0, self.length - 1, min(65, self.length)).long()

    def expected_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """The output of some query rows by the textbook formula in float64, `[B, Hq, rows, Ev]`."""
        allowed = self.allowed(rows)
        group = self.query.shape[1] // self.key.shape[1]
        items = []
        for item in range(self.query.shape[0]):
            # One item at a time: in float64 a whole batch of decoding would not fit.
            query, key, value = (t[item].detach().double() for t in (self.query, self.key, self.value))
            scores = query[:, rows].unflatten(0, (-1, group)) @ key.mT[:, None] * self.scale
            if allowed is not None:
                scores = scores.masked_fill(~allowed[min(item, len(allowed) - 1)], -math.inf)
            items.append((scores.softmax(-1) @ value[:, None]).flatten(0, 1))
        return torch.stack(items)

    def __str__(self) -> str:
        batch, heads, queries, head_dim = self.query.shape
        width = f"{head_dim}" if self.value.shape[-1] == head_dim else f"({head_dim}, {self.value.shape[-1]})"
        parts = [
            f"{queries} query, {self.keys} keys" if queries == 1 else f"{self.pattern}, N = {queries}",
            *([f"batch {batch}"] if batch > 1 else []),
            f"{heads}{f' / {self.key.shape[1]}' if queries == 1 else ''} heads × {width}",
            str(self.query.dtype).removeprefix("torch."),
            *([f"dropout {self.dropout_p}"] if self.dropout_p else []),
        ]
        return ", ".join(parts)
