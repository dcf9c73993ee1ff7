"""The calls that one view can show together: each with weights, all of one shape, over the same tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.recording import Call
from regard.weights import AttentionWeights


@dataclass(frozen=True, eq=False)
class Seen:
    """One call to show: `heads` maps of `n_queries` x `n_keys`; and its values `[B, Hkv, M, Ev]`, if kept."""

    module: str
    ordinal: int
    weights: AttentionWeights
    heads: int
    n_queries: int
    n_keys: int
    values: Tensor | None

    @property
    def value_heads(self) -> int:
        """How many heads the values have; 0 where they were not kept."""
        return 0 if self.values is None else self.values.shape[1]


def edges(length: int, bins: int) -> Tensor:
    """Where the bins over a row of queries or keys begin, and where the last ends, `[bins + 1]`."""
    return torch.arange(bins + 1) * length // bins


def require_alike(recording: Iterable[Call], tokens: Sequence[str]) -> list[Seen]:
    """The calls, or an `ArgumentError` that names the first which does not fit."""
    calls = [_seen(call, place, len(tokens)) for place, call in enumerate(recording)]
    if not calls:
        raise ArgumentError("`recording` must hold at least one attention call, got none")
    first = calls[0]
    for place, call in enumerate(calls):
        if call.n_queries != first.n_queries:
            raise ArgumentError(
                f"`recording` must hold calls of {first.n_queries} queries, like its first, got "
                f"{call.n_queries} queries at call {place} ({call.module}): choose the calls of one step"
            )
    return calls


def _seen(call: Call, place: int, n_tokens: int) -> Seen:
    name = f"call {place} ({call.module})"
    if call.weights is None:
        raise ArgumentError(f"`recording` must have kept its weights, got statistics alone at {name}")
    shape = tuple(call.weights.shape)
    if len(shape) != 4 or 0 in shape:
        raise ArgumentError(
            f"the weights of {name} must have shape (batch, heads, queries, keys) without 0, got {shape}"
        )
    _, heads, n_queries, n_keys = shape
    if call.heads not in (None, tuple(range(heads))):
        raise ArgumentError(f"`recording` must hold the heads 0, 1, … of {name}, got {call.heads}")
    if n_keys != n_tokens or n_queries > n_tokens or call.skipped_rows[1]:
        raise ArgumentError(
            f"`tokens` must name the {n_keys} keys of {name}, of which the {n_queries} queries are the last, "
            f"got {n_tokens} tokens"
        )
    return Seen(call.module, call.ordinal, call.weights, heads, n_queries, n_keys, call.values)
