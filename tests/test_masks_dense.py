"""Masks that are given as tensors: what is accepted, what they become, and what is refused."""

import re

import pytest
import torch

import regard
from regard import masks
from regard.testing import (
    BOUNDARY_SIZES,
    assert_same_bits,
    assert_within_budget,
    make_inputs,
    textbook_attention,
)


def random_table(*shape: int, share: float = 0.5, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < share


@pytest.mark.parametrize("size", BOUNDARY_SIZES)
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.98, 1.0])
def test_a_table_comes_back_as_it_was(size: int, share: float) -> None:
    table = random_table(33, size, share=share)
    assert_same_bits(masks.dense(table).to_dense(33, size), table)
    assert_same_bits((~masks.dense(table)).to_dense(33, size), ~table)


@pytest.mark.parametrize("shape", [(5, 7), (1, 1, 5, 7), (3, 1, 5, 7), (1, 4, 5, 7), (3, 4, 5, 7)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
def test_ranks_and_dtypes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    table = random_table(*shape)
    inputs = make_inputs(5, 7, batch=(3,))
    expected = regard.attention(*inputs, masks.dense(table))
    assert_same_bits(regard.attention(*inputs, table.to(dtype)), expected)
    exact = textbook_attention(*(t.double() for t in inputs), table).output
    assert_within_budget(expected, exact, textbook_attention(*inputs, table).output)


@pytest.mark.parametrize(
    "make", [lambda t: t.mT.contiguous().mT, lambda t: t[:1].expand(3, 4, 5, 7), lambda t: t.roll(1)]
)
def test_layout_of_the_table_does_not_matter(make) -> None:
    table = make(random_table(3, 4, 5, 7))
    inputs = make_inputs(5, 7, batch=(3,))
    assert_same_bits(regard.attention(*inputs, table), regard.attention(*inputs, table.clone().contiguous()))


def test_the_table_is_read_when_it_is_used_and_later_writes_do_not_half_apply() -> None:
    table = random_table(40, 40)
    kept = table.clone()
    mask = masks.dense(table)
    inputs = make_inputs(40)
    before = regard.attention(*inputs, mask)
    assert_same_bits(before, regard.attention(*inputs, masks.dense(kept)))
    table.logical_not_()
    after = regard.attention(*inputs, mask)
    old, new = (regard.attention(*inputs, masks.dense(each)) for each in (kept, ~kept))
    assert torch.equal(after, old) or torch.equal(after, new)


@pytest.mark.parametrize(
    "table",
    [
        torch.ones(64, 64, dtype=torch.bool).tril(),
        torch.ones(64, 64, dtype=torch.bool).tril().triu(-7),
        (torch.arange(64) < torch.tensor([10, 64])[:, None])[:, None, None].expand(2, 1, 64, 64),
        torch.block_diag(*[torch.ones(16, 16)] * 4).bool(),
        torch.zeros(64, 64, dtype=torch.bool),
    ],
    ids=["causal", "window", "padding", "documents", "nothing"],
)
def test_a_table_of_few_intervals_becomes_intervals(table: torch.Tensor) -> None:
    compiled = masks.dense(table).intervals(64, 64)
    assert compiled.starts.shape[-1] <= 1
    assert_same_bits(masks.dense(table).to_dense(64, 64), table.expand(*table.shape[:-2], 64, 64).clone())


def test_a_dense_mask_combines_with_named_ones() -> None:
    table = random_table(2, 1, 50, 50)
    mask = (masks.dense(table) & masks.causal()) | masks.sinks(2)
    columns, rows = torch.arange(50)[None], torch.arange(50)[:, None]
    assert_same_bits(mask.to_dense(50, 50), (table & (columns <= rows)) | (columns < 2))


def test_rank_3_is_refused() -> None:
    q, k, v = make_inputs(4, batch=(4,), query_heads=4)
    with pytest.raises(ValueError, match=r"(?s)\(4, 4, 4\)|rank|3"):
        regard.attention(q, k, v, torch.ones(4, 4, 4, dtype=torch.bool))
    with pytest.raises(ValueError):
        regard.attention(q, k, v, masks.dense(torch.ones(4, 4, 4, dtype=torch.bool)))


@pytest.mark.parametrize("shape", [(4, 6), (5, 5), (1, 5), (4, 1), (3, 1, 4, 5), (1, 3, 4, 5), (1, 1, 5, 4)])
def test_a_wrong_shape_is_refused_and_named(shape: tuple[int, ...]) -> None:
    q, k, v = make_inputs(4, 5, batch=(2,), query_heads=4, key_heads=4)
    with pytest.raises(ValueError, match=rf"mask.*{re.escape(str(shape))}|(batch|head) .*got 3") as caught:
        regard.attention(q, k, v, torch.ones(shape, dtype=torch.bool))
    assert len(str(caught.value)) < 400, "a sentence, not the tensor"


def test_a_float_table_is_refused_with_advice() -> None:
    q, k, v = make_inputs(4)
    with pytest.raises(TypeError, match=r"bias="):
        regard.attention(q, k, v, torch.zeros(4, 4))
    with pytest.raises(TypeError, match=r"bool"):
        masks.dense(torch.zeros(4, 4))


def test_an_integer_table_may_hold_only_0_and_1() -> None:
    q, k, v = make_inputs(4)
    with pytest.raises(ValueError, match=r"0.*1"):
        regard.attention(q, k, v, torch.full((4, 4), -10_000))
