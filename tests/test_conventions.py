"""The conventions, one by one: order, positions, empty rows, sinks, dtypes, and the engines' names."""

import math

import pytest
import torch

import regard
from engine_cases import everywhere, in_every_precision
from regard import biases, masks
from regard.testing import (
    ENGINES,
    assert_agrees,
    assert_same_bits,
    make_inputs,
    textbook_attention,
    widest_dtype,
)


@everywhere
def test_order_scale_softcap_bias_mask_sink_softmax(engine: str) -> None:
    dtype = widest_dtype(engine)
    q, k = torch.tensor([[3.0]], dtype=dtype), torch.tensor([[1.0], [2.0], [-1.0]], dtype=dtype)
    out, w = regard.attention(
        q,
        k,
        torch.eye(3, dtype=dtype),
        masks.sinks(2),
        scale=0.5,
        softcap=2.0,
        bias=torch.tensor([[0.25, -0.5, 9.0]], dtype=dtype),
        sink_logits=torch.tensor([0.75], dtype=dtype),
        return_weights=True,
        engine=engine,
    )
    logits = [2.0 * math.tanh(3.0 * 1.0 * 0.5 / 2.0) + 0.25, 2.0 * math.tanh(3.0 * 2.0 * 0.5 / 2.0) - 0.5]
    total = sum(map(math.exp, [*logits, 0.75]))
    expected = torch.tensor(
        [[math.exp(logits[0]) / total, math.exp(logits[1]) / total, 0.0]], dtype=torch.float64
    )
    assert_agrees(out, expected)
    assert_agrees(w.to_dense(), expected)
    assert_agrees(w.logits(...), torch.tensor([[*logits, -math.inf]], dtype=torch.float64))
    assert_agrees(w.logsumexp, torch.tensor([math.log(total)], dtype=torch.float64))
    assert_agrees(w.max_logit(), torch.tensor([max(logits)], dtype=torch.float64))


def test_default_scale_is_one_over_the_root_of_the_head_dim() -> None:
    inputs = make_inputs(5, 9, head_dim=13)
    assert_same_bits(regard.attention(*inputs), regard.attention(*inputs, scale=13**-0.5))


@everywhere
def test_queries_are_the_last_positions_by_default(engine: str) -> None:
    inputs = make_inputs(20, dtype=widest_dtype(engine))
    full = regard.attention(*inputs, masks.causal(), engine=engine)
    for last in (1, 3, 20):
        tail = inputs._replace(query=inputs.query[..., -last:, :])
        torch.testing.assert_close(
            regard.attention(*tail, masks.causal(), engine=engine), full[..., -last:, :]
        )


@everywhere
def test_a_middle_piece_by_its_positions(engine: str) -> None:
    inputs = make_inputs(20, dtype=widest_dtype(engine))
    mask, bias = masks.streaming(2, 6), biases.alibi(4)
    full = regard.attention(*inputs, mask, bias=bias, engine=engine)
    piece = inputs._replace(query=inputs.query[..., 7:12, :])
    ours = regard.attention(*piece, mask, bias=bias, query_start=7, engine=engine)
    torch.testing.assert_close(ours, full[..., 7:12, :])


@everywhere
def test_key_start_moves_the_keys_and_by_default_the_queries_with_them(engine: str) -> None:
    inputs = make_inputs(5, 9, dtype=widest_dtype(engine))
    mask, bias = masks.sliding_window(4), biases.alibi(4)
    plain = regard.attention(*inputs, mask, bias=bias, engine=engine)
    moved = regard.attention(*inputs, mask, bias=bias, key_start=1000, engine=engine)
    torch.testing.assert_close(moved, plain)
    sinks = regard.attention(*inputs, masks.sinks(3), key_start=1000, engine=engine)
    assert not sinks.any()


