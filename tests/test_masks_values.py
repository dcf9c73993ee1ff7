"""Masks as values: compared, copied, pickled, moved, drawn, and refused when arguments are wrong."""

import copy
import pickle

import pytest
import torch

from regard import masks
from regard.errors import RegardError
from regard.testing import assert_same_bits

TABLE = torch.rand(6, 6, generator=torch.Generator().manual_seed(1)) < 0.5

# Each made anew by its function, so that equality is of content.
MAKERS = {
    "causal": lambda: masks.causal(),
    "window": lambda: masks.sliding_window(3),
    "window per head": lambda: masks.sliding_window(torch.tensor([1, 4])),
    "band": lambda: masks.band(2, None),
    "band per head": lambda: masks.band(torch.tensor([1, 2]), torch.tensor([0, 1])),
    "padding": lambda: masks.padding([3, 5]),
    "left padding": lambda: masks.padding([3, 5], side="left"),
    "documents": lambda: masks.documents(lengths=[2, 4]),
    "documents by id": lambda: masks.documents(ids=torch.tensor([0, 0, 0, 1, 1, 1])),
    "documents by boundary": lambda: masks.documents(cu_seqlens=torch.tensor([0, 1, 6])),
    "prefix": lambda: masks.prefix([1, 4]),
    "sinks": lambda: masks.sinks(2),
    "streaming": lambda: masks.streaming(1, 3),
    "dense": lambda: masks.dense(TABLE),
    "and": lambda: masks.causal() & masks.sinks(3),
    "or": lambda: masks.sliding_window(2) | masks.sinks(1),
    "not": lambda: ~masks.causal(),
    "per batch": lambda: masks.per_batch([masks.causal(), masks.sinks(1)]),
    "per head": lambda: masks.per_head([masks.causal(), masks.dense(TABLE)]),
    "all of it": lambda: (~masks.documents(lengths=[2, 4]) | masks.band(1, 1)) & masks.padding([3, 6]),
}


def table(mask: masks.Mask) -> torch.Tensor:
    return mask.to_dense(6, 6)


@pytest.mark.parametrize("name", MAKERS)
def test_equality_is_of_content(name: str) -> None:
    mask, again = MAKERS[name](), MAKERS[name]()
    assert mask == again
    assert (mask != again) is False
    for other, make in MAKERS.items():
        if other != name:
            assert mask != make(), other
    assert mask != 3
    assert mask != "causal"


def test_equality_sees_arguments() -> None:
    assert masks.sliding_window(3) != masks.sliding_window(4)
    assert masks.padding([3, 5]) != masks.padding([3, 4])
    assert masks.padding([3, 5]) != masks.padding([3, 5], side="left")
    assert masks.dense(TABLE) != masks.dense(~TABLE)
    assert masks.band(1, 2) != masks.band(2, 1)


@pytest.mark.parametrize("name", MAKERS)
def test_pickled_and_copied(name: str) -> None:
    mask = MAKERS[name]()
    for twin in (pickle.loads(pickle.dumps(mask)), copy.copy(mask), copy.deepcopy(mask), mask.to("cpu")):
        assert twin == mask
        assert type(twin) is type(mask)
        assert_same_bits(table(twin), table(mask))


@pytest.mark.parametrize("name", MAKERS)
def test_moved_to_another_device(name: str) -> None:
    mask = MAKERS[name]()
    moved = mask.to(torch.device("meta"))
    assert isinstance(moved, masks.Mask)
    assert_same_bits(table(mask), table(MAKERS[name]()))  # the original stays


@pytest.mark.parametrize("name", MAKERS)
def test_drawn(name: str) -> None:
    mask = MAKERS[name]()
    text = str(mask)
    assert "\n" in text
    assert len(text) < 10_000
    assert "\n" not in repr(mask)
    assert len(repr(mask)) < 1_000
    page = mask._repr_html_()
    assert page.lstrip().startswith("<")
    assert len(page) < 200_000


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "dense" and "per head" not in name])
def test_repr_is_the_expression(name: str) -> None:
    names = {**vars(masks), "masks": masks, "torch": torch, "tensor": torch.tensor}
    mask = MAKERS[name]()
    assert eval(repr(mask), names) == mask


def test_drawings_differ_where_masks_do() -> None:
    drawings = [
        str(mask) for mask in (masks.causal(), ~masks.causal(), masks.sliding_window(2), masks.sinks(1))
    ]
    assert len(set(drawings)) == 4


@pytest.mark.parametrize(
    "use", [bool, lambda m: not m, lambda m: m and masks.causal(), lambda m: masks.causal() or m]
)
def test_truth_is_refused_with_advice(use) -> None:
    with pytest.raises(TypeError, match=r"&"):
        use(masks.causal())


def test_causal_is_not_a_chained_comparison_of_anything() -> None:
    for other in (3, "x", None):
        for combine in (lambda a, b: a & b, lambda a, b: a | b):
            with pytest.raises(TypeError):
                combine(masks.causal(), other)


def test_operands_are_left_as_they_were() -> None:
    a, b = masks.padding([3, 5]), masks.causal()
    before = table(a), table(b)
    _ = a & b, a | b, ~a
    for mask, then in zip((a, b), before, strict=True):
        assert_same_bits(table(mask), then)


