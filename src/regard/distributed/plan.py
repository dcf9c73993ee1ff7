"""Which keys each rank needs from which other, and messages made of just those."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from regard.distributed.groups import Group, Messages
from regard.distributed.placement import Placement


@dataclass(frozen=True)
class Part:
    """Some keys: where they stand in the sequence, and where in their owner's shard."""

    columns: slice
    in_shard: slice

    @property
    def length(self) -> int:
        """How many keys."""
        return int(self.columns.stop - self.columns.start)


@dataclass(frozen=True, eq=False)
class Plan:
    """`needs[r][i]` are the keys that rank r needs of run i, as (first, last) in the sequence."""

    group: Group
    keys: Placement
    needs: Sequence[Sequence[tuple[int, int]]]

    def parts(self, reader: int, owner: int) -> list[Part]:
        """What `reader` needs of what `owner` holds: nothing that the reader's mask excludes."""
        found = []
        for run, (first, last) in zip(self.keys.runs, self.needs[reader], strict=True):
            if run.rank == owner and last > first:
                there = slice(run.local + first - run.start, run.local + last - run.start)
                found.append(Part(slice(first, last), there))
        return found

    def own(self) -> list[Part]:
        """Everything this rank holds, needed or not."""
        return [Part(run.in_sequence, run.in_shard) for run in self.keys.of_rank(self.group.rank)]

    def gaps(self) -> list[slice]:
        """The columns between those that this rank holds or needs."""
        me = self.group.rank
        held = self.own() + [part for owner in self.group.others for part in self.parts(me, owner)]
        held.sort(key=lambda part: part.columns.start)
        starts = [0, *(part.columns.stop for part in held)]
        stops = [*(part.columns.start for part in held), self.keys.total]
        return [slice(*ends) for ends in zip(starts, stops, strict=True) if ends[0] < ends[1]]


def fetch(plan: Plan, tensors: Sequence[Tensor], readers: Sequence[int], owners: Sequence[int]) -> Messages:
    """Begin to send this rank's `[B, H, m, C]` tensors' rows to readers, and to receive owners' of these."""
    me = plan.group.rank
    sends, receives = {}, {}
    for reader in readers:
        if parts := plan.parts(reader, me):
            sends[reader] = pack(tensors, [part.in_shard for part in parts])
    for owner in owners:
        if parts := plan.parts(me, owner):
            receives[owner] = room(tensors, parts)
    return plan.group.post(sends, receives)


def collect(plan: Plan, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The whole sequence's `[B, H, M, C]` of every rank's `[B, H, m, C]`; 0 where nothing is needed here."""
    others = plan.group.others
    messages = fetch(plan, tensors, others, others)
    whole = [t.new_empty((*t.shape[:2], plan.keys.total, t.shape[3])) for t in tensors]
    for part in plan.own():
        for full, tensor in zip(whole, tensors, strict=True):
            full[:, :, part.columns] = tensor[:, :, part.in_shard]
    for gap in plan.gaps():
        for full in whole:
            full[:, :, gap] = 0
    for owner, message in messages.wait().items():
        for part, pieces in unpack(message, tensors, plan.parts(plan.group.rank, owner)):
            for full, piece in zip(whole, pieces, strict=True):
                full[:, :, part.columns] = piece
    return whole


def give_back(plan: Plan, whole: Sequence[Tensor]) -> list[Tensor]:
    """Each `[B, H, M, C]` summed over ranks, in rank order, as this rank's `[B, H, m, C]`."""
    me = plan.group.rank
    sends = {
        owner: pack(whole, [part.columns for part in parts])
        for owner in plan.group.others
        if (parts := plan.parts(me, owner))
    }
    receives = {
        reader: room(whole, parts) for reader in plan.group.others if (parts := plan.parts(reader, me))
    }
    arrived = plan.group.post(sends, receives).wait()
    length = plan.keys.length_of(me)
    local = [t.new_zeros((*t.shape[:2], length, t.shape[3])) for t in whole]
    for reader in range(plan.group.size):
        if reader == me:
            for part in plan.own():
                add(local, part, [full[:, :, part.columns] for full in whole])
        elif reader in arrived:
            for part, pieces in unpack(arrived[reader], whole, plan.parts(reader, me)):
                add(local, part, pieces)
    return local


def add(local: Sequence[Tensor], part: Part, pieces: Sequence[Tensor]) -> None:
    """Add pieces to the rows of a part."""
    for tensor, piece in zip(local, pieces, strict=True):
        tensor[:, :, part.in_shard] += piece


def pack(tensors: Sequence[Tensor], rows: Sequence[slice]) -> Tensor:
    """Some rows of several `[B, H, L, C]` tensors as one flat message, in a dtype that holds them exactly."""
    return torch.cat([tensor[:, :, some].reshape(-1) for tensor in tensors for some in rows])


def unpack(
    message: Tensor, like: Sequence[Tensor], parts: Sequence[Part]
) -> Iterator[tuple[Part, list[Tensor]]]:
    """The parts of a message, each with its rows of every tensor; all but the rows is as in `like`."""
    shapes = [(*t.shape[:2], part.length, t.shape[3]) for t in like for part in parts]
    pieces = message.split([torch.Size(shape).numel() for shape in shapes])
    dtypes = [t.dtype for t in like for _ in parts]
    shaped = [piece.view(shape).to(dtype) for piece, shape, dtype in zip(pieces, shapes, dtypes, strict=True)]
    for index, part in enumerate(parts):
        yield part, shaped[index :: len(parts)]


def room(tensors: Sequence[Tensor], parts: Sequence[Part]) -> Tensor:
    """An empty message for these parts of tensors shaped and typed alike."""
    rows = sum(part.length for part in parts)
    numbers = sum(t.shape[0] * t.shape[1] * t.shape[3] for t in tensors)
    dtype = reduce(torch.promote_types, (t.dtype for t in tensors))
    return torch.empty(rows * numbers, dtype=dtype, device=tensors[0].device)
