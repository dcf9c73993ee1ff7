"""The drop-in against torch's own function: signature, semantics, broadcasting, errors and gradients."""

import inspect
import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import regard
from regard.testing import assert_same_bits, make_inputs

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
TOLERANCE = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
    torch.float16: {"rtol": 4e-3, "atol": 4e-3},
}


def theirs(*tensors, **arguments):
    """Torch's own result by its plain formula."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*tensors, **arguments)


def assert_like_torch(*tensors, **arguments) -> None:
    ours = regard.scaled_dot_product_attention(*tensors, **arguments)
    expected = theirs(*tensors, **arguments)
    assert ours.dtype == expected.dtype
    torch.testing.assert_close(ours, expected, **TOLERANCE[ours.dtype])


def test_signature() -> None:
    parameters = inspect.signature(regard.scaled_dot_product_attention).parameters
    assert {name: p.default for name, p in parameters.items()} == {
        "query": inspect.Parameter.empty,
        "key": inspect.Parameter.empty,
        "value": inspect.Parameter.empty,
        "attn_mask": None,
        "dropout_p": 0.0,
        "is_causal": False,
        "scale": None,
        "enable_gqa": False,
    }
    positional = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional[:6] == ["query", "key", "value", "attn_mask", "dropout_p", "is_causal"]
    q, k, v = make_inputs(3, key_heads=4)
    for function in (regard.scaled_dot_product_attention, theirs):
        with pytest.raises(TypeError):
            function(q, k, v, None, 0.0, False, 0.5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_plain(scale, dtype) -> None:
    assert_like_torch(*make_inputs(17, 33, key_heads=4, value_dim=5, dtype=dtype), scale=scale)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n_queries", "n_keys"), [(7, 7), (2, 5), (5, 2), (1, 9), (9, 1)])
def test_causal_is_top_left(n_queries, n_keys, dtype) -> None:
    assert_like_torch(*make_inputs(n_queries, n_keys, key_heads=4, dtype=dtype), is_causal=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        (7, 9),
        (1, 9),
        (7, 1),
        (1, 1),
        (4, 7, 9),
        (1, 7, 9),
        (4, 1, 9),
        (2, 4, 7, 9),
        (2, 1, 7, 9),
        (2, 1, 1, 9),
        (1, 4, 7, 1),
    ],
)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_broadcast_as_in_torch(kind: str, shape: tuple[int, ...], dtype) -> None:
    mask = torch.rand(shape) < 0.7 if kind == "bool" else torch.randn(shape).to(dtype)
    assert_like_torch(*make_inputs(7, 9, key_heads=4, dtype=dtype), attn_mask=mask)


def test_a_float32_mask_over_narrower_inputs() -> None:
    inputs = make_inputs(7, 9, key_heads=4, dtype=torch.bfloat16)
    assert_like_torch(*inputs, attn_mask=torch.randn(7, 9))


def test_a_float_mask_of_zeros_and_ones_is_added_as_torch_adds_it() -> None:
    mask = (torch.rand(7, 9) < 0.5).float()
    assert_like_torch(*make_inputs(7, 9, key_heads=4), attn_mask=mask)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_ranks(is_causal: bool, batch) -> None:
    inputs = make_inputs(7, batch=batch, key_heads=4)
    assert_like_torch(*inputs, is_causal=is_causal)
    assert_like_torch(*inputs, attn_mask=torch.rand(7, 7) < 0.7)


def test_two_and_three_dimensions() -> None:
    q, k, v = make_inputs(7, batch=(), key_heads=4)
    assert_like_torch(q[0], k[0], v[0])
    assert_like_torch(q, k, v, attn_mask=torch.randn(4, 7, 7))
    assert_like_torch(q, k, v, attn_mask=torch.rand(4, 1, 7) < 0.7)


def test_batches_and_heads_broadcast() -> None:
    q, k, v = make_inputs(7, 9, batch=(3,), key_heads=4)
    assert_like_torch(q[:1], k, v)
    assert_like_torch(q, k[:1], v[:1])


@pytest.mark.parametrize("is_causal", [False, True])
def test_grouped_heads(is_causal: bool) -> None:
    inputs = make_inputs(7, query_heads=6, key_heads=2)
    assert_like_torch(*inputs, is_causal=is_causal, enable_gqa=True)
    for function in (regard.scaled_dot_product_attention, theirs):
        with pytest.raises(Exception, match=r"."):
            function(*inputs)


def test_fully_masked_rows_are_zero_as_in_torch() -> None:
    mask = torch.ones(7, 9, dtype=torch.bool)
    mask[3] = False
    inputs = make_inputs(7, 9, key_heads=4)
    assert_like_torch(*inputs, attn_mask=mask)
    assert_like_torch(*inputs, attn_mask=torch.zeros(7, 9).masked_fill(~mask, -math.inf))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_row_all_at_the_lowest_value_stays_additive(dtype) -> None:
    mask = torch.zeros(7, 9, dtype=dtype)
    mask[3] = torch.finfo(dtype).min
    mask[4, 5:] = torch.finfo(dtype).min
    assert_like_torch(*make_inputs(7, 9, key_heads=4, dtype=dtype), attn_mask=mask)


@pytest.mark.parametrize("fill", [-math.inf, "lowest", -1e9])
def test_excluded_keys_may_hold_nan_behind_a_mask(fill) -> None:
    q, k, v = make_inputs(7, 9, key_heads=4)
    mask = torch.ones(7, 9, dtype=torch.bool).tril(2)
    fill = torch.finfo(torch.float32).min if fill == "lowest" else fill
    additive = torch.zeros(7, 9).masked_fill(~mask, fill)
    clean = regard.scaled_dot_product_attention(q, k, v, attn_mask=additive)
    torch.testing.assert_close(clean, regard.scaled_dot_product_attention(q, k, v, attn_mask=mask))
    k[..., 8, :], v[..., 8, :] = math.nan, math.nan  # seen by row 6 alone
    assert_same_bits(
        regard.scaled_dot_product_attention(q, k, v, attn_mask=mask)[..., :6, :], clean[..., :6, :]
    )
    if fill != -1e9:  # an ordinary number is an ordinary bias
        out = regard.scaled_dot_product_attention(q, k, v, attn_mask=additive)
        assert_same_bits(out[..., :6, :], clean[..., :6, :])


@pytest.mark.parametrize(
    "arguments", [{}, {"is_causal": True}, {"attn_mask": "float"}, {"attn_mask": "bool"}], ids=str
)
def test_gradients(arguments) -> None:
    inputs = make_inputs(7, key_heads=4, dtype=torch.float64, requires_grad=True)
    wanted = list(inputs)
    if arguments.get("attn_mask") == "bool":
        arguments = {"attn_mask": torch.rand(7, 7) < 0.7}
    elif arguments.get("attn_mask") == "float":
        arguments = {"attn_mask": torch.randn(4, 1, 7, dtype=torch.float64, requires_grad=True)}
        wanted.append(arguments["attn_mask"])
    ours = torch.autograd.grad(
        regard.scaled_dot_product_attention(*inputs, **arguments).square().sum(), wanted
    )
    true = torch.autograd.grad(theirs(*inputs, **arguments).square().sum(), wanted)
    for our, expected in zip(ours, true, strict=True):
        torch.testing.assert_close(our, expected)


def test_dropout_follows_torchs_seed_and_keeps_the_mean() -> None:
    q, k = torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 5000, 8)
    v = torch.ones(1, 1, 5000, 1)
    torch.manual_seed(1)
    first = regard.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    torch.manual_seed(1)
    assert_same_bits(regard.scaled_dot_product_attention(q, k, v, dropout_p=0.5), first)
    assert (first - 1).abs().max() < 0.1
    assert (first != 1).any()


@pytest.mark.parametrize(
    "arguments",
    [
        {"attn_mask": torch.ones(7, 7, dtype=torch.bool), "is_causal": True},
        {"attn_mask": torch.ones(6, 7, dtype=torch.bool)},
        {"attn_mask": torch.ones(3, 1, 7, 7, dtype=torch.bool)},
        {"attn_mask": torch.ones(7, 7, dtype=torch.int64)},
        {"dropout_p": 1.5},
    ],
    ids=["mask and causal", "rows", "batch", "integers", "dropout"],
)
def test_what_torch_refuses_is_refused(arguments) -> None:
    inputs = make_inputs(7, key_heads=4)
    with pytest.raises((RuntimeError, ValueError)):
        theirs(*inputs, **arguments)
    with pytest.raises(regard.errors.RegardError):
        regard.scaled_dot_product_attention(*inputs, **arguments)


@pytest.mark.parametrize(("n_queries", "n_keys"), [(0, 5), (5, 0), (0, 0)])
def test_empty_sizes(n_queries: int, n_keys: int) -> None:
    inputs = make_inputs(n_queries, n_keys, key_heads=4)
    assert_same_bits(regard.scaled_dot_product_attention(*inputs), torch.zeros(2, 4, n_queries, 8))
