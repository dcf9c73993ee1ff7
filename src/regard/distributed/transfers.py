"""The two ways to bring keys and values to queries: all at once, or one shard after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from regard.distributed.groups import Messages
from regard.distributed.plan import Part, Plan, add, collect, fetch, give_back, pack, room, unpack

METHODS = ("auto", "gather", "ring")

# Keys and values of a whole sequence up to this many bytes are gathered on each rank by `auto`.
GATHER_BYTES = 2**28


@dataclass(frozen=True, eq=False)
class Arrival:
    """Keys and values that are here: runs of columns, `[B, Hkv, C, E]` and `[B, Hkv, C, Ev]` each."""

    owner: int
    segments: list[tuple[Part, Tensor, Tensor]]


class Transfer(Protocol):
    """Keys and values arriving, and their gradients going back, once each."""

    at_once: bool
    """Whether a single arrival holds all keys as one segment."""

    def arrivals(self) -> Iterator[Arrival]:
        """What this rank needs, its own first; the next is on its way while one is worked on."""

    def give_back(self, arrival: Arrival, gradients: Sequence[Sequence[Tensor]]) -> None:
        """Hand over the gradients of an arrival: of each segment, those of its key and its value."""

    def finish(self) -> list[Tensor]:
        """The gradients of this rank's own key and value, summed over all ranks."""


class Gather:
    """Everything at once: one problem over all keys, in the bits of one process."""

    at_once = True

    def __init__(self, plan: Plan, key: Tensor, value: Tensor) -> None:
        self._plan, self._tensors = plan, (key, value)

    def arrivals(self) -> Iterator[Arrival]:
        key, value = collect(self._plan, self._tensors)
        everything = slice(0, self._plan.keys.total)
        yield Arrival(self._plan.group.rank, [(Part(everything, everything), key, value)])

    def give_back(self, arrival: Arrival, gradients: Sequence[Sequence[Tensor]]) -> None:
        self._gradients = gradients[0]

    def finish(self) -> list[Tensor]:
        return give_back(self._plan, self._gradients)


class Ring:
    """One shard after the other: in step s from the rank s places before, straight to who needs it.

    Memory holds three shards at most: the own one, the one worked on and the one on its way.
    """

    at_once = False

    def __init__(self, plan: Plan, key: Tensor, value: Tensor) -> None:
        self._plan, self._tensors = plan, (key, value)
        self._returning: tuple[int, Messages] | None = None
        self._sums: list[Tensor] = []

    def arrivals(self) -> Iterator[Arrival]:
        coming = self._fetch(1)
        own = [(part, *(t[:, :, part.in_shard] for t in self._tensors)) for part in self._plan.own()]
        yield Arrival(self._plan.group.rank, own)  # type: ignore[arg-type]
        for step in range(1, self._plan.group.size):
            later = self._fetch(step + 1)
            owner = self._before(step)
            message = coming.wait().get(owner)
            parts = self._plan.parts(self._plan.group.rank, owner)
            held = [] if message is None else list(unpack(message, self._tensors, parts))
            yield Arrival(owner, [(part, key, value) for part, (key, value) in held])
            coming = later

    def give_back(self, arrival: Arrival, gradients: Sequence[Sequence[Tensor]]) -> None:
        plan = self._plan
        if arrival.owner == plan.group.rank:
            self._sums = [
                torch.zeros(t.shape, dtype=g.dtype, device=t.device)
                for t, g in zip(self._tensors, gradients[0], strict=True)
            ]
            for (part, *_), pieces in zip(arrival.segments, gradients, strict=True):
                add(self._sums, part, pieces)
            return
        self._take_returned()
        step = (plan.group.rank - arrival.owner) % plan.group.size
        reader = (plan.group.rank + step) % plan.group.size
        each = list(zip(*gradients, strict=True))
        sends = {arrival.owner: _flat(each)} if each else {}
        asked = plan.parts(reader, plan.group.rank)
        receives = {reader: room(self._sums, asked)} if asked else {}
        self._returning = reader, plan.group.post(sends, receives)

    def finish(self) -> list[Tensor]:
        self._take_returned()
        return self._sums

    def _take_returned(self) -> None:
        if self._returning is None:
            return
        reader, messages = self._returning
        message = messages.wait().get(reader)
        if message is not None:
            parts = self._plan.parts(reader, self._plan.group.rank)
            for part, pieces in unpack(message, self._sums, parts):
                add(self._sums, part, pieces)
        self._returning = None

    def _fetch(self, step: int) -> Messages:
        if step >= self._plan.group.size:
            return fetch(self._plan, self._tensors, [], [])
        return fetch(self._plan, self._tensors, [self._after(step)], [self._before(step)])

    def _before(self, step: int) -> int:
        return (self._plan.group.rank - step) % self._plan.group.size

    def _after(self, step: int) -> int:
        return (self._plan.group.rank + step) % self._plan.group.size


def _flat(each: Sequence[Sequence[Tensor]]) -> Tensor:
    """For each tensor, its pieces after one another: the order in which `unpack` reads."""
    return torch.cat([pack([piece], [slice(None)]) for pieces in each for piece in pieces])
