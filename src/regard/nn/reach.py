"""How far back a mask can see: what a cache has to keep for it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from regard.masks import Mask
from regard.masks.base import And, Or
from regard.masks.several import PerBatch, PerHead
from regard.masks.structured import Band, Sinks, SlidingWindow, Streaming


@dataclass(frozen=True)
class Reach:
    """A query at p attends no key but the first `sinks`, and those from p − window + 1 on."""

    sinks: int
    window: int

    def joined(self, other: Reach) -> Reach:
        """The reach of a mask that allows what either allows."""
        return Reach(max(self.sinks, other.sinks), max(self.window, other.window))


def reach_of(mask: Mask | None) -> Reach | None:
    """The reach of a mask, or None where it follows from no number in it that it has one."""
    match mask:
        case SlidingWindow(size=size):
            return Reach(0, _largest(size))
        case Streaming(sinks=sinks, window=window):
            return Reach(_largest(sinks), _largest(window))
        case Band(before=before) if before is not None:
            return Reach(0, max(0, _largest(before) + 1))
        case Sinks(count=count):
            return Reach(_largest(count), 0)
        case And(left=left, right=right):
            known = [reach for reach in (reach_of(left), reach_of(right)) if reach is not None]
            return min(known, key=lambda reach: reach.sinks + reach.window, default=None)
        case Or(left=left, right=right):
            return _all([left, right])
        case PerBatch(masks=parts) | PerHead(masks=parts):
            return _all(list(parts))
    return None


def _all(masks: list[Mask]) -> Reach | None:
    reaches = [reach_of(mask) for mask in masks]
    joined = Reach(0, 0)
    for reach in reaches:
        if reach is None:
            return None
        joined = joined.joined(reach)
    return joined


def _largest(value: int | Tensor) -> int:
    return int(value.max()) if isinstance(value, Tensor) else value
