"""Gradients against finite differences, against float64 within a budget, and where they tend to break."""

from functools import partial

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import regard
from engine_cases import everywhere, in_double
from regard import biases, masks
from regard.testing import (
    Inputs,
    assert_agrees,
    assert_same_bits,
    assert_within_budget,
    make_inputs,
    textbook_attention,
    widest_dtype,
)

# Along a random direction instead of along every axis: as sharp, and a tenth of the time.
gradcheck = partial(torch.autograd.gradcheck, fast_mode=True)
gradgradcheck = partial(torch.autograd.gradgradcheck, fast_mode=True)

MASKS = {
    "none": None,
    "causal": masks.causal(),
    "window and left padding": masks.sliding_window(3) & masks.padding([2, 5], side="left"),
    "streaming": masks.streaming(1, 3),
    "empty rows": masks.documents(lengths=[3, 3]) & masks.sinks(2),
}


def leaves(dtype=torch.float64, n_queries=4, n_keys=6, **kinds) -> Inputs:
    return make_inputs(n_queries, n_keys, head_dim=2, value_dim=3, dtype=dtype, requires_grad=True, **kinds)


@in_double
@pytest.mark.parametrize("name", MASKS)
def test_finite_differences(name: str, engine: str) -> None:
    assert gradcheck(lambda *t: regard.attention(*t, MASKS[name], engine=engine), (*leaves(),))


@in_double
def test_finite_differences_through_softcap_and_sinks(engine: str) -> None:
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)

    def call(q, k, v, sink_logits):
        return regard.attention(q, k, v, masks.causal(), softcap=2.0, sink_logits=sink_logits, engine=engine)

    assert gradcheck(call, (*leaves(), sinks))


@in_double
@pytest.mark.parametrize("shape", [(4, 6), (2, 1, 4, 6), (1, 4, 4, 6), (2, 4, 4, 6)])
def test_finite_differences_through_a_dense_bias(shape: tuple[int, ...], engine: str) -> None:
    bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)

    def call(q, k, v, bias):
        return regard.attention(q, k, v, masks.causal(), bias=biases.dense(bias), softcap=2.0, engine=engine)

    assert gradcheck(call, (*leaves(), bias))


@in_double
def test_finite_differences_through_a_relative_table(engine: str) -> None:
    table = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    assert gradcheck(
        lambda q, k, v, t: regard.attention(q, k, v, masks.causal(), bias=biases.relative(t), engine=engine),
        (*leaves(), table),
    )


