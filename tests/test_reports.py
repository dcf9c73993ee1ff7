"""What users of other libraries reported as wrong, each as its own small case."""

import math

import pytest
import torch
import torch.nn.functional as F

import regard
from regard import masks
from regard.testing import (
    ENGINES,
    Inputs,
    assert_same_bits,
    assert_within_budget,
    make_inputs,
    textbook_attention,
    widest_dtype,
)

everywhere = pytest.mark.parametrize("engine", ENGINES)


@everywhere
def test_a_masked_key_and_value_of_nan(engine: str) -> None:
    q = k = v = torch.arange(8.0).view(1, 1, 2, 4)
    k, v = k.clone(), v.clone()
    k[..., 1, :], v[..., 1, :] = math.nan, math.nan
    out = regard.attention(q, k, v, torch.tensor([[True, False], [True, False]]), engine=engine)
    assert out[0, 0].tolist() == [[0.0, 1.0, 2.0, 3.0]] * 2


@everywhere
def test_a_nan_in_one_query_row(engine: str) -> None:
    inputs = make_inputs(4)
    clean = regard.attention(*inputs, engine=engine)
    inputs.query[..., 1, 0] = math.nan
    out = regard.attention(*inputs, engine=engine)
    assert out[..., 1, :].isnan().all()
    others = [0, 2, 3]
    assert_same_bits(out[..., others, :], clean[..., others, :])


@everywhere
def test_a_fully_padded_sequence(engine: str) -> None:
    inputs = make_inputs(12, batch=(3,), requires_grad=True)
    out, w = regard.attention(*inputs, masks.padding([12, 0, 7]), return_weights=True, engine=engine)
    assert not out[1].any()
    assert (w.logsumexp[1] == -math.inf).all()
    gradients = torch.autograd.grad(out.square().sum(), inputs)
    without = [t.detach()[[0, 2]].requires_grad_() for t in inputs]
    rest = regard.attention(*without, masks.padding([12, 7]), engine=engine)
    assert_same_bits(out[[0, 2]], rest)
    expected = torch.autograd.grad(rest.square().sum(), without)
    for ours, true in zip(gradients, expected, strict=True):
        assert torch.isfinite(ours).all()
        assert not ours[1].any()
        assert_same_bits(ours[[0, 2]], true)


@everywhere
@pytest.mark.parametrize(
    ("n_queries", "n_keys", "query_start", "seen"),
    [
        (2, 5, None, [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]),
        (2, 5, 0, [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]),
        (5, 2, None, [[0, 0], [0, 0], [0, 0], [1, 0], [1, 1]]),
        (5, 2, 0, [[1, 0], [1, 1], [1, 1], [1, 1], [1, 1]]),
    ],
)
def test_lengths_that_differ(n_queries, n_keys, query_start, seen, engine: str) -> None:
    q, k, v = torch.zeros(n_queries, 3), torch.zeros(n_keys, 3), torch.eye(n_keys)
    table = torch.tensor(seen).float()
    expected = table / table.sum(-1, keepdim=True).clamp_min(1)
    out = regard.attention(q, k, v, masks.causal(), query_start=query_start, engine=engine)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize(("n_queries", "n_keys"), [(2, 5), (5, 2)])
def test_lengths_that_differ_through_the_drop_in(n_queries: int, n_keys: int) -> None:
    q, k, v = torch.zeros(1, n_queries, 3), torch.zeros(1, n_keys, 3), torch.eye(n_keys)[None]
    ours = regard.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(q, k, v, is_causal=True))
    top_left = torch.ones(n_queries, n_keys).tril()
    torch.testing.assert_close(ours[0], top_left / top_left.sum(-1, keepdim=True))


@everywhere
def test_causal_and_left_padding_and_window(engine: str) -> None:
    inputs = make_inputs(16)
    mask = masks.causal() & masks.padding([5, 11], side="left") & masks.sliding_window(4)
    rows, columns = torch.arange(16)[:, None], torch.arange(16)
    first = torch.tensor([11, 5])[:, None, None, None]
    seen = (columns <= rows) & (columns >= first) & (columns > rows - 4)
    assert_same_bits(mask.to_dense(16, 16), seen)
    torch.testing.assert_close(
        regard.attention(*inputs, mask, engine=engine), textbook_attention(*inputs, seen).output
    )


