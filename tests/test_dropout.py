"""Dropout decides by counting: seed, batch item, head and the two positions, and nothing else."""

import math

import pytest
import torch

import regard
from engine_cases import everywhere
from regard import masks
from regard.testing import (
    ENGINES,
    assert_agrees,
    assert_same_bits,
    assert_within_budget,
    make_inputs,
    textbook_attention,
    widest_dtype,
)

N, M = 40, 60


def decisions(
    n_queries=N, n_keys=M, *, batch=2, heads=4, key_heads=2, p=0.3, seed=7, **kinds
) -> torch.Tensor:
    """What was kept, bool `[B, H, N, M]`: with V the identity the output is the matrix after dropout."""
    q = torch.zeros(batch, heads, n_queries, 4)
    k, v = (
        torch.zeros(batch, key_heads, n_keys, 4),
        torch.eye(n_keys).expand(batch, key_heads, n_keys, n_keys),
    )
    return regard.attention(q, k, v, dropout_p=p, seed=seed, **kinds) != 0


def test_the_same_on_every_engine() -> None:
    first, *others = [decisions(engine=engine) for engine in ENGINES]
    for other in others:
        assert_same_bits(other, first)


@everywhere
def test_the_same_for_pieces_of_queries_and_of_keys(engine: str) -> None:
    whole = decisions(query_start=20, engine=engine)
    rows = decisions(n_queries=7, query_start=31, engine=engine)
    assert_same_bits(rows, whole[:, :, 11:18])
    columns = decisions(n_keys=13, query_start=20, key_start=40, engine=engine)
    assert_same_bits(columns, whole[..., 40:53])


@everywhere
def test_the_same_for_fewer_batch_items_heads_and_other_values(engine: str) -> None:
    whole = decisions(engine=engine)
    assert_same_bits(decisions(batch=1, engine=engine), whole[:1])
    assert_same_bits(decisions(heads=2, key_heads=1, engine=engine), whole[:, :2])
    assert_same_bits(decisions(key_heads=4, engine=engine), whole)
    per_head = masks.sliding_window(torch.tensor([1, 5, 20, 90]))
    for mask in (masks.causal(), masks.padding([30, 50]), per_head, per_head & masks.prefix([4, 9])):
        assert_same_bits(decisions(mask=mask, engine=engine), whole & mask.to_dense(N, M))


@everywhere
def test_positions_per_batch_item(engine: str) -> None:
    starts = torch.tensor([20, 33])
    both = decisions(query_start=starts, engine=engine)
    for item, start in enumerate(starts.tolist()):
        assert_same_bits(both[item], decisions(query_start=start, engine=engine)[item])


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_that_is_kept(p: float) -> None:
    kept = decisions(200, 300, p=p).double()
    sigma = math.sqrt(p * (1 - p) / kept.numel())
    assert abs(kept.mean() - (1 - p)) < 4 * sigma
    for dim, length in ((2, 300), (3, 200)):
        shares = kept.mean(dim)
        assert (shares - (1 - p)).abs().max() < 6 * math.sqrt(p * (1 - p) / (500 - length))


def test_decisions_are_unrelated_between_everything_that_is_counted() -> None:
    kept = decisions(200, 300, batch=3, p=0.5).double() * 2 - 1
    above = torch.triu_indices(200, 200, 1)
    others = [
        (kept[0, 0], kept[1, 0]),
        (kept[0, 0], kept[0, 1]),
        (kept[1, 0], kept[0, 1]),
        (kept[0, 0, :-1], kept[0, 0, 1:]),
        (kept[0, 0, :, :-1], kept[0, 0, :, 1:]),
        (kept[0, 0, :-1, 1:], kept[0, 0, 1:, :-1]),
        (kept[0, 0][above[0], above[1]], kept[0, 0][above[1], above[0]]),
        *[
            (kept[0, 0], decisions(200, 300, p=0.5, seed=s)[0, 0] * 2.0 - 1)
            for s in (8, 6, 2**32 + 7, 2**63 - 1, 0)
        ],
    ]
    for place, (one, other) in enumerate(others):
        assert (one * other).mean().abs() < 5 / math.sqrt(one.numel()), place


def test_a_higher_probability_drops_more() -> None:
    assert decisions(p=0.6).sum() < decisions(p=0.3).sum() < decisions(p=0.0).sum()


