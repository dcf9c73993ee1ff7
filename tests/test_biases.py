"""Biases against their formulas: ALiBi, a table by distance, a dense tensor; at any positions."""

import math

import pytest
import torch

import regard
from against_textbook import check_together
from regard import biases, masks
from regard.testing import (
    ENGINES,
    assert_agrees,
    assert_same_bits,
    make_inputs,
    textbook_attention,
    widest_dtype,
)

STARTS = [(None, 0), (0, 0), (11, 0), (-4, 0), (6, 3), (None, 50)]


def distances(n_queries: int, n_keys: int, query_start: int | None, key_start: int) -> torch.Tensor:
    """j − p for every entry, by plain arithmetic."""
    first = key_start + n_keys - n_queries if query_start is None else query_start
    return torch.tensor(
        [[(key_start + c) - (first + r) for c in range(n_keys)] for r in range(n_queries)],
        dtype=torch.float64,
    ).view(n_queries, n_keys)


def check(bias, written: torch.Tensor, engine: str, query_start=None, key_start: int = 0) -> None:
    inputs = make_inputs(5, 9, dtype=widest_dtype(engine))
    where = {"query_start": query_start, "key_start": key_start}
    out, w = regard.attention(*inputs, bias=bias, return_weights=True, engine=engine, **where)
    exact = textbook_attention(*(t.double() for t in inputs), bias=written)
    assert_agrees(out, exact.output, what="output")
    assert_agrees(w.to_dense(), exact.weights, what="weights")
    assert_agrees(w.logits(...), exact.logits, what="logits")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("query_start", "key_start"), STARTS)
def test_alibi(query_start, key_start, engine) -> None:
    slopes = torch.tensor([0.5, 0.1, 0.0, 2.0], dtype=torch.float64)
    written = -slopes[:, None, None] * distances(5, 9, query_start, key_start).abs()
    check(biases.alibi(slopes), written, engine, query_start, key_start)


@pytest.mark.parametrize(
    ("num_heads", "slopes"),
    [
        (1, [2.0**-8]),
        (4, [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]),
        (8, [2.0**-power for power in range(1, 9)]),
        (16, [2.0 ** -(power / 2) for power in range(1, 17)]),
        # Press et al.: the slopes of the power of two below, then every other one of the power of two above.
        (6, [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]),
        (12, [2.0**-power for power in range(1, 9)] + [2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5]),
    ],
)
def test_alibi_by_the_number_of_heads(num_heads: int, slopes: list[float]) -> None:
    inputs = make_inputs(5, 9, query_heads=num_heads, key_heads=1, dtype=torch.float64)
    written = -torch.tensor(slopes, dtype=torch.float64)[:, None, None] * distances(5, 9, None, 0).abs()
    out = regard.attention(*inputs, bias=biases.alibi(num_heads))
    torch.testing.assert_close(out, textbook_attention(*inputs, bias=written).output, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("query_start", "key_start"), STARTS)
@pytest.mark.parametrize("reach", [0, 1, 3, 40])
def test_relative_table(reach: int, query_start, key_start, engine) -> None:
    table = torch.randn(4, 2 * reach + 1, dtype=torch.float64)
    distance = distances(5, 9, query_start, key_start).long()
    written = table[:, distance.clamp(-reach, reach) + reach]
    check(biases.relative(table), written, engine, query_start, key_start)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("shape", [(5, 9), (1, 1, 5, 9), (2, 1, 5, 9), (1, 4, 5, 9), (2, 4, 5, 9)])
