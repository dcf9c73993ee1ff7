"""MultiHeadAttention against its definition, and what it takes and refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import regard.nn
from nn.by_hand import multi_head
from regard import AttentionWeights, biases, masks
from regard.errors import ArgumentError, ArgumentTypeError
from regard.nn import MultiHeadAttention, RotaryEmbedding

KINDS = {
    "plain": {},
    "grouped heads": {"num_key_heads": 2},
    "multi-query": {"num_key_heads": 1},
    "head_dim and value_dim": {"head_dim": 6, "value_dim": 10},
    "no bias": {"bias": False},
    "no bias at the end": {"output_bias": False},
    "qk_norm": {"qk_norm": True},
    "rotary, after qk_norm": {"qk_norm": True, "rotary": RotaryEmbedding(8), "num_key_heads": 2},
    "part of the channels turn": {"rotary": RotaryEmbedding(4, convention="interleaved")},
    "scale and softcap": {"scale": 0.7, "softcap": 1.5},
    "sinks": {"sinks": True},
    "causal": {"mask": masks.causal()},
    "alibi": {"mask": masks.causal(), "score_bias": biases.alibi(4)},
    "everything": {
        "num_key_heads": 2,
        "head_dim": 12,
        "value_dim": 5,
        "bias": False,
        "qk_norm": True,
        "rotary": RotaryEmbedding(12),
        "mask": masks.sliding_window(4),
        "score_bias": biases.relative(torch.randn(4, 7, dtype=torch.float64)),
        "softcap": 2.0,
        "sinks": True,
    },
}


def make(**arguments) -> MultiHeadAttention:
    """A layer whose every parameter says something."""
    layer = MultiHeadAttention(32, 4, dtype=torch.float64, **arguments)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5)
    return layer


def dense_of(layer: MultiHeadAttention, n: int) -> tuple:
    """The layer's own mask and bias as tensors that broadcast to [B, Hq, N, M]."""
    allowed = None if layer.mask is None else layer.mask.to_dense(n, n).expand(1, 1, n, n)
    if layer.score_bias is None:
        return allowed, None
    offsets = torch.arange(n)[None, :] - torch.arange(n)[:, None]
    parameter = layer.score_bias.parameter
    if parameter.dim() == 1:
        return allowed, (-parameter.view(-1, 1, 1) * offsets.abs())[None]
    reach = parameter.shape[1] // 2
    return allowed, parameter[:, offsets.clamp(-reach, reach) + reach][None]


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_definition(kind: str) -> None:
    layer = make(**KINDS[kind])
    x = torch.randn(3, 9, 32, dtype=torch.float64)
    allowed, bias = dense_of(layer, 9)
    expected, expected_weights = multi_head(layer, x, allowed, bias=bias)
    out, weights = layer(x, return_weights=True)
    torch.testing.assert_close(out, expected)
    assert isinstance(weights, AttentionWeights)
    torch.testing.assert_close(weights.to_dense(), expected_weights.detach())
    torch.testing.assert_close(layer(x), expected)


def test_any_leading_dimensions() -> None:
    layer = make(num_key_heads=2, rotary=RotaryEmbedding(8), mask=masks.causal())
    x = torch.randn(2, 3, 7, 32, dtype=torch.float64)
    out, weights = layer(x, return_weights=True)
    assert weights.shape == (2, 3, 4, 7, 7)
    torch.testing.assert_close(out[1], layer(x[1]))
    alone, weights = layer(x[1, 2], return_weights=True)
    assert weights.shape == (4, 7, 7)
    torch.testing.assert_close(alone, out[1, 2])


def test_cross_attention() -> None:
    layer = make(context_dim=(20, 24))
    x = torch.randn(3, 5, 32, dtype=torch.float64)
    context = torch.randn(3, 8, 20, dtype=torch.float64), torch.randn(3, 8, 24, dtype=torch.float64)
    allowed = torch.rand(3, 1, 5, 8) < 0.7
    expected, expected_weights = multi_head(layer, x, allowed, context)
    out, weights = layer(x, context, allowed, return_weights=True)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(weights.to_dense(), expected_weights.detach())
    layer = make(context_dim=20)
    expected, _ = multi_head(layer, x, None, (context[0], context[0]))
    torch.testing.assert_close(layer(x, context[0]), expected)