@everywhere
@pytest.mark.parametrize("starts", [([4, 9], 0), (4, [0, 3]), ([4, 9], [0, 3]), (None, [0, 3])], ids=str)
def test_positions_per_batch_item(starts, engine: str) -> None:
    query_start, key_start = (torch.tensor(s) if isinstance(s, list) else s for s in starts)
    inputs = make_inputs(5, 9, dtype=widest_dtype(engine))
    mask = masks.causal() & masks.sliding_window(6) | masks.sinks(2)
    where = {"query_start": query_start, "key_start": key_start}
    out, w = regard.attention(*inputs, mask, return_weights=True, engine=engine, **where)
    distance = w.distance()
    for item in range(2):
        here = {n: int(s[item]) if isinstance(s, torch.Tensor) else s for n, s in where.items()}
        alone, w_alone = regard.attention(
            *(t[item : item + 1] for t in inputs), mask, return_weights=True, engine=engine, **here
        )
        torch.testing.assert_close(out[item : item + 1], alone)
        torch.testing.assert_close(distance[item : item + 1], w_alone.distance())


@everywhere
@pytest.mark.parametrize("with_sink", [False, True])
@pytest.mark.parametrize("how", ["masked", "every score −inf", "no keys"])
def test_empty_rows(how: str, with_sink: bool, engine: str) -> None:
    inputs = make_inputs(3, 0 if how == "no keys" else 5)
    sink_logits = torch.tensor([0.5, -1.0, 2.0, 0.0]) if with_sink else None
    extras = {
        "masked": {"mask": ~masks.band(None, None)},
        "every score −inf": {"bias": torch.full((3, 5), -math.inf)},
        "no keys": {},
    }[how]
    out, w = regard.attention(*inputs, sink_logits=sink_logits, return_weights=True, engine=engine, **extras)
    n_keys = inputs.key.shape[-2]
    rows = torch.zeros(2, 4, 3)
    assert_same_bits(out, torch.zeros(2, 4, 3, 8))
    expected = rows - math.inf if sink_logits is None else rows + sink_logits[:, None]
    torch.testing.assert_close(w.logsumexp, expected)
    assert_same_bits(w.to_dense(), torch.zeros(2, 4, 3, n_keys))
    assert_same_bits(w.logits(...), torch.full((2, 4, 3, n_keys), -math.inf))
    for answer in (w.entropy(), w.max_weight(), w.distance(), w.mass(slice(None))):
        assert_same_bits(answer, rows)
    assert_same_bits(w.max_logit(), rows - math.inf)
    assert_same_bits(w.received(), torch.zeros(2, 4, n_keys))
    weights, indices = w.top_keys(2)
    assert_same_bits(weights, torch.zeros(2, 4, 3, 2))
    assert_same_bits(indices, torch.full((2, 4, 3, 2), -1))


@everywhere
def test_sinks_take_a_share_of_every_row(engine: str) -> None:
    inputs = make_inputs(9, 20, dtype=widest_dtype(engine))
    sink_logits = torch.tensor([0.5, -30.0, 40.0, 0.0], dtype=widest_dtype(engine))
    out, w = regard.attention(*inputs, sink_logits=sink_logits, return_weights=True, engine=engine)
    exact = textbook_attention(*(t.double() for t in inputs), sink_logits=sink_logits.double())
    share = (sink_logits[:, None].double() - exact.logsumexp).exp()
    assert_agrees(out, exact.output)
    assert_agrees(w.to_dense().sum(-1), 1 - share)
    assert (w.to_dense().sum(-1)[:, [0, 2, 3]] < 1).all()
    assert_agrees(w.entropy(), -(exact.weights * exact.weights.log()).sum(-1))


@everywhere
def test_a_sink_of_minus_infinity_is_no_sink(engine: str) -> None:
    inputs = make_inputs(9, 20)
    nothing = torch.full((4,), -math.inf)
    torch.testing.assert_close(
        regard.attention(*inputs, masks.prefix(2), sink_logits=nothing, engine=engine),
        regard.attention(*inputs, masks.prefix(2), engine=engine),
    )


@everywhere
def test_a_sink_above_every_logit_overflows_nothing(engine: str) -> None:
    inputs = make_inputs(9, 20, requires_grad=True)
    sink_logits = torch.tensor([200.0, 1e4, -200.0, -1e4], requires_grad=True)
    out, w = regard.attention(*inputs, sink_logits=sink_logits, return_weights=True, engine=engine)
    assert not out[:, 1].any()
    assert_same_bits(w.logsumexp[:, 1], torch.full((2, 9), 1e4))
    out.square().sum().backward()
    assert torch.isfinite(out).all()
    for tensor in (*inputs, sink_logits):
        assert torch.isfinite(tensor.grad).all()