@everywhere
def test_what_is_kept_is_divided_by_the_share_kept(engine: str) -> None:
    inputs = make_inputs(N, M, dtype=widest_dtype(engine))
    keep = decisions(engine="reference", p=0.3).double() / 0.7
    out = regard.attention(*inputs, masks.causal(), dropout_p=0.3, seed=7, engine=engine)
    exact = textbook_attention(*(t.double() for t in inputs), masks.causal().to_dense(N, M), keep=keep)
    assert_agrees(out, exact.output)


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 600), (70, 300)])
def test_budget(n_queries: int, n_keys: int, dtype: torch.dtype, engine: str) -> None:
    allowed = masks.causal().to_dense(n_queries, n_keys)
    keep = decisions(n_queries, n_keys, engine="reference", p=0.3).float() / 0.7
    found = []
    for seed in range(6):
        inputs = make_inputs(n_queries, n_keys, head_dim=16, dtype=dtype, seed=seed)
        out = regard.attention(*inputs, masks.causal(), dropout_p=0.3, seed=7, engine=engine)
        exact = textbook_attention(*(t.double() for t in inputs), allowed, keep=keep.double())
        found.append((out, exact.output, textbook_attention(*inputs, allowed, keep=keep.to(dtype)).output))
    assert_within_budget(*zip(*found, strict=True))


@everywhere
def test_gradients_drop_the_same_weights(engine: str) -> None:
    dtype = widest_dtype(engine)
    inputs = make_inputs(N, M, dtype=dtype, requires_grad=True)
    sink_logits = torch.randn(4, dtype=dtype, requires_grad=True)
    given = (*inputs, sink_logits)
    wide = [t.detach().double().requires_grad_() for t in given]
    out = regard.attention(
        *inputs, masks.causal(), dropout_p=0.3, seed=7, sink_logits=sink_logits, engine=engine
    )
    keep = decisions(engine="reference", p=0.3).double() / 0.7
    allowed = masks.causal().to_dense(N, M)
    exact = textbook_attention(*wide[:3], allowed, keep=keep, sink_logits=wide[3]).output
    direction = torch.randn(out.shape, dtype=dtype)
    ours = torch.autograd.grad(out, given, direction)
    true = torch.autograd.grad(exact, wide, direction.double())
    for our, expected in zip(ours, true, strict=True):
        assert_agrees(our, expected)


@everywhere
def test_zero_and_one(engine: str) -> None:
    inputs = make_inputs(N, M, requires_grad=True)
    before = torch.get_rng_state()
    none = regard.attention(*inputs, dropout_p=0.0, engine=engine)
    assert_same_bits(torch.get_rng_state(), before, what="torch's generator, which nothing was drawn from")
    assert_same_bits(none, regard.attention(*inputs, engine=engine))
    every = regard.attention(*inputs, dropout_p=1.0, engine=engine)
    assert not every.any()
    every.sum().backward()
    for tensor in inputs:
        assert not tensor.grad.any()


@everywhere
def test_a_seed_repeats_and_leaves_torch_alone(engine: str) -> None:
    inputs = make_inputs(N, M)
    before = torch.get_rng_state()
    one, two = (regard.attention(*inputs, dropout_p=0.5, seed=3, engine=engine) for _ in range(2))
    assert_same_bits(one, two)
    assert_same_bits(torch.get_rng_state(), before)
    assert not torch.equal(one, regard.attention(*inputs, dropout_p=0.5, seed=4, engine=engine))


@everywhere
def test_without_a_seed_torch_draws_one(engine: str) -> None:
    inputs = make_inputs(N, M)

    def twice():
        torch.manual_seed(12)
        return [regard.attention(*inputs, dropout_p=0.5, engine=engine) for _ in range(2)]

    first, second = twice()
    assert not torch.equal(first, second)
    for again, before in zip(twice(), (first, second), strict=True):
        assert_same_bits(again, before)


@pytest.mark.parametrize("dropout_p", [-0.1, 1.1, math.nan])
def test_a_probability_outside_is_refused(dropout_p: float) -> None:
    with pytest.raises(regard.errors.RegardError, match=rf"dropout_p.*{dropout_p}"):
        regard.attention(*make_inputs(3), dropout_p=dropout_p)


def test_a_seed_that_is_no_integer_is_refused() -> None:
    with pytest.raises(regard.errors.RegardError, match=r"seed.*1\.5"):
        regard.attention(*make_inputs(3), dropout_p=0.5, seed=1.5)
