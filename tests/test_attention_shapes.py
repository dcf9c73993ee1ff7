"""Ranks, broadcast batches, grouped heads, strides and empty sizes: the same numbers whatever holds them."""

import pytest
import torch

import regard
from regard import masks
from regard.testing import (
    ENGINES,
    LAYOUTS,
    Inputs,
    assert_agrees,
    assert_same_bits,
    make_inputs,
    textbook_attention,
    widest_dtype,
)

pytestmark = pytest.mark.parametrize("engine", ENGINES)


def agree(inputs, engine, mask=None, allowed=None):
    """The call agrees with the textbook in float64; its output and weights."""
    out, w = regard.attention(*inputs, mask, engine=engine, return_weights=True)
    exact = textbook_attention(*(t.double() for t in inputs), allowed)
    assert_agrees(out, exact.output, what="output")
    assert_agrees(w.to_dense(), exact.weights, what="weights")
    assert w.shape == exact.weights.shape
    return out, w


@pytest.mark.parametrize("mask", [None, masks.causal()], ids=repr)
def test_two_dimensions_have_no_heads(mask, engine: str) -> None:
    inputs = make_inputs(17, 33, batch=(), query_heads=1, key_heads=1, value_dim=5)
    flat = [t[0] for t in inputs]
    out, w = regard.attention(*flat, mask, engine=engine, return_weights=True)
    expected, expected_w = regard.attention(*inputs, mask, engine=engine, return_weights=True)
    assert out.shape == (17, 5)
    assert_same_bits(out, expected[0])
    assert w.shape == (17, 33)
    assert w.logsumexp.shape == (17,)
    assert_same_bits(w.to_dense(), expected_w.to_dense()[0])
    assert w.received().shape == (33,)
    assert w.entropy().shape == (17,)
    assert w.top_keys(3)[1].shape == (17, 3)
    assert w.pooled(4, 5).shape == (4, 5)
    assert w.diagonals().shape == (17 + 33 - 1,)
    assert (w @ flat[2]).shape == (17, 5)
    assert (w.mT @ flat[0]).shape == (33, 8)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 1, 3)])
def test_leading_dimensions(batch: tuple[int, ...], engine: str) -> None:
    inputs = make_inputs(9, 20, batch=batch)
    _, w = agree(inputs, engine, masks.causal(), masks.causal().to_dense(9, 20))
    assert w.logsumexp.shape == (*batch, 4, 9)
    assert w.received().shape == (*batch, 4, 20)
    assert (w @ inputs.value).shape == (*batch, 4, 9, 8)
    assert w.top_keys(2)[0].shape == (*batch, 4, 9, 2)


@pytest.mark.parametrize(
    ("query_batch", "key_batch", "value_batch"),
    [
        ((1,), (3,), (3,)),
        ((3,), (1,), (1,)),
        ((3,), (3,), (1,)),
        ((3,), (), ()),
        ((), (3,), (3,)),
        ((2, 1), (1, 3), (2, 3)),
        ((2, 3), (3,), (1, 1)),
    ],
)
def test_batches_broadcast(query_batch, key_batch, value_batch, engine: str) -> None:
    q = make_inputs(9, 20, batch=query_batch, seed=1).query
    k = make_inputs(9, 20, batch=key_batch, seed=2).key
    v = make_inputs(9, 20, batch=value_batch, seed=3).value
    agree(Inputs(q, k, v), engine, masks.causal(), masks.causal().to_dense(9, 20))


def test_broadcast_batches_sum_their_gradients(engine: str) -> None:
    dtype = widest_dtype(engine)
    q = make_inputs(9, 20, batch=(3,), seed=1, dtype=dtype).query.requires_grad_()
    k, v = (t.requires_grad_() for t in make_inputs(9, 20, batch=(1,), seed=2, dtype=dtype)[1:])
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    ours = torch.autograd.grad(regard.attention(q, k, v, engine=engine).square().sum(), (q, k, v))
    textbook = torch.autograd.grad(textbook_attention(*wide).output.square().sum(), wide)
    for our, true in zip(ours, textbook, strict=True):
        assert_agrees(our, true)


@pytest.mark.parametrize(("query_heads", "key_heads"), [(1, 1), (6, 1), (6, 2), (6, 3), (6, 6), (32, 4)])
def test_grouped_heads(query_heads: int, key_heads: int, engine: str) -> None:
    inputs = make_inputs(9, 20, query_heads=query_heads, key_heads=key_heads)
    agree(inputs, engine, masks.causal(), masks.causal().to_dense(9, 20))


