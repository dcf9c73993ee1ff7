"""What becomes of a statistic when each rank folds its own queries: joined, summed over ranks, or both."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.distributed.placement import Run
from regard.distributed.plan import Plan, give_back
from regard.online_softmax import Normalizer
from regard.problem import Problem
from regard.statistics import AppliedTransposed, Diagonals, Pooled, Received, Statistic

Folded = Sequence[tuple[Run, Statistic, Normalizer]]


class Question(ABC):
    """A statistic of the whole matrix, asked of the runs of queries that this rank holds.

    `asked` was made for the whole sequence, and is not folded itself.
    """

    def __init__(self, asked: Statistic) -> None:
        self.asked = asked

    def of(self, run: Run, whole: Problem) -> Statistic:
        """The statistic to be folded over the rows of one run; `whole` has the sizes of the sequence."""
        return copy.copy(self.asked)

    @abstractmethod
    def answer(self, folded: Folded, plan: Plan) -> Any:
        """This rank's answer, from its folded runs and what other ranks found."""


class OfQueries(Question):
    """A number or a few for each query: the runs' answers one after the other."""

    def answer(self, folded: Folded, plan: Plan) -> Tensor | tuple[Tensor, ...]:
        answers = [statistic.end(normalizer) for _, statistic, normalizer in folded]
        if isinstance(answers[0], tuple):
            return tuple(torch.cat(parts, 2) for parts in zip(*answers, strict=True))
        return torch.cat(answers, 2)  # type: ignore[arg-type]


class OfKeys(Question):
    """Something for each key, summed over all queries: every rank gets the sums of its own keys."""

    @abstractmethod
    def sums(self, folded: Folded) -> list[Tensor]:
        """What this rank's queries add, each `[B, Hq, M, C]`."""

    def answer(self, folded: Folded, plan: Plan) -> Tensor:
        return self.finish(give_back(plan, self.sums(folded)))

    def finish(self, sums: list[Tensor]) -> Tensor:
        """The answer, `[B, Hq, m, ...]`, from the complete sums of the local keys."""
        return sums[0]


class ReceivedByKeys(OfKeys):
    """`statistics.Received`; for the mean, queries are counted with the weights."""

    asked: Received

    def of(self, run: Run, whole: Problem) -> Statistic:
        chosen = self.asked.queries
        return Received(None if chosen is None else chosen[run.in_sequence], self.asked.mean)

    def sums(self, folded: Folded) -> list[Tensor]:
        found = [statistic for _, statistic, _ in folded if isinstance(statistic, Received)]
        parts = [[s.result for s in found]] + ([[s.counts() for s in found]] if self.asked.mean else [])
        return [torch.stack(some).sum(0).unsqueeze(-1) for some in parts]

    def finish(self, sums: list[Tensor]) -> Tensor:
        received, *counts = (total.squeeze(-1) for total in sums)
        return received / counts[0].clamp(min=1) if counts else received


class AppliedToKeys(OfKeys):
    """`statistics.AppliedTransposed`, for the local queries' vectors."""

    asked: AppliedTransposed

    def of(self, run: Run, whole: Problem) -> Statistic:
        finite = None if self.asked.finite is None else self.asked.finite[:, :, run.in_shard]
        return AppliedTransposed(self.asked.x[:, :, run.in_shard], finite)

    def sums(self, folded: Folded) -> list[Tensor]:
        return [torch.stack([statistic.result for _, statistic, _ in folded]).sum(0)]


class OfTheWhole(Question):
    """Something of the matrix as one: summed over ranks, the same on each."""

    def answer(self, folded: Folded, plan: Plan) -> Tensor:
        total = _sum_over_ranks(torch.stack([self.placed(*one[:2], plan) for one in folded]).sum(0), plan)
        first = copy.copy(folded[0][1])
        first.result = total
        answer = first.end(folded[0][2])
        assert isinstance(answer, Tensor)
        return answer

    def placed(self, run: Run, statistic: Statistic, plan: Plan) -> Tensor:
        """What a run adds, in the shape of the whole."""
        return statistic.result


class PooledOverRanks(OfTheWhole):
    """`statistics.Pooled` with the edges of the whole sequence."""

    asked: Pooled

    def of(self, run: Run, whole: Problem) -> Statistic:
        return _PooledRun(self.asked.shape, run, whole)


class _PooledRun(Pooled):
    """What one run of queries adds to the blocks of the whole."""

    def __init__(self, shape: tuple[int, int], run: Run, whole: Problem) -> None:
        super().__init__(*shape)
        self._run, self._whole = run, whole

    def begin(self, problem: Problem) -> None:
        super().begin(self._whole)
        self.row_block = self.row_block[self._run.in_sequence]


class DiagonalsOverRanks(OfTheWhole):
    """`statistics.Diagonals`, counted from the first query of the whole sequence."""

    def __init__(self, asked: Statistic, n_queries: int) -> None:
        super().__init__(asked)
        self._n_queries = n_queries

    def placed(self, run: Run, statistic: Statistic, plan: Plan) -> Tensor:
        found = statistic.result
        if not run.length:  # of no queries there are M − 1 diagonals, and nothing on them
            found = found[..., :0]
        length = max(0, self._n_queries + plan.keys.total - 1)
        placed = found.new_zeros((*found.shape[:2], length))
        placed[..., run.start : run.start + found.shape[-1]] = found
        return placed


def question(asked: Statistic, n_queries: int) -> Question:
    """How a statistic made for a whole sequence is asked of shards."""
    if isinstance(asked, Received):
        return ReceivedByKeys(asked)
    if isinstance(asked, AppliedTransposed):
        return AppliedToKeys(asked)
    if isinstance(asked, Pooled):
        return PooledOverRanks(asked)
    if isinstance(asked, Diagonals):
        return DiagonalsOverRanks(asked, n_queries)
    return OfQueries(asked)


def _sum_over_ranks(tensor: Tensor, plan: Plan) -> Tensor:
    """The sum in rank order, the same bits on every rank."""
    group, flat = plan.group, tensor.reshape(-1)
    if not flat.numel():
        return tensor
    arrived = group.post(
        dict.fromkeys(group.others, flat), {rank: torch.empty_like(flat) for rank in group.others}
    ).wait()
    arrived[group.rank] = flat
    total = torch.zeros_like(flat)
    for rank in range(group.size):
        total += arrived[rank]
    return total.view_as(tensor)
