"""Mass on a span of the text, and the lookback ratio between a context and what was generated after it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.answers.layers import Source, layers_of
from regard.answers.scores import HeadScores
from regard.errors import ArgumentError
from regard.indexing import members

Positions = slice | Sequence[int] | Tensor


def span_mass(
    source: Source, keys: Positions, queries: Positions = slice(None), *, steps: range | None = None
) -> HeadScores:
    """The mass that each head's chosen queries put on a span of keys, on average.

    Args:
        source: a recording, calls of one, or `AttentionWeights`, each `[B, Hq, N, M]`.
        keys: the span: a slice, indices or bools over the M keys.
        queries: the rows averaged over: a slice, indices or bools over the N queries; all by default. Rows
            that may attend nothing count as 0.
        steps: the steps of one generation, where the recording holds more than one.

    >>> span_mass(recording, slice(0, 1), slice(1, None)).scores[0].shape
    torch.Size([1, 9])
    """
    layers = layers_of(source, steps)
    scores = []
    for layer in layers:
        rows = members(queries, layer.n_queries, "queries").to(layer.weights.device)
        if not bool(rows.any()):
            raise ArgumentError(f"`queries` must hold at least one query, got {queries!r}")
        scores.append(layer.weights.mass(keys)[..., rows].mean(-1))
    return HeadScores(tuple(layer.name for layer in layers), tuple(scores))


def lookback_ratio(source: Source, context: int, *, steps: range | None = None) -> tuple[Tensor, ...]:
    """The lookback ratio of each head at each token after a context (Lookback Lens: Chuang et al. 2024).

    With A(context) the mean weight that a query puts on the `context` first tokens and A(new) the mean weight
    on the tokens from there to the query itself, the ratio is A(context) / (A(context) + A(new)); averaged
    over a span of tokens it is the feature from which a linear probe tells whether the span was made up.

    Args:
        source: a recording, calls of one, or `AttentionWeights`, each `[B, Hq, N, M]`.
        context: the number of tokens of the context, less than M.
        steps: the steps of one generation, where the recording holds more than one.

    Returns:
        For each layer `[B, Hq, R]`, R the queries after the context; NaN for one that attends nothing.

    >>> [ratio.shape for ratio in lookback_ratio(recording, 2)][0]
    torch.Size([1, 9, 1])
    """
    ratios = []
    for layer in layers_of(source, steps):
        if not 0 < context < layer.n_keys:
            raise ArgumentError(
                f"`context` must be at least 1 and less than the {layer.n_keys} keys of `{layer.name}`, got "
                f"{context}"
            )
        first = max(0, context - layer.offset)
        positions = torch.arange(first, layer.n_queries, device=layer.weights.device) + layer.offset
        on_context = layer.weights.mass(slice(0, context))[..., first:] / context
        on_new = layer.weights.mass(slice(context, None))[..., first:] / (positions - context + 1)
        ratios.append(on_context / (on_context + on_new))
    return tuple(ratios)