def test_heads_group_in_order(engine: str) -> None:
    q, k, v = make_inputs(9, 20, query_heads=6, key_heads=2)
    out = regard.attention(q, k, v, engine=engine)
    alone = regard.attention(q[:, 3:], k[:, 1:], v[:, 1:], engine=engine)
    torch.testing.assert_close(out[:, 3:], alone)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_strides_do_not_matter(which: int, layout: str, engine: str) -> None:
    inputs = list(make_inputs(33, 65, head_dim=12))
    mask = masks.causal()
    expected = regard.attention(*inputs, mask, engine=engine)
    inputs[which] = LAYOUTS[layout](inputs[which])
    torch.testing.assert_close(regard.attention(*inputs, mask, engine=engine), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("n_queries", [1, 3, 33])
def test_strides_of_few_rows_and_many_in_low_precision(n_queries, dtype, layout, engine: str) -> None:
    inputs = make_inputs(n_queries, 70, head_dim=20, value_dim=12, dtype=dtype)
    laid = Inputs(*(LAYOUTS[layout](t) for t in inputs))
    agree(laid, engine, masks.causal(), masks.causal().to_dense(n_queries, 70))
    expected = regard.attention(*inputs, masks.causal(), engine=engine)
    torch.testing.assert_close(regard.attention(*laid, masks.causal(), engine=engine), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_of_everything_forward_and_backward(layout: str, engine: str) -> None:
    inputs = make_inputs(33, 65, head_dim=12, dtype=widest_dtype(engine))
    direction = make_inputs(33, key_heads=4, head_dim=12, dtype=widest_dtype(engine), seed=9).value

    def gradients(leaves, direction):
        leaves = [t.detach().requires_grad_() for t in leaves]
        out = regard.attention(*leaves, masks.causal(), engine=engine)
        return (out, *torch.autograd.grad(out, leaves, direction))

    laid = [LAYOUTS[layout](t) for t in inputs]
    for ours, plain in zip(
        gradients(laid, LAYOUTS[layout](direction)), gradients(inputs, direction), strict=True
    ):
        torch.testing.assert_close(ours, plain)


def test_expanded_tensors(engine: str) -> None:
    q, k, v = make_inputs(9, 20, batch=(1,), key_heads=4)
    wide = (q.expand(3, 4, 9, 8), k[:, :1].expand(3, 4, 20, 8), v[:, :, :1].expand(3, 4, 20, 8))
    expected = regard.attention(*(t.contiguous() for t in wide), engine=engine)
    torch.testing.assert_close(regard.attention(*wide, engine=engine), expected)


def test_inputs_are_left_as_they_were(engine: str) -> None:
    inputs = make_inputs(33, 65)
    before = [t.clone() for t in inputs]
    _, w = regard.attention(*inputs, masks.causal(), engine=engine, return_weights=True)
    w.statistics("entropy", "received", top_keys=3)
    for now, then in zip(inputs, before, strict=True):
        assert_same_bits(now, then)


@pytest.mark.parametrize(
    ("batch", "n_queries", "n_keys", "value_dim"),
    [((0,), 5, 7, 8), ((2, 0), 5, 7, 8), ((2,), 0, 7, 8), ((2,), 5, 0, 8), ((2,), 0, 0, 8), ((2,), 5, 7, 0)],
)
@pytest.mark.parametrize("mask", [None, masks.causal()], ids=repr)
def test_empty_sizes_forward_and_backward(batch, n_queries, n_keys, value_dim, mask, engine: str) -> None:
    inputs = make_inputs(n_queries, n_keys, batch=batch, value_dim=value_dim, requires_grad=True)
    out, w = regard.attention(*inputs, mask, engine=engine, return_weights=True)
    assert out.shape == (*batch, 4, n_queries, value_dim)
    assert not out.any()
    out.sum().backward()
    for tensor in inputs:
        assert tensor.grad.shape == tensor.shape
        assert not tensor.grad.any()
    answers = w.statistics("entropy", "received", "max_logit", "max_weight", "distance", top_keys=2)
    assert answers["received"].shape == (*batch, 4, n_keys)
    assert answers["entropy"].shape == (*batch, 4, n_queries)


def test_the_same_tensor_three_times(engine: str) -> None:
    x = make_inputs(20, query_heads=2, dtype=widest_dtype(engine)).query.requires_grad_()
    ours = torch.autograd.grad(regard.attention(x, x, x, masks.causal(), engine=engine).square().sum(), x)
    allowed = masks.causal().to_dense(20, 20)
    wide = x.detach().double().requires_grad_()
    true = torch.autograd.grad(textbook_attention(wide, wide, wide, allowed).output.square().sum(), wide)
    assert_agrees(ours[0], true[0], what="gradient")
