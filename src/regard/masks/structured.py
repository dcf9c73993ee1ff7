"""The masks that speak of positions: every one is one or two intervals of keys a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.masks.base import Mask
from regard.masks.checks import Integers, integer_or_per_head, integers, over_batch, over_heads
from regard.masks.compiled import Frame, KeySets
from regard.masks.runs import Run


@dataclass(frozen=True, eq=False, repr=False)
class Causal(Mask):
    """See `causal`."""

    name = "causal"

    run = Run(after=0)

    def compile(self, frame: Frame) -> KeySets:
        return KeySets(frame.run(self.run))


@dataclass(frozen=True, eq=False, repr=False)
class SlidingWindow(Mask):
    """See `sliding_window`."""

    size: int | Tensor
    name = "sliding_window"

    @cached_property
    def run(self) -> Run | None:
        return Run(self.size - 1, 0) if isinstance(self.size, int) else None

    def compile(self, frame: Frame) -> KeySets:
        if (run := self.run) is not None:
            return KeySets(frame.run(run))
        after = frame.query_positions + 1
        return KeySets(frame.intervals(after - over_heads(self.size, frame.device), after))

    def telling_size(self) -> int:
        return max(12, 2 * _largest(self.size))


@dataclass(frozen=True, eq=False, repr=False)
class Band(Mask):
    """See `band`."""

    before: int | Tensor | None
    after: int | Tensor | None
    name = "band"

    @cached_property
    def run(self) -> Run | None:
        if isinstance(self.before, Tensor) or isinstance(self.after, Tensor):
            return None
        return Run(self.before, self.after)

    def compile(self, frame: Frame) -> KeySets:
        if (run := self.run) is not None:
            return KeySets(frame.run(run))
        position, first = frame.query_positions, frame.first_key
        starts = first if self.before is None else position - over_heads(self.before, frame.device)
        ends = (
            first + frame.n_keys
            if self.after is None
            else position + over_heads(self.after, frame.device) + 1
        )
        return KeySets(frame.intervals(starts, ends))

    def __repr__(self) -> str:
        shown = (side.tolist() if isinstance(side, Tensor) else side for side in (self.before, self.after))
        return "band(before={!r}, after={!r})".format(*shown)


@dataclass(frozen=True, eq=False, repr=False)
class Padding(Mask):
    """See `padding`."""

    lengths: Tensor
    side: Literal["left", "right"]
    name = "padding"

    def compile(self, frame: Frame) -> KeySets:
        lengths = over_batch(self.lengths, frame.device)
        if self.side == "right":
            return KeySets(frame.intervals(frame.first_key, lengths))
        end = frame.first_key + frame.n_keys
        return KeySets(frame.intervals(end - lengths, end))

    def telling_size(self) -> int:
        return max(4, _largest(self.lengths))


@dataclass(frozen=True, eq=False, repr=False)
class Prefix(Mask):
    """See `prefix`."""

    lengths: Tensor
    name = "prefix"

    def compile(self, frame: Frame) -> KeySets:
        ends = torch.maximum(over_batch(self.lengths, frame.device), frame.query_positions + 1)
        return KeySets(frame.intervals(frame.first_key, ends))

    def telling_size(self) -> int:
        return max(12, 2 * _largest(self.lengths))


@dataclass(frozen=True, eq=False, repr=False)
class Sinks(Mask):
    """See `sinks`."""

    count: int | Tensor
    name = "sinks"

    def compile(self, frame: Frame) -> KeySets:
        return KeySets(frame.intervals(frame.first_key, over_heads(self.count, frame.device)))


@dataclass(frozen=True, eq=False, repr=False)
class Streaming(Mask):
    """See `streaming`."""

    sinks: int | Tensor
    window: int | Tensor
    name = "streaming"

    def compile(self, frame: Frame) -> KeySets:
        window = SlidingWindow(self.window).compile(frame)
        return window | (Sinks(self.sinks).compile(frame) & Causal().compile(frame))

    def telling_size(self) -> int:
        return max(12, 2 * (_largest(self.window) + _largest(self.sinks)))


def _largest(value: int | Tensor) -> int:
    return value if isinstance(value, int) else int(value.max()) if value.numel() else 0


def causal() -> Mask:
    """A query attends its own position and those before: j ≤ p."""
    return Causal()


def sliding_window(size: int | Sequence[int] | Tensor) -> Mask:
    """A query attends itself and the `size − 1` positions before it: p − size < j ≤ p.

    `size` is an int ≥ 1, or integers `[Hq]`, one for each head. Size 3 lets the rows see 1, 2, 3, 3, 3, …
    keys.
    """
    return SlidingWindow(integer_or_per_head(size, "size", least=1))


def band(before: int | Sequence[int] | Tensor | None, after: int | Sequence[int] | Tensor | None) -> Mask:
    """A query attends `before` positions before it to `after` positions after it: p − before ≤ j ≤ p + after.

    Each is an int, or integers `[Hq]`; None leaves that side open, and a negative number moves the edge to
    the other side of the query.
    """
    return Band(
        None if before is None else integer_or_per_head(before, "before"),
        None if after is None else integer_or_per_head(after, "after"),
    )


def padding(lengths: Integers, side: Literal["left", "right"] = "right") -> Mask:
    """Every query attends the real keys of its batch item only.

    `lengths` (integers `[B]`, or one for all) counts the real keys: with side `"right"` those at positions
    j < lengths[b], with side `"left"` the last `lengths[b]` keys of the call.
    """
    if side not in ("left", "right"):
        raise ArgumentError(f"`side` must be 'left' or 'right', got {side!r}")
    return Padding(integers(lengths, "lengths", ranks=(1,), least=0), side)


def prefix(lengths: Integers) -> Mask:
    """Prefix language modelling: a prefix seen by all, the rest causal: j < lengths[b] or j ≤ p.

    `lengths` is integers `[B]`, or one for all.
    """
    return Prefix(integers(lengths, "lengths", ranks=(1,), least=0))


def sinks(count: int | Sequence[int] | Tensor) -> Mask:
    """Every query attends the first `count` positions: j < count. An int ≥ 0, or integers `[Hq]`."""
    return Sinks(integer_or_per_head(count, "count", least=0))


def streaming(sinks: int | Sequence[int] | Tensor, window: int | Sequence[int] | Tensor) -> Mask:
    """Attention sinks and a sliding window, causal: (j < sinks or p − window < j) and j ≤ p.

    Each is an int, or integers `[Hq]`. Xiao et al. 2023, "Efficient streaming language models with
    attention sinks".
    """
    return Streaming(
        integer_or_per_head(sinks, "sinks", least=0), integer_or_per_head(window, "window", least=1)
    )
