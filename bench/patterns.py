"""Who may attend whom in the measured cases, by plain predicates that no contender shares."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Dense:
    """Everybody may attend everything."""

    def allowed(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
        """Which of the keys each of the queries may attend, `[B or 1, queries, keys]`; None when all."""
        return None

    def pairs(self, queries: int, keys: int, batch: int) -> int:
        """How many pairs of one head may attend, over the whole batch: what there is to compute."""
        return batch * queries * keys

    def __str__(self) -> str:
        return "dense"


@dataclass(frozen=True)
class Causal(Dense):
    """A query attends itself and what came before; as many queries as keys."""

    def allowed(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
        return (key <= query[:, None])[None]

    def pairs(self, queries: int, keys: int, batch: int) -> int:
        return batch * queries * (queries + 1) // 2

    def __str__(self) -> str:
        return "causal"


@dataclass(frozen=True)
class Window(Dense):
    """Causal, and each query sees `size` keys, itself included."""

    size: int

    def allowed(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
        distance = query[:, None] - key
        return ((distance >= 0) & (distance < self.size))[None]

    def pairs(self, queries: int, keys: int, batch: int) -> int:
        short = min(self.size, queries)
        return batch * (short * (short + 1) // 2 + (queries - short) * self.size)

    def __str__(self) -> str:
        return f"window {self.size}"


@dataclass(frozen=True)
class Documents(Dense):
    """Texts packed one after another, each of which sees all of itself and nothing else."""

    lengths: tuple[int, ...]

    def allowed(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
        ends = torch.tensor(self.lengths).cumsum(0)
        document = torch.searchsorted(ends, torch.arange(int(ends[-1])), right=True)
        return (document[query][:, None] == document[key])[None]

    def pairs(self, queries: int, keys: int, batch: int) -> int:
        return batch * sum(length * length for length in self.lengths)

    def __str__(self) -> str:
        return f"{len(self.lengths)} documents of {self.lengths[0]}"


@dataclass(frozen=True)
class Padding(Dense):
    """Each item of the batch has its own number of keys, the rest is padding."""

    lengths: tuple[int, ...]

    def allowed(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
        real = key < torch.tensor(self.lengths)[:, None, None]
        return real.expand(-1, len(query), -1)

    def pairs(self, queries: int, keys: int, batch: int) -> int:
        return queries * sum(self.lengths)

    def __str__(self) -> str:
        return f"padded, lengths {min(self.lengths)} to {max(self.lengths)}"


Pattern = Dense | Causal | Window | Documents | Padding

# Those that another process is told of by name.
BY_NAME: dict[str, Pattern] = {"dense": Dense(), "causal": Causal(), "window": Window(256)}
