"""Isolation: what a query may not see cannot reach its result, whatever it holds, bit for bit, both ways."""

import math

import pytest
import torch

import regard
from engine_cases import everywhere, in_every_precision, in_tiles
from regard import masks
from regard.testing import Inputs, assert_same_bits, make_inputs, textbook_attention

POISONS = [math.nan, math.inf, -math.inf, 3e38]
N_QUERIES, N_KEYS = 70, 150

# Masks under which key 100 is unseen by some rows and, except under the first, seen by others.
PARTIAL = {
    "padding": masks.padding([90]),
    "causal": masks.causal(),
    "window": masks.sliding_window(9),
    "streaming": masks.streaming(3, 9),
    "documents": masks.documents(lengths=[37, 40, 25, 48]),
    "random": masks.dense(torch.rand(N_QUERIES, N_KEYS, generator=torch.Generator().manual_seed(2)) < 0.4),
}


def run(inputs: Inputs, mask, engine: str, rows: torch.Tensor, **extras):
    """Output and gradients when only `rows` are asked for, as a training loss that drops the others would."""
    tensors = [t.detach().clone().requires_grad_() for t in inputs]
    out, w = regard.attention(*tensors, mask, engine=engine, return_weights=True, **extras)
    direction = torch.randn(out[..., rows, :].shape, generator=torch.Generator().manual_seed(8)).to(out.dtype)
    gradients = torch.autograd.grad(out[..., rows, :], tensors, direction)
    return out.detach(), w, gradients


def poisoned(inputs: Inputs, which: str, place: int | slice, poison: float) -> Inputs:
    spoiled = inputs._replace(**{name: getattr(inputs, name).clone() for name in Inputs._fields})
    names = ("key", "value") if which == "both" else (which,)
    for name in names:
        getattr(spoiled, name)[..., place, :] = poison
    return spoiled


@everywhere
@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("which", ["key", "value", "both"])
@pytest.mark.parametrize("name", PARTIAL)
def test_a_row_that_may_not_see_a_key_is_untouched_by_it(name, which, poison, engine) -> None:
    mask, inputs = PARTIAL[name], make_inputs(N_QUERIES, N_KEYS)
    seen = mask.to_dense(N_QUERIES, N_KEYS).view(N_QUERIES, N_KEYS)
    rows = ~seen[:, 100]
    apart = ~seen[~rows].any(0)  # keys that no spoiled row sees: their gradients are untouched too
    apart[100] = False
    plain, w, gradients = run(inputs, mask, engine, rows)
    spoiled, w_spoiled, spoiled_gradients = run(poisoned(inputs, which, 100, poison), mask, engine, rows)
    assert_same_bits(spoiled[..., rows, :], plain[..., rows, :])
    assert_same_bits(spoiled_gradients[0][..., rows, :], gradients[0][..., rows, :], what="query's gradient")
    for ours, true in zip(spoiled_gradients[1:], gradients[1:], strict=True):
        assert_same_bits(ours[..., apart, :], true[..., apart, :], what="key's or value's gradient")
    for ask in ("max_logit", "max_weight", "entropy", "distance"):
        assert_same_bits(getattr(w_spoiled, ask)()[..., rows], getattr(w, ask)()[..., rows], what=ask)
    assert_same_bits(w_spoiled.logsumexp[..., rows], w.logsumexp[..., rows], what="logsumexp")
    assert_same_bits(w_spoiled.to_dense()[..., rows, :], w.to_dense()[..., rows, :], what="weights")
    for answer, expected in zip(w_spoiled.top_keys(5), w.top_keys(5), strict=True):
        assert_same_bits(answer[..., rows, :], expected[..., rows, :], what="top keys")


