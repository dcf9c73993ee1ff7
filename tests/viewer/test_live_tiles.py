"""Every level of zoom says what the dense matrix says: cells, rows, columns, profiles and summaries."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from regard import biases, masks
from regard.recording import Call
from regard.viewer import build_view
from regard.viewer.server import tiles
from regard.viewer.server.microscope import Microscope
from regard.viewer.server.tiles import Grid
from viewer.views import call, dense

LENGTH = 75
TOKENS = [f" t{i % 7}" for i in range(LENGTH)]
CALLS = {
    "causal": {},
    "a cache": {"n_queries": 20},
    "two runs": {"mask": masks.streaming(2, 9)},
    "a wild mask": {
        "mask": masks.dense(torch.rand(LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)) < 0.5)
    },
    "a dense bias": {"bias": torch.linspace(-3, 3, 3 * LENGTH * LENGTH).sin().view(1, 3, LENGTH, LENGTH)},
    "a bias of positions": {"bias": biases.alibi(3)},
    "a sink": {"sink_logits": torch.tensor([0.5, 1.0, -1.0]), "softcap": 5.0},
}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles a side, and several levels of zoom, of a matrix that can be checked whole."""
    monkeypatch.setattr(tiles, "TILE", 8)
    monkeypatch.setattr(tiles, "MOST_CELLS", 16)


@pytest.fixture(params=CALLS)
def one(request: pytest.FixtureRequest) -> Call:
    options = {"heads": 3, "n_queries": LENGTH, "n_keys": LENGTH, **CALLS[request.param]}
    return call(**options)


@pytest.fixture
def microscope(one: Call) -> Iterator[Microscope]:
    made = Microscope([one], TOKENS, title="t")
    yield made
    made.close()


def decoded(blob: bytes) -> Tensor:
    return torch.frombuffer(bytearray(blob), dtype=torch.float32).double()


def without_first(one: Call, head: int) -> Tensor:
    """The softmax over all keys but the first, and over the sink where there is one."""
    logits = one.weights.logits(0, head).double()
    logits[:, 0] = -torch.inf
    sinks = one.weights._problem.sink_logits
    sink = torch.tensor(-torch.inf) if sinks is None else sinks[head]
    with_sink = torch.cat([logits, sink.double().expand(len(logits), 1)], 1)
    return with_sink.softmax(-1)[:, :-1].nan_to_num()


def block_means(weights: Tensor, height: int, width: int) -> Tensor:
    """The mean of every cell, the last ones of what is left."""
    rows = torch.stack([block.mean(0) for block in weights.split(height)])
    return torch.stack([block.mean(1) for block in rows.split(width, 1)], 1)


