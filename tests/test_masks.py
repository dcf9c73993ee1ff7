"""Every named mask, alone, against its definition: around its edges and at positions of every kind."""

import pytest
import torch

import mask_cases as cases
from mask_cases import Case, Geometry, tabulate
from regard import masks
from regard.testing import BOUNDARY_SIZES, assert_same_bits

NAMED: dict[str, Case] = {
    "causal": cases.causal(),
    "window 1": cases.window(1),
    "window 3": cases.window(3),
    "window 100": cases.window(100),
    "window per head": cases.window_per_head([2, 5]),
    "band 2, 1": cases.band(2, 1),
    "band 0, 0": cases.band(0, 0),
    "band open before": cases.band(None, 2),
    "band open after": cases.band(3, None),
    "band open": cases.band(None, None),
    "band per head": cases.band_per_head([0, 4], [2, 0]),
    "prefix": cases.prefix([4]),
    "prefix 0": cases.prefix([0]),
    "prefix per batch": cases.prefix([2, 6]),
    "sinks": cases.sinks(2),
    "sinks 0": cases.sinks(0),
    "sinks per head": cases.sinks_per_head([0, 3]),
    "streaming": cases.streaming(2, 3),
    "streaming without sinks": cases.streaming(0, 3),
    "streaming that overlaps": cases.streaming(5, 4),
}

GEOMETRIES = [
    Geometry(9, 9),
    Geometry(4, 9),
    Geometry(9, 4),
    Geometry(5, 7, query_start=0),
    Geometry(5, 7, query_start=11),
    Geometry(5, 7, query_start=-4),
    Geometry(5, 7, query_start=6, key_start=3),
    Geometry(5, 7, key_start=100),
    Geometry(1, 12),
    Geometry(0, 5),
    Geometry(5, 0),
    Geometry(0, 0),
]


def assert_as_defined(case: Case, at: Geometry) -> None:
    table = at.compile(case.mask)
    assert table.dtype == torch.bool
    assert table.dim() in (2, 4)
    assert_same_bits(table.expand(cases.BATCH, cases.HEADS, -1, -1), tabulate(case.sees, at))


@pytest.mark.parametrize("at", GEOMETRIES, ids=str)
@pytest.mark.parametrize("name", NAMED)
def test_named_mask_is_its_definition(name: str, at: Geometry) -> None:
    assert_as_defined(NAMED[name], at)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("lengths", [[0], [3], [7], [2, 7], [0, 4]])
@pytest.mark.parametrize("at", [Geometry(7, 7), Geometry(2, 7), Geometry(5, 7, query_start=0)], ids=str)
def test_padding_is_the_first_or_last_keys(side: str, lengths: list[int], at: Geometry) -> None:
    assert_as_defined(cases.padding(lengths, side), at)


@pytest.mark.parametrize("at", [Geometry(8, 8), Geometry(3, 8), Geometry(2, 3, 4, 2)], ids=str)
@pytest.mark.parametrize("lengths", [[8], [3, 5], [3, 0, 1, 4], [0, 8, 0], [1] * 8])
def test_documents_by_length_by_id_and_by_boundary(lengths: list[int], at: Geometry) -> None:
    for make in (cases.documents, cases.documents_by_boundary):
        assert_as_defined(make(lengths), at)
    ids = [
        [40, 7, 9, -1, 5, 6, 8, 3][document] for document, length in enumerate(lengths) for _ in range(length)
    ]
    assert_as_defined(cases.documents_by_id(ids), at)


def test_documents_differ_per_batch_item() -> None:
    ids = [[0, 0, 0, 1, 1, 2], [5, 5, 4, 4, 4, 4]]
    assert_as_defined(cases.documents_per_batch(ids), Geometry(6, 6))
    lengths = masks.documents(lengths=[[3, 2, 1], [2, 4, 0]])
    assert_same_bits(lengths.to_dense(6, 6), masks.documents(ids=torch.tensor(ids)).to_dense(6, 6))


@pytest.mark.parametrize(
    ("at", "lengths"),
    [
        (Geometry(4, 4), [3]),
        (Geometry(2, 4), [1, 2]),
        (Geometry(4, 3), [4]),
        (Geometry(2, 3, query_start=5), [6]),
        (Geometry(2, 3, query_start=0, key_start=4), [6]),
    ],
    ids=str,
)
def test_a_position_outside_the_documents_is_an_error(at: Geometry, lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="document"):
        at.compile(masks.documents(lengths=lengths))


def test_positions_may_differ_per_batch_item() -> None:
    query_start, key_start = [3, 9], [0, 4]
    for name in ("causal", "window 3", "window per head", "prefix per batch", "sinks", "streaming"):
        case = NAMED[name]
        table = case.mask.to_dense(
            4, 6, query_start=torch.tensor(query_start), key_start=torch.tensor(key_start)
        )
        each = [
            tabulate(case.sees, Geometry(4, 6, q, k)) for q, k in zip(query_start, key_start, strict=True)
        ]
        expected = torch.stack([table[item] for item, table in enumerate(each)])
        assert_same_bits(table.expand(2, cases.HEADS, -1, -1), expected, what=name)


def test_the_shape_says_what_a_mask_depends_on() -> None:
    assert masks.causal().to_dense(3, 5).shape == (3, 5)
    assert masks.padding([2, 5]).to_dense(3, 5).shape == (2, 1, 3, 5)
    assert masks.sliding_window(torch.tensor([1, 2, 3])).to_dense(3, 5).shape == (1, 3, 3, 5)
    both = masks.padding([2, 5]) & masks.sliding_window(torch.tensor([1, 2, 3]))
    assert both.to_dense(3, 5).shape == (2, 3, 3, 5)


def test_window_counts_the_query_itself() -> None:
    table = masks.sliding_window(3).to_dense(8, 8)
    assert table.sum(-1).tolist() == [1, 2, 3, 3, 3, 3, 3, 3]
    for size in (8, 9, 10**6, 2**62):
        assert_same_bits(masks.sliding_window(size).to_dense(8, 8), masks.causal().to_dense(8, 8))


@pytest.mark.parametrize("size", BOUNDARY_SIZES)
def test_sizes_around_a_tile(size: int) -> None:
    rows, columns = torch.arange(size)[:, None], torch.arange(size)[None]
    assert_same_bits(masks.causal().to_dense(size, size), columns <= rows)
    assert_same_bits(
        masks.streaming(2, 16).to_dense(size, size),
        (columns <= rows) & ((columns < 2) | (columns > rows - 16)),
    )
    ids = torch.arange(size) // 16
    assert_same_bits(masks.documents(ids=ids).to_dense(size, size), ids[:, None] == ids[None])