@in_tiles
@pytest.mark.parametrize("place", [0, 255, 256, 257, 511, 512, 599])
def test_poison_at_the_edges_of_tiles(place: int, engine: str) -> None:
    inputs = make_inputs(300, 600, batch=(1,))
    table = torch.rand(300, 600, generator=torch.Generator().manual_seed(5)) < 0.4
    for mask in (masks.causal() & masks.sliding_window(90), masks.streaming(1, 40), masks.dense(table)):
        rows = ~mask.to_dense(300, 600)[:, place]
        plain, w, gradients = run(inputs, mask, engine, rows)
        spoiled = poisoned(inputs, "both", place, math.nan)
        out, w_spoiled, spoiled_gradients = run(spoiled, mask, engine, rows)
        assert_same_bits(out[..., rows, :], plain[..., rows, :])
        assert_same_bits(spoiled_gradients[0][..., rows, :], gradients[0][..., rows, :])
        assert_same_bits(w_spoiled.entropy()[..., rows], w.entropy()[..., rows])


@in_every_precision
@pytest.mark.parametrize("poison", POISONS)
def test_padding_filled_with_anything_gives_the_gradients_of_clean_padding(poison, dtype, engine) -> None:
    mask = masks.padding([90, 131]) & masks.causal()
    inputs = make_inputs(N_QUERIES, N_KEYS, dtype=dtype)
    spoiled = inputs._replace(key=inputs.key.clone(), value=inputs.value.clone())
    for item, length in enumerate((90, 131)):
        spoiled.key[item, :, length:] = poison
        spoiled.value[item, :, length:] = poison
    rows = torch.ones(N_QUERIES, dtype=torch.bool)
    plain, w, gradients = run(inputs, mask, engine, rows)
    out, w_spoiled, spoiled_gradients = run(spoiled, mask, engine, rows)
    assert torch.isfinite(plain).all()
    assert_same_bits(out, plain)
    for ours, true in zip(spoiled_gradients, gradients, strict=True):
        assert_same_bits(ours, true, what="gradient")
        assert torch.isfinite(true).all()
    assert not spoiled_gradients[1][0, :, 90:].any()
    assert not spoiled_gradients[2][0, :, 90:].any()
    keys = slice(85, 140)
    answers, expected = (
        each.statistics("received", "diagonals", "entropy", pooled=(7, 9), mass=keys)
        for each in (w_spoiled, w)
    )
    for name, answer in answers.items():
        assert_same_bits(answer, expected[name], what=name)


@everywhere
def test_products_with_the_weights_are_isolated_too(engine: str) -> None:
    inputs = make_inputs(N_QUERIES, N_KEYS)
    mask = masks.padding([90])
    _, w = regard.attention(*inputs, mask, return_weights=True, engine=engine)
    assert_same_bits(w @ poisoned(inputs, "value", slice(90, None), math.nan).value, w @ inputs.value)
    rows = masks.dense((torch.arange(N_QUERIES) < 40)[:, None].expand(N_QUERIES, N_KEYS))
    _, w = regard.attention(*inputs, rows, return_weights=True, engine=engine)
    assert_same_bits(w.mT @ poisoned(inputs, "query", slice(40, None), math.nan).query, w.mT @ inputs.query)


@everywhere
@pytest.mark.parametrize("name", PARTIAL)
def test_a_nan_query_spoils_its_own_row_and_does(name: str, engine: str) -> None:
    mask, inputs = PARTIAL[name], make_inputs(N_QUERIES, N_KEYS)
    rows = torch.arange(N_QUERIES) != 20
    plain, w, gradients = run(inputs, mask, engine, rows)
    out, w_spoiled, spoiled_gradients = run(poisoned(inputs, "query", 20, math.nan), mask, engine, rows)
    assert out[..., 20, :].isnan().all()
    assert w_spoiled.logsumexp[..., 20].isnan().all()
    assert_same_bits(out[..., rows, :], plain[..., rows, :])
    assert_same_bits(spoiled_gradients[0][..., rows, :], gradients[0][..., rows, :], what="query's gradient")
    unseen = ~mask.to_dense(N_QUERIES, N_KEYS).view(N_QUERIES, N_KEYS)[20]
    for ours, true in zip(spoiled_gradients[1:], gradients[1:], strict=True):
        assert_same_bits(ours[..., unseen, :], true[..., unseen, :], what="gradient of keys it cannot see")
    received = w_spoiled.received()
    assert received[..., ~unseen].isnan().all()
    assert_same_bits(received[..., unseen], w.received()[..., unseen], what="received")