def test_every_tile_of_every_level_holds_the_means_of_its_pairs(one: Call, microscope: Microscope) -> None:
    shown = {False: dense(one)[1], True: without_first(one, 1)}

    async def compare(grid: Grid, aside: bool) -> None:
        expected = block_means(shown[aside], grid.height, grid.width)
        for row, column in itertools.product(range(-(-grid.rows // 8)), range(-(-grid.columns // 8))):
            rows, columns = grid.tile(row, column)
            blob = await microscope.tile(0, 1, grid, rows, columns, aside)
            here = expected[rows, columns]
            cells = torch.zeros_like(here) if blob is None else decoded(blob).view(here.shape)
            # A pair that takes no part is marked by a number below 0 where a cell is one pair.
            torch.testing.assert_close(cells.clamp(min=0), here, atol=2e-5, rtol=2e-4)

    n_queries = one.weights.shape[-2]
    for height, width, aside in [
        (1, 1, False),
        (1, 1, True),
        (2, 1, False),
        (2, 4, True),
        (8, 8, False),
        (64, 8, True),
        (128, 128, False),
    ]:
        asyncio.run(compare(Grid(n_queries, LENGTH, height, width), aside))


def test_single_weights_tell_masked_from_small(one: Call, microscope: Microscope) -> None:
    grid = Grid(one.weights.shape[-2], LENGTH, 1, 1)
    blob = asyncio.run(microscope.tile(0, 2, grid, slice(8, 16), slice(0, 8), False))
    part = slice(8, 16), slice(0, 8)
    masked = one.weights.logits(0, 2, *part).flatten() == -torch.inf
    if blob is None:
        assert masked.all()
    else:
        assert torch.equal(decoded(blob) == tiles.MASKED, masked)


def test_rows_and_columns_are_exact(one: Call, microscope: Microscope) -> None:
    weights, logits = dense(one)[0], one.weights.logits(0, 0).double()
    n_queries = len(weights)
    for query, key in [(0, 0), (7, 3), (n_queries - 1, 40)]:
        row, its_logits = decoded(asyncio.run(microscope.row(0, 0, query, False))).chunk(2)
        torch.testing.assert_close(row.clamp(min=0), weights[query], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(its_logits, logits[query], atol=1e-5, rtol=1e-5)
        column = decoded(asyncio.run(microscope.column(0, 0, key, False)))
        torch.testing.assert_close(column.clamp(min=0), weights[:, key], atol=1e-6, rtol=1e-5)
        assert torch.equal(column == tiles.MASKED, logits[:, key] == -torch.inf)


def test_the_overview_says_what_the_stored_view_says(one: Call, microscope: Microscope) -> None:
    stored = build_view([one], TOKENS, title="t").header["calls"][0]["summary"]
    live: dict[str, Any] = asyncio.run(microscope.summary(0, True))
    assert live.keys() == stored.keys()
    for name, values in stored.items():
        for a, b in zip(live[name], values, strict=True):
            assert a == pytest.approx(b, rel=1e-4, abs=1e-6)
    weights = dense(one)[1]
    far = (torch.arange(len(weights))[:, None] + LENGTH - len(weights) - torch.arange(LENGTH)).abs()
    expected = torch.cat([torch.special.entr(weights).sum(-1), (weights * far).sum(-1), weights.sum(0)])
    torch.testing.assert_close(
        decoded(asyncio.run(microscope.profiles(0, 1))), expected, atol=1e-4, rtol=1e-4
    )


def test_induction_is_the_mass_on_what_followed_before(one: Call, microscope: Microscope) -> None:
    weights, offset = dense(one), LENGTH - one.weights.shape[-2]
    masses = [
        weights[:, at - offset, [p + 1 for p in range(at - 1) if TOKENS[p] == TOKENS[at]]].sum(-1)
        for at in range(max(7, offset), LENGTH)
    ]
    found = asyncio.run(microscope.summary(0, True))["induction"]
    assert found == pytest.approx(torch.stack(masses).mean(0).tolist(), rel=1e-4)


def test_a_text_without_repeats_has_no_induction() -> None:
    view = build_view([call(n_queries=4)], list("abcd"), title="t")
    assert view.header["calls"][0]["summary"]["induction"] == [None, None]


def test_tiles_that_the_mask_excludes_and_that_do_not_exist_cost_nothing() -> None:
    microscope = Microscope([call(n_queries=LENGTH)], TOKENS, title="t")
    microscope.close()  # nothing can be computed from here on
    grid = Grid(LENGTH, LENGTH, 1, 1)
    assert asyncio.run(microscope.tile(0, 0, grid, slice(0, 8), slice(40, 48), False)) is None
    assert grid.tile(10, 0) is None
    assert grid.tile(0, 10) is None


def test_what_nobody_waits_for_is_not_computed_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that moves on takes back the first look at a layer after the step it is in."""
    monkeypatch.setattr("regard.viewer.server.overview.PAIRS_A_STEP", 1)
    monkeypatch.setattr(tiles, "MOST_CELLS", LENGTH)
    microscope = Microscope([call(heads=40, n_queries=LENGTH)], TOKENS, title="t")
    looked: list[int] = []
    real = microscope._worker.submit

    def counted(steps: Any, urgency: int) -> Any:
        return real((looked.append(1) or step for step in steps), urgency)

    monkeypatch.setattr(microscope._worker, "submit", counted)

    async def move_on() -> None:
        asked = asyncio.ensure_future(microscope.summary(0, True))
        while len(looked) < 2:
            await asyncio.sleep(0.001)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        seen = len(looked)
        row = await microscope.row(0, 0, 3, False)  # others are served as ever
        assert len(row) == 2 * 4 * LENGTH
        assert len(looked) <= seen + 2

    asyncio.run(move_on())
    microscope.close()
    assert len(looked) < 40 * LENGTH
