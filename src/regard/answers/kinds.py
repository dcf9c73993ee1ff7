"""What kind of head it is: one that looks at the token before, at the first token, or an induction head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.answers.layers import Layer, Source, layers_of
from regard.answers.scores import HeadScores
from regard.answers.spans import span_mass
from regard.errors import ArgumentError


def previous_token(source: Source, *, steps: range | None = None) -> HeadScores:
    """The mean mass on the token before the query, over the queries after the first token.

    A head near 1 is a previous-token head, half of an induction circuit (Olsson et al. 2022).

    Args:
        source: a recording, calls of one, or `AttentionWeights`, each `[B, Hq, N, M]`.
        steps: the steps of one generation, where the recording holds more than one.

    >>> previous_token(recording).top(3)[0].score > 0.5
    True
    """
    layers = layers_of(source, steps)
    scores = tuple(_diagonal(layer, 1) / max(1, min(layer.n_queries, layer.n_keys - 1)) for layer in layers)
    return HeadScores(tuple(layer.name for layer in layers), scores)


def first_token(source: Source, *, steps: range | None = None) -> HeadScores:
    """The mean mass on the first token, over the queries after it: what rests there (Xiao et al. 2023).

    Arguments as for `previous_token`.

    >>> first_token(recording).top(3)[0].score > 0.5
    True
    """
    layers = layers_of(source, steps)
    later = [span_mass(one.weights, slice(0, 1), slice(max(0, 1 - one.offset), None)) for one in layers]
    return HeadScores(tuple(layer.name for layer in layers), tuple(one.scores[0] for one in later))


def induction(source: Source, period: int, *, start: int = 0, steps: range | None = None) -> HeadScores:
    """The induction score: on tokens that repeat, the mean mass on what followed the same token before.

    The text has `start` tokens and then a sequence of `period` tokens twice, best a random one
    (`repeated_tokens`), which no bigram explains. The query at the second occurrence of a token looks
    at the first occurrence + 1, position i − period + 1 (Olsson et al. 2022, "In-context learning and
    induction heads"). Equal tokens inside the sequence count as different.

    Args:
        source: what was recorded over such a text: a recording, calls of one, or `AttentionWeights`, each
            `[B, Hq, N, M]`, M = start + 2 · period and every token of the second half among the queries.
        period: the length of the sequence that occurs twice.
        start: how many tokens stand before it.
        steps: the steps of one generation, where the recording holds more than one.
    """
    layers = layers_of(source, steps)
    scores = []
    for layer in layers:
        if period < 1 or start < 0 or layer.n_keys != start + 2 * period or layer.n_queries < period:
            raise ArgumentError(
                f"`start` + 2 · `period` must be the {layer.n_keys} keys of `{layer.name}`, of which the "
                f"queries hold the second half, got {start}, {period} and {layer.n_queries} queries"
            )
        on_diagonal = _diagonal(layer, period - 1)
        # The diagonal begins in rows before the second half, which have nothing to repeat yet.
        first, second_half = max(0, period - 1 - layer.offset), layer.n_queries - period
        for row in range(first, second_half):
            on_diagonal = on_diagonal - layer.weights[..., row, row + layer.offset - period + 1]
        scores.append(on_diagonal / period)
    return HeadScores(tuple(layer.name for layer in layers), tuple(scores))


def repeated_tokens(
    vocabulary: int | Sequence[int] | Tensor, period: int, *, prefix: Sequence[int] = (), seed: int = 0
) -> Tensor:
    """A text to look for induction heads with: `prefix`, then `period` random tokens, twice.

    Args:
        vocabulary: the tokens drawn from: a number of them, from 0, or the ids themselves (without special
            tokens).
        period: how many tokens are drawn, without replacement where there are enough of them.
        prefix: what stands before, such as a token that begins every text.
        seed: of the draw.

    Returns:
        int64 `[1, len(prefix) + 2 · period]`.

    >>> ids = repeated_tokens(100, 4, prefix=[1])
    >>> bool((ids[0, 1:5] == ids[0, 5:]).all()), ids.shape
    (True, torch.Size([1, 9]))
    """
    tokens = torch.arange(vocabulary) if isinstance(vocabulary, int) else torch.as_tensor(vocabulary)
    if not len(tokens) or period < 1:
        raise ArgumentError(
            f"`vocabulary` and `period` must be at least 1, got {len(tokens)} tokens and {period}"
        )
    generator = torch.Generator().manual_seed(seed)
    order = torch.cat(
        [torch.randperm(len(tokens), generator=generator) for _ in range(-(-period // len(tokens)))]
    )
    sequence = tokens[order[:period]].long()
    return torch.cat([torch.tensor(list(prefix), dtype=torch.int64), sequence, sequence]).unsqueeze(0)


def _diagonal(layer: Layer, back: int) -> Tensor:
    """Σ of the weights on the key `back` positions before the query, `[B, Hq]`."""
    # Entry r sums i − j = r − (M − 1), and query i stands at key i + M − N.
    entry = back + layer.n_queries - 1
    sums = layer.weights.diagonals()
    return sums[..., entry] if entry < sums.shape[-1] else sums.new_zeros(sums.shape[:-1])
