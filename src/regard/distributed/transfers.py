"""The two ways to bring keys, and what belongs to them, to queries: all at once, or shard after shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    """What is here of one rank's keys: runs of columns, each with its `[B, H, C, D]` of every tensor."""

    owner: int
    segments: list[tuple[Part, list[Tensor]]]


class Transfer(Protocol):
    """Tensors of all ranks, `[B, H, m, D]` each, arriving, and sums for their keys going back, once each."""

    at_once: bool
    """Whether a single arrival holds all keys as one segment."""

    def arrivals(self) -> Iterator[Arrival]:
        """What this rank needs, its own first; the next is on its way while one is worked on.

        An arrival is to be used before the next is asked for, and nothing of it to be kept.
        """

    def give_back(self, arrival: Arrival, sums: Sequence[Sequence[Tensor]]) -> None:
        """Hand over what an arrival's keys are due: of each segment several `[B, H, C, D]` of one dtype."""

    def finish(self) -> list[Tensor]:
        """What this rank's own keys are due, each `[B, H, m, D]`, summed over all ranks."""


def each_segment(
    transfer: Transfer,
    work: Callable[[Part, list[Tensor], bool], Sequence[Tensor]],
    returning: bool = False,
) -> list[Tensor]:
    """Do some work on every segment of every arrival; what all ranks gave this one's keys, if `returning`.

    `work` gets a segment and whether it is the first of all, and gives what the segment's keys are due. It is
    a function, so that nothing of an arrival is held any more when the next one comes.
    """
    for number, arrival in enumerate(transfer.arrivals()):
        due = [
            work(part, tensors, number == index == 0)
            for index, (part, tensors) in enumerate(arrival.segments)
        ]
        if returning:
            transfer.give_back(arrival, due)
    return transfer.finish() if returning else []


class Gather:
    """Everything at once: one problem over all keys, in the bits of one process."""

    at_once = True

    def __init__(self, plan: Plan, tensors: Sequence[Tensor]) -> None:
        self._plan, self._tensors = plan, tensors

    def arrivals(self) -> Iterator[Arrival]:
        everything = slice(0, self._plan.keys.total)
        whole = collect(self._plan, self._tensors)
        yield Arrival(self._plan.group.rank, [(Part(everything, everything), whole)])

    def give_back(self, arrival: Arrival, sums: Sequence[Sequence[Tensor]]) -> None:
        self._sums = sums[0]

    def finish(self) -> list[Tensor]:
        return give_back(self._plan, self._sums)


class Ring:
    """One shard after the other: in step s from the rank s places before, straight to who needs it.

    Memory holds three shards at most: the own one, the one worked on and the one on its way.
    """

    at_once = False

    def __init__(self, plan: Plan, tensors: Sequence[Tensor]) -> None:
        self._plan, self._tensors = plan, tensors
        self._returning: tuple[int, Messages] | None = None
        self._sums: list[Tensor] = []

    def arrivals(self) -> Iterator[Arrival]:
        coming = [self._fetch(1)]
        own = [(part, [t[:, :, part.in_shard] for t in self._tensors]) for part in self._plan.own()]
        yield Arrival(self._plan.group.rank, own)
        for step in range(1, self._plan.group.size):
            owner = self._before(step)
            message = coming.pop().wait().get(owner)
            # Room for the next is made only now that the one before this is gone.
            coming.append(self._fetch(step + 1))
            parts = self._plan.parts(self._plan.group.rank, owner)
            segments = [] if message is None else list(unpack(message, self._tensors, parts))
            del message
            yield Arrival(owner, segments)
            segments.clear()  # whoever still holds the arrival holds no keys

    def give_back(self, arrival: Arrival, sums: Sequence[Sequence[Tensor]]) -> None:
        plan = self._plan
        if arrival.owner == plan.group.rank:
            length = plan.keys.length_of(plan.group.rank)
            self._sums = [t.new_zeros((*t.shape[:2], length, t.shape[3])) for t in sums[0]]
            for (part, _), pieces in zip(arrival.segments, sums, strict=True):
                add(self._sums, part, pieces)
            return
        self._take_returned()
        step = (plan.group.rank - arrival.owner) % plan.group.size
        reader = self._after(step)
        each = list(zip(*sums, strict=True))
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
