"""MultiHeadAttention under torch's tools: compile, autocast, half precision, copies, checkpointing."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from regard import biases, masks
from regard.nn import MultiHeadAttention, RotaryEmbedding
from regard.testing import assert_same_bits


def make(**arguments) -> MultiHeadAttention:
    return MultiHeadAttention(
        32,
        4,
        num_key_heads=2,
        qk_norm=True,
        rotary=RotaryEmbedding(8),
        mask=masks.sliding_window(5),
        score_bias=biases.alibi(4),
        **arguments,
    )


def gradients(layer: torch.nn.Module, out: torch.Tensor) -> dict[str, torch.Tensor]:
    named = dict(layer.named_parameters())
    return dict(zip(named, torch.autograd.grad(out.square().sum(), named.values()), strict=True))


# torch looks at the gradient of a tensor that has none when it resumes after a graph's end.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_it_gives_the_same_numbers() -> None:
    layer, x = make(), torch.randn(2, 9, 32)
    compiled = torch.compile(layer, backend="eager")
    out, weights = layer(x, return_weights=True)
    compiled_out, compiled_weights = compiled(x, return_weights=True)
    assert_same_bits(compiled_out.detach(), out.detach())
    assert_same_bits(compiled_weights.to_dense(), weights.to_dense())
    for name, gradient in gradients(layer, compiled(x, mask=masks.sinks(8), lengths=[9, 4])).items():
        expected = gradients(layer, layer(x, mask=masks.sinks(8), lengths=[9, 4]))[name]
        torch.testing.assert_close(gradient, expected)


def test_compiled_it_decodes() -> None:
    layer, x = make().eval(), torch.randn(2, 12, 32)
    compiled = torch.compile(layer, backend="eager")
    with torch.no_grad():
        expected, cache, plain_cache = layer(x), layer.make_cache(2, 12), layer.make_cache(2, 12)
        for first, last in ((0, 4), (4, 5), (5, 6), (6, 12)):
            step = compiled(x[:, first:last], cache=cache)
            torch.testing.assert_close(step, expected[:, first:last])
            assert_same_bits(step, layer(x[:, first:last], cache=plain_cache))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    layer, x = make(), torch.randn(2, 9, 32)
    exact = layer(x)
    half = copy.deepcopy(layer).to(dtype)
    out, weights = half(x.to(dtype), return_weights=True)
    assert (out.dtype, weights.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(out.float(), exact, atol=0.03, rtol=0.03)
    with torch.no_grad():
        cache = half.make_cache(2, 9)
        assert cache.dtype == dtype
        steps = [half(x[:, i : i + 3].to(dtype), cache=cache) for i in (0, 3, 6)]
    torch.testing.assert_close(torch.cat(steps, 1), out, atol=0.03, rtol=0.03)


def test_autocast() -> None:
    layer, x = make(), torch.randn(2, 9, 32)
    exact = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, weights = layer(x, return_weights=True)
        with torch.no_grad():
            cached = layer(x, cache=layer.make_cache(2, 9))
    assert out.dtype == cached.dtype == torch.bfloat16
    assert weights.dtype == torch.float32
    torch.testing.assert_close(out.float(), exact, atol=0.03, rtol=0.03)
    torch.testing.assert_close(cached, out, atol=0.03, rtol=0.03)
    assert all(gradient.isfinite().all() for gradient in gradients(layer, out).values())


def test_copies_are_independent_and_equal() -> None:
    table = torch.nn.Parameter(torch.randn(4, 5))
    layer = MultiHeadAttention(32, 4, score_bias=biases.relative(table), mask=masks.causal(), sinks=True)
    x = torch.randn(2, 9, 32)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert_same_bits(twin(x).detach(), layer(x).detach())
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.add_(1)
        assert not torch.equal(twin(x), layer(x))
        assert not torch.equal(twin.score_bias.parameter, table)
        twin.load_state_dict(layer.state_dict())
        assert_same_bits(twin(x).detach(), layer(x).detach())


def test_functional_call_uses_the_parameters_it_is_given() -> None:
    table = torch.nn.Parameter(torch.randn(4, 5))
    layer = MultiHeadAttention(32, 4, score_bias=biases.relative(table), qk_norm=True, sinks=True)
    x = torch.randn(2, 9, 32)
    given = {name: torch.randn_like(p, requires_grad=True) for name, p in layer.named_parameters()}
    out = torch.func.functional_call(layer, given, (x,))
    twin = copy.deepcopy(layer)
    twin.load_state_dict(given)
    assert_same_bits(out.detach(), twin(x).detach())
    for tensor in torch.autograd.grad(out.square().sum(), list(given.values())):
        assert tensor.abs().max() > 0


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing_repeats_dropout(use_reentrant: bool) -> None:
    layer = make(dropout=0.4)
    results = []
    for checkpointed in (False, True):
        torch.manual_seed(1)
        x = torch.randn(2, 9, 32, requires_grad=True)
        out = checkpoint(layer, x, use_reentrant=use_reentrant) if checkpointed else layer(x)
        layer.zero_grad()
        out.square().sum().backward()
        results.append([x.grad, *(p.grad.clone() for p in layer.parameters())])
    for one, other in zip(*results, strict=True):
        assert_same_bits(one, other)


def test_an_optimiser_teaches_it() -> None:
    """A layer learns to copy what stood two positions before."""
    layer = MultiHeadAttention(16, 2, rotary=RotaryEmbedding(8), mask=masks.causal())
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.02)
    losses = []
    for _ in range(150):
        x = torch.randn(16, 12, 16)
        loss = (layer(x)[:, 2:] - x[:, :-2]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) / 5 < 0.3 * losses[0]
