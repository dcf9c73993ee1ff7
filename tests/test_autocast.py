"""Under autocast attention computes in the lower precision, as torch's own function does; sums stay wide."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F

import regard
from regard import biases, masks
from regard.testing import ENGINES, assert_same_bits, make_inputs
from regard.weights import attention_weights

INPUTS = make_inputs(33, 40, key_heads=4)
LOWER = [torch.bfloat16, torch.float16]
FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "attention": regard.attention,
    "drop-in": regard.scaled_dot_product_attention,
}


def lowered(dtype: torch.dtype) -> torch.autocast:
    return torch.autocast("cpu", dtype=dtype)


@pytest.mark.parametrize("dtype", LOWER, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_dtypes_are_those_of_torch(name: str, dtype: torch.dtype) -> None:
    function = FUNCTIONS[name]
    for given in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        inputs = [tensor.to(given) for tensor in INPUTS]
        with lowered(dtype):
            expected, ours = F.scaled_dot_product_attention(*inputs), function(*inputs)
        assert ours.dtype == expected.dtype
        assert ours.dtype == (torch.float64 if given == torch.float64 else dtype)
        with torch.autocast("cpu", dtype=dtype, enabled=False):
            assert function(*inputs).dtype == given
    mixed = INPUTS.query.to(dtype), INPUTS.key, INPUTS.value
    with lowered(dtype):
        assert F.scaled_dot_product_attention(*mixed).dtype == function(*mixed).dtype == dtype


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", LOWER, ids=str)
def test_the_result_is_that_of_lowered_inputs(dtype: torch.dtype, engine: str) -> None:
    mask, bias, sinks = masks.causal(), biases.alibi(4), torch.tensor([0.5, -1.0, 2.0, 0.0])

    def attend(*inputs):
        return regard.attention(
            *inputs, mask, bias=bias, sink_logits=sinks, return_weights=True, engine=engine
        )

    expected, w = attend(*(tensor.to(dtype) for tensor in INPUTS))
    with lowered(dtype):
        ours, w_ours = attend(*INPUTS)
        inside = w_ours.received()
    assert_same_bits(ours, expected)
    assert w_ours.dtype == torch.float32
    for one in (inside, w_ours.received()):
        assert_same_bits(one, w.received())
    assert_same_bits(w_ours.logsumexp, w.logsumexp)
    with lowered(dtype):
        without_weights = regard.attention(*INPUTS, mask, bias=bias, sink_logits=sinks, engine=engine)
    assert_same_bits(without_weights, expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_come_back_in_the_dtype_of_the_inputs(name: str) -> None:
    def gradients(function):
        leaves = [tensor.clone().requires_grad_() for tensor in INPUTS]
        with lowered(torch.bfloat16):
            output = function(*leaves)
        return torch.autograd.grad(output.float().square().sum(), leaves)

    for ours, torchs in zip(
        gradients(FUNCTIONS[name]), gradients(F.scaled_dot_product_attention), strict=True
    ):
        assert ours.dtype == torchs.dtype == torch.float32
        torch.testing.assert_close(ours, torchs, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_drop_in_lowers_a_float_mask_as_torch_does(dtype: torch.dtype) -> None:
    mask = torch.randn(33, 40, dtype=dtype)
    inputs = [tensor.double() for tensor in INPUTS] if dtype == torch.float64 else INPUTS
    with lowered(torch.bfloat16):
        expected = F.scaled_dot_product_attention(*inputs, mask)
        ours = regard.scaled_dot_product_attention(*inputs, mask)
    assert ours.dtype == expected.dtype
    torch.testing.assert_close(ours, expected, rtol=2e-2, atol=2e-2)


def test_the_backward_pass_is_not_lowered() -> None:
    leaves = [tensor.clone().requires_grad_() for tensor in INPUTS]
    output = regard.attention(*leaves, masks.causal())
    expected = torch.autograd.grad(output.sum(), leaves, retain_graph=True)
    with lowered(torch.bfloat16):
        found = torch.autograd.grad(output.sum(), leaves)
    for ours, plain in zip(found, expected, strict=True):
        assert_same_bits(ours, plain)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_in_a_graph(name: str) -> None:
    torch._dynamo.reset()

    def attend(*inputs):
        with lowered(torch.bfloat16):
            return FUNCTIONS[name](*inputs)

    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    assert_same_bits(compiled(*INPUTS), attend(*INPUTS))
    around = torch.compile(FUNCTIONS[name], backend="aot_eager", fullgraph=True)
    with lowered(torch.bfloat16):
        assert_same_bits(around(*INPUTS), attend(*INPUTS))
    assert around(*INPUTS).dtype == torch.float32


@pytest.mark.parametrize("dtype", LOWER, ids=str)
def test_weights_alone_are_those_of_the_call(dtype: torch.dtype) -> None:
    query, key, value = INPUTS
    with lowered(dtype):
        alone = attention_weights(query, key, masks.causal())
        _, beside = regard.attention(query, key, value, masks.causal(), return_weights=True)
    assert_same_bits(alone.to_dense(), beside.to_dense())