@in_double
def test_finite_differences_through_alibi_slopes(engine: str) -> None:
    slopes = torch.rand(4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(
        lambda q, k, v, s: regard.attention(q, k, v, masks.causal(), bias=biases.alibi(s), engine=engine),
        (*leaves(), slopes),
    )


@in_double
@pytest.mark.parametrize("name", MASKS)
def test_finite_differences_through_output_and_logsumexp(name: str, engine: str) -> None:
    def call(*tensors):
        out, w = regard.attention(*tensors, MASKS[name], return_weights=True, engine=engine)
        return out, w.logsumexp.clamp_min(-50.0)  # −inf of an empty row has no difference to take

    assert gradcheck(call, (*leaves(),))


@in_double
def test_finite_differences_with_dropout(engine: str) -> None:
    assert gradcheck(
        lambda *t: regard.attention(*t, masks.causal(), dropout_p=0.4, seed=11, engine=engine), (*leaves(),)
    )


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("n_keys", [17, 65, 129, 300])
@pytest.mark.parametrize("mask", [None, masks.streaming(2, 40)], ids=repr)
def test_budget(mask, n_keys: int, dtype: torch.dtype, engine: str) -> None:
    inputs = make_inputs(33, n_keys, dtype=dtype, head_dim=16, requires_grad=True)
    wide = [t.detach().double().requires_grad_() for t in inputs]
    direction = make_inputs(33, key_heads=4, head_dim=16, dtype=dtype, seed=4).value
    allowed = None if mask is None else mask.to_dense(33, n_keys)
    ours = torch.autograd.grad(regard.attention(*inputs, mask, engine=engine), inputs, direction)
    same = torch.autograd.grad(textbook_attention(*inputs, allowed).output, inputs, direction)
    exact = torch.autograd.grad(textbook_attention(*wide, allowed).output, wide, direction.double())
    for name, our, true, textbook in zip(Inputs._fields, ours, exact, same, strict=True):
        assert our.dtype == dtype
        assert_within_budget(our, true, textbook, factor=3.0, what=f"the gradient of {name}")


@everywhere
@pytest.mark.parametrize("length", [63, 64, 65, 127])
@pytest.mark.parametrize("level", [-1000.0, -120.0, 90.0])
def test_rows_sum_to_one_in_the_gradient_too(level: float, length: int, engine: str) -> None:
    """Σⱼ dV = Σᵢ dO at any level of logits; exp(s − logsumexp) in float32 misses it by |level| roundings."""
    inputs = make_inputs(length, key_heads=4, head_dim=16, requires_grad=True)
    bias = torch.full((length, length), level)
    direction = make_inputs(length, key_heads=4, head_dim=16, seed=4).value.abs()
    out, w = regard.attention(*inputs, bias=bias, return_weights=True, engine=engine)
    (gradient,) = torch.autograd.grad(out, inputs.value, direction)
    torch.testing.assert_close(gradient.sum(-2), direction.sum(-2), rtol=1e-6, atol=0.0)
    torch.testing.assert_close(w.to_dense().sum(-1), torch.ones(2, 4, length), rtol=1e-6, atol=0.0)


@everywhere
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_only_what_is_asked_for(wanted: tuple[int, ...], engine: str) -> None:
    every = leaves(widest_dtype(engine))
    wide = [t.detach().double().requires_grad_() for t in every]
    true = torch.autograd.grad(textbook_attention(*wide).output.square().sum(), wide)
    inputs = [t.detach().requires_grad_(place in wanted) for place, t in enumerate(every)]
    regard.attention(*inputs, engine=engine).square().sum().backward()
    for place, tensor in enumerate(inputs):
        if place in wanted:
            assert_agrees(tensor.grad, true[place])
        else:
            assert tensor.grad is None


@everywhere
def test_an_expanded_and_a_strided_direction(engine: str) -> None:
    dtype = widest_dtype(engine)
    inputs = leaves(dtype)
    wide = [t.detach().double().requires_grad_() for t in inputs]
    out, book = regard.attention(*inputs, engine=engine), textbook_attention(*wide).output
    for direction in (
        torch.ones((), dtype=dtype).expand_as(out),
        torch.randn(2, 4, 3, 4, dtype=dtype).mT,
        torch.randn(2, 4, 4, 6, dtype=dtype)[..., ::2].transpose(1, 2),
    ):
        ours = torch.autograd.grad(out, inputs, direction, retain_graph=True)
        true = torch.autograd.grad(book, wide, direction.double(), retain_graph=True)
        for our, expected in zip(ours, true, strict=True):
            assert_agrees(our, expected)


@everywhere
def test_backward_twice_over_a_kept_graph_is_the_same(engine: str) -> None:
    inputs = leaves(widest_dtype(engine))
    total = regard.attention(*inputs, masks.causal(), dropout_p=0.3, engine=engine).square().sum()
    first = torch.autograd.grad(total, inputs, retain_graph=True)
    for again, before in zip(torch.autograd.grad(total, inputs), first, strict=True):
        assert_same_bits(again, before)


@everywhere
def test_a_change_in_place_before_backward_is_an_error_or_harmless(engine: str) -> None:
    q, k, v = leaves(widest_dtype(engine), key_heads=4)
    (expected,) = torch.autograd.grad(regard.attention(q, k, v, engine=engine).sum(), q)
    key = k * 1.0
    total = regard.attention(q, key, v, engine=engine).sum()
    key.add_(1.0)
    try:
        (ours,) = torch.autograd.grad(total, q)
    except RuntimeError as refused:
        assert "modified by an inplace operation" in str(refused)  # noqa: PT017 either is right
    else:
        assert_same_bits(ours, expected)


@everywhere
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
def test_checkpointing_gives_the_same_gradients(dropout_p: float, engine: str) -> None:
    inputs = leaves(widest_dtype(engine))

    def call(*tensors):
        return regard.attention(*tensors, masks.causal(), dropout_p=dropout_p, engine=engine)

    torch.manual_seed(5)
    plain = torch.autograd.grad(call(*inputs).square().sum(), inputs)
    torch.manual_seed(5)
    replayed = torch.autograd.grad(checkpoint(call, *inputs, use_reentrant=False).square().sum(), inputs)
    for one, other in zip(plain, replayed, strict=True):
        assert_same_bits(one, other)


def test_double_backward_on_the_reference() -> None:
    inputs = leaves(n_queries=3, n_keys=4, batch=(1,), query_heads=2, key_heads=1)
    assert gradgradcheck(lambda *t: regard.attention(*t, masks.causal(), engine="reference"), (*inputs,))


def test_double_backward_on_tiles_points_to_the_reference() -> None:
    inputs = leaves()
    out = regard.attention(*inputs, engine="tiled")
    (first,) = torch.autograd.grad(out.square().sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match=r'engine="reference"'):
        first.sum().backward()


@everywhere
def test_empty_rows_give_no_gradient(engine: str) -> None:
    q, k, v = leaves(widest_dtype(engine))
    mask = masks.dense(torch.arange(4)[:, None].ne(2).expand(4, 6))
    bias = torch.zeros(4, 6, dtype=widest_dtype(engine), requires_grad=True)
    out, w = regard.attention(q, k, v, mask, bias=bias, return_weights=True, engine=engine)
    (out.square().sum() + w.logsumexp.exp().sum()).backward()
    assert not q.grad[:, :, 2].any()
    assert not bias.grad[2].any()
    for gradient in (q.grad, k.grad, v.grad, bias.grad):
        assert torch.isfinite(gradient).all()
        assert gradient.any()


@everywhere
def test_logsumexp_alone_and_of_low_precision(engine: str) -> None:
    q, k, v = leaves(dtype=torch.bfloat16)
    _, w = regard.attention(q, k, v, return_weights=True, engine=engine)
    w.logsumexp.sum().backward()
    assert q.grad.dtype == k.grad.dtype == torch.bfloat16
    wide = [t.detach().double().requires_grad_() for t in (q, k)]
    exact = torch.autograd.grad(textbook_attention(*wide, v.double()).logsumexp.sum(), wide)
    for our, true in zip((q.grad, k.grad), exact, strict=True):
        torch.testing.assert_close(our.double(), true, rtol=2**-7, atol=2**-7)


@everywhere
def test_every_other_answer_is_detached(engine: str) -> None:
    out, w = regard.attention(*leaves(widest_dtype(engine)), return_weights=True, engine=engine)
    assert out.requires_grad
    assert w.logsumexp.requires_grad
    for answer in (w[0, 0], w.to_dense(), w.distance(), w.received(), w.max_logit(), w.top_keys(2)[0]):
        assert not answer.requires_grad


@everywhere
def test_no_graph_where_none_is_wanted(engine: str) -> None:
    inputs = leaves(widest_dtype(engine))
    with torch.no_grad():
        assert not regard.attention(*inputs, engine=engine).requires_grad
    with torch.inference_mode():
        out, w = regard.attention(*inputs, masks.causal(), return_weights=True, engine=engine)
        assert out.is_inference()
        torch.testing.assert_close(w @ inputs.value, out)
