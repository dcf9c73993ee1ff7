"""A part of a call: some of its query heads and rows, with whatever else of it belongs to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from regard.biases import Bias, Dense, dense
from regard.intervals import Intervals
from regard.masks.base import Mask
from regard.masks.compiled import Frame, KeySets
from regard.models.observation import Observation
from regard.recording.rows import Rows


def part_of(seen: Observation, heads: Sequence[int] | None, rows: range) -> Observation:
    """Some query heads of a call (None: all), in this order, and rows that follow one another.

    Of the keys those of these heads are left: each once where the heads that share one stand together, in
    groups of one size, and else once for each head.
    """
    n_heads, n_queries, n_keys = *seen.query.shape[1:3], seen.key.shape[-2]
    some = slice(None) if heads is None else list(heads)
    key_heads = slice(None) if heads is None else _key_heads(heads, n_heads // seen.key.shape[1])
    taken = slice(rows.start, rows.stop)
    first = n_keys - n_queries if seen.query_start is None else seen.query_start
    return replace(
        seen,
        query=seen.query[:, some, taken],
        key=seen.key[:, key_heads],
        value=None if seen.value is None else seen.value[:, key_heads],
        mask=_mask(seen, some, taken),
        bias=_bias(seen.bias, some, taken, whole=len(rows) == n_queries),
        sink_logits=None if seen.sink_logits is None else seen.sink_logits[some],
        query_start=first + rows.start,
        normalizer=None
        if seen.normalizer is None
        else seen.normalizer.select(slice(None), some, taken).clone(),
    )


def _key_heads(heads: Sequence[int], group: int) -> list[int]:
    """The key heads to keep, so that query head i of those chosen has number i // (their share of each)."""
    owners = [head // group for head in heads]
    for size in range(len(owners), 1, -1):
        if len(owners) % size == 0 and all(
            len(set(owners[i : i + size])) == 1 for i in range(0, len(owners), size)
        ):
            return owners[::size]
    return owners


def _mask(seen: Observation, heads: slice | list[int], rows: slice) -> Mask | None:
    """The key sets of these heads and rows, on tensors of their own; the mask itself if it is all theirs."""
    if seen.mask is None:
        return None
    n_queries, n_keys = seen.query.shape[-2], seen.key.shape[-2]
    frame = Frame.of(n_queries, n_keys, seen.query_start, 0, seen.query.device, seen.query.shape[0])
    sets = seen.mask.compile(frame)
    if sets.num_heads == 1 and rows == slice(0, n_queries):
        return seen.mask
    part = sets.select(heads=heads, rows=rows)
    if part.affine is not None:
        return Rows(part)
    intervals = part.intervals
    own = Intervals(intervals.starts.clone(), intervals.ends.clone(), n_keys)
    return Rows(KeySets(own, None if part.dense is None else part.dense.clone()))


def _bias(bias: Tensor | Bias | None, heads: slice | list[int], rows: slice, whole: bool) -> Bias | None:
    bias = dense(bias) if isinstance(bias, Tensor) else bias
    if bias is None:
        return None
    bias = bias.select(slice(None), heads)
    if whole or not isinstance(bias, Dense):
        return bias
    return replace(bias, parameter=bias.parameter[:, :, rows].clone())
