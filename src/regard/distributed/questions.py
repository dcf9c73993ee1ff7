"""What becomes of a statistic that ranks fold block by block: added up, ranked, or sent to the keys."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from regard.distributed.placement import Run
from regard.distributed.plan import Plan
from regard.distributed.shards import plain
from regard.errors import ArgumentTypeError
from regard.online_softmax import Normalizer
from regard.problem import Problem
from regard.products import finite_rows
from regard.statistics import (
    Applied,
    AppliedTransposed,
    Diagonals,
    Mass,
    PerRow,
    Pooled,
    Received,
    Statistic,
    TopKeys,
)

# Weights, indices and logits of the first keys of each row.
_Ranking = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Block:
    """A block that is folded: where it lies in the whole matrix, and what it is folded with."""

    run: Run
    columns: slice
    problem: Problem
    normalizer: Normalizer


class Question(ABC):
    """A statistic `asked` of the whole matrix, of which this rank sees some blocks; it answers one fold.

    `whole` has the sizes of the sequence, and nothing in it.
    """

    facts: Mapping[str, Any] = MappingProxyType({})
    """What all ranks must ask alike, or their messages do not fit one another."""

    beside: Sequence[Tensor] = ()
    """This rank's `[B, H, m, C]` tensors that must travel beside the keys."""

    widths: Sequence[int] = ()
    """What each key is due: so many numbers in so many tensors, for every head."""

    def __init__(self, asked: Statistic, whole: Problem) -> None:
        self.asked, self.whole = asked, whole

    def of(self, run: Run, columns: slice, beside: Sequence[Tensor]) -> Statistic:
        """The statistic to be folded over a block; `beside` is what came with its keys."""
        return copy.copy(self.asked)

    @abstractmethod
    def take(self, block: Block, statistic: Statistic, due: Sequence[Tensor]) -> None:
        """Take in a folded block, and add to what its keys are due, `[B, Hq, C, width]` each."""

    @abstractmethod
    def answer(self, plan: Plan, due: Sequence[Tensor]) -> Any:
        """This rank's answer, from all blocks it has taken in and what all ranks gave its own keys."""


class OfQueries(Question):
    """Numbers for each query that add up over its keys; the runs' answers lie one after the other."""

    def __init__(self, asked: Statistic, whole: Problem) -> None:
        super().__init__(asked, whole)
        self.found: dict[Run, Tensor] = {}

    def take(self, block: Block, statistic: Statistic, due: Sequence[Tensor]) -> None:
        answer = statistic.end(block.normalizer)
        assert isinstance(answer, Tensor)
        known = self.found.get(block.run)
        self.found[block.run] = answer if known is None else known.add_(answer)

    def answer(self, plan: Plan, due: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(self.found.values()), 2)


class MassOfQueries(OfQueries):
    """`statistics.Mass`, on the block's part of the set."""

    asked: Mass

    def of(self, run: Run, columns: slice, beside: Sequence[Tensor]) -> Statistic:
        return Mass(self.asked.keys[columns])


class AppliedToQueries(OfQueries):
    """`statistics.Applied`, asked with the local keys' vectors."""

    asked: Applied

    def __init__(self, asked: Applied, whole: Problem) -> None:
        super().__init__(asked, whole)
        self.beside = [asked.x]
        self.facts = {"x": [*asked.x.shape[:2], asked.x.shape[3], str(asked.x.dtype)]}

    def of(self, run: Run, columns: slice, beside: Sequence[Tensor]) -> Statistic:
        (vectors,) = beside
        return Applied(vectors, finite_rows(vectors))


