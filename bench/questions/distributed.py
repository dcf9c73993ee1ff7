"""How close do processes that share a sequence come to one process with as many threads, and what is sent?"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

import regard
import regard.distributed
from comparison import chosen_rows
from harness import Effort, TimeRow, compare, verify
from patterns import BY_NAME
from peers import on_regard
from regard.distributed.groups import Group
from regard.distributed.placement import Placement, even_lengths
from workload import Workload

TOLERANCE = 1e-5
TIMEOUT_S = 120


def answer(effort: Effort) -> Iterator[TimeRow]:
    """Forward passes; the ratio is the efficiency: one process's time over that of the processes together."""
    quick = [("dense", 2048, "contiguous", "gather"), ("causal", 2048, "balanced", "ring")]
    full = [
        (pattern, 4096, sharding, method)
        for pattern, sharding in (("dense", "contiguous"), ("causal", "contiguous"), ("causal", "balanced"))
        for method in ("gather", "ring")
    ]
    full += [("window", 8192, "contiguous", "gather")]
    threads_before = torch.get_num_threads()
    for size in effort.choose([2], [count for count in (2, 3, 4) if count <= (os.cpu_count() or 2)] or [2]):
        torch.set_num_threads(size)
        with Ranks(size) as ranks:
            for pattern, length, sharding, method in effort.choose(quick, full):
                yield measured(ranks, pattern, length, sharding, method, effort)
    torch.set_num_threads(threads_before)


def measured(ranks: Ranks, pattern: str, length: int, sharding: str, method: str, effort: Effort) -> TimeRow:
    """One case: verified, its bytes counted, then timed in turn with one process."""
    work = Workload.random(BY_NAME[pattern], length)
    ours, alone = f"{ranks.size} processes × 1 thread", f"one process × {ranks.size} threads"
    contenders = {
        ours: lambda: ranks.ask("output", pattern, length, sharding, method),
        alone: on_regard.output("auto", work),
    }
    rows = work.rows_to_check()
    expected = {"output": work.expected_rows(rows)}
    verify({name: chosen_rows(run(), rows) for name, run in contenders.items()}, expected, TOLERANCE)
    sent = ranks.ask("bytes", pattern, length, sharding, method)["bytes"]
    least = least_bytes(work, ranks.size, sharding)
    share = f"{sent / least:.3f} × the least" if least else "the least is 0"
    case = f"{work}, {sharding}, {method}: {sent / 2**20:.2f} MiB sent, {share}"
    timed = {ours: lambda: ranks.ask("time", pattern, length, sharding, method), alone: contenders[alone]}
    return compare(case, ours, timed, effort)


def least_bytes(work: Workload, size: int, sharding: str) -> int:
    """The bytes of keys and values that some query of another rank may attend, each sent to it once."""
    placement = Placement.of(even_lengths(work.length, size), sharding)
    allowed = work.pattern.allowed(torch.arange(work.length), torch.arange(work.keys))
    keys = 0
    for rank in range(size):
        mine = placement.indices(rank)
        needed = torch.ones(work.length, dtype=torch.bool) if allowed is None else allowed[0, mine].any(0)
        needed[mine] = False
        keys += int(needed.sum())
    heads, width = work.key.shape[1], work.key.shape[-1] + work.value.shape[-1]
    return keys * heads * width * work.key.element_size()


class Ranks:
    """Processes of one thread each that hold shards of a workload and attend it together when told to."""

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

    def ask(self, *order: Any) -> dict[str, Any]:
        """Have all do the same; what rank 0 answered, once all have."""
        for pipe in self._pipes:
            pipe.send(order)
        answers = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(TIMEOUT_S):
                raise SystemExit(f"bench: rank {rank} of {self.size} does not answer")
            answers.append(pipe.recv())
        if order[0] == "bytes":
            return {"bytes": sum(answer["bytes"] for answer in answers)}
        return answers[0]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
            process.join()
        self._folder.cleanup()


def serve(rank: int, size: int, meeting: str, orders: Connection) -> None:
    """What each process does: shards are cut once for each workload, then attended at every order."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    count_bytes()
    held: dict[tuple[str, int, str], tuple[Workload, list[torch.Tensor]]] = {}
    while True:
        what, pattern, length, sharding, method = orders.recv()
        if (pattern, length, sharding) not in held:
            held.clear()
            work = Workload.random(BY_NAME[pattern], length)
            parts = [
                regard.distributed.shard(t, 2, sharding=sharding).clone()
                for t in (work.query, work.key, work.value)
            ]
            held[pattern, length, sharding] = work, parts
        work, parts = held[pattern, length, sharding]
        SENT.clear()
        output = regard.distributed.attention(*parts, on_regard.mask(work), method=method, sharding=sharding)
        if what == "bytes":
            orders.send({"bytes": sum(SENT)})
        elif what == "output":
            orders.send({"output": regard.distributed.gather(output, 2, sharding=sharding)})
        else:
            orders.send({})


SENT: list[int] = []


def count_bytes() -> None:
    """Note the size of every message that this process sends, the small ones of agreement included."""
    post = Group.post

    def counting(self: Group, sends: Any, receives: Any) -> Any:
        SENT.extend(tensor.nbytes for tensor in sends.values())
        return post(self, sends, receives)

    Group.post = counting  # type: ignore[method-assign]
