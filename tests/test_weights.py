"""AttentionWeights: a matrix that is never stored and can be indexed, multiplied, drawn and trusted."""

import pytest
import torch

import regard
from engine_cases import everywhere
from regard import biases, masks
from regard.testing import assert_agrees, assert_same_bits, make_inputs, textbook_attention, widest_dtype

N, M = 12, 20


def weights_of(engine: str = "tiled", mask=masks.streaming(2, 6), **kinds):  # noqa: B008 a value
    """Inputs in the engine's widest dtype, output and weights, and the textbook in float64."""
    inputs = make_inputs(N, M, dtype=widest_dtype(engine), **kinds)
    out, w = regard.attention(*inputs, mask, return_weights=True, engine=engine)
    return inputs, out, w, textbook_attention(*(t.double() for t in inputs), mask.to_dense(N, M))


INDICES = {
    "item": 1,
    "last item": -1,
    "head": (1, 2),
    "row": (1, 2, 3),
    "entry": (1, 2, 3, 15),
    "everything": ...,
    "all": slice(None),
    "rows": (..., slice(3, 7), slice(None)),
    "columns": (..., slice(5, 9)),
    "column": (..., 14),
    "last row": (0, 0, -1),
    "strided": (1, 2, slice(None, None, 3), slice(4, 19, 2)),
    "from the end": (..., slice(-4, None), slice(-6, -1)),
    "listed rows": (0, slice(None), [3, 7]),
    "listed heads": (slice(None), [0, 2]),
    "listed rows of one head": (0, 1, [3, 7]),
    "repeated rows": (0, 1, [3, 3, -1]),
    "tensor of rows": (..., torch.tensor([1, 3, 11]), slice(None)),
    "rows by bool": (..., torch.arange(N) % 3 == 0, slice(None)),
    "columns by bool": (..., torch.arange(M) % 3 == 0),
    "heads and rows in pairs": (0, [0, 1], [3, 7]),
    "no rows": (..., slice(5, 5), slice(None)),
    "no listed rows": (0, 1, []),
    "items and heads": (slice(0, 1), slice(1, 3)),
}


@everywhere
@pytest.mark.parametrize("name", INDICES)
def test_indexing_is_that_of_the_dense_matrix(name: str, engine: str) -> None:
    _, _, w, exact = weights_of(engine)
    assert_agrees(w[INDICES[name]], exact.weights[INDICES[name]])
    index = INDICES[name] if isinstance(INDICES[name], tuple) else (INDICES[name],)
    assert_agrees(w.logits(*index), exact.logits[INDICES[name]])


@everywhere
@pytest.mark.parametrize(
    "index",
    [
        2,
        (0, 4),
        (0, 0, N),
        (0, 0, 0, M),
        (0, 0, 0, 0, 0),
        (0, 0, [1, 2], [3, 4]),
        (0, 0, [N]),
        (0, 0, -N - 1),
        "a",
        0.5,
    ],
)
def test_an_index_outside_is_refused(index, engine: str) -> None:
    _, _, w, _ = weights_of(engine)
    with pytest.raises((IndexError, regard.errors.RegardError)):
        w[index]


@everywhere
def test_iteration_ends(engine: str) -> None:
    _, _, w, exact = weights_of(engine)
    assert len(w) == 2
    assert_agrees(torch.stack(list(w)), exact.weights)


@everywhere
@pytest.mark.parametrize("kinds", [{}, {"key_heads": 4}, {"key_heads": 1}, {"batch": (2, 3)}, {"batch": ()}])
def test_dense_and_shape(kinds, engine: str) -> None:
    _, _, w, exact = weights_of(engine, **kinds)
    assert w.shape == exact.weights.shape
    assert isinstance(w.shape, torch.Size)
    assert_agrees(w.to_dense(), exact.weights)


@everywhere
def test_rows_sum_to_one(engine: str) -> None:
    inputs = make_inputs(N, M)
    _, w = regard.attention(*inputs, masks.causal(), return_weights=True, engine=engine)
    torch.testing.assert_close(w[..., 3:7, :].sum(-1), torch.ones(2, 4, 4))


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_slices_are_parts_of_one_matrix_bit_for_bit(dtype: torch.dtype, engine: str) -> None:
    _, w = regard.attention(
        *make_inputs(70, 300, dtype=dtype), masks.streaming(3, 40), return_weights=True, engine=engine
    )
    dense = w.to_dense()
    for index in [
        (1, 2, 3),
        (..., slice(5, 9), slice(None)),
        (0, 1, slice(None), slice(250, 290)),
        (0, 3, [9, 60]),
    ]:
        assert_same_bits(w[index], dense[index])
    assert_same_bits(w.max_weight(), dense.amax(-1))
    assert_same_bits(w.top_keys(3)[0], dense.gather(-1, w.top_keys(3)[1]))