def test_a_float_mask_is_refused_with_advice() -> None:
    q, k, v = make_inputs(4)
    for mask in (torch.zeros(4, 4), torch.full((4, 4), -math.inf), torch.ones(4, 4, dtype=torch.bfloat16)):
        with pytest.raises(regard.errors.RegardError, match=r"mask.*bias="):
            regard.attention(q, k, v, mask)


@pytest.mark.parametrize("shape", [(4, 4, 4), (2, 4, 4), (4,), (1, 2, 4, 4, 4), ()])
def test_a_mask_that_would_broadcast_by_accident_is_refused(shape: tuple[int, ...]) -> None:
    """With as many heads as queries, `[B, N, M]` and `[H, N, M]` both fit, and mean different things."""
    q, k, v = make_inputs(4)
    with pytest.raises(regard.errors.RegardError, match=r"mask"):
        regard.attention(q, k, v, torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize("fill", [-1e9, "lowest", -math.inf])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_additive_masks_beside_a_low_score(dtype: torch.dtype, fill) -> None:
    q, k = torch.tensor([[[[1.0]]]], dtype=dtype), torch.tensor([[[[-101.8], [50.0]]]], dtype=dtype)
    v = torch.tensor([[[[1.0], [1000.0]]]], dtype=dtype)
    fill = torch.finfo(dtype).min if fill == "lowest" else fill
    mask = torch.tensor([[0.0, fill]]).to(dtype)  # −1e9 is −inf in float16
    out = regard.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
    assert out.item() == 1.0
    lowest = torch.tensor([[fill, 0.0]]).to(dtype)
    assert regard.scaled_dot_product_attention(q, k, v, attn_mask=lowest, scale=1.0).item() == 1000.0
    for both in (mask.expand(4, 2), lowest.expand(4, 2)):
        many = regard.scaled_dot_product_attention(q.expand(1, 1, 4, 1), k, v, attn_mask=both, scale=1.0)
        assert torch.isfinite(many).all()


@everywhere
def test_packed_lengths_equal_separate_runs(engine: str) -> None:
    lengths = [3, 0, 1, 4]
    inputs = make_inputs(8, requires_grad=True, dtype=widest_dtype(engine))
    packed = regard.attention(*inputs, masks.causal() & masks.documents(lengths=lengths), engine=engine)
    pieces = zip(*(t.split(lengths, -2) for t in inputs), strict=True)
    alone = torch.cat([regard.attention(*piece, masks.causal(), engine=engine) for piece in pieces], -2)
    torch.testing.assert_close(packed, alone)
    ours, true = (torch.autograd.grad(each.square().sum(), inputs) for each in (packed, alone))
    for our, expected in zip(ours, true, strict=True):
        torch.testing.assert_close(our, expected)
    third = torch.autograd.grad(
        regard.attention(*inputs, masks.documents(lengths=lengths), engine=engine)[..., 3:4, :].sum(), inputs
    )
    for gradient in third:
        crossed = torch.cat([gradient[..., :3, :], gradient[..., 4:, :]], -2)
        assert not crossed.any()


def test_a_window_of_three_over_eight_keys() -> None:
    inputs = make_inputs(8)
    _, w = regard.attention(*inputs, masks.sliding_window(3), return_weights=True)
    assert (w[0, 0] > 0).sum(-1).tolist() == [1, 2, 3, 3, 3, 3, 3, 3]
    causal = regard.attention(*inputs, masks.causal())
    for size in (8, 9, 1000):
        assert_same_bits(regard.attention(*inputs, masks.sliding_window(size)), causal)


@everywhere
@pytest.mark.parametrize("length", [63, 64, 65, 127])
def test_gradients_of_logits_near_minus_120(length: int, engine: str) -> None:
    for seed in range(10):
        q, k, v = make_inputs(length, query_heads=2, key_heads=2, head_dim=16, seed=seed)
        inputs = [t.requires_grad_() for t in (q + 5.5, k - 5.5, v)]  # 16 · 5.5² / 4 = 121
        wide = [t.detach().double().requires_grad_() for t in inputs]
        direction = make_inputs(length, query_heads=2, key_heads=2, head_dim=16, seed=50 + seed).value
        ours = torch.autograd.grad(regard.attention(*inputs, engine=engine), inputs, direction)
        same = torch.autograd.grad(textbook_attention(*inputs).output, inputs, direction)
        exact = torch.autograd.grad(textbook_attention(*wide).output, wide, direction.double())
        for name, our, true, textbook in zip(Inputs._fields, ours, exact, same, strict=True):
            assert_within_budget(our, true, textbook, factor=3.0, what=f"the gradient of {name}")
