"""The portable engine: online softmax in torch operations, tile by tile, on any device torch has.

Memory is linear: one tile of logits at a time, and tiles that the mask excludes are never formed. Gradients
recompute the tiles (Dao et al. 2022, "FlashAttention", algorithm 4). The shape of a tile depends on the
problem's lengths and group size alone, so an item's result is bitwise the same in any batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard import online_softmax
from regard.autocast import without_autocast
from regard.engines.base import Gradients, Wanted
from regard.online_softmax import Normalizer
from regard.problem import Problem
from regard.products import finite_rows, load, load_finite, matmul, product, product_transposed
from regard.scores import Tile, kept, load_query, score
from regard.statistics import Statistic, WeightTile

# Rows of a tile, counting each head of a group, and columns.
_TILE_ROWS = 256
_TILE_COLUMNS = 256

# Batch items and heads are taken together while their tiles stay under this many logits.
_PART_LOGITS = 1 << 18


@dataclass(frozen=True, eq=False)
class _Part:
    """A part of the problem that is worked on together: some batch items, or some key heads of one item."""

    problem: Problem
    batch: slice
    heads: slice
    key_heads: slice


@without_autocast
def forward(problem: Problem) -> tuple[Tensor, Tensor, Normalizer]:
    """The output `[B, Hq, N, Ev]` in the input's dtype, its logsumexp, and the normalizer of its weights.

    Without a value only the weights' normalizer is computed: the output is then `[B, Hq, N, 0]`.
    """
    rows_shape = problem.batch_size, problem.num_heads, problem.n_queries
    value_dim = 0 if problem.value is None else problem.value.shape[-1]
    output = problem.query.new_zeros((*rows_shape, value_dim))
    normalizer = Normalizer(
        *(torch.zeros(rows_shape, dtype=problem.compute_dtype, device=problem.device) for _ in range(3))
    )
    finite = None if problem.value is None else finite_rows(problem.value)
    for part in _parts(problem):
        for rows in _row_tiles(part.problem):
            state_output, state = _forward_rows(part.problem, rows, _some(finite, part.batch, part.key_heads))
            output[part.batch, part.heads, rows] = state_output[..., :value_dim].to(output.dtype)
            normalizer.maximum[part.batch, part.heads, rows] = state.maximum
            normalizer.shift[part.batch, part.heads, rows] = state.shift
            normalizer.denominator[part.batch, part.heads, rows] = state.denominator
    return output, normalizer.logsumexp, normalizer


def _forward_rows(problem: Problem, rows: slice, finite: Tensor | None) -> tuple[Tensor, Normalizer]:
    query = load_query(problem, rows)
    width = 0 if problem.value is None else load(problem.value, slice(0, 0), problem.compute_dtype).shape[-1]
    state = online_softmax.init(query.shape[:3], width, problem.compute_dtype, problem.device)
    for first, last, whole in problem.sets.tiles(rows, _TILE_COLUMNS):
        tile = score(problem, query, rows, first, last, whole)
        value = problem.value

        def weighted_sum(weights: Tensor, tile: Tile = tile, value: Tensor | None = value) -> Tensor:
            assert value is not None
            if problem.dropout_p > 0:
                weights = weights * kept(problem, tile)
            vectors = load(value, tile.columns, problem.compute_dtype)
            return product(weights, vectors, tile, load_finite(finite, tile.columns))

        # The online softmax uses the logits up; a product that has to ask which pairs take part needs them.
        logits = tile.logits if finite is None else tile.logits.clone()
        online_softmax.update(state, logits, None if value is None else weighted_sum)
    return online_softmax.finish(state, problem.sink_logits)


@without_autocast
def fold(problem: Problem, normalizer: Normalizer, statistics: Sequence[Statistic]) -> None:
    """Show every tile of the weights that the mask reaches to all of the statistics, in one pass."""
    for statistic in statistics:
        statistic.begin(problem)
    for part in _parts(problem):
        for rows in _row_tiles(part.problem):
            query = load_query(part.problem, rows)
            some = normalizer.select(part.batch, part.heads, rows)
            for first, last, whole in part.problem.sets.tiles(rows, _TILE_COLUMNS):
                asking = [s for s in statistics if s.wants(rows, slice(first, last))]
                if not asking:
                    continue
                tile = score(part.problem, query, rows, first, last, whole)
                shown = WeightTile(part.problem, tile, some, part.batch, part.heads, part.key_heads)
                for statistic in asking:
                    statistic.add(shown)


@without_autocast
def backward(
    problem: Problem,
    output: Tensor,
    normalizer: Normalizer,
    grad_output: Tensor,
    grad_logsumexp: Tensor | None,
    wanted: Wanted,
    grad_entropy: Tensor | None = None,
) -> Gradients:
    """The gradients that are wanted, accumulated in the computing dtype.

    With P̃ the weights after dropout: dV = P̃ᵀ dO, dP = dO Vᵀ (dropped alike), dS = P (dP − D) where
    D = Σ dO · O − d logsumexp, dQ = scale dS K and dK = scale dSᵀ Q. `grad_entropy` times −(log P + 1) is
    added to dP.
    """
    dtype = problem.compute_dtype
    delta = (grad_output.to(dtype) * output.to(dtype)).sum(-1)
    if grad_logsumexp is not None:
        delta = delta - grad_logsumexp.to(dtype)
    gradients = Gradients(
        query=_zeros(problem.query, wanted.query, dtype),
        key=_zeros(problem.key, wanted.key, dtype),
        value=_zeros(problem.value, wanted.value, dtype),
        bias=_zeros(None if problem.bias is None else problem.bias.parameter, wanted.bias, dtype),
        sink_logits=_sink_gradient(problem, normalizer, delta) if wanted.sink_logits else None,
    )
    if not any((wanted.query, wanted.key, wanted.value, wanted.bias)):
        return gradients
    finite_query, finite_key, finite_grad = (
        finite_rows(tensor) for tensor in (problem.query, problem.key, grad_output)
    )
    for part in _parts(problem):
        batch, heads, key_heads = part.batch, part.heads, part.key_heads
        given = _Given(
            grad_output=grad_output[batch, heads],
            delta=delta[batch, heads],
            grad_entropy=_some(grad_entropy, batch, heads),
            finite_query=_some(finite_query, batch, heads),
            finite_key=_some(finite_key, batch, key_heads),
            finite_grad_output=_some(finite_grad, batch, heads),
        )
        found = Gradients(
            query=_some(gradients.query, batch, heads),
            key=_some(gradients.key, batch, key_heads),
            value=_some(gradients.value, batch, key_heads),
            bias=(
                None
                if gradients.bias is None or problem.bias is None
                else problem.bias.part(gradients.bias, batch, heads)
            ),
            sink_logits=None,
        )
        for rows in _row_tiles(part.problem):
            _backward_rows(part.problem, rows, normalizer.select(batch, heads, rows), given, found)
    return gradients


@dataclass(frozen=True, eq=False)
class _Given:
    """What the backward pass reads besides the problem, for one part of it."""

    grad_output: Tensor
    delta: Tensor
    grad_entropy: Tensor | None
    finite_query: Tensor | None
    finite_key: Tensor | None
    finite_grad_output: Tensor | None


def _backward_rows(
    problem: Problem, rows: slice, normalizer: Normalizer, given: _Given, found: Gradients
) -> None:
    """Add to `found`, views of a part's gradients, what one tile of rows gives."""
    assert problem.value is not None
    dtype, key_heads = problem.compute_dtype, problem.num_key_heads
    query = load_query(problem, rows)
    grad_output = load(given.grad_output, rows, dtype, align_rows=False)
    delta = given.delta[:, :, rows].unsqueeze(-1)
    finite_query, finite_grad = (
        None if finite is None else finite[:, :, rows]
        for finite in (given.finite_query, given.finite_grad_output)
    )
    scores_wanted = any(gradient is not None for gradient in (found.query, found.key, found.bias))
    for first, last, whole in problem.sets.tiles(rows, _TILE_COLUMNS):
        tile = score(problem, query, rows, first, last, whole)
        columns, width = tile.columns, tile.width
        weights = normalizer.weights(tile.logits.clone())
        factor = kept(problem, tile) if problem.dropout_p > 0 else None
        if found.value is not None:
            dropped = weights if factor is None else weights * factor
            grad_value = product_transposed(dropped, grad_output, tile, finite_grad, key_heads)
            found.value[:, :, columns] += grad_value[:, :, :width, : found.value.shape[-1]]
        if not scores_wanted:
            continue
        # dO · vⱼ of a pair that takes no part may be NaN: it is replaced where dS selects.
        grad_weights = matmul(grad_output, load(problem.value, columns, dtype).mT)
        if factor is not None:
            grad_weights = grad_weights * factor
        if given.grad_entropy is not None:
            surprise = normalizer.surprise(tile.logits, weights)
            grad_weights = grad_weights + given.grad_entropy[:, :, rows].unsqueeze(-1) * (surprise - 1)
        excluded = ~tile.allowed
        grad_logits = (weights * (grad_weights - delta)).masked_fill_(excluded, 0)
        if problem.bias is not None and found.bias is not None:
            problem.bias.accumulate(found.bias, problem.frame, rows, columns, grad_logits[..., :width])
        if tile.softcapped is not None:
            grad_logits = (grad_logits * (1 - tile.softcapped.square())).masked_fill_(excluded, 0)
        grad_logits.mul_(problem.scale)
        if found.query is not None:
            key = load(problem.key, columns, dtype)
            grad_query = product(grad_logits, key, tile, load_finite(given.finite_key, columns))
            found.query[:, :, rows] += grad_query[..., : found.query.shape[-1]]
        if found.key is not None:
            grad_key = product_transposed(grad_logits, query, tile, finite_query, key_heads)
            found.key[:, :, columns] += grad_key[:, :, :width, : found.key.shape[-1]]