@everywhere
def test_a_row_of_one_key_is_certain(engine: str) -> None:
    inputs = make_inputs(70, 300, spread=20.0)
    out, w = regard.attention(*inputs, masks.band(0, 0), return_weights=True, engine=engine)
    assert_same_bits(w.to_dense(), torch.eye(300)[230:].expand(2, 4, 70, 300).contiguous())
    assert_same_bits(out, inputs.value[..., 230:, :].repeat_interleave(2, 1))
    assert_same_bits(w.entropy(), torch.zeros(2, 4, 70))
    assert_same_bits(w.max_logit(), w.logsumexp)


@everywhere
@pytest.mark.parametrize("heads", [4, 2, 1, None])
@pytest.mark.parametrize("columns", [0, 1, 5])
def test_products(heads: int | None, columns: int, engine: str) -> None:
    inputs, out, w, exact = weights_of(engine)
    torch.testing.assert_close(w @ inputs.value, out)

    def draw(length: int) -> torch.Tensor:
        shape = (length, columns) if heads is None else (2, heads, length, columns)
        return torch.randn(shape, dtype=widest_dtype(engine))

    def widened(x: torch.Tensor) -> torch.Tensor:
        return (x.repeat_interleave(4 // heads, 1) if heads else x).double()

    right, left = draw(M), draw(N)
    assert_agrees(w @ right, exact.weights @ widened(right))
    if heads != 2:  # the transpose takes what each query head holds, or one for all
        assert_agrees(w.mT @ left, exact.weights.mT @ widened(left))


@everywhere
def test_the_transposed_product_with_ones_is_what_is_received(engine: str) -> None:
    _, _, w, _ = weights_of(engine)
    ones = torch.ones(N, 1, dtype=widest_dtype(engine))
    torch.testing.assert_close((w.mT @ ones)[..., 0], w.received())


@everywhere
def test_weights_are_those_before_dropout(engine: str) -> None:
    inputs = make_inputs(N, M, dtype=widest_dtype(engine))
    _, w = regard.attention(*inputs, masks.causal(), dropout_p=0.6, return_weights=True, engine=engine)
    _, plain = regard.attention(*inputs, masks.causal(), return_weights=True, engine=engine)
    assert_same_bits(w.to_dense(), plain.to_dense())
    assert_same_bits(w.logsumexp, plain.logsumexp)


def test_products_refuse_what_does_not_fit() -> None:
    _, _, w, _ = weights_of()
    for wrong, named in [
        (torch.ones(M + 1, 3), r"21|20"),
        (torch.ones(2, 3, M, 3), r"3"),
        (torch.ones(M), r"20"),
        (torch.ones(5, 4, M, 3), r"5"),
    ]:
        with pytest.raises(regard.errors.RegardError, match=named):
            w @ wrong
    with pytest.raises(regard.errors.RegardError):
        w.mT @ torch.ones(N + 1, 3)
    with pytest.raises(TypeError):
        w @ 3.0


QUESTIONS = {
    "row": lambda w: w[0, 1, 2],
    "to_dense": lambda w: w.to_dense(),
    "logits": lambda w: w.logits(0, 1),
    "product": lambda w: w @ torch.ones(M, 2),
    "transposed product": lambda w: w.mT @ torch.ones(N, 2),
    "entropy": lambda w: w.entropy(),
    "received": lambda w: w.received(),
    "top_keys": lambda w: w.top_keys(3),
    "pooled": lambda w: w.pooled(3, 3),
    "statistics": lambda w: w.statistics("distance"),
}


@everywhere
@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("changed", ["query", "key", "bias", "sink_logits"])
def test_a_kept_tensor_changed_in_place_is_an_error(changed: str, question: str, engine: str) -> None:
    kept = dict(zip(("query", "key", "value"), make_inputs(N, M, dtype=widest_dtype(engine)), strict=True))
    kept |= {
        "bias": torch.randn(N, M, dtype=widest_dtype(engine)),
        "sink_logits": torch.zeros(4, dtype=widest_dtype(engine)),
    }
    q, k, v, bias, sink_logits = kept.values()
    _, w = regard.attention(q, k, v, bias=bias, sink_logits=sink_logits, return_weights=True, engine=engine)
    before = QUESTIONS[question](w)
    v.add_(1.0)  # the value is not kept
    again = QUESTIONS[question](w)
    if isinstance(before, torch.Tensor):
        assert_same_bits(again, before)
    kept[changed][..., 0].add_(1.0)
    if changed == "sink_logits":
        # The sink is in the denominator already: answering rightly is as good as refusing.
        try:
            now = QUESTIONS[question](w)
        except regard.errors.RegardError:
            return
        assert not isinstance(now, torch.Tensor) or torch.equal(now, before)
        return
    with pytest.raises(regard.errors.StaleWeightsError, match=changed):
        QUESTIONS[question](w)


def test_a_change_through_another_view_is_an_error_too() -> None:
    q, k, v = make_inputs(N, M)
    base = torch.zeros(2, 4, 2 * N, 8)
    _, w = regard.attention(base[..., ::2, :], k, v, return_weights=True)
    base[0, 0, 0, 0] = 1.0
    with pytest.raises(regard.errors.StaleWeightsError, match="query"):
        w.received()
    q.requires_grad_()
    _, w = regard.attention(q, k, v, return_weights=True)
    with torch.no_grad():
        q.mul_(0.9)  # an optimiser's step
    with pytest.raises(regard.errors.StaleWeightsError, match="query"):
        w.entropy()


def test_relative_tables_and_slopes_are_kept_too() -> None:
    for tensor, bias in [
        (slopes := torch.rand(4, dtype=torch.float64), biases.alibi(slopes)),
        (table := torch.randn(4, 9, dtype=torch.float64), biases.relative(table)),
    ]:
        _, w = regard.attention(*make_inputs(N, M, dtype=torch.float64), bias=bias, return_weights=True)
        w.entropy()
        tensor.add_(1.0)
        with pytest.raises(regard.errors.StaleWeightsError):
            w.entropy()


def test_a_mask_tensor_changed_in_place_gives_an_error_or_the_old_answers() -> None:
    for table in (torch.ones(N, M, dtype=torch.bool).tril(3), torch.rand(N, M) < 0.5):
        _, w = regard.attention(*make_inputs(N, M), table, return_weights=True)
        before = w.to_dense()
        table.logical_not_()
        try:
            now = w.to_dense()
        except regard.errors.StaleWeightsError:
            continue
        assert_same_bits(now, before)


def test_a_matrix_over_the_limit_is_refused_with_its_size() -> None:
    _, _, w, exact = weights_of()
    size = exact.weights.numel() * 8
    with pytest.raises(regard.errors.TooLargeError, match=r"\d"):
        w.to_dense(max_bytes=size - 1)
    torch.testing.assert_close(w.to_dense(max_bytes=size), exact.weights)


def test_a_slice_over_the_limit_is_refused_and_its_rows_are_not() -> None:
    q, k, v = make_inputs(20_000, batch=(1,), query_heads=1, key_heads=1)
    _, w = regard.attention(q, k, v, masks.sliding_window(8), return_weights=True)
    for ask in (lambda: w[0, 0], lambda: w.to_dense(), lambda: w.logits(...)):
        with pytest.raises(regard.errors.TooLargeError, match=r"1\.[456]\d* ?G|1,?600,?000,?000"):
            ask()
    rows = w[0, 0, 19_998:]
    assert rows.shape == (2, 20_000)
    torch.testing.assert_close(rows.sum(-1), torch.ones(2))


@pytest.mark.parametrize("kinds", [{}, {"batch": (0,)}, {"batch": ()}])
def test_it_shows_itself(kinds) -> None:
    _, _, w, _ = weights_of(**kinds)
    assert "12" in repr(w)
    assert "20" in repr(w)
    page = w._repr_html_()
    assert "<" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert len(page) < 200_000


def test_showing_a_long_matrix_stays_short() -> None:
    q, k, v = make_inputs(5_000, batch=(1,), query_heads=2, key_heads=2)
    _, w = regard.attention(q, k, v, masks.sliding_window(8), return_weights=True)
    assert len(w._repr_html_()) < 500_000
    assert len(repr(w)) < 1_000


@everywhere
def test_inference_tensors_work(engine: str) -> None:
    with torch.inference_mode():
        inputs, out, w, exact = weights_of(engine)
        assert_agrees(w.to_dense(), exact.weights)
    torch.testing.assert_close(w.entropy(), weights_of(engine)[2].entropy())
    torch.testing.assert_close(w @ inputs.value, out)


@everywhere
def test_sinks_leave_a_share_out(engine: str) -> None:
    inputs = make_inputs(N, M, dtype=widest_dtype(engine))
    sink_logits = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=widest_dtype(engine))
    _, w = regard.attention(*inputs, sink_logits=sink_logits, return_weights=True, engine=engine)
    exact = textbook_attention(*(t.double() for t in inputs), sink_logits=sink_logits.double())
    assert_agrees(w.to_dense(), exact.weights)
    assert_agrees(w @ inputs.value, exact.output)
    assert_agrees(w.logsumexp, exact.logsumexp)


@everywhere
def test_the_weights_alone_are_the_same_weights(engine: str) -> None:
    q, k, v = make_inputs(70, 300, requires_grad=True)
    problem = {
        "mask": masks.streaming(3, 40),
        "bias": biases.alibi(4),
        "softcap": 3.0,
        "sink_logits": torch.ones(4),
    }
    _, w = regard.attention(q, k, v, **problem, return_weights=True, engine=engine)
    alone = regard.weights.attention_weights(q, k, **problem, engine=engine)
    assert_same_bits(alone.to_dense(), w.to_dense())
    assert_same_bits(alone.logsumexp, w.logsumexp.detach())
    assert_same_bits(alone.received(), w.received())
