"""Masks that are one run of keys moving with the query: four integers for tables, and the same sets."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import masks
from regard.intervals import Intervals
from regard.masks import Mask
from regard.masks.compiled import Frame, KeySets
from regard.masks.runs import MovingRun

FAR = 2**61
edges = st.one_of(st.none(), st.integers(-12, 12), st.sampled_from([-FAR, FAR, 2**62]))
bands = st.one_of(
    st.builds(masks.band, edges, edges),
    st.builds(masks.sliding_window, st.one_of(st.integers(1, 12), st.just(FAR))),
    st.just(masks.causal()),
)
positions = st.one_of(st.integers(-12, 12), st.sampled_from([-FAR, FAR]))
frames = st.builds(Frame.of, st.integers(0, 7), st.integers(0, 7), st.one_of(st.none(), positions), positions)


def expected(mask: Mask, frame: Frame) -> torch.Tensor:
    """Entry by entry, from what the masks say of positions, in Python's own integers."""
    one = mask.parts() if list(mask.parts()) else [mask]
    allowed = torch.ones((1, 1, frame.n_queries, frame.n_keys), dtype=torch.bool)
    for part in one:
        before = getattr(part, "size", 0) - 1 if hasattr(part, "size") else getattr(part, "before", None)
        after = getattr(part, "after", None) if hasattr(part, "before") else 0
        for row in range(frame.n_queries):
            for column in range(frame.n_keys):
                ahead = frame.key_start + column - frame.query_start - row
                inside = (before is None or ahead >= -before) and (after is None or ahead <= after)
                allowed[0, 0, row, column] &= inside
    return allowed


@given(bands, frames)
def test_a_run_is_what_the_mask_says(mask: Mask, frame: Frame) -> None:
    sets = mask.compile(frame)
    assert sets.affine is not None
    assert torch.equal(sets.to_dense(), expected(mask, frame))
    assert (sets.intervals.starts <= sets.intervals.ends).all()


@given(bands, bands, frames)
def test_runs_intersect_to_a_run(one: Mask, other: Mask, frame: Frame) -> None:
    both = (one & other).compile(frame)
    assert both.affine is not None
    assert torch.equal(both.to_dense(), expected(one & other, frame))


@given(bands, frames, st.builds(slice, st.integers(0, 4), st.integers(0, 9), st.sampled_from([None, 1, 2])))
def test_some_rows_of_a_run(mask: Mask, frame: Frame, rows: slice) -> None:
    intervals = mask.compile(frame).intervals
    chosen = intervals.select(rows=rows)
    assert torch.equal(chosen.to_dense(), intervals.to_dense()[:, :, range(frame.n_queries)[rows]])
    assert chosen.n_queries == chosen.starts.shape[2]


def test_nothing_is_made_before_somebody_asks() -> None:
    sets = (masks.causal() & masks.sliding_window(3)).compile(Frame.of(5, 9, None, 0))
    assert sets.affine == (2, 1, 5, 1)
    assert (sets.batch_size, sets.num_heads, sets.intervals.n_queries) == (1, 1, 5)
    assert "_bounds" not in sets.intervals.__dict__
    assert sets.intervals.starts.shape == (1, 1, 5, 1)
    assert "_bounds" in sets.intervals.__dict__


@pytest.mark.parametrize(
    "mask",
    [
        masks.sliding_window([3, 4]),
        masks.band(torch.tensor([1, 2]), 3),
        masks.causal() | masks.sinks(1),
        masks.causal() & masks.padding([3]),
        ~masks.causal(),
    ],
    ids=repr,
)
def test_what_differs_or_has_holes_is_no_run(mask: Mask) -> None:
    assert mask.compile(Frame.of(5, 5, None, 0)).affine is None


def test_positions_of_items_make_tables() -> None:
    sets = masks.causal().compile(Frame.of(5, 9, torch.tensor([0, 3]), 0))
    assert sets.affine is None
    dense = sets.to_dense()
    for item, start in enumerate((0, 3)):
        frame = Frame.of(5, 9, start, 0)
        assert torch.equal(dense[item : item + 1], masks.causal().compile(frame).to_dense())


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("made", [False, True])
def test_copies(made: bool, copied) -> None:
    run = masks.sliding_window(3).compile(Frame.of(5, 9, None, 0)).intervals
    if made:
        run.starts  # noqa: B018 (asking is what makes them)
    twin = copied(run)
    assert isinstance(twin, MovingRun)
    assert twin.affine == run.affine
    assert torch.equal(twin.to_dense(), run.to_dense())


def test_a_run_joins_the_algebra_of_intervals() -> None:
    frame = Frame.of(5, 9, None, 0)
    run = masks.sliding_window(3).compile(frame)
    table = masks.padding([4]).compile(frame)
    assert torch.equal((run & table).to_dense(), run.to_dense() & table.to_dense())
    assert torch.equal((run | table).to_dense(), run.to_dense() | table.to_dense())
    assert torch.equal((~run).to_dense(), ~run.to_dense())
    assert isinstance(KeySets(~run.intervals).intervals, Intervals)
