"""Output and logsumexp against float64, within the budget that the formula in low precision sets."""

import math

import pytest
import torch
from hypothesis import given, settings

import mask_cases as cases
import regard
from against_textbook import check, check_together
from engine_cases import everywhere, in_double, in_every_precision, in_tiles
from regard import biases, masks
from regard.testing import (
    BOUNDARY_SIZES,
    DTYPES,
    ENGINES,
    assert_agrees,
    assert_same_bits,
    assert_within_budget,
    make_inputs,
    textbook_attention,
    widest_dtype,
)

MASKS = {
    "none": None,
    "causal": masks.causal(),
    "window": masks.sliding_window(5),
    "window per head": masks.sliding_window(torch.tensor([1, 7, 30, 200])),
    "band": masks.band(3, 20),
    "right padding": masks.padding([9, 0]),
    "left padding": masks.padding([3, 11], side="left"),
    "causal, left padding, window": masks.causal()
    & masks.padding([3, 11], side="left")
    & masks.sliding_window(6),
    "prefix": masks.prefix([5, 12]),
    "streaming": masks.streaming(2, 7),
    "everything but a band": ~masks.band(2, 2),
    "random": masks.dense(torch.rand(2, 4, 33, 70, generator=torch.Generator().manual_seed(3)) < 0.3),
    "nothing": ~masks.band(None, None),
}


@in_every_precision
@pytest.mark.parametrize("name", MASKS)
def test_every_mask_in_every_precision(name: str, dtype: torch.dtype, engine: str) -> None:
    mask = MASKS[name]
    allowed = None if mask is None else mask.to_dense(33, 70)
    check(make_inputs(33, 70, head_dim=24, dtype=dtype), engine, mask=mask, allowed=allowed)


@everywhere
@pytest.mark.parametrize("n_queries", [0, 1, 17, 65, 129, 257])
def test_boundary_sizes(n_queries: int, engine: str) -> None:
    window = masks.causal() & masks.sliding_window(40)

    def calls(mask):
        for n_keys in BOUNDARY_SIZES:
            inputs = make_inputs(n_queries, n_keys, query_heads=8, key_heads=4)
            allowed = None if mask is None else mask.to_dense(n_queries, n_keys)
            yield f"{n_queries} × {n_keys}", inputs, {"mask": mask, "allowed": allowed}

    for mask in (None, window):
        check_together(calls(mask), engine)


@everywhere
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_boundary_sizes_of_the_query(dtype: torch.dtype, engine: str) -> None:
    def calls():
        for n_queries in BOUNDARY_SIZES:
            inputs = make_inputs(n_queries, 33, batch=(1,), query_heads=2, key_heads=1, dtype=dtype)
            kinds = {"mask": masks.causal(), "allowed": masks.causal().to_dense(n_queries, 33)}
            yield f"{n_queries} queries", inputs, kinds

    check_together(calls(), engine)


@everywhere
@pytest.mark.parametrize(("n_queries", "n_keys"), [(255, 511), (256, 512), (257, 513), (300, 700)])
def test_several_tiles(n_queries: int, n_keys: int, engine: str) -> None:
    inputs = make_inputs(n_queries, n_keys)
    for mask in (masks.causal(), masks.streaming(3, 70), masks.documents(lengths=[100, 300, 300])):
        check(inputs, engine, mask=mask, allowed=mask.to_dense(n_queries, n_keys))


HEAD_DIMS = [1, 2, 3, 7, 8, 15, 17, 33, 64, 80, 128, 129, 257, 512]


@everywhere
@pytest.mark.parametrize("value_dim", [1, 5, 64, 131])
def test_head_dims(value_dim: int, engine: str) -> None:
    check_together(
        (
            (f"head dim {head_dim}", make_inputs(19, 35, head_dim=head_dim, value_dim=value_dim), {})
            for head_dim in HEAD_DIMS
        ),
        engine,
    )


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "dims", [(1, 512), (3, 17), (17, 3), (64, 128), (80, 80), (257, 8), (512, 257)], ids=str
)
def test_head_dims_over_several_tiles(dims: tuple[int, int], dtype: torch.dtype, engine: str) -> None:
    head_dim, value_dim = dims
    inputs = make_inputs(
        97, 260, batch=(1,), query_heads=2, key_heads=1, head_dim=head_dim, value_dim=value_dim, dtype=dtype
    )
    check(inputs, engine, mask=masks.causal(), allowed=masks.causal().to_dense(97, 260))


@everywhere
def test_scale(engine: str) -> None:
    calls = ((f"scale {scale}", make_inputs(19, 35), {"scale": scale}) for scale in (0.0, 1.0, -0.3, 2.5))
    check_together(calls, engine)


@in_every_precision
def test_softcap_then_bias_then_mask_then_sink(dtype: torch.dtype, engine: str) -> None:
    inputs = make_inputs(33, 70, dtype=dtype, spread=6.0)
    generator = torch.Generator().manual_seed(5)
    bias = torch.randn(2, 4, 33, 70, generator=generator).to(dtype)
    sink_logits = torch.randn(4, generator=generator).to(dtype)
    mask = masks.causal() & masks.padding([30, 60])
    check(
        inputs,
        engine,
        mask=mask,
        allowed=mask.to_dense(33, 70),
        softcap=3.0,
        bias=bias,
        sink_logits=sink_logits,
    )