def _sink_gradient(problem: Problem, normalizer: Normalizer, delta: Tensor) -> Tensor:
    """A sink takes its share of the weight and gives nothing: dsink = Σ over rows of share · (0 − D)."""
    assert problem.sink_logits is not None
    logit = problem.sink_logits.to(delta.dtype).view(1, -1, 1)
    share = (logit - normalizer.shift).exp() / normalizer.divisor
    return -(share * delta).masked_fill(share == 0, 0).sum((0, 2))


def _zeros(like: Tensor | None, wanted: bool, dtype: torch.dtype) -> Tensor | None:
    return None if like is None or not wanted else torch.zeros(like.shape, dtype=dtype, device=like.device)


def _some(tensor: Tensor | None, batch: slice, heads: slice) -> Tensor | None:
    return None if tensor is None else tensor[batch, heads]


def _row_tiles(problem: Problem) -> Iterator[slice]:
    height = max(1, _TILE_ROWS // problem.group_size)
    for first in range(0, problem.n_queries, height):
        yield slice(first, min(first + height, problem.n_queries))


def _parts(problem: Problem) -> Iterator[_Part]:
    """Cut batch items and key heads so that a part's tiles stay small.

    Where masks differ between items or heads and there is more than one tile to choose from, each goes
    alone: it then visits only the tiles that its own mask reaches.
    """
    n_queries, n_keys, group = problem.n_queries, problem.n_keys, problem.group_size
    if 0 in (problem.batch_size, problem.num_heads, n_queries):
        return
    height = max(1, _TILE_ROWS // group)
    several = n_queries > height or n_keys > _TILE_COLUMNS
    fit = _PART_LOGITS // (group * min(n_queries, height) * max(1, min(n_keys, _TILE_COLUMNS)))
    heads_each = 1 if several and problem.sets.varies(1) else max(1, min(fit, problem.num_key_heads))
    items_each = 1 if several and problem.sets.varies(0) else max(1, fit // heads_each)
    for item in range(0, problem.batch_size, items_each):
        batch = slice(item, min(item + items_each, problem.batch_size))
        for head in range(0, problem.num_key_heads, heads_each):
            key_heads = slice(head, min(head + heads_each, problem.num_key_heads))
            heads = slice(key_heads.start * group, key_heads.stop * group)
            yield _Part(problem.select(batch, key_heads), batch, heads, key_heads)
