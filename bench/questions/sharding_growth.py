"""How do the time of a rank and its bytes grow with the ranks and the length, beside a short model?"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack

import torch

from harness import Effort, TimeRow, quartiles, verify
from ranks import Order, Ranks
from regard.distributed.placement import Placement, even_lengths
from sharding_model import Point, fitted

TOLERANCE = 2e-5
ONE = "one process"
SHARDINGS = ("contiguous", "balanced")


def answer(effort: Effort) -> Iterator[TimeRow]:
    """Processor time of the busiest rank, each with one thread, so that ranks may outnumber the cores.

    Forward passes, causal, gathered. The ratio is a rank's share of one process's time; 1 / R would be ideal.
    """
    sizes = effort.choose([2], [2, 4])
    lengths = effort.choose([1024, 2048], [1024, 2048, 4096, 8192])
    points: list[Point] = []
    with ExitStack() as open_worlds:
        worlds = {size: open_worlds.enter_context(Ranks(size)) for size in (1, *sizes)}
        rows = [measured(worlds, length, effort, points) for length in lengths]
    model = fitted(points)
    for row, length in zip(rows, lengths, strict=True):
        mine = [point for point in points if point.length == length]
        said = "; ".join(f"{name(p.ranks, p.sharding)} {model.seconds(p) * 1e3:,.0f} ms" for p in mine)
        row.case += f" (the model, {model}: {said})"
        row.points = [point.as_json() | {"model_seconds": model.seconds(point)} for point in mine]
        yield row


def measured(worlds: dict[int, Ranks], length: int, effort: Effort, points: list[Point]) -> TimeRow:
    """One length: every number of ranks and sharding once in each round."""
    alone = Order("output", "causal", length)
    orders = {
        (size, sharding): Order("output", "causal", length, sharding)
        for size in worlds
        if size > 1
        for sharding in SHARDINGS
    }
    rows = alone.work.rows_to_check()
    expected = {"output": alone.work.expected_rows(rows)}
    for (size, sharding), order in {(1, "contiguous"): alone, **orders}.items():
        found = worlds[size].results(order)
        verify({name(size, sharding): {"output": found["output"][:, :, rows]}}, expected, TOLERANCE)
    seconds: dict[str, list[float]] = {}
    moved: dict[str, int] = {}
    for _ in range(effort.fewest_rounds):
        for (size, sharding), order in {(1, ""): alone, **orders}.items():
            worlds[size].work(order)  # what others left in the caches is not the work
            costs = worlds[size].costs(order)
            key = name(size, sharding) if size > 1 else ONE
            seconds.setdefault(key, []).append(max(cost.seconds for cost in costs))
            moved[key] = max(cost.sent + cost.received for cost in costs)
    ratios = {
        key: quartiles([it / one for it, one in zip(times, seconds[ONE], strict=True)])
        for key, times in seconds.items()
        if key != ONE
    }
    medians = {key: statistics.median(times) for key, times in seconds.items()}
    for size, sharding in orders:
        key = name(size, sharding)
        # Within a round, as all ratios: the machine may be slower in another one.
        taken = medians[ONE] * ratios[key][1]
        uneven = imbalance(length, size, sharding)
        points.append(Point(length, size, sharding, uneven, moved[key], medians[ONE], taken))
    return TimeRow(f"causal, N = {length}", ONE, medians, ratios, effort.fewest_rounds)


def name(size: int, sharding: str) -> str:
    return f"R = {size}, {sharding}"


def imbalance(length: int, size: int, sharding: str) -> float:
    """The pairs that the busiest rank computes under a causal mask, over the mean."""
    placement = Placement.of(even_lengths(length, size), sharding)
    pairs = torch.tensor([float((placement.indices(rank) + 1).sum()) for rank in range(size)])
    return float(pairs.max() / pairs.mean())