@everywhere
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_nan_query_changes_nothing_in_an_empty_row(poison: float, engine: str) -> None:
    inputs = poisoned(make_inputs(N_QUERIES, N_KEYS), "query", 20, poison)
    mask = masks.dense((torch.arange(N_QUERIES) != 20)[:, None].expand(N_QUERIES, N_KEYS))
    rows = torch.ones(N_QUERIES, dtype=torch.bool)
    out, w, gradients = run(inputs, mask, engine, rows)
    assert not out[..., 20, :].any()
    assert (w.logsumexp[..., 20] == -math.inf).all()
    assert (w.max_logit()[..., 20] == -math.inf).all()
    assert not w.entropy()[..., 20].any()
    assert torch.isfinite(w.received()).all()
    for gradient in gradients:
        assert torch.isfinite(gradient).all()
    assert not gradients[0][..., 20, :].any()


@everywhere
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_seen_does_show(poison: float, engine: str) -> None:
    """Isolation must not hide what a row may see: the output is what the formula says, row by row."""
    inputs = make_inputs(N_QUERIES, N_KEYS, query_heads=1, key_heads=1, batch=(1,))
    inputs.value[0, 0, 100, 3] = poison
    seen = masks.sliding_window(9).to_dense(N_QUERIES, N_KEYS)
    out = regard.attention(*inputs, masks.sliding_window(9), engine=engine)
    sees = seen[:, 100]
    shown = out[0, 0, sees, 3]
    assert shown.isnan().all() if math.isnan(poison) else (shown == poison).all()
    others = [column for column in range(8) if column != 3]
    assert torch.isfinite(out[0, 0][:, others]).all()
    assert torch.isfinite(out[0, 0, ~sees]).all()
    clean = textbook_attention(inputs.query, inputs.key, inputs.value.nan_to_num(0, 0, 0), seen).output
    torch.testing.assert_close(out[..., others], clean[..., others])


@everywhere
@pytest.mark.parametrize("grouped", [1, 2])
def test_other_heads_and_batch_items_are_apart(grouped: int, engine: str) -> None:
    inputs = make_inputs(N_QUERIES, N_KEYS, key_heads=4 // grouped, batch=(3,))
    spoiled = inputs._replace(key=inputs.key.clone(), value=inputs.value.clone())
    spoiled.key[1, 0], spoiled.value[1, 0] = math.nan, math.nan
    plain, out = (regard.attention(*each, masks.causal(), engine=engine) for each in (inputs, spoiled))
    touched = torch.zeros(3, 4, dtype=torch.bool)
    touched[1, :grouped] = True
    assert_same_bits(out[~touched], plain[~touched])
    assert out[touched].isnan().all()


@everywhere
def test_non_finite_bias_of_masked_entries(engine: str) -> None:
    inputs = make_inputs(N_QUERIES, N_KEYS)
    bias = torch.randn(N_QUERIES, N_KEYS)
    mask = masks.causal()
    spoiled = bias.masked_fill(~mask.to_dense(N_QUERIES, N_KEYS), math.nan)
    rows = torch.ones(N_QUERIES, dtype=torch.bool)
    plain, _, gradients = run(inputs, mask, engine, rows, bias=bias)
    out, _, spoiled_gradients = run(inputs, mask, engine, rows, bias=spoiled)
    assert_same_bits(out, plain)
    for ours, true in zip(spoiled_gradients, gradients, strict=True):
        assert_same_bits(ours, true)


@everywhere
def test_dropout_is_isolated(engine: str) -> None:
    inputs = make_inputs(N_QUERIES, N_KEYS)
    rows = torch.arange(N_QUERIES) < 20  # key 100 is at position 100, row 20 too
    spoiled = poisoned(inputs, "both", 100, math.nan)
    plain, _, _ = run(inputs, masks.causal(), engine, rows, dropout_p=0.3, seed=1)
    out, _, _ = run(spoiled, masks.causal(), engine, rows, dropout_p=0.3, seed=1)
    assert_same_bits(out[..., rows, :], plain[..., rows, :])
