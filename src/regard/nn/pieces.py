"""Attention of new positions over keys that lie in one or two pieces, each a run of positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard import listening
from regard.attention import attention, merge
from regard.errors import ArgumentError
from regard.masks import Mask, padding
from regard.masks.dense import Dense
from regard.masks.structured import Padding
from regard.nn.checks import both


@dataclass(frozen=True, eq=False)
class Piece:
    """Keys `[B, Hkv, M, E]` and values at positions `first` to `first + M − 1`, void from `ends` on.

    `first` and `ends` hold a number for each batch item.
    """

    key: Tensor
    value: Tensor
    first: list[int]
    ends: list[int]

    def attend(self, query: Tensor, mask: Mask | None, starts: Sequence[int], **options: Any) -> Any:
        """`regard.attention` of queries at `starts`, in their dtype, over the positions that are not void."""
        n_keys = self.key.shape[2]
        if any(first + n_keys > end for first, end in zip(self.first, self.ends, strict=True)):
            mask = both(mask, padding(torch.tensor(self.ends)))
        key, value = self.key.to(query.dtype), self.value.to(query.dtype)
        options |= {"query_start": one_or_each(starts), "key_start": one_or_each(self.first)}
        return attention(query, key, value, mask, **options)


def attend_pieces(
    pieces: Sequence[Piece], query: Tensor, mask: Mask | None, starts: Sequence[int], **options: Any
) -> Tensor:
    """The output of attention over all of the pieces; a sink joins once."""
    sink_logits = options.pop("sink_logits", None)
    parts = []
    listening.tell("its cache holds sinks apart from the last positions: decode with a cache that is no ring")
    with listening.silently():
        for piece in pieces:
            output, weights = piece.attend(query, mask, starts, return_weights=True, **options)
            parts.append((output, weights.logsumexp))
    return merge(parts, sink_logits=sink_logits)[0]


def refuse_missing(
    mask: Mask | None, first_gone: int, ends_gone: Sequence[int], starts: Sequence[int], n_queries: int
) -> None:
    """Raise if a query at `starts` may attend one of its item's positions `first_gone` to `ends_gone`."""
    n_gone = max(ends_gone, default=0) - first_gone
    if n_gone <= 0:
        return
    exists = padding(torch.tensor(ends_gone))
    wanted = exists if mask is None else mask & exists
    intervals = wanted.intervals(n_queries, n_gone, one_or_each(starts), first_gone)
    if bool(intervals.counts().any()):
        raise ArgumentError(
            f"`mask` must leave out what the ring has let go of, positions {first_gone} to "
            f"{max(ends_gone) - 1}, got {mask!r}: give the cache more capacity, or make it no ring"
        )


def refuse_columns(mask: Mask) -> None:
    """Raise for a mask that speaks of a call's columns: on a ring those are not the positions."""
    if isinstance(mask, Dense) or (isinstance(mask, Padding) and mask.side == "left"):
        raise ArgumentError(
            "`mask` must speak of positions where the cache is a ring, and a dense mask or left padding "
            f"speaks of columns, got {mask!r}"
        )
    for part in mask.parts():
        refuse_columns(part)


def one_or_each(numbers: Sequence[int]) -> int | Tensor:
    """An int where all items agree, which lets an engine take them together; an int64 `[B]` otherwise."""
    if len(set(numbers)) > 1:
        return torch.tensor(numbers, dtype=torch.int64)
    return numbers[0] if numbers else 0
