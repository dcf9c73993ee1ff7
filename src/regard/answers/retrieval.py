"""Retrieval heads: those that look at a token of a long text when the model copies it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.answers.layers import Source, layers_of
from regard.answers.scores import HeadScores
from regard.errors import ArgumentError
from regard.indexing import members


def retrieval(
    source: Source,
    ids: Sequence[int] | Tensor,
    needle: slice | Sequence[int] | Tensor,
    answer: slice,
    *,
    steps: range | None = None,
) -> HeadScores:
    """The retrieval score: the share of a needle's tokens that a head looks at while they are copied.

    A head copies the needle's token at j if, where token t of the answer is predicted (the row of the token
    before it), its top key is j and ids[j] = ids[t]. The score is |copied tokens of the needle| / |needle|
    (Wu et al. 2024, "Retrieval head mechanistically explains long-context factuality", equation 1). The
    answer may have been generated, or given to the model as text.

    Args:
        source: a recording, calls of one, or `AttentionWeights`, each `[B, Hq, N, M]`.
        ids: the tokens, prompt and answer, integers `[T]` or `[B, T]`, T ≥ M: the last token of a generation
            is never a key.
        needle: where the needle stands among the T tokens: a slice, indices or bools.
        answer: where the answer stands, after the needle.
        steps: the steps of one generation, where the recording holds more than one.

    Raises:
        ArgumentError: an empty needle or answer, or an answer whose rows were not recorded.
    """
    tokens = torch.atleast_2d(torch.as_tensor(ids)).long()
    length = tokens.shape[-1]
    in_needle = members(needle, length, "needle")
    answered = torch.arange(length)[answer]
    if not bool(in_needle.any()) or not len(answered):
        raise ArgumentError(
            f"`needle` and `answer` must each hold a token of the {length} in `ids`, got {needle!r} and "
            f"{answer!r}"
        )
    layers = layers_of(source, steps)
    scores = []
    for layer in layers:
        rows = answered - 1 - layer.offset
        if layer.n_keys > length or int(rows.min()) < 0 or int(rows.max()) >= layer.n_queries:
            raise ArgumentError(
                f"`ids` and `answer` must fit the {layer.n_queries} queries and {layer.n_keys} keys of "
                f"`{layer.name}`: each token of the answer has its row one token before, got {length} ids "
                f"and the answer {answer!r}"
            )
        top = layer.weights.top_keys(1)[1][..., rows, 0].cpu()
        batch, heads, _ = top.shape
        if tokens.shape[0] not in (1, batch):
            raise ArgumentError(f"`ids` must be for {batch} batch items, got {tokens.shape[0]}")
        of_item = tokens.expand(batch, -1)
        looked_at = top.clamp(min=0)
        same = of_item.gather(1, looked_at.flatten(1)).view_as(top) == of_item[:, None, answered]
        copies = same & in_needle[looked_at] & (top >= 0)
        copied = torch.zeros(batch, heads, length, dtype=torch.bool)
        item, head, at = copies.nonzero(as_tuple=True)
        copied[item, head, looked_at[item, head, at]] = True
        scores.append(copied.sum(-1).float() / in_needle.sum())
    return HeadScores(tuple(layer.name for layer in layers), tuple(scores))
