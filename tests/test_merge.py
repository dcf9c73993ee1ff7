"""Attention over pieces of the keys merges to attention over all of them, for any pieces."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard import biases, masks
from regard.testing import (
    ENGINES,
    assert_same_bits,
    assert_within_budget,
    make_inputs,
    textbook_attention,
    widest_dtype,
)

N, M = 9, 24
MASK = masks.causal() & masks.padding([20, 0]) | masks.sinks(1) & masks.sliding_window(20)


def parts_of(inputs, cuts, mask=None, *, bias=None, engine="auto", **extras):
    """One (output, logsumexp) a piece; the queries stay where they are and the keys where they were."""
    q, k, v = inputs
    n_keys = k.shape[-2]
    parts = []
    for start, end in pairwise([0, *cuts, n_keys]):
        out, w = regard.attention(
            q,
            k[..., start:end, :],
            v[..., start:end, :],
            mask,
            bias=bias,
            query_start=n_keys - q.shape[-2],
            key_start=start,
            return_weights=True,
            engine=engine,
            **extras,
        )
        parts.append((out, w.logsumexp))
    return parts


cuts = st.lists(st.integers(0, M), max_size=5).map(sorted)


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=40)
@given(places=cuts)
def test_any_split_of_the_keys(places: list[int], engine: str) -> None:
    inputs = make_inputs(N, M, dtype=widest_dtype(engine))
    mask = masks.streaming(2, 7)
    whole, w = regard.attention(*inputs, mask, bias=biases.alibi(4), return_weights=True, engine=engine)
    parts = parts_of(inputs, places, mask, bias=biases.alibi(4), engine=engine)
    out, logsumexp = regard.merge(parts)
    torch.testing.assert_close(out, whole)
    torch.testing.assert_close(logsumexp, w.logsumexp)
    # Any order, and any grouping, of the pieces.
    for other in (regard.merge(parts[::-1]), regard.merge([regard.merge(parts[:2]), *parts[2:]])):
        torch.testing.assert_close(other[0], whole)
        torch.testing.assert_close(other[1], w.logsumexp)


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=20)
@given(places=cuts)
def test_sinks_join_once(places: list[int], engine: str) -> None:
    inputs = make_inputs(N, M, dtype=widest_dtype(engine))
    sink_logits = torch.tensor([0.3, -2.0, 5.0, 0.0], dtype=widest_dtype(engine))
    whole, w = regard.attention(
        *inputs, masks.causal(), sink_logits=sink_logits, return_weights=True, engine=engine
    )
    out, logsumexp = regard.merge(
        parts_of(inputs, places, masks.causal(), engine=engine), sink_logits=sink_logits
    )
    torch.testing.assert_close(out, whole)
    torch.testing.assert_close(logsumexp, w.logsumexp)


@pytest.mark.parametrize("shape", [(2, 4, 3, 8), (3, 8)])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_empties_merge_to_an_empty(count: int, shape: tuple[int, ...]) -> None:
    part = (torch.zeros(shape), torch.full(shape[:-1], -math.inf))
    out, logsumexp = regard.merge([part] * count)
    assert_same_bits(out, part[0])
    assert_same_bits(logsumexp, part[1])


def test_an_empty_piece_changes_nothing() -> None:
    inputs = make_inputs(N, M)
    (part,) = parts_of(inputs, [])
    empty = (torch.zeros_like(part[0]), torch.full_like(part[1], -math.inf))
    for parts in ([part], [part, empty], [empty, part, empty]):
        out, logsumexp = regard.merge(parts)
        assert_same_bits(out, part[0])
        assert_same_bits(logsumexp, part[1])


def test_whatever_an_empty_piece_holds_counts_for_nothing() -> None:
    (part,) = parts_of(make_inputs(N, M), [])
    for held in (math.nan, math.inf, 7.0):
        empty = (torch.full_like(part[0], held), torch.full_like(part[1], -math.inf))
        assert_same_bits(regard.merge([empty, part])[0], part[0])
        assert not regard.merge([empty, empty])[0].any()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("level", [-200.0, -1e4, 200.0, 1e4])
def test_an_empty_piece_beside_logits_far_from_zero(level: float, engine: str) -> None:
    """A piece without allowed keys that claimed a maximum of 0 would make everything at −200 underflow."""
    inputs = make_inputs(N, M)
    bias = torch.full((N, M), level)
    mask = masks.padding([12])
    whole = regard.attention(*inputs, mask, bias=bias, engine=engine)
    parts = []
    for start in (0, 12):
        keys = slice(start, start + 12)
        out, w = regard.attention(
            inputs.query,
            inputs.key[..., keys, :],
            inputs.value[..., keys, :],
            torch.full((N, 12), start == 0),
            bias=bias[:, keys],
            return_weights=True,
            engine=engine,
        )
        parts.append((out, w.logsumexp))
    for ordered in (parts, parts[::-1]):
        out, logsumexp = regard.merge(ordered)
        torch.testing.assert_close(out, whole)
        assert (logsumexp - level).abs().max() < 10


def test_pieces_of_very_different_level() -> None:
    inputs = make_inputs(N, M, dtype=torch.float64)
    bias = torch.where(torch.arange(M) < 12, -200.0, 300.0).double().expand(N, M)
    parts = [
        (out, w.logsumexp)
        for keys in (slice(0, 12), slice(12, M))
        for out, w in [
            regard.attention(
                inputs.query,
                inputs.key[..., keys, :],
                inputs.value[..., keys, :],
                bias=bias[:, keys],
                return_weights=True,
            )
        ]
    ]
    out, logsumexp = regard.merge(parts)
    exact = textbook_attention(*inputs, bias=bias)
    torch.testing.assert_close(out, exact.output)
    torch.testing.assert_close(logsumexp, exact.logsumexp)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_low_precision(dtype: torch.dtype, engine: str) -> None:
    inputs = make_inputs(N, M, dtype=dtype)
    out, logsumexp = regard.merge(parts_of(inputs, [5, 6, 17], engine=engine))
    assert out.dtype == dtype
    assert logsumexp.dtype == torch.float32
    exact = textbook_attention(*(t.double() for t in inputs))
    assert_within_budget(out, exact.output, textbook_attention(*inputs).output)


@pytest.mark.parametrize("with_sinks", [False, True])
def test_gradients_flow_through_outputs_and_logsumexps(with_sinks: bool) -> None:
    inputs = make_inputs(N, M, dtype=torch.float64, requires_grad=True)
    sink_logits = torch.randn(4, dtype=torch.float64, requires_grad=True) if with_sinks else None
    wanted = [*inputs, *([sink_logits] if with_sinks else [])]

    def loss(out, logsumexp):
        return out.square().sum() + logsumexp.sin().sum()

    whole, w = regard.attention(*inputs, masks.causal(), sink_logits=sink_logits, return_weights=True)
    expected = torch.autograd.grad(loss(whole, w.logsumexp), wanted)
    merged = regard.merge(parts_of(inputs, [3, 18, 22], masks.causal()), sink_logits=sink_logits)
    for ours, true in zip(torch.autograd.grad(loss(*merged), wanted), expected, strict=True):
        torch.testing.assert_close(ours, true)


def test_gradients_stay_finite_beside_empty_rows_and_pieces() -> None:
    inputs = make_inputs(N, M, dtype=torch.float64, requires_grad=True)
    mask = masks.padding([10, 0])
    expected = torch.autograd.grad(regard.attention(*inputs, mask).square().sum(), inputs)
    out, _ = regard.merge(parts_of(inputs, [10, 15], mask))
    for ours, true in zip(torch.autograd.grad(out.square().sum(), inputs), expected, strict=True):
        torch.testing.assert_close(ours, true)


def test_a_nan_row_stays_in_its_row() -> None:
    inputs = make_inputs(N, M)
    plain, _ = regard.merge(parts_of(inputs, [12]))
    inputs.query[..., 4, :] = math.nan
    out, logsumexp = regard.merge(parts_of(inputs, [12]))
    others = torch.arange(N) != 4
    assert out[..., 4, :].isnan().all()
    assert logsumexp[..., 4].isnan().all()
    assert_same_bits(out[..., others, :], plain[..., others, :])


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ([], r"parts"),
        ([(torch.zeros(3, 8), torch.zeros(4))], r"\(4,?\)"),
        ([(torch.zeros(3, 8), torch.zeros(3)), (torch.zeros(5, 8), torch.zeros(5))], r"\(5, 8\)|\(5,?\)"),
        ([(torch.zeros(3, 8), torch.zeros(3)), (torch.zeros(3, 7), torch.zeros(3))], r"\(3, 7\)"),
        ([torch.zeros(3, 8)], r"parts|pair"),
    ],
)
def test_pieces_that_do_not_fit_are_refused(parts, named: str) -> None:
    with pytest.raises(regard.errors.RegardError, match=named):
        regard.merge(parts)
