"""How close do processes that share a sequence come to one process with as many threads, and what is sent?"""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

from harness import Effort, TimeRow, compare, verify
from peers import on_regard
from ranks import Order, Ranks
from regard.distributed.placement import Placement, even_lengths
from workload import Workload

TOLERANCE = 2e-5
ALONE = {"output": on_regard.output, "gradients": on_regard.gradients, "statistics": on_regard.statistics}


def answer(effort: Effort) -> Iterator[TimeRow]:
    """Elapsed times; the ratio is the efficiency: one process's time over that of the processes together."""
    quick = [Order("output", "dense", 2048), Order("output", "causal", 2048, "balanced", "ring")]
    ways = [("contiguous", "gather"), ("balanced", "gather"), ("balanced", "ring")]
    full = [
        *(Order("output", "dense", 4096, "contiguous", method) for method in ("gather", "ring")),
        *(Order("output", "causal", 4096, *way) for way in ways),
        Order("output", "window", 8192),
        *(Order("gradients", "causal", 4096, *way) for way in ways[1:]),
        *(Order("statistics", "causal", 4096, *way) for way in ways[1:]),
    ]
    threads_before = torch.get_num_threads()
    for size in effort.choose([2], [count for count in (2, 3, 4) if count <= (os.cpu_count() or 2)] or [2]):
        torch.set_num_threads(size)
        with Ranks(size) as ranks:
            for order in effort.choose(quick, full):
                yield measured(ranks, order, effort)
    torch.set_num_threads(threads_before)


def measured(ranks: Ranks, order: Order, effort: Effort) -> TimeRow:
    """One case: verified, its bytes counted, then timed in turn with one process."""
    work = order.work
    ours, alone = f"{ranks.size} processes × 1 thread", f"one process × {ranks.size} threads"
    one = ALONE[order.task]("auto", work)
    rows = work.rows_to_check()
    textbook = {"output": work.expected_rows(rows)}
    expected = one()
    verify({alone: {"output": expected["output"][:, :, rows]}}, textbook, TOLERANCE)
    found = ranks.results(order)
    verify({ours: found}, {name: expected[name].detach() for name in found}, TOLERANCE)
    sent = sum(cost.sent for cost in ranks.costs(order))
    case = f"{order.task}: {work}, {order.sharding}, {order.method}: {sent / 2**20:.2f} MiB sent"
    if order.task == "output":
        least = least_bytes(work, ranks.size, order.sharding)
        case += f", {sent / least:.3f} × the least" if least else ", the least is 0"
    return compare(case, ours, {ours: lambda: ranks.work(order) or {}, alone: one}, effort)


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
