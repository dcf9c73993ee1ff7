"""The processes that share a sequence, and messages between them that say whom they fail at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from regard.errors import ArgumentError, ArgumentTypeError, GroupError

ProcessGroups = dist.ProcessGroup | DeviceMesh | None


@dataclass(frozen=True, eq=False)
class Group:
    """A process group as one of its members sees it; `device` is where its backend takes messages."""

    process_group: dist.ProcessGroup
    rank: int
    size: int
    device: torch.device

    @property
    def others(self) -> list[int]:
        """Every rank but this one."""
        return [rank for rank in range(self.size) if rank != self.rank]

    def post(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Messages:
        """Begin to send and to receive, one message a rank each way; both sides must expect the same sizes.

        `receives` are flat tensors to be filled. Nothing in either may be touched before `Messages.wait`.
        """
        out = {rank: tensor.contiguous().to(self.device) for rank, tensor in sends.items()}
        into = {rank: torch.empty_like(tensor, device=self.device) for rank, tensor in receives.items()}
        posted: list[tuple[Callable[..., Any], int, Tensor]] = []
        posted += [(dist.isend, rank, tensor) for rank, tensor in out.items()]
        posted += [(dist.irecv, rank, tensor) for rank, tensor in into.items()]
        peers = [rank for _, rank, _ in posted]
        if not posted:
            return Messages(self, [], {}, {}, {})
        try:
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(
                        operation, tensor, dist.get_global_rank(self.process_group, rank), self.process_group
                    )
                    for operation, rank, tensor in posted
                ]
            )
        except RuntimeError as error:
            raise GroupError(f"rank {self.rank} could not reach {_ranks(peers)}: {_cause(error)}") from error
        # A backend that sends a batch as one piece gives one handle for all of it.
        whom = [[rank] for rank in peers] if len(works) == len(peers) else [peers] * len(works)
        return Messages(self, list(zip(whom, works, strict=True)), dict(receives), into, out)


@dataclass(frozen=True, eq=False)
class Messages:
    """What is under way. It holds on to the buffers, which the backend reads and writes meanwhile."""

    group: Group
    works: list[tuple[list[int], dist.Work]]
    receives: dict[int, Tensor]
    into: dict[int, Tensor]
    out: dict[int, Tensor]

    def wait(self) -> dict[int, Tensor]:
        """What arrived, by rank; `GroupError` naming the rank if one died or the group's timeout passed."""
        for ranks, work in self.works:
            _wait(ranks, work)
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
    on_gpu = "gloo" not in dist.get_backend(chosen) and torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    return Group(chosen, rank, dist.get_world_size(chosen), device)


def _wait(ranks: list[int], work: dist.Work) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise GroupError(f"{_ranks(ranks)} did not answer: {_cause(error)}") from error


def _ranks(ranks: list[int]) -> str:
    some = sorted(set(ranks))
    return f"rank {some[0]}" if len(some) == 1 else "one of the ranks " + ", ".join(map(str, some))


def _cause(error: RuntimeError) -> str:
    """The backend's first sentence, without the place in its sources."""
    said = str(error).strip().split("\n")[0]
    return said.partition("] ")[2] if said.startswith("[") else said
