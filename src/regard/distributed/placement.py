"""Which rank holds which part of a sequence, contiguous or balanced for causal masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from regard.errors import ArgumentError

SHARDINGS = ("contiguous", "balanced")


@dataclass(frozen=True)
class Run:
    """`length` consecutive tokens from `start` on in the sequence, from `local` on in their rank's shard."""

    rank: int
    local: int
    start: int
    length: int

    @property
    def in_shard(self) -> slice:
        """Where the run lies in its rank's shard."""
        return slice(self.local, self.local + self.length)

    @property
    def in_sequence(self) -> slice:
        """Where the run lies in the whole sequence."""
        return slice(self.start, self.start + self.length)


@dataclass(frozen=True)
class Placement:
    """Every rank's runs, in the order of the sequence."""

    runs: tuple[Run, ...]

    @classmethod
    def of(cls, lengths: Sequence[int], sharding: str) -> Placement:
        """From the length of each rank's shard, in rank order.

        Contiguous: shards follow one another. Balanced: the sequence is cut into twice as many runs as there
        are ranks, and rank r of R holds the runs r and 2R − 1 − r, an early one and a late one, so that under
        a causal mask all ranks have as much to compute; an odd shard's first run is the longer one.
        """
        check_sharding(sharding)
        if sharding == "contiguous":
            pieces = [(rank, 0, length) for rank, length in enumerate(lengths)]
        else:
            pieces = [(rank, 0, length - length // 2) for rank, length in enumerate(lengths)]
            late = [(rank, length - length // 2, length // 2) for rank, length in enumerate(lengths)]
            pieces += reversed(late)
        starts = accumulate((length for *_, length in pieces), initial=0)
        return cls(
            tuple(
                Run(rank, local, start, length)
                for (rank, local, length), start in zip(pieces, starts, strict=False)
            )
        )

    @cached_property
    def total(self) -> int:
        """The length of the whole sequence."""
        return sum(run.length for run in self.runs)

    def of_rank(self, rank: int) -> list[Run]:
        """The runs of one rank, in the order of its shard; empty ones only if it holds nothing at all."""
        runs = [run for run in self.runs if run.rank == rank]
        return [run for run in runs if run.length] or runs[:1]

    def length_of(self, rank: int) -> int:
        """How many tokens a rank holds."""
        return sum(run.length for run in self.runs if run.rank == rank)

    def indices(self, rank: int) -> Tensor:
        """Where in the sequence each token of a rank's shard stands: int64 `[n]`."""
        return torch.cat([torch.arange(r.start, r.start + r.length) for r in self.of_rank(rank)])


def check_sharding(sharding: str) -> None:
    """Raise unless this is a way to shard."""
    if sharding not in SHARDINGS:
        raise ArgumentError(f"`sharding` must be one of {', '.join(map(repr, SHARDINGS))}, got {sharding!r}")


def even_lengths(total: int, ranks: int) -> list[int]:
    """Shard lengths that differ by one at most, the longer ones first."""
    return [total // ranks + (rank < total % ranks) for rank in range(ranks)]
