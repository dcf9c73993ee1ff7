"""Any expression of masks is that expression of predicates, and intervals say what `to_dense` says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mask_cases as cases
from mask_cases import Case, Geometry, placed_cases, tabulate
from regard import masks
from regard.testing import assert_same_bits

thorough = settings(max_examples=150, derandomize=True, deadline=None)


def table_of(mask: masks.Mask, at: Geometry) -> torch.Tensor:
    return at.compile(mask).expand(cases.BATCH, cases.HEADS, -1, -1)


@thorough
@given(placed_cases())
def test_any_expression_is_its_predicate(placed: tuple[Case, Geometry]) -> None:
    case, at = placed
    assert_same_bits(table_of(case.mask, at), tabulate(case.sees, at), what=repr(case.mask))


@thorough
@given(st.data())
def test_laws(data: st.DataObject) -> None:
    at = data.draw(cases.geometries)
    a, b = (data.draw(cases.cases_at(at)).mask for _ in range(2))
    for left, right in [
        (~(a & b), ~a | ~b),
        (~(a | b), ~a & ~b),
        (~~a, a),
        (a & a, a),
        (a | a, a),
        (a & b, b & a),
        (a | b, b | a),
        (a & (a | b), a),
    ]:
        assert_same_bits(table_of(left, at), table_of(right, at), what=f"{left!r} against {right!r}")
    assert not table_of(a & ~a, at).any()
    assert table_of(a | ~a, at).all()


@thorough
@given(placed_cases())
def test_intervals_say_what_the_table_says(placed: tuple[Case, Geometry]) -> None:
    case, at = placed
    try:
        intervals = case.mask.intervals(
            at.n_queries, at.n_keys, query_start=at.query_start, key_start=at.key_start
        )
    except ValueError:
        assert "dense" in repr(case.mask)  # only a table of many intervals a row may stay a table
        return
    starts, ends = intervals.starts, intervals.ends
    assert starts.dtype == ends.dtype == torch.int64
    assert starts.shape == ends.shape
    assert starts.shape[0] in (1, cases.BATCH)
    assert starts.shape[1] in (1, cases.HEADS)
    assert starts.shape[2] == at.n_queries
    full = (cases.BATCH, cases.HEADS, at.n_queries, starts.shape[-1])
    expected = tabulate(case.sees, at).tolist()
    starts, ends = starts.expand(full).tolist(), ends.expand(full).tolist()
    for b in range(cases.BATCH):
        for h in range(cases.HEADS):
            for row in range(at.n_queries):
                pieces = [
                    (lo, hi) for lo, hi in zip(starts[b][h][row], ends[b][h][row], strict=True) if lo < hi
                ]
                covered = [column for lo, hi in pieces for column in range(lo, hi)]
                assert covered == sorted(set(covered)), f"{pieces} are not sorted and disjoint"
                assert covered == [c for c, seen in enumerate(expected[b][h][row]) if seen]


@pytest.mark.parametrize(
    ("mask", "most"),
    [
        (masks.causal(), 1),
        (masks.sliding_window(5), 1),
        (masks.causal() & masks.padding([3, 9], side="left"), 1),
        (masks.causal() & masks.sliding_window(4) & masks.documents(lengths=[3, 9, 8]), 1),
        (masks.prefix([4, 7]), 1),
        (masks.sinks(2), 1),
        (masks.streaming(2, 4), 2),
        (masks.streaming(2, 4) & masks.padding([9, 20]), 2),
        (~masks.causal(), 1),
        (~masks.sliding_window(4), 2),
        (~(masks.causal() & masks.sliding_window(4)), 2),
        (masks.dense(torch.ones(20, 20, dtype=torch.bool).tril()), 1),
        (masks.causal() & masks.dense(torch.ones(20, 20, dtype=torch.bool).triu(-3)), 1),
    ],
    ids=repr,
)
def test_common_masks_are_one_or_two_intervals_a_row(mask: masks.Mask, most: int) -> None:
    assert mask.intervals(20, 20).starts.shape[-1] <= most


def test_causal_and_left_padding_and_window_is_the_exact_and() -> None:
    case = cases.both(cases.both(cases.causal(), cases.padding([3, 9], "left")), cases.window(4))
    for at in (Geometry(9, 9), Geometry(2, 9), Geometry(1, 9)):
        assert_same_bits(table_of(case.mask, at), tabulate(case.sees, at))


def test_many_documents_with_everything_else() -> None:
    lengths = [5, 0, 1, 17, 2, 9, 30]
    at = Geometry(64, 64)
    case = cases.both(cases.documents(lengths), cases.either(cases.streaming(1, 6), cases.sinks(3)))
    assert_same_bits(table_of(case.mask, at), tabulate(case.sees, at))
