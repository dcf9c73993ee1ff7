"""The processes that share a sequence, and messages between them that say whom they fail at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from regard.distributed.losses import Board, board_of
from regard.distributed.waiting import UnansweredError, Works, finish
from regard.errors import ArgumentError, ArgumentTypeError, GroupError

ProcessGroups = dist.ProcessGroup | DeviceMesh | None

# Apart from what the program itself sends; and one that nobody sends with. On several interfaces gloo has a
# context for each, and takes the one that the tag's remainder numbers: the two differ by what 1 to 16 divide.
_TAG = 0x7265
_NEVER_SENT = _TAG + 720_720
_LONGEST_CAUSE = 500

# Where the ranks of a group have met: see `Group.connect`.
_CONNECTED: WeakKeyDictionary[dist.ProcessGroup, set[torch.device]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Group:
    """A process group as one of its members sees it: the device types that messages travel between, and
    whether those of a CPU go by gloo."""

    process_group: dist.ProcessGroup
    rank: int
    size: int
    devices: frozenset[str]
    by_gloo: bool
    board: Board

    @property
    def others(self) -> list[int]:
        """Every rank but this one."""
        return [rank for rank in range(self.size) if rank != self.rank]

    def device_for(self, tensor: Tensor) -> torch.device:
        """Where a message made of a tensor has to be: where it is, if it can travel from there."""
        if tensor.device.type in self.devices:
            return tensor.device
        return (
            torch.device("cpu")
            if "cpu" in self.devices
            else torch.device("cuda", torch.cuda.current_device())
        )

    def connect(self, tensor: Tensor) -> None:
        """Have all ranks meet once where such tensors travel: NCCL must not begin with messages of a few."""
        device = self.device_for(tensor)
        met = _CONNECTED.setdefault(self.process_group, set())
        if device.type != "cpu" and device not in met:
            dist.all_reduce(torch.zeros(1, device=device), group=self.process_group)
            met.add(device)

    def post(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Messages:
        """Begin to send and to receive, one message a rank each way; both sides must expect the same sizes.

        `receives` are flat tensors to be filled. Nothing in either may be touched before `Messages.wait`.
        """
        out = {rank: tensor.contiguous().to(self.device_for(tensor)) for rank, tensor in sends.items()}
        into = {
            rank: tensor
            if (device := self.device_for(tensor)) == tensor.device
            else torch.empty_like(tensor, device=device)
            for rank, tensor in receives.items()
        }
        posted: list[tuple[Any, int, Tensor]] = [(dist.isend, rank, tensor) for rank, tensor in out.items()]
        posted += [(dist.irecv, rank, tensor) for rank, tensor in into.items()]
        # On GPUs messages of both ways have to begin as one, or two ranks may wait for one another; on CPUs
        # they begin one by one, so that the one that cannot is known.
        on_gpu = any(tensor.device.type != "cpu" for _, _, tensor in posted)
        works: list[tuple[list[int], dist.Work]] = []
        for some in [posted] if on_gpu else [[one] for one in posted]:
            ranks = [rank for _, rank, _ in some]
            try:
                begun = dist.batch_isend_irecv(
                    [
                        dist.P2POp(operation, tensor, group=self.process_group, tag=_TAG, group_peer=rank)
                        for operation, rank, tensor in some
                    ]
                )
            except ValueError as error:  # torch does not know the group
                raise GroupError("this group was destroyed: make its shards anew in another one") from error
            except RuntimeError as error:
                raise self.lost(ranks, error) from error
            works += [(ranks, work) for work in begun]
        return Messages(self, works, dict(receives), into, out, on_gpu)

    def wait(self, works: Works, on_gpu: bool) -> None:
        """Wait for works that ranks depend on; `GroupError` naming the rank at fault if one does not come."""
        try:
            if on_gpu:  # what waits is the stream of the thread that says so, and not the thread
                for ranks, work in works:
                    with _unanswered(ranks):
                        work.wait()
            else:
                finish(works, self._news, self._close)
        except UnansweredError as unanswered:
            error = unanswered.__cause__
            assert isinstance(error, Exception)
            raise self.lost(unanswered.ranks, error) from error
        self.board.waits_for([])

    def lost(self, ranks: list[int], error: Exception) -> GroupError:
        """The error to raise when ranks did not answer: what is the matter, as the first to notice has it."""
        return GroupError(self.board.let_down(ranks, _cause(error)))

    @contextmanager
    def together(self, act: str) -> Iterator[None]:
        """What all ranks are in the middle of: one that leaves it by an error tells those that wait."""
        try:
            yield
        except BaseException as error:
            if self.board.lost is None:
                what = f"{type(error).__name__}: {error}".rstrip(": ")
                self.board.lose(f"rank {self.rank} left {act}: {what[:_LONGEST_CAUSE]}")
            # Also where another rank is at fault: others may be waiting for this one.
            self._close()
            raise

    def _close(self) -> None:
        """End all that is under way, here and on the other ranks: what gloo does after a wait too long."""
        with suppress(RuntimeError, ValueError):  # the group may have been destroyed
            if self.devices - {"cpu"}:
                self.process_group.abort()
            # One such wait ends all, if it is for a rank that is still there.
            for rank in self.others if self.by_gloo else []:
                with suppress(RuntimeError):
                    never = dist.irecv(
                        torch.empty(1), group=self.process_group, tag=_NEVER_SENT, group_src=rank
                    )
                    assert never is not None
                    never.wait(timeout=timedelta(milliseconds=1))

    def _news(self, ranks: list[int]) -> None:
        """What a rank does now and then while it waits for others."""
        self.board.waits_for(ranks)
        if sentence := self.board.look():
            raise GroupError(sentence)


@contextmanager
def _unanswered(ranks: list[int]) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise UnansweredError(ranks) from error


@dataclass(frozen=True, eq=False)
class Messages:
    """What is under way. It holds on to the buffers, which the backend reads and writes meanwhile."""

    group: Group
    works: Works
    receives: dict[int, Tensor]
    into: dict[int, Tensor]
    out: dict[int, Tensor]
    on_gpu: bool

    def wait(self) -> dict[int, Tensor]:
        """What arrived, by rank; `GroupError` naming the rank if one died or the group's timeout passed."""
        self.group.wait(self.works, self.on_gpu)
        return {
            rank: self.into[rank]
            if self.into[rank].device == wanted.device
            else wanted.copy_(self.into[rank])
            for rank, wanted in self.receives.items()
        }