def test_a_call_can_only_take_away_from_the_mask() -> None:
    layer = make(mask=masks.causal())
    x = torch.randn(2, 6, 32, dtype=torch.float64)
    table = torch.rand(2, 4, 6, 6) < 0.6
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    expected, _ = multi_head(layer, x, table & causal)
    torch.testing.assert_close(layer(x, mask=table), expected)
    torch.testing.assert_close(layer(x, mask=masks.dense(table)), expected)


def test_lengths_are_padding_on_the_right() -> None:
    layer = make()
    x = torch.randn(2, 6, 32, dtype=torch.float64)
    x[0, 4:] = math.nan
    out = layer(x, lengths=[4, 6])
    torch.testing.assert_close(out[:1, :4], layer(x[:1, :4]))
    torch.testing.assert_close(out[1:], layer(x[1:]))


def test_weights_at_no_quadratic_cost() -> None:
    """At this length the weights of one head would take 64 GiB."""
    layer = MultiHeadAttention(8, 1, mask=masks.sliding_window(16))
    with torch.no_grad():
        _, weights = layer(torch.randn(1, 131_072, 8), return_weights=True)
    torch.testing.assert_close(weights[0, 0, -1].sum(), torch.tensor(1.0))


def test_dropout_in_training_only() -> None:
    layer = make(dropout=0.5)
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    plain, _ = multi_head(layer, x)
    torch.testing.assert_close(layer.eval()(x), plain)
    layer.train()
    torch.manual_seed(3)
    first = layer(x)
    assert (first - plain).abs().max() > 1e-3
    assert not torch.equal(layer(x), first)
    torch.manual_seed(3)
    assert torch.equal(layer(x), first)


def test_a_learned_score_bias_is_a_parameter_and_a_given_one_is_not() -> None:
    table = nn.Parameter(torch.zeros(4, 7, dtype=torch.float64))
    layer = make(score_bias=biases.relative(table))
    assert layer.score_bias_parameter is table
    layer(torch.randn(1, 6, 32, dtype=torch.float64)).square().sum().backward()
    assert table.grad.abs().max() > 0
    fixed = make(score_bias=biases.alibi(4))
    assert "score_bias_parameter" not in fixed.state_dict()
    # Slopes are numbers of the formula: a model in half precision keeps them whole.
    assert fixed.half().score_bias.parameter.dtype == torch.float32


def test_the_state_dict_is_stable() -> None:
    plain = MultiHeadAttention(32, 4)
    projections = ["query_projection", "key_projection", "value_projection", "output_projection"]
    both = [f"{name}.{kind}" for name in projections for kind in ("weight", "bias")]
    assert list(plain.state_dict()) == both
    table = nn.Parameter(torch.zeros(4, 3))
    full = MultiHeadAttention(
        32,
        4,
        bias=False,
        qk_norm=True,
        sinks=True,
        rotary=RotaryEmbedding(8),
        score_bias=biases.relative(table),
    )
    assert set(full.state_dict()) == {
        *(f"{name}.weight" for name in projections),
        "query_norm.weight",
        "key_norm.weight",
        "sink_logits",
        "score_bias_parameter",
    }
    shaped = MultiHeadAttention(32, 4, num_key_heads=2, head_dim=6, value_dim=10, context_dim=(20, 24))
    assert [tuple(projection.weight.shape) for projection in list(shaped.children())[:4]] == [
        (24, 32),
        (12, 20),
        (20, 24),
        (32, 40),
    ]


def test_initialisation_is_what_is_documented() -> None:
    layer = MultiHeadAttention(64, 4, num_key_heads=1, qk_norm=True, sinks=True)
    for name, parameter in layer.named_parameters():
        if name.endswith("projection.weight"):
            bound = math.sqrt(6 / sum(parameter.shape))
            assert 0.9 * bound < parameter.abs().max() <= bound
            assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
        else:
            expected = torch.ones_like(parameter) if "norm" in name else torch.zeros_like(parameter)
            assert torch.equal(parameter, expected), name