@everywhere
@pytest.mark.parametrize("spread", [1e-6, 1.0, 30.0, 300.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_flat_and_peaked_rows(spread: float, dtype: torch.dtype, engine: str) -> None:
    check(make_inputs(33, 150, dtype=dtype, spread=spread), engine)


SHIFTS = [-200.0, -90.0, 88.0, 3e4]


@everywhere
@pytest.mark.parametrize("shift", SHIFTS)
def test_logits_far_from_zero(shift: float, engine: str) -> None:
    check(make_inputs(33, 70), engine, bias=torch.full((33, 70), shift))


@in_double
@pytest.mark.parametrize("shift", SHIFTS)
def test_a_common_shift_of_the_logits_changes_nothing(shift: float, engine: str) -> None:
    inputs = make_inputs(33, 70, dtype=torch.float64)
    plain, w = regard.attention(*inputs, return_weights=True, engine=engine)
    bias = torch.full((33, 70), shift, dtype=torch.float64)
    shifted, w_shifted = regard.attention(*inputs, bias=bias, return_weights=True, engine=engine)
    torch.testing.assert_close(shifted, plain, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(w_shifted.logsumexp, w.logsumexp + shift, rtol=1e-12, atol=1e-10)


# The reference multiplies in float16 itself, as the textbook does.
@in_tiles
def test_scores_beyond_the_range_of_float16(engine: str) -> None:
    _, _, v = make_inputs(9, 20, dtype=torch.float16)
    q, k = torch.full((2, 4, 9, 8), 100.0).half(), torch.full((2, 2, 20, 8), 100.0).half()  # scores of 80,000
    out, w = regard.attention(q, k, v, scale=1.0, return_weights=True, engine=engine)
    mean = v.float().mean(-2, keepdim=True).repeat_interleave(2, 1).expand(2, 4, 9, 8)
    torch.testing.assert_close(out.float(), mean, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(w.max_logit(), torch.full((2, 4, 9), 80_000.0))


@everywhere
def test_rising_logits_rescale_what_was_summed_before(engine: str) -> None:
    inputs = make_inputs(5, 600, batch=(1,), query_heads=1, key_heads=1)
    bias = torch.linspace(0, 500, 600).expand(5, 600)
    check(inputs, engine, bias=bias)
    check(inputs, engine, bias=bias.flip(-1))


@everywhere
def test_auto_and_named_engines_agree(engine: str) -> None:
    inputs = make_inputs(33, 70, dtype=widest_dtype(engine))
    out = regard.attention(*inputs, masks.causal(), engine="auto")
    torch.testing.assert_close(out, regard.attention(*inputs, masks.causal(), engine=engine))


@everywhere
@settings(max_examples=60)
@given(placed=cases.placed_cases())
def test_random_combinations_of_masks(placed: tuple[cases.Case, cases.Geometry], engine: str) -> None:
    case, at = placed
    inputs = make_inputs(at.n_queries, at.n_keys, query_heads=2, key_heads=1, dtype=widest_dtype(engine))
    where = {"query_start": at.query_start, "key_start": at.key_start}
    out, w = regard.attention(*inputs, case.mask, return_weights=True, engine=engine, **where)
    exact = textbook_attention(*(t.double() for t in inputs), cases.tabulate(case.sees, at))
    assert_agrees(out, exact.output, what="output")
    assert_agrees(w.logsumexp, exact.logsumexp, what="logsumexp")
    assert_agrees(w.to_dense(), exact.weights, what="weights")


@everywhere
def test_without_keys_and_without_queries(engine: str) -> None:
    q, k, v = make_inputs(3, 0)
    out, w = regard.attention(q, k, v, return_weights=True, engine=engine)
    assert_same_bits(out, torch.zeros(2, 4, 3, 8))
    assert_same_bits(w.logsumexp, torch.full((2, 4, 3), -math.inf))
    q, k, v = make_inputs(0, 3)
    assert regard.attention(q, k, v, engine=engine).shape == (2, 4, 0, 8)


@in_every_precision
def test_alibi_and_a_table_as_biases(engine: str, dtype: torch.dtype) -> None:
    distance = torch.arange(70)[None] - (37 + torch.arange(33)[:, None])
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    table = torch.randn(4, 21, generator=torch.Generator().manual_seed(1))
    inputs = make_inputs(33, 70, dtype=dtype)
    for bias, written in [
        (biases.alibi(slopes), -slopes[:, None, None] * distance.abs()),
        (biases.relative(table), table[:, distance.clamp(-10, 10) + 10]),
    ]:
        out = regard.attention(*inputs, bias=bias, engine=engine)
        exact = textbook_attention(*(t.double() for t in inputs), bias=written.double())
        assert_within_budget(out, exact.output, textbook_attention(*inputs, bias=written).output)


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if torch.float64 not in DTYPES[engine]])
def test_a_precision_that_an_engine_does_not_compute_is_refused(engine: str) -> None:
    inputs = make_inputs(9, 20, dtype=torch.float64)
    with pytest.raises(regard.errors.EngineError, match=rf"{engine}.*float64.*tiled"):
        regard.attention(*inputs, engine=engine)
    with pytest.raises(regard.errors.EngineError, match=r"float64"):
        regard.weights.attention_weights(*inputs[:2], engine=engine)
    assert regard.attention(*inputs).dtype == torch.float64
