"""Watching models that compute with regard: `regard.attention`, the drop-in, `regard.nn` and its cache."""

import pytest
import torch
from torch import nn

import regard
from models.plain import Block, assert_weights
from regard import biases, masks
from regard.errors import ModelError
from regard.models import watch
from regard.nn import MultiHeadAttention, RotaryEmbedding

X = torch.randn(2, 12, 32, generator=torch.Generator().manual_seed(1))


def layer(**options):
    torch.manual_seed(0)
    return MultiHeadAttention(32, 4, **options).eval()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_key_heads": 2, "mask": masks.causal(), "rotary": RotaryEmbedding(8)},
        {"mask": masks.sliding_window(3) & masks.padding([12, 7])},
        {"score_bias": biases.alibi(4), "mask": masks.causal()},
        {"softcap": 2.0, "sinks": True, "scale": 0.5, "qk_norm": True},
    ],
)
@pytest.mark.parametrize("return_weights", [False, True])
def test_the_weights_are_those_that_the_layer_returns(options, return_weights):
    module = layer(**options)
    expected = module(X, return_weights=True)[1]
    plain = module(X)
    with watch(module, ["entropy"]) as recording:
        watched = module(X, return_weights=return_weights)
    assert torch.equal(plain, watched[0] if return_weights else watched)
    assert [(call.module, call.ordinal) for call in recording] == [("", 0)]
    assert torch.equal(recording[0].weights.to_dense(), expected.to_dense())
    torch.testing.assert_close(recording[0].weights.distance(), expected.distance())


def test_with_gradients_and_dropout_too():
    module = layer(dropout=0.5).train()
    with torch.enable_grad(), watch(module) as recording:
        module(X).sum().backward()
    expected = module.eval()(X, return_weights=True)[1]
    assert torch.equal(recording[0].weights.to_dense(), expected.to_dense())
    assert not recording[0].weights.logsumexp.requires_grad


@pytest.mark.parametrize("score_bias", [None, biases.alibi(4)])
@pytest.mark.parametrize("mask", [masks.causal(), masks.sliding_window(20)])
def test_a_generation_over_its_cache_joins_into_one_matrix(score_bias, mask):
    module = layer(score_bias=score_bias, mask=mask)
    expected = module(X, return_weights=True)[1]
    cache = module.make_cache(2, 64)
    with watch(module) as recording:
        for start, stop in ((0, 8), (8, 9), (9, 12)):
            module(X[:, start:stop], cache=cache)
    cache.crop(0)
    module(torch.randn(2, 12, 32), cache=cache)
    joined = recording.joined("")
    torch.testing.assert_close(joined.to_dense(), expected.to_dense(), atol=1e-6, rtol=0)
    torch.testing.assert_close(joined.distance(), expected.distance(), atol=1e-5, rtol=0)


def test_a_ring_is_seen_while_it_is_one_run_and_refused_where_sinks_stand_apart():
    module = layer(mask=masks.sliding_window(4))
    cache = module.make_cache(2, 64)
    with watch(module) as recording:
        for position in range(12):
            module(X[:, position : position + 1], cache=cache)
    expected = module(X, return_weights=True)[1].to_dense()
    assert_weights(recording[11], expected[:, :, 11:, -recording[11].weights.shape[-1] :].double())

    module = layer(mask=masks.streaming(1, 3))
    cache = module.make_cache(2, 64)
    plain = [module(X[:, i : i + 1], cache=cache) for i in range(12)]
    with pytest.raises(ModelError, match="its cache holds sinks apart"), watch(module):
        module(X[:, :1], cache=cache)
    both, cache = nn.Sequential(module, layer()), module.make_cache(2, 64)
    both.forward = lambda x: both[1](both[0](x, cache=cache))
    for i in range(8):
        both(X[:, i : i + 1])
    with watch(both, layers=1) as recording:  # nobody asks about the ring, which is one layer
        for i in range(8, 12):
            assert torch.equal(both(X[:, i : i + 1]), both[1](plain[i]))
    assert recording.modules == ["1"]


class DropIn(Block):
    def forward(self, x):
        query, key, value = self.split(x)
        output = regard.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.merge(output.transpose(1, 2).flatten(-2))


def test_the_drop_in_and_bare_calls_are_seen():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = DropIn(), DropIn()

        def forward(self, x):
            x = self.second(self.first(x))
            return regard.attention(x, x, x)

    model = Model()
    plain = model(X)
    with watch(model) as recording:
        watched = model(X)
    assert torch.equal(plain, watched)
    assert [call.module for call in recording] == ["first", "second", ""]
    query, key, value = model.first.split(X)
    expected = regard.attention(query, key, value, masks.causal(), return_weights=True)[1]
    assert torch.equal(recording[0].weights.to_dense(), expected.to_dense())
    assert recording[2].weights.shape == (1, 2, 12, 12)


def test_positions_are_the_calls_own():
    class Placed(nn.Module):
        def forward(self, x, **options):
            options |= {"query_start": 7, "key_start": torch.tensor([2, 5]), "bias": biases.alibi(1)}
            x = x.unsqueeze(1)
            return regard.attention(x[:, :, :4], x, x, masks.causal(), **options)

    _, expected = Placed()(X, return_weights=True)
    with watch(module := Placed()) as recording:
        module(X)
    weights = recording[0].weights
    assert torch.equal(weights.to_dense(), expected.to_dense())
    assert torch.equal(weights.distance(), expected.distance())


def test_a_recording_owns_its_mask():
    bits = torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) > 0.5
    module = layer(mask=masks.dense(bits))
    with watch(module) as recording:
        module(torch.randn(1, 64, 32))
    before = recording[0].weights.to_dense()
    bits.fill_(True)
    assert torch.equal(recording[0].weights.to_dense(), before)


def test_nobody_is_told_outside_of_a_watch():
    module = layer()
    with watch(module) as recording:
        module(X)
    module(X)
    assert len(recording) == 1