def test_every_parameter_learns() -> None:
    layer = make(**KINDS["everything"])
    layer(torch.randn(2, 9, 32, dtype=torch.float64)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad.abs().max() > 0, name


def test_printing_it_says_what_it_does() -> None:
    shown = repr(MultiHeadAttention(32, 4, num_key_heads=2, mask=masks.sliding_window(8), dropout=0.1))
    assert "num_heads=4, num_key_heads=2, head_dim=8" in shown
    assert "mask=sliding_window(size=8)" in shown
    assert "dropout=0.1" in shown


def test_the_engine_is_the_one_named() -> None:
    with pytest.raises(ArgumentError, match="`engine` must be one of"):
        MultiHeadAttention(32, 4, engine="warp")(torch.randn(1, 3, 32))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"embed_dim": 0, "num_heads": 1}, "`embed_dim` must be at least 1, got 0"),
        ({"embed_dim": 32, "num_heads": 5}, "`num_heads` must divide `embed_dim`, 32, .* got 5"),
        ({"embed_dim": 32, "num_heads": 4, "num_key_heads": 3}, "`num_key_heads` must divide .* 4, got 3"),
        ({"embed_dim": 32, "num_heads": 4, "value_dim": 0}, "`value_dim` must be at least 1"),
        ({"embed_dim": 32, "num_heads": 4, "context_dim": (8, 0)}, "`context_dim` must be at least 1"),
        ({"embed_dim": 32, "num_heads": 4, "dropout": 1.5}, "`dropout` must be between 0 and 1, got 1.5"),
        (
            {"embed_dim": 32, "num_heads": 4, "rotary": RotaryEmbedding(16)},
            "`rotary` must rotate at most head_dim = 8 channels, got 16",
        ),
    ],
)
def test_bad_arguments_are_named(arguments: dict, sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        MultiHeadAttention(**arguments)


def test_a_mask_or_bias_of_the_wrong_kind_is_refused_at_once() -> None:
    with pytest.raises(ArgumentTypeError, match=r"`mask` must be a mask from regard\.masks, got a Tensor"):
        MultiHeadAttention(32, 4, mask=torch.ones(3, 3, dtype=torch.bool))
    with pytest.raises(
        ArgumentTypeError, match=r"`score_bias` must be a bias from regard.biases, got a Tensor"
    ):
        MultiHeadAttention(32, 4, score_bias=torch.zeros(3, 3))
    with pytest.raises(ArgumentTypeError, match="`rotary` must be a RotaryEmbedding, got a float"):
        MultiHeadAttention(32, 4, rotary=10_000.0)


def test_bad_inputs_are_named() -> None:
    layer, x = MultiHeadAttention(32, 4, context_dim=20), torch.randn(2, 5, 32)
    with pytest.raises(ArgumentError, match=r"`x` must have shape \(..., positions, 32\), got \(2, 5, 31\)"):
        layer(x[..., 1:], torch.randn(2, 5, 20))
    with pytest.raises(ArgumentError, match=r"`context` must have shape \(..., positions, 20\)"):
        layer(x, x)
    with pytest.raises(ArgumentError, match=r"`x` must have shape \(..., positions, 20\)"):
        layer(x)
    with pytest.raises(ArgumentTypeError, match=r"`context` must be a torch.Tensor, got a list"):
        layer(x, [1])
    rotating = MultiHeadAttention(32, 4, rotary=RotaryEmbedding(8))
    with pytest.raises(ArgumentError, match="`context` cannot go with `rotary`"):
        rotating(x, x)
    plain = MultiHeadAttention(32, 4)
    with pytest.raises(ArgumentError, match="`context` cannot go with `cache`"):
        plain(x, x, cache=plain.make_cache(2, 8))
    with pytest.raises(ArgumentError, match="`context` cannot go with `lengths`"):
        plain(x, x, lengths=[5, 5])
    with pytest.raises(
        ArgumentTypeError, match=r"`mask` must be a mask from regard.masks or a boolean tensor"
    ):
        plain(x, mask="causal")
    with pytest.raises(ArgumentError, match=r"\(batch, positions, 32\) with a cache, got \(5, 32\)"):
        plain(x[0], cache=plain.make_cache(2, 8))


def test_the_names_of_the_package() -> None:
    assert regard.nn.__all__ == ["KVCache", "MultiHeadAttention", "RotaryEmbedding"]