def test_masks_do_not_follow_the_tensors_they_were_made_from_by_halves() -> None:
    sizes = torch.tensor([1, 4])
    mask = masks.sliding_window(sizes)
    before = table(mask)
    sizes.fill_(2)
    assert torch.equal(table(mask), before) or torch.equal(table(mask), table(masks.sliding_window(sizes)))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: masks.sliding_window(0), r"size.*0"),
        (lambda: masks.sliding_window(-2), r"size.*-2"),
        (lambda: masks.sliding_window(2.5), r"size.*(2\.5|float)"),
        (lambda: masks.sliding_window("3"), r"size"),
        (lambda: masks.band("a", 0), r"before"),
        (lambda: masks.band(0, 1.5), r"after"),
        (lambda: masks.padding([-1]), r"lengths.*-1"),
        (lambda: masks.padding([1.5]), r"lengths"),
        (lambda: masks.padding([2], side="top"), r"side.*top"),
        (lambda: masks.padding(torch.ones(2, 2, dtype=torch.int64)), r"lengths"),
        (lambda: masks.prefix([-1]), r"lengths.*-1"),
        (lambda: masks.sinks(-1), r"count.*-1"),
        (lambda: masks.streaming(-1, 3), r"sinks.*-1"),
        (lambda: masks.streaming(1, 0), r"window.*0"),
        (lambda: masks.documents(), r"lengths.*ids.*cu_seqlens"),
        (lambda: masks.documents(lengths=[3], ids=[0, 0, 0]), r"lengths.*ids"),
        (lambda: masks.documents(lengths=[3, -1]), r"lengths.*-1"),
        (lambda: masks.documents(cu_seqlens=[1, 3]), r"cu_seqlens"),
        (lambda: masks.documents(cu_seqlens=[0, 5, 3]), r"cu_seqlens"),
        (lambda: masks.documents(ids=torch.zeros(2, 2, 2, dtype=torch.int64)), r"ids"),
        (lambda: masks.documents(ids=[0.5, 1.0]), r"ids"),
        (lambda: masks.dense(torch.zeros(3, 3)), r"bool"),
        (lambda: masks.dense(torch.ones(3, dtype=torch.bool)), r"\(3,?\)"),
        (lambda: masks.per_batch([]), r"masks|empty|at least"),
        (lambda: masks.per_head([masks.causal(), 3]), r"3|int"),
    ],
)
def test_wrong_arguments_are_named(make, named: str) -> None:
    with pytest.raises(RegardError, match=named) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("mask", "batch", "heads"),
    [
        (masks.padding([1, 2, 3]), 2, 4),
        (masks.prefix([1, 2, 3]), 2, 4),
        (masks.sliding_window(torch.tensor([1, 2, 3])), 2, 4),
        (masks.per_batch([masks.causal()] * 3), 2, 4),
        (masks.per_head([masks.causal()] * 3), 2, 4),
        (masks.documents(ids=torch.zeros(3, 6, dtype=torch.int64)), 2, 4),
    ],
    ids=repr,
)
def test_a_mask_for_another_number_of_items_or_heads_is_refused(mask, batch: int, heads: int) -> None:
    import regard
    from regard.testing import make_inputs

    with pytest.raises(RegardError, match=r"3"):
        regard.attention(*make_inputs(6, batch=(batch,), query_heads=heads), mask)


def test_masks_of_different_numbers_of_items_do_not_combine() -> None:
    with pytest.raises(RegardError, match=r"2.*3|3.*2"):
        (masks.padding([1, 2]) & masks.prefix([1, 2, 3])).to_dense(4, 4)


@pytest.mark.parametrize("sizes", [(-1, 3), (3, -1), (2.5, 3)])
def test_sizes_that_are_none_are_refused(sizes) -> None:
    with pytest.raises(RegardError):
        masks.causal().to_dense(*sizes)


def test_numbers_that_reach_further_than_any_position_reach_everything() -> None:
    import sys

    assert torch.equal(masks.band(0, sys.maxsize).to_dense(3, 3), masks.band(0, None).to_dense(3, 3))
    assert torch.equal(masks.sliding_window(sys.maxsize).to_dense(3, 3), masks.causal().to_dense(3, 3))


def test_one_list_of_documents_serves_queries_at_different_positions() -> None:
    lengths = [3, 2]
    both = masks.documents(lengths=lengths).to_dense(1, 5, query_start=torch.tensor([1, 4]))
    assert both[:, 0, 0].int().tolist() == [[1, 1, 1, 0, 0], [0, 0, 0, 1, 1]]


def test_ids_that_alternate_are_one_document_each() -> None:
    position = torch.arange(600)
    dense = masks.documents(ids=position % 2).to_dense(600, 600)
    assert torch.equal(dense, (position[:, None] - position[None]) % 2 == 0)


def test_a_mask_that_is_only_repeated_is_scanned_once() -> None:
    mask = torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) > 0.5
    sets = masks.dense(mask.expand(8, 16, 64, 64)).compile(masks.compiled.Frame.of(64, 64, None, 0))
    assert (sets.batch_size, sets.num_heads) == (8, 16)
    assert not sets.varies(0)
    assert not sets.varies(1)
    assert torch.equal(sets.to_dense()[7, 15], mask)
