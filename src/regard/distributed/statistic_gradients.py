"""Entropy and mass over shards as nodes of every rank's graph: those of one process, on another engine."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from regard import statistic_gradients
from regard.distributed import computing
from regard.distributed.agreement import agree, agreed
from regard.distributed.failures import attempt
from regard.distributed.folding import fold
from regard.distributed.questions import question
from regard.distributed.shards import Share
from regard.engines import Gradients, Wanted
from regard.gradients import with_inputs
from regard.online_softmax import Normalizer
from regard.problem import Problem
from regard.statistics import Entropy, Mass, Statistic


def with_gradient(
    share: Share,
    normalizer: Normalizer,
    inputs: Sequence[Tensor | None],
    statistic: Entropy | Mass,
    answer: Tensor,
) -> Tensor:
    """This rank's answer `[B, Hq, n]`, with gradients to `inputs`, if every rank calls backward.

    `statistic` is the entropy or the mass that was asked of the whole sequence; `inputs` are as in
    `regard.statistic_gradients.with_gradient`.
    """
    local = copy.copy(statistic)
    local.result = answer
    if isinstance(local, Mass):
        local.keys = local.keys[share.plan.keys.indices(share.group.rank)]
    held = replace(share, problem=with_inputs(share.problem, [None] * len(inputs)))
    engine: Any = _Sharded(held, type(statistic).__name__.lower())  # all of an engine that a gradient uses
    return statistic_gradients.with_gradient(engine, share.problem, normalizer, inputs, local)


@dataclass(frozen=True, eq=False)
class _Sharded:
    """What a statistic's gradients need of an engine: from this rank's part, what follows from all parts."""

    share: Share
    topic: str

    def opened(self, unpack: Callable[[], Any]) -> Any:
        """What the forward pass saved, once every rank could read its own."""
        saved, error = attempt(unpack)
        agree(self.share.group, f"what {self.topic} was saved with (of call {self.share.number})", {}, error)
        return saved

    def backward(
        self,
        problem: Problem,
        output: Tensor,
        normalizer: Normalizer,
        grad_output: Tensor,
        grad_logsumexp: Tensor | None,
        wanted: Wanted,
        grad_entropy: Tensor | None = None,
    ) -> Gradients:
        """Those of this rank's tensors, from the answers of all ranks."""
        with self._agreed():
            return computing.backward(
                self._of(problem), output, normalizer, grad_output, grad_logsumexp, wanted, grad_entropy
            )

    def fold(self, problem: Problem, normalizer: Normalizer, statistics: Sequence[Statistic]) -> None:
        """For one question only, that of the entropy's gradient: what all keys of each row weigh together."""
        with self._agreed():
            (every,) = statistics
            assert isinstance(every, Mass)
            keys = every.keys.new_ones(self.share.plan.keys.total)
            (every.result,) = fold(self._of(problem), normalizer, [question(Mass(keys), problem)])

    def _agreed(self) -> AbstractContextManager[None]:
        return agreed(self.share.group, f"the gradients of {self.topic} (of call {self.share.number})")

    def _of(self, problem: Problem) -> Share:
        """The share with this problem; its keys travel in the dtype they came in."""
        dtype = self.share.problem.dtype
        value = None if problem.value is None else problem.value.to(dtype)
        return replace(self.share, problem=replace(problem, key=problem.key.to(dtype), value=value))
