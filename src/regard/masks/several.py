"""One mask for each batch item, or for each head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard import intervals
from regard.errors import ArgumentError, ArgumentTypeError
from regard.masks.base import Mask
from regard.masks.compiled import Frame, KeySets


@dataclass(frozen=True, eq=False, repr=False)
class PerBatch(Mask):
    """See `per_batch`."""

    masks: tuple[Mask, ...]
    name = "per_batch"

    def compile(self, frame: Frame) -> KeySets:
        frames = frame.items(len(self.masks))
        parts = [mask.compile(item) for mask, item in zip(self.masks, frames, strict=True)]
        return _stack(parts, 0, self.masks)

    def __repr__(self) -> str:
        return f"per_batch({list(self.masks)!r})"


@dataclass(frozen=True, eq=False, repr=False)
class PerHead(Mask):
    """See `per_head`."""

    masks: tuple[Mask, ...]
    name = "per_head"

    def compile(self, frame: Frame) -> KeySets:
        return _stack([mask.compile(frame) for mask in self.masks], 1, self.masks)

    def __repr__(self) -> str:
        return f"per_head({list(self.masks)!r})"


def _stack(parts: list[KeySets], dim: int, masks: tuple[Mask, ...]) -> KeySets:
    axis = ("batch", "head")[dim]
    for part, mask in zip(parts, masks, strict=True):
        if (part.batch_size, part.num_heads)[dim] != 1:
            raise ArgumentError(f"`per_{axis}` takes masks of one {axis} each, got {mask!r}")
    others = {(part.num_heads, part.batch_size)[dim] for part in parts} - {1}
    if len(others) > 1:
        raise ArgumentError(
            f"`per_{axis}` takes masks for one number of {('heads', 'batch items')[dim]}, "
            f"got {sorted(others)}"
        )
    if all(part.dense is None for part in parts):
        return KeySets(intervals.stack([part.intervals for part in parts], dim))
    bits = [part.to_dense() for part in parts]
    shape = list(torch.broadcast_shapes(*(b.shape for b in bits)))
    shape[dim] = 1
    return KeySets.from_dense(torch.cat([b.expand(shape) for b in bits], dim))


def _checked(masks: Sequence[Mask], name: str) -> tuple[Mask, ...]:
    if not isinstance(masks, Sequence):
        raise ArgumentTypeError(f"`{name}` takes a list of masks, got a {type(masks).__name__}")
    for mask in masks:
        if not isinstance(mask, Mask):
            raise ArgumentTypeError(f"`{name}` takes a list of masks, got a {type(mask).__name__} in it")
    if not masks:
        raise ArgumentError(f"`{name}` takes at least one mask, got an empty list")
    return tuple(masks)


def per_batch(masks: Sequence[Mask]) -> Mask:
    """A mask for each batch item, in order."""
    return PerBatch(_checked(masks, "per_batch"))


def per_head(masks: Sequence[Mask]) -> Mask:
    """A mask for each query head, in order.

    >>> masks.per_head([masks.causal(), masks.sliding_window(64)])
    per_head([causal(), sliding_window(size=64)])
    """
    return PerHead(_checked(masks, "per_head"))
