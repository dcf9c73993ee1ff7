"""How long does the live view of a long recording take to show something, at first and at each zoom?"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

import regard
from harness import Contender, Effort, Result, TimeRow, Wanted, compare, verify
from patterns import Causal
from peers import on_regard
from regard.recording import Call
from regard.viewer.server.microscope import Microscope
from regard.viewer.server.tiles import TILE, Grid
from workload import Workload

# Cells along the side of a map on a screen, and how long a further zoom may take.
ON_SCREEN, LIMIT_S = 512, 0.3


def answer(effort: Effort) -> Iterator[TimeRow]:
    """One layer, causal, 8 heads × 64: the first look at all of it, and one head at every finer level."""
    length = effort.choose([4096], [32768])[0]
    work = Workload.random(Causal(), length)
    with torch.no_grad():
        weights = regard.attention(
            work.query, work.key, work.value, on_regard.mask(work), return_weights=True
        )[1]
        call = Call("layer", 0, 0, 0, weights)
        yield first_look(work, call, effort)
        for size in powers_below(length / ON_SCREEN):
            yield further_zoom(work, call, size, effort)


def first_look(work: Workload, call: Call, effort: Effort) -> TimeRow:
    """From nothing to summary, thumbnails and the map of a head, against the layer's own forward pass."""

    def look() -> Result:
        with fresh(call) as microscope:
            asyncio.run(shown(microscope))
        return {}

    ours, forward = "first look", "regard, forward"
    contenders: dict[str, Contender] = {ours: look, forward: on_regard.output("auto", work)}
    wanted = Wanted({forward: 1 / 1.5})
    return compare(f"first look at a layer, {work}", ours, contenders, effort, wanted=wanted, calls=1)


async def shown(microscope: Microscope) -> None:
    await microscope.thumbnails(0, True)
    size = 2 ** math.ceil(math.log2(microscope.n_queries / ON_SCREEN))
    await in_sight(microscope, 0, Grid(microscope.n_queries, microscope.n_keys, size, size), 0)


def further_zoom(work: Workload, call: Call, size: int, effort: Effort) -> TimeRow:
    """All tiles that a window of 512 cells needs, none seen before: in another place or head each time."""
    with fresh(call) as microscope:
        asyncio.run(microscope.thumbnails(0, True))
        grid = Grid(work.length, work.length, size, size)
        places = iter([(head, tile) for tile in range(1, grid.rows // TILE - 1) for head in range(8)] * 1000)
        head, tile = next(places)
        blob = asyncio.run(microscope.tile(0, head, grid, *grid.tile(tile + 1, tile), False))
        expected = means(work, head, grid, tile + 1, tile)
        verify(
            {"tile": {"cells": torch.frombuffer(bytearray(blob), dtype=torch.float32).view(TILE, TILE)[:2]}},
            {"cells": expected},
            1e-4,
        )

        def zoom() -> Result:
            forget_tiles(microscope)
            head, tile = next(places)
            asyncio.run(in_sight(microscope, head, grid, tile))
            return {}

        case = f"zoom to cells of {size} × {size}, {work}"
        return compare(case, "zoom", {"zoom": zoom}, effort, wanted=Wanted(seconds=LIMIT_S), calls=1)


def forget_tiles(microscope: Microscope) -> None:
    """As if the window had not been here before; whole maps are kept, as they are while one zooms."""
    for name in [name for name in microscope._cache._kept if name[0] == "tile"]:
        del microscope._cache._kept[name]


async def in_sight(microscope: Microscope, head: int, grid: Grid, tile: int) -> None:
    """The tiles that a window over the diagonal needs, asked for together as a page does."""
    places = [(row, column) for row in range(tile, tile + 3) for column in range(tile, tile + 3)]
    tiles = [place for place in (grid.tile(*at) for at in places) if place is not None]
    await asyncio.gather(*(microscope.tile(0, head, grid, *place, False) for place in tiles))


def means(work: Workload, head: int, grid: Grid, row: int, column: int) -> torch.Tensor:
    """The first two rows of a tile's cells from the textbook formula in float64."""
    rows, columns = grid.tile(row, column)
    queries = torch.arange(rows.start * grid.height, (rows.start + 2) * grid.height)
    logits = work.query[0, head, queries].double() @ work.key[0, head].double().mT * work.scale
    weights = logits.masked_fill(~work.allowed(queries)[0, 0], -torch.inf).softmax(-1)
    part = weights[:, columns.start * grid.width : columns.stop * grid.width]
    return part.view(2, grid.height, TILE, grid.width).mean((1, 3))


@contextmanager
def fresh(call: Call) -> Iterator[Microscope]:
    """A microscope that has seen nothing yet."""
    microscope = Microscope([call], [""] * call.weights.shape[-1], title="")
    try:
        yield microscope
    finally:
        microscope.close()


def powers_below(limit: float) -> list[int]:
    return [2**power for power in reversed(range(int(math.log2(limit))))]