def test_dense(shape: tuple[int, ...], engine: str) -> None:
    written = torch.randn(shape, dtype=widest_dtype(engine)).double()
    check(biases.dense(written), written, engine)
    check(written, written, engine)
    strided = written.mT.contiguous().mT
    check(biases.dense(strided), written, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_positions_per_batch_item(engine: str) -> None:
    dtype = widest_dtype(engine)
    slopes = torch.tensor([0.5, 0.1, 0.0, 2.0], dtype=dtype)
    table = torch.randn(4, 7, dtype=dtype)
    inputs = make_inputs(5, 9, dtype=dtype)
    query_start, key_start = torch.tensor([4, 20]), torch.tensor([0, 12])
    for bias in (biases.alibi(slopes), biases.relative(table)):
        where = {"query_start": query_start, "key_start": key_start}
        out = regard.attention(*inputs, masks.causal(), bias=bias, engine=engine, **where)
        for item in range(2):
            alone = regard.attention(
                *(t[item : item + 1] for t in inputs),
                masks.causal(),
                bias=bias,
                query_start=int(query_start[item]),
                key_start=int(key_start[item]),
                engine=engine,
            )
            torch.testing.assert_close(out[item : item + 1], alone)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bias_of_minus_infinity_excludes_as_a_mask_does(engine: str) -> None:
    inputs = make_inputs(5, 9, dtype=widest_dtype(engine))
    allowed = torch.rand(5, 9) < 0.5
    allowed[3] = False
    bias = torch.zeros(5, 9, dtype=widest_dtype(engine)).masked_fill(~allowed, -math.inf)
    out, w = regard.attention(*inputs, bias=bias, return_weights=True, engine=engine)
    masked, w_masked = regard.attention(*inputs, allowed, return_weights=True, engine=engine)
    torch.testing.assert_close(out, masked)
    assert not out[..., 3, :].any()
    assert (w.logsumexp[..., 3] == -math.inf).all()
    torch.testing.assert_close(w.to_dense(), w_masked.to_dense())
    assert_same_bits(w.top_keys(9)[1], w_masked.top_keys(9)[1])
    torch.testing.assert_close(w.entropy(), w_masked.entropy())


@pytest.mark.parametrize("engine", ENGINES)
def test_minus_infinity_excludes_whatever_the_key_holds_and_from_counts_too(engine: str) -> None:
    inputs = make_inputs(5, 9, dtype=widest_dtype(engine))
    allowed = masks.causal().to_dense(5, 9) & (torch.arange(9) != 6)
    bias = torch.zeros(5, 9, dtype=widest_dtype(engine)).masked_fill(~allowed, -math.inf)
    plain, w = regard.attention(*inputs, bias=bias, return_weights=True, engine=engine)
    _, masked = regard.attention(*inputs, allowed, return_weights=True, engine=engine)
    torch.testing.assert_close(w.received(mean=True), masked.received(mean=True))
    inputs.key[..., 6, :], inputs.value[..., 6, :] = math.nan, math.nan
    assert_same_bits(regard.attention(*inputs, bias=bias, engine=engine), plain)


@pytest.mark.parametrize("engine", ENGINES)
def test_minus_infinity_has_finite_gradients(engine: str) -> None:
    inputs = make_inputs(5, 9, dtype=widest_dtype(engine), requires_grad=True)
    bias = torch.zeros(5, 9, dtype=widest_dtype(engine))
    bias[:, 4:], bias[3] = -math.inf, -math.inf
    allowed = bias == 0
    ours = torch.autograd.grad(regard.attention(*inputs, bias=bias, engine=engine).square().sum(), inputs)
    wide = [t.detach().double().requires_grad_() for t in inputs]
    true = torch.autograd.grad(textbook_attention(*wide, allowed).output.square().sum(), wide)
    for our, expected in zip(ours, true, strict=True):
        assert_agrees(our, expected)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("n_queries", "n_keys"), [(2, 700), (97, 300)])
def test_budget_of_every_kind(n_queries: int, n_keys: int, dtype: torch.dtype, engine: str) -> None:
    """Long enough for several tiles, and a few rows over several pieces of the keys."""
    away = distances(n_queries, n_keys, None, 0)
    slopes, table = torch.tensor([0.5, 0.1, 0.0, 0.01]), torch.randn(4, 201)
    one, each = (torch.randn(*lead, n_queries, n_keys).to(dtype) for lead in ((), (2, 4)))
    every = {
        "alibi": (biases.alibi(slopes), -slopes[:, None, None] * away.abs().float()),
        "relative": (biases.relative(table), table[:, away.long().clamp(-100, 100) + 100]),
        "dense": (biases.dense(one), one),
        "dense per head": (biases.dense(each), each),
        "dense in columns": (biases.dense(one.mT.contiguous().mT), one),
    }
    mask = masks.causal() & masks.padding([n_keys, n_keys - 70])
    allowed = mask.to_dense(n_queries, n_keys)

    def calls():
        for name, (bias, written) in every.items():
            inputs = make_inputs(n_queries, n_keys, head_dim=16, dtype=dtype)
            yield name, inputs, {"mask": mask, "allowed": allowed, "bias": bias, "written": written}

    check_together(calls(), engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_positions_beyond_what_float32_counts(engine: str) -> None:
    """At position 2^27 neighbours are one number in float32: distances are taken between whole numbers."""
    inputs = make_inputs(5, 9)
    table = torch.randn(4, 7)
    for bias in (biases.alibi(4), biases.relative(table)):
        near = regard.attention(*inputs, masks.sliding_window(6), bias=bias, engine=engine)
        far = regard.attention(
            *inputs, masks.sliding_window(6), bias=bias, key_start=2**27 + 1, engine=engine
        )
        assert_same_bits(far, near)


@pytest.mark.parametrize(
    ("bias", "named"),
    [
        (torch.zeros(4, 5, 9), r"bias"),
        (torch.zeros(5, 8), r"\(5, 8\)"),
        (torch.zeros(3, 4, 5, 9), r"\(3, 4, 5, 9\)"),
        (torch.zeros(5, 9, dtype=torch.bool), r"mask"),
        (torch.zeros(5, 9, dtype=torch.int64), r"bias"),
        (0.5, r"bias"),
    ],
)
def test_a_wrong_bias_is_refused(bias, named: str) -> None:
    with pytest.raises(regard.errors.RegardError, match=named):
        regard.attention(*make_inputs(5, 9), bias=bias)


def test_wrong_tables_and_slopes_are_refused() -> None:
    inputs = make_inputs(5, 9)
    for make in (
        lambda: biases.relative(torch.zeros(4, 6)),
        lambda: biases.relative(torch.zeros(7)),
        lambda: biases.relative(torch.zeros(3, 7)),
        lambda: biases.alibi(3),
        lambda: biases.alibi(torch.zeros(3)),
        lambda: biases.alibi(0),
    ):
        with pytest.raises(regard.errors.RegardError):
            regard.attention(*inputs, bias=make())