class TopKeysOfQueries(Question):
    """`statistics.TopKeys`: what was found before is ranked again with what a block adds."""

    asked: TopKeys

    def __init__(self, asked: Statistic, whole: Problem) -> None:
        super().__init__(asked, whole)
        self.found: dict[Run, _Ranking] = {}

    def of(self, run: Run, columns: slice, beside: Sequence[Tensor]) -> Statistic:
        # Ranked again by logit: where weights are rounded, different logits may have the same.
        return TopKeys(self.asked.k, with_logits=True)

    def take(self, block: Block, statistic: Statistic, due: Sequence[Tensor]) -> None:
        assert isinstance(statistic, TopKeys)
        weights, indices = statistic.end(block.normalizer)
        indices = torch.where(indices < 0, indices, indices + block.columns.start)
        found = weights, indices, statistic.logits()
        known = self.found.get(block.run)
        self.found[block.run] = found if known is None else _ranked(known, found, self.asked.k)

    def answer(self, plan: Plan, due: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        weights, indices, *_ = (torch.cat(parts, 2) for parts in zip(*self.found.values(), strict=True))
        return weights, indices


class ReceivedByKeys(Question):
    """`statistics.Received`; for the mean, queries are counted with the weights."""

    asked: Received

    def __init__(self, asked: Received, whole: Problem) -> None:
        super().__init__(asked, whole)
        self.widths = (1, 1) if asked.mean else (1,)
        self.facts = {"mean": asked.mean, "queries": None if asked.queries is None else plain(asked.queries)}

    def of(self, run: Run, columns: slice, beside: Sequence[Tensor]) -> Statistic:
        chosen = self.asked.queries
        return Received(None if chosen is None else chosen[run.in_sequence], self.asked.mean)

    def take(self, block: Block, statistic: Statistic, due: Sequence[Tensor]) -> None:
        assert isinstance(statistic, Received)
        due[0].add_(statistic.result.unsqueeze(-1))
        if self.asked.mean:
            due[1].add_(statistic.counts().unsqueeze(-1))

    def answer(self, plan: Plan, due: Sequence[Tensor]) -> Tensor:
        received, *counts = (total.squeeze(-1) for total in due)
        return received / counts[0].clamp(min=1) if counts else received


class AppliedToKeys(Question):
    """`statistics.AppliedTransposed`, asked with the local queries' vectors."""

    asked: AppliedTransposed

    def __init__(self, asked: AppliedTransposed, whole: Problem) -> None:
        super().__init__(asked, whole)
        self.widths = (asked.x.shape[-1],)
        self.facts = {"the channels of x": asked.x.shape[-1]}

    def of(self, run: Run, columns: slice, beside: Sequence[Tensor]) -> Statistic:
        finite = None if self.asked.finite is None else self.asked.finite[:, :, run.in_shard]
        return AppliedTransposed(self.asked.x[:, :, run.in_shard], finite)

    def take(self, block: Block, statistic: Statistic, due: Sequence[Tensor]) -> None:
        due[0].add_(statistic.result)

    def answer(self, plan: Plan, due: Sequence[Tensor]) -> Tensor:
        return due[0]


class OfTheWhole(Question):
    """Something of the matrix as one: summed over blocks and ranks, the same on each."""

    total: Tensor | None = None

    def take(self, block: Block, statistic: Statistic, due: Sequence[Tensor]) -> None:
        placed = self.placed(block, statistic)
        self.total = placed if self.total is None else self.total.add_(placed)

    @abstractmethod
    def placed(self, block: Block, statistic: Statistic) -> Tensor:
        """What a block adds, in the shape of the whole, in memory of its own."""

    def answer(self, plan: Plan, due: Sequence[Tensor]) -> Tensor:
        assert self.total is not None
        return _sum_over_ranks(self.total, plan)


class PooledOverRanks(OfTheWhole):
    """`statistics.Pooled` with the edges of the whole sequence."""

    asked: Pooled

    def __init__(self, asked: Pooled, whole: Problem) -> None:
        super().__init__(asked, whole)
        self.facts = {"pooled": list(asked.shape)}

    def of(self, run: Run, columns: slice, beside: Sequence[Tensor]) -> Statistic:
        whole = self.whole.n_queries, self.whole.n_keys
        return Pooled(*self.asked.shape, within=((run.start, columns.start), whole))

    def placed(self, block: Block, statistic: Statistic) -> Tensor:
        answer = statistic.end(block.normalizer)
        assert isinstance(answer, Tensor)
        return answer


class DiagonalsOverRanks(OfTheWhole):
    """`statistics.Diagonals`, counted from the first query and the last key of the whole sequence."""

    def placed(self, block: Block, statistic: Statistic) -> Tensor:
        found = statistic.result
        if not block.run.length or not block.problem.n_keys:  # there are diagonals, and nothing on them
            found = found[..., :0]
        length = max(0, self.whole.n_queries + self.whole.n_keys - 1)
        placed = found.new_zeros((*found.shape[:2], length))
        first = block.run.start + self.whole.n_keys - block.columns.stop
        placed[..., first : first + found.shape[-1]] = found
        return placed


_KINDS: dict[type[Statistic], Callable[[Any, Problem], Question]] = {
    Mass: MassOfQueries,
    Applied: AppliedToQueries,
    TopKeys: TopKeysOfQueries,
    Received: ReceivedByKeys,
    AppliedTransposed: AppliedToKeys,
    Pooled: PooledOverRanks,
    Diagonals: DiagonalsOverRanks,
}


def question(asked: Statistic, whole: Problem) -> Question:
    """How a statistic made for a whole sequence is asked of shards; products have the local vectors."""
    if type(asked) in _KINDS:
        return _KINDS[type(asked)](asked, whole)
    if isinstance(asked, PerRow):
        return OfQueries(asked, whole)
    raise ArgumentTypeError(
        "a statistic asked of shards must be one of regard's, or a PerRow, whose answers add up over keys, "
        f"got a {type(asked).__name__}"
    )


def _ranked(some: _Ranking, others: _Ranking, k: int) -> _Ranking:
    """The first k of two rankings (weights, indices, logits): by logit, ties by lower index."""
    weights, indices, logits = (torch.cat(parts, -1) for parts in zip(some, others, strict=True))
    by_index = indices.argsort(stable=True)
    by_logit = logits.gather(-1, by_index).argsort(stable=True, descending=True)
    order = by_index.gather(-1, by_logit[..., :k])
    return weights.gather(-1, order), indices.gather(-1, order), logits.gather(-1, order)


def _sum_over_ranks(tensor: Tensor, plan: Plan) -> Tensor:
    """The sum in rank order, the same bits on every rank, which holds one other's part at a time."""
    group, flat = plan.group, tensor.reshape(-1)
    if not flat.numel():
        return tensor
    total = torch.zeros_like(flat)
    for rank in range(group.size):
        if rank == group.rank:
            group.post(dict.fromkeys(group.others, flat), {}).wait()
            total += flat
        else:
            total += group.post({}, {rank: torch.empty_like(flat)}).wait()[rank]
    return total.view_as(tensor)