@in_every_precision
def test_dtypes_of_what_comes_back(dtype: torch.dtype, engine: str) -> None:
    out, w = regard.attention(*make_inputs(9, 20, dtype=dtype), return_weights=True, engine=engine)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert out.dtype == dtype
    for answer in (
        w.logsumexp,
        w[0, 0],
        w.to_dense(),
        w.logits(...),
        w.entropy(),
        w.received(),
        w.distance(),
    ):
        assert answer.dtype == wide
    assert w.top_keys(3)[0].dtype == wide
    assert w.top_keys(3)[1].dtype == torch.int64
    for x_dtype in (torch.float32, torch.bfloat16, torch.float64):
        assert (w @ torch.ones(20, 3, dtype=x_dtype)).dtype == x_dtype
        assert (w.mT @ torch.ones(9, 3, dtype=x_dtype)).dtype == x_dtype


@everywhere
def test_accumulation_is_in_float32(engine: str) -> None:
    """Ten thousand equal weights: a sum kept in half precision would stop growing at 256 or 2048."""
    for dtype in (torch.bfloat16, torch.float16):
        q, k, v = (
            torch.zeros(1, 1, dtype=dtype),
            torch.zeros(10_000, 1, dtype=dtype),
            torch.ones(10_000, 1, dtype=dtype),
        )
        out, w = regard.attention(q, k, v, return_weights=True, engine=engine)
        assert out.item() == 1.0
        torch.testing.assert_close(w.logsumexp, torch.tensor([math.log(10_000)]))


@everywhere
def test_logarithms_are_natural(engine: str) -> None:
    q, k, v = torch.zeros(1, 2), torch.zeros(8, 2), torch.zeros(8, 2)
    _, w = regard.attention(q, k, v, return_weights=True, engine=engine)
    torch.testing.assert_close(w.entropy(), torch.tensor([math.log(8)]))
    torch.testing.assert_close(w.logsumexp, torch.tensor([math.log(8)]))


def test_true_and_one_may_attend() -> None:
    q, k, v = torch.zeros(1, 2), torch.zeros(3, 2), torch.tensor([[1.0], [2.0], [4.0]])
    for table in (torch.tensor([[True, False, True]]), torch.tensor([[1, 0, 1]])):
        torch.testing.assert_close(regard.attention(q, k, v, table), torch.tensor([[2.5]]))


def test_torch_defaults_do_not_matter() -> None:
    inputs = make_inputs(33, 70)
    mask, bias = masks.streaming(2, 9) & masks.padding([60, 70]), biases.alibi(4)
    expected, w = regard.attention(*inputs, mask, bias=bias, return_weights=True)
    answers = w.statistics("entropy", "received", top_keys=3)
    try:
        torch.set_default_dtype(torch.float64)
        with torch.device("meta"):
            out, w = regard.attention(*inputs, mask, bias=bias, return_weights=True)
            again = w.statistics("entropy", "received", top_keys=3)
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same_bits(out, expected)
    assert_same_bits(again["received"], answers["received"])


def test_an_unknown_engine_is_named() -> None:
    with pytest.raises(regard.errors.RegardError, match=r"engine.*'?warp'?"):
        regard.attention(*make_inputs(3), engine="warp")


def test_an_engine_that_is_not_there_is_not_replaced() -> None:
    for absent in {"reference", "tiled", "native"} - set(ENGINES):
        with pytest.raises(regard.errors.RegardError, match=absent):
            regard.attention(*make_inputs(3), engine=absent)


def test_public_names() -> None:
    for name in (
        "attention",
        "scaled_dot_product_attention",
        "merge",
        "masks",
        "biases",
        "reference",
        "errors",
    ):
        assert hasattr(regard, name), name


def test_the_specification_is_the_textbook() -> None:
    q, k, v = make_inputs(9, 20, key_heads=4, dtype=torch.float64)
    table = torch.rand(9, 20) < 0.5
    for mask in (None, table, table.long(), table.double()):
        out, weights = regard.reference.scaled_dot_product_attention(q, k, v, mask)
        exact = textbook_attention(q, k, v, None if mask is None else table)
        torch.testing.assert_close(out, exact.output)
        torch.testing.assert_close(weights, exact.weights)
