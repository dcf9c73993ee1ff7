"""Several intervals a row, and dense masks whose tiles are empty, full and mixed, in every layout."""

import pytest
import torch

import regard
from against_textbook import check_together
from engine_cases import in_tiles, in_tiles_and_low_precision
from regard import masks
from regard.testing import LAYOUTS, assert_same_bits, make_inputs

N, M = 150, 700


def gap(near: int, far: int) -> masks.Mask:
    """All keys but those from `near` to `far` positions behind the query."""
    return ~(masks.band(far, 0) & ~masks.band(near - 1, 0))


INTERVALS = {
    "two": masks.causal() & gap(16, 64),
    "three": masks.causal() & gap(3, 4) & gap(200, 333),
    "four, per head": masks.sinks(torch.tensor([0, 1, 5, 70]))
    | (masks.causal() & gap(9, 90) & gap(256, 300) & gap(400, 410)),
    "three, per item": masks.padding([600, 257], side="left")
    & (masks.causal() & gap(10, 20) | masks.sinks(400)),
    "windows of documents and sinks": masks.documents(lengths=[255, 1, 300, 144]) & gap(5, 40)
    | masks.sinks(2),
}


def call(mask: masks.Mask, dtype: torch.dtype, n_queries: int = N):
    inputs = make_inputs(n_queries, M, head_dim=24, value_dim=17, dtype=dtype)
    return inputs, {"mask": mask, "allowed": mask.to_dense(n_queries, M)}


@in_tiles_and_low_precision
@pytest.mark.parametrize("n_queries", [1, 3, 17, 150])
def test_several_intervals_a_row(n_queries: int, dtype: torch.dtype, engine: str) -> None:
    calls = ((name, *call(mask, dtype, n_queries)) for name, mask in INTERVALS.items())
    check_together(calls, engine)


def test_these_masks_have_several_intervals() -> None:
    slots = [mask.intervals(N, M).starts.shape[-1] for mask in INTERVALS.values()]
    assert min(slots) >= 2
    assert max(slots) >= 4


def blocks(*lead: int, size: int = 64, seed: int = 0) -> torch.Tensor:
    """Bool `[*lead, N, M]` of square blocks: half of them empty, a quarter full, the rest random."""
    generator = torch.Generator().manual_seed(seed)
    shape = (*lead, -(-N // size), -(-M // size))
    kind = torch.randint(0, 4, shape, generator=generator)
    kind = kind.repeat_interleave(size, -2).repeat_interleave(size, -1)[..., :N, :M]
    return (kind == 2) | (kind == 3) & (torch.rand(*lead, N, M, generator=generator) < 0.5)


DENSE = {
    "one for all": blocks(),
    "small blocks": blocks(size=16, seed=1),
    "large blocks": blocks(size=256, seed=2),
    "per head": blocks(1, 4, seed=3),
    "per item": blocks(2, 1, seed=4),
    "per item and head": blocks(2, 4, seed=5),
    "empty rows": blocks(seed=6) & (torch.arange(N) % 5 != 2)[:, None],
    "empty columns": blocks(seed=7) & (torch.arange(M) % 3 != 0),
    "one entry": torch.zeros(N, M, dtype=torch.bool).index_put_(
        (torch.tensor(77), torch.tensor(500)), torch.tensor(True)
    ),
}


@in_tiles_and_low_precision
@pytest.mark.parametrize("n_queries", [3, 150])
def test_dense_masks_by_tiles(n_queries: int, dtype: torch.dtype, engine: str) -> None:
    calls = ((name, *call(masks.dense(t[..., :n_queries, :]), dtype, n_queries)) for name, t in DENSE.items())
    check_together(calls, engine)


@in_tiles_and_low_precision
def test_dense_masks_together_with_intervals(dtype: torch.dtype, engine: str) -> None:
    intervals = masks.causal() & masks.padding([650, 300], side="left")
    calls = ((name, *call(masks.dense(table) & intervals, dtype)) for name, table in DENSE.items())
    check_together(calls, engine)


@in_tiles
@pytest.mark.parametrize("layout", ["transposed", "heads_last", "sliced", "expanded"])
@pytest.mark.parametrize("n_queries", [2, 150])
def test_layouts_of_a_dense_mask(n_queries: int, layout: str, engine: str) -> None:
    inputs = make_inputs(n_queries, M)
    table = DENSE["per item and head"][:, :, :n_queries].contiguous()
    table = table[:, :1].expand(2, 4, n_queries, M) if layout == "expanded" else table
    laid = LAYOUTS.get(layout, lambda t: t)
    expected = regard.attention(*inputs, masks.dense(table.contiguous()), engine=engine)
    assert_same_bits(regard.attention(*inputs, masks.dense(laid(table)), engine=engine), expected)
