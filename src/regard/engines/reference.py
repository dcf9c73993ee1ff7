"""The specification as an engine: dense, N · M memory, differentiable any number of times by torch itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard import online_softmax
from regard.autocast import without_autocast
from regard.online_softmax import Normalizer
from regard.problem import Problem
from regard.reference import dot_products, softmax, weighted_sum
from regard.scores import Tile, load_query, score
from regard.statistics import Statistic, WeightTile


@without_autocast
def forward(problem: Problem) -> tuple[Tensor, Tensor, Normalizer]:
    """The output `[B, Hq, N, Ev]` and its logsumexp, both with gradients, and the weights' normalizer.

    The normalizer comes from the same tile that `fold` shows, so that both agree to the last bit.
    """
    output, logsumexp = _attend(problem)
    with torch.no_grad():
        state = online_softmax.init(output.shape[:3], 0, problem.compute_dtype, problem.device)
        if 0 not in _sizes(problem):
            online_softmax.update(state, _whole(problem).logits, None)
        _, normalizer = online_softmax.finish(state, problem.sink_logits)
    return output, logsumexp, normalizer


@without_autocast
def fold(problem: Problem, normalizer: Normalizer, statistics: Sequence[Statistic]) -> None:
    """Show the weights to all of the statistics, as one tile."""
    for statistic in statistics:
        statistic.begin(problem)
    if 0 in _sizes(problem):
        return
    sizes = problem.batch_size, problem.num_heads, problem.num_key_heads
    shown = WeightTile(problem, _whole(problem), normalizer, *(slice(0, size) for size in sizes))
    for statistic in statistics:
        statistic.add(shown)


@without_autocast
def matrix(problem: Problem) -> Tensor:
    """The weights `[B, Hq, N, M]`, before dropout, with gradients of any order."""
    return softmax(*_logits(problem))


def _logits(problem: Problem) -> tuple[Tensor, Tensor | None]:
    """The logits, in the order of the conventions, and the sink's, `[1, Hq, 1, 1]`.

    Scores × scale → softcap → + bias → mask.
    """
    dtype = problem.compute_dtype
    rows, columns = slice(0, problem.n_queries), slice(0, problem.n_keys)
    allowed, bias = problem.sets.to_dense(), None
    if problem.bias is not None:
        bias = problem.bias.tile(problem.frame, rows, columns, dtype)
        allowed = allowed & (bias != -torch.inf)
    key = problem.key.to(dtype).repeat_interleave(problem.group_size, 1)
    logits = dot_products(problem.query.to(dtype), key, allowed) * problem.scale
    if problem.softcap is not None:
        logits = problem.softcap * (logits / problem.softcap).tanh()
    if bias is not None:
        logits = logits + bias
    logits = logits.masked_fill(~allowed, -torch.inf)
    sink = None if problem.sink_logits is None else problem.sink_logits.to(dtype).view(1, -1, 1, 1)
    return logits, sink


def _attend(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output and logsumexp: sink → softmax (→ dropout) → weighted sum."""
    logits, sink = _logits(problem)
    logsumexp = _logsumexp(logits, sink)
    if problem.value is None:
        return problem.query[..., :0], logsumexp
    weights = softmax(logits, sink)
    if problem.dropout_p > 0:
        kept = problem.kept(slice(0, problem.n_queries), slice(0, problem.n_keys))
        weights = weights * kept / (1 - problem.dropout_p) if problem.dropout_p < 1 else weights * 0
    value = problem.value.to(problem.compute_dtype).repeat_interleave(problem.group_size, 1)
    return weighted_sum(weights, value, logits != -torch.inf).to(problem.dtype), logsumexp


def _logsumexp(logits: Tensor, sink: Tensor | None) -> Tensor:
    """The logarithm of each row's denominator; −∞, and no gradient, for a row that holds nothing."""
    nothing = logits.new_full((*logits.shape[:-1], 1), -torch.inf) if sink is None else sink
    every = torch.cat([logits, nothing.expand(*logits.shape[:-1], 1)], -1)
    empty = (every == -torch.inf).all(-1, keepdim=True)
    result = every.masked_fill(empty, 0).logsumexp(-1)
    return result.masked_fill(empty.squeeze(-1), -torch.inf)


def _sizes(problem: Problem) -> tuple[int, ...]:
    return problem.batch_size, problem.num_heads, problem.n_queries, problem.n_keys


def _whole(problem: Problem) -> Tile:
    rows = slice(0, problem.n_queries)
    return score(problem, load_query(problem, rows), rows, 0, problem.n_keys, whole=False)