def resolve(group: ProcessGroups) -> Group:
    """The group that a caller means: a process group, one dimension of a `DeviceMesh`, or None for all."""
    if not dist.is_available() or not dist.is_initialized():
        raise ArgumentError(
            "`group` must be a process group, and torch.distributed is not initialised: call "
            "torch.distributed.init_process_group first, in a program that torchrun starts"
        )
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ArgumentError(
                "`group` as a DeviceMesh must have one dimension, as in mesh['sequence'], got the dimensions "
                f"{group.mesh_dim_names or group.ndim}"
            )
        group = group.get_group()
    chosen: Any = dist.group.WORLD if group is None else group
    if chosen == dist.GroupMember.NON_GROUP_MEMBER:
        raise ArgumentError("`group` must be one that this process belongs to")
    if not isinstance(chosen, dist.ProcessGroup):
        raise ArgumentTypeError(
            f"`group` must be a process group or a DeviceMesh, got a {type(group).__name__}"
        )
    rank = dist.get_rank(chosen)
    if rank < 0:
        raise ArgumentError("`group` must be one that this process belongs to")
    board = board_of(chosen)
    if board.lost is not None:
        raise GroupError(f"`group` is lost ({board.lost}): make a new one, as with dist.new_group(ranks)")
    return Group(chosen, rank, dist.get_world_size(chosen), *_ways(chosen), board)


def _ways(group: dist.ProcessGroup) -> tuple[frozenset[str], bool]:
    """The device types that messages travel between, gloo's from a CPU only; whether a CPU's go by gloo."""
    by = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
    devices = frozenset(device for device, backend in by.items() if device == "cpu" or backend != "gloo")
    return devices, by.get("cpu") == "gloo"


def _cause(error: Exception) -> str:
    """The backend's first sentence, without the place in its sources."""
    said = str(error).strip().split("\n")[0]
    said = said.partition("] ")[2] if said.startswith("[") else said
    return said.partition(". ")[0]
