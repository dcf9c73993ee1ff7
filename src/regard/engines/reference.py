"""The specification as an engine: dense, N · M memory, differentiable any number of times by torch itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard import reference
from regard.online_softmax import Normalizer, finite_reference
from regard.precision import without_autocast
from regard.problem import Problem
from regard.products import ALIGNMENT
from regard.scores import Tile
from regard.statistics import Statistic, WeightTile


@without_autocast
def forward(problem: Problem) -> tuple[Tensor, Normalizer]:
    """The output `[B, Hq, N, Ev]` and the normalizer of its weights; gradients flow through both."""
    output, logits = reference.attend(problem)
    nothing = logits.new_full(logits.shape[:-1], -torch.inf)
    maximum = logits.detach().amax(-1) if problem.n_keys else nothing
    shift, sink = finite_reference(maximum), None
    if problem.sink_logits is not None:
        sink = problem.sink_logits.to(maximum.dtype).view(1, -1, 1).expand_as(maximum)
        shift = finite_reference(maximum.maximum(sink.detach()))
    denominator = (logits - shift.unsqueeze(-1)).exp().sum(-1)
    return output, Normalizer(
        maximum, shift, denominator if sink is None else denominator + (sink - shift).exp()
    )


@without_autocast
def fold(problem: Problem, normalizer: Normalizer, statistics: Sequence[Statistic]) -> None:
    """Show the weights to all of the statistics, as one tile."""
    for statistic in statistics:
        statistic.begin(problem)
    if 0 in (problem.batch_size, problem.num_heads, problem.n_queries, problem.n_keys):
        return
    logits = pad(reference.logits(problem), (0, -problem.n_keys % ALIGNMENT), value=-torch.inf)
    tile = Tile(slice(0, problem.n_queries), 0, problem.n_keys, logits, None)
    whole = (slice(0, size) for size in (problem.batch_size, problem.num_heads, problem.num_key_heads))
    shown = WeightTile(problem, tile, normalizer, *whole)
    for statistic in statistics:
        statistic.add(shown)
