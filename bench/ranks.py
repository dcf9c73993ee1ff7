"""Processes of one thread each that hold shards of a workload, and work on them together when told to."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

import regard.distributed
from harness import Result
from patterns import BY_NAME
from peers import on_regard
from regard.distributed.groups import Group
from workload import Workload

TIMEOUT_S = 120


@dataclass(frozen=True)
class Order:
    """What all ranks do: a task of `TASKS` on a workload, cut and brought together in a certain way."""

    task: str
    pattern: str
    length: int
    sharding: str = "contiguous"
    method: str = "gather"

    @property
    def work(self) -> Workload:
        """The whole workload, of which each rank has a shard."""
        return Workload.random(BY_NAME[self.pattern], self.length, requires_grad=self.task == "gradients")


@dataclass(frozen=True)
class Cost:
    """What one rank spent on a task: processor seconds of all its threads, and bytes each way."""

    seconds: float
    sent: int
    received: int


class Ranks:
    """The processes, as the one that gives the orders sees them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("spawn")
        ends = [context.Pipe() for _ in range(size)]
        self._pipes = [mine for mine, _ in ends]
        meeting = os.path.join(self._folder.name, "meeting")
        self._processes = [
            context.Process(target=serve, args=(rank, size, meeting, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(ends)
        ]
        for process in self._processes:
            process.start()

    def work(self, order: Order) -> None:
        """Have all do it; returns when all have."""
        self._ask("work", order)

    def costs(self, order: Order) -> list[Cost]:
        """What each rank spends on it."""
        return self._ask("costs", order)

    def results(self, order: Order) -> Result:
        """What comes out, gathered."""
        return self._ask("results", order)[0]

    def _ask(self, how: str, order: Order) -> list[Any]:
        for pipe in self._pipes:
            pipe.send((how, order))
        answers = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(TIMEOUT_S):
                raise SystemExit(f"bench: rank {rank} of {self.size} does not answer")
            answers.append(pipe.recv())
        return answers

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
            process.join()
        self._folder.cleanup()


def serve(rank: int, size: int, meeting: str, orders: Connection) -> None:
    """What each process does: shards are cut once for each order, then worked on whenever it comes."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    sent, received = count_bytes()
    held, shard = None, None
    while True:
        how, order = orders.recv()
        if order != held:
            held, shard = order, Shard(order)
        assert shard is not None
        sent.clear()
        received.clear()
        start = time.process_time()
        found = TASKS[order.task](shard)
        spent = time.process_time() - start
        if how == "results":
            orders.send(shard.gathered(found))
        else:
            orders.send(Cost(spent, sum(sent), sum(received)) if how == "costs" else None)


class Shard:
    """One rank's part of an order's workload."""

    def __init__(self, order: Order) -> None:
        work = order.work
        self.mask = on_regard.mask(work)
        self.options = {"method": order.method, "sharding": order.sharding}
        self.sharding = order.sharding
        cut = [self.cut(t.detach()) for t in (work.query, work.key, work.value)]
        self.tensors = [t.requires_grad_(work.query.requires_grad) for t in cut]
        self.upstream = self.cut(work.upstream())

    def cut(self, whole: torch.Tensor) -> torch.Tensor:
        return regard.distributed.shard(whole, 2, sharding=self.sharding).clone()

    def gathered(self, found: Mapping[str, torch.Tensor]) -> Result:
        """Everything that has the sequence as its third dimension, of all ranks."""
        return {
            name: regard.distributed.gather(tensor, 2, sharding=self.sharding)
            for name, tensor in found.items()
        }


def output(shard: Shard) -> Result:
    return {"output": regard.distributed.attention(*shard.tensors, shard.mask, **shard.options)}


def gradients(shard: Shard) -> Result:
    out = regard.distributed.attention(*shard.tensors, shard.mask, **shard.options)
    by_query, by_key, by_value = torch.autograd.grad(out, shard.tensors, shard.upstream)
    return {"output": out, "d query": by_query, "d key": by_key, "d value": by_value}


def statistics(shard: Shard) -> Result:
    out, weights = regard.distributed.attention(
        *shard.tensors, shard.mask, return_weights=True, **shard.options
    )
    found = on_regard.asked(weights)
    return {"output": out, "entropy": found["entropy"], "received": found["received"]}


TASKS = {"output": output, "gradients": gradients, "statistics": statistics}


def count_bytes() -> tuple[list[int], list[int]]:
    """The sizes of all messages that this process sends and receives, those of agreement included."""
    post = Group.post
    sent: list[int] = []
    received: list[int] = []

    def counting(self: Group, sends: Any, receives: Any) -> Any:
        sent.extend(tensor.nbytes for tensor in sends.values())
        received.extend(tensor.nbytes for tensor in receives.values())
        return post(self, sends, receives)

    Group.post = counting  # type: ignore[method-assign]
    return sent, received
