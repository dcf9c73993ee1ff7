"""The specification as an engine: dense, N · M memory, differentiable any number of times by torch itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard import online_softmax, reference
from regard.online_softmax import Normalizer
from regard.precision import without_autocast
from regard.problem import Problem
from regard.scores import Tile, load_query, score
from regard.statistics import Statistic, WeightTile


@without_autocast
def forward(problem: Problem) -> tuple[Tensor, Tensor, Normalizer]:
    """The output `[B, Hq, N, Ev]` and its logsumexp, both with gradients, and the weights' normalizer.

    The normalizer comes from the same tile that `fold` shows, so that both agree to the last bit.
    """
    output, logsumexp = reference.attend(problem)
    with torch.no_grad():
        state = online_softmax.init(output.shape[:3], 0, problem.compute_dtype, problem.device)
        if problem.n_keys:
            online_softmax.update(state, _whole(problem).logits, None)
        _, normalizer = online_softmax.finish(state, problem.sink_logits)
    return output, logsumexp, normalizer


@without_autocast
def fold(problem: Problem, normalizer: Normalizer, statistics: Sequence[Statistic]) -> None:
    """Show the weights to all of the statistics, as one tile."""
    for statistic in statistics:
        statistic.begin(problem)
    if 0 in (problem.batch_size, problem.num_heads, problem.n_queries, problem.n_keys):
        return
    sizes = problem.batch_size, problem.num_heads, problem.num_key_heads
    shown = WeightTile(problem, _whole(problem), normalizer, *(slice(0, size) for size in sizes))
    for statistic in statistics:
        statistic.add(shown)


def _whole(problem: Problem) -> Tile:
    rows = slice(0, problem.n_queries)
    return score(problem, load_query(problem, rows), rows, 0, problem.n_keys, whole=False)
