"""Rotary positions: the rotation itself, both conventions, and the scalings against transformers' own."""

from __future__ import annotations

import cmath
import copy

import pytest
import torch

from regard.errors import ArgumentError, ArgumentTypeError
from regard.nn import RotaryEmbedding
from regard.testing import assert_same_bits

SCALINGS = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0, "original_max_position_embeddings": 64},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "yarn, told all": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 0.7,
        "mscale_all_dim": 0.4,
        "truncate": False,
    },
    "yarn, sharpened": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.3,
    },
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


def scaling_of(name: str) -> dict:
    return {"rope_type": name, **SCALINGS[name]}


@pytest.mark.parametrize("convention", ["half_split", "interleaved"])
def test_each_pair_of_channels_is_a_complex_number_that_turns(convention: str) -> None:
    dim, base = 8, 100.0
    x = torch.randn(3, dim, dtype=torch.float64)
    turned = RotaryEmbedding(dim, base, convention=convention)(x, torch.tensor([0, 1, 7]))
    for row, position in enumerate([0, 1, 7]):
        for pair in range(dim // 2):
            first, second = (
                (2 * pair, 2 * pair + 1) if convention == "interleaved" else (pair, pair + dim // 2)
            )
            number = complex(x[row, first], x[row, second])
            number *= cmath.exp(1j * position * base ** (-2 * pair / dim))
            assert turned[row, first].item() == pytest.approx(number.real, abs=1e-6)
            assert turned[row, second].item() == pytest.approx(number.imag, abs=1e-6)


def test_the_conventions_differ_by_a_permutation_of_channels() -> None:
    x = torch.randn(2, 4, 5, 8)
    to_half = torch.cat([torch.arange(0, 8, 2), torch.arange(1, 8, 2)])
    interleaved = RotaryEmbedding(8, convention="interleaved")(x)[..., to_half]
    torch.testing.assert_close(RotaryEmbedding(8)(x[..., to_half]), interleaved)


def test_scores_depend_on_distance_alone() -> None:
    rotary = RotaryEmbedding(16)
    q, k = torch.randn(2, 1, 16, dtype=torch.float64)
    scores = [
        rotary(q, torch.tensor([place + 5])) @ rotary(k, torch.tensor([place])).T for place in (0, 3, 900)
    ]
    torch.testing.assert_close(scores[1], scores[0])
    torch.testing.assert_close(scores[2], scores[0])


def test_positions_may_differ_between_items() -> None:
    rotary = RotaryEmbedding(8)
    x = torch.randn(2, 3, 4, 8)
    positions = torch.tensor([[0, 1, 2, 3], [7, 8, 9, 10]])
    together = rotary(x, positions)
    for item in range(2):
        assert_same_bits(together[item], rotary(x[item], positions[item]))
    assert_same_bits(together[0], rotary(x)[0])


def test_channels_past_dim_pass_through() -> None:
    x = torch.randn(2, 5, 12)
    turned = RotaryEmbedding(8)(x)
    assert_same_bits(turned[..., 8:], x[..., 8:])
    assert_same_bits(turned[..., :8], RotaryEmbedding(8)(x[..., :8]))


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("n_positions", [7, 200])
def test_equals_transformers(name: str, n_positions: int) -> None:
    """On a Llama's shapes; 200 positions are past what the scalings call original."""
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    scaling = scaling_of(name)
    theirs = {k: v for k, v in scaling.items() if scaling["rope_type"] != "dynamic" or "original" not in k}
    config = LlamaConfig(
        hidden_size=4 * 64,
        num_attention_heads=4,
        max_position_embeddings=scaling.get("original_max_position_embeddings", 4096),
        rope_parameters={"rope_theta": 500_000.0, **theirs},
    )
    q, k = torch.randn(2, 4, n_positions, 64), torch.randn(2, 2, n_positions, 64)
    positions = torch.arange(n_positions)
    cosine, sine = LlamaRotaryEmbedding(config)(q, positions[None])
    expected = apply_rotary_pos_emb(q, k, cosine, sine)
    rotary = RotaryEmbedding(64, 500_000.0, scaling=scaling)
    for ours, their in zip((rotary(q, positions), rotary(k)), expected, strict=True):
        torch.testing.assert_close(ours, their, atol=1e-5, rtol=1e-5)


def test_scalings_change_something() -> None:
    x = torch.randn(1, 200, 64)
    results = [RotaryEmbedding(64, scaling=scaling_of(name))(x) for name in SCALINGS]
    for index, one in enumerate(results):
        for other in results[:index]:
            assert (one - other).abs().max() > 1e-3


def test_casting_a_model_leaves_the_angles_exact() -> None:
    rotary = RotaryEmbedding(64)
    x = torch.randn(1, 64, dtype=torch.bfloat16)
    far = torch.tensor([5001])
    expected = rotary(x.float(), far).to(torch.bfloat16)
    for cast in (rotary.to(torch.bfloat16), copy.deepcopy(rotary).half()):
        assert cast.inverse_frequencies.dtype == torch.float32
        assert_same_bits(cast(x, far), expected)


def test_it_leaves_nothing_in_a_state_dict_and_survives_an_empty_start() -> None:
    rotary = RotaryEmbedding(8)
    assert not rotary.state_dict()
    started_empty = RotaryEmbedding(8, device="meta").to_empty(device="cpu")
    assert_same_bits(started_empty.inverse_frequencies, rotary.inverse_frequencies)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"dim": 7}, "`dim` must be an even number"),
        ({"dim": 8, "base": 1.0}, "`base` must be greater than 1"),
        ({"dim": 8, "convention": "neox"}, "'half_split' or 'interleaved', got 'neox'"),
        ({"dim": 8, "scaling": {"factor": 2.0}}, "must name its 'rope_type'"),
        ({"dim": 8, "scaling": {"rope_type": "longrope"}}, "got 'longrope'"),
        ({"dim": 8, "scaling": {"rope_type": "linear"}}, "must hold 'factor'"),
        ({"dim": 8, "scaling": {"rope_type": "linear", "factor": 0}}, "greater than 0, got 0 for 'factor'"),
        (
            {"dim": 8, "scaling": {"rope_type": "linear", "factor": 2, "rope_theta": 1e4}},
            "takes 'factor', got 'rope_theta'",
        ),
    ],
)
def test_bad_arguments_are_named(arguments: dict, sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        RotaryEmbedding(**arguments)


def test_bad_positions_are_named() -> None:
    rotary, x = RotaryEmbedding(8), torch.randn(2, 3, 4, 8)
    with pytest.raises(ArgumentError, match=r"`positions` must have shape \(4,\) or \(2, 4\), got \(3,\)"):
        rotary(x, torch.arange(3))
    with pytest.raises(ArgumentTypeError, match=r"`positions` must be a tensor of numbers, got torch.bool"):
        rotary(x, torch.ones(4, dtype=torch.bool))
    with pytest.raises(ArgumentError, match=r"at least 8 channels\), got \(2, 6\)"):
        rotary(torch.randn(2, 6))
    with pytest.raises(ArgumentTypeError, match="`scaling` must be a mapping"):
        RotaryEmbedding(8, scaling=2.0)
