"""To and from torch.nn.MultiheadAttention: the same numbers, or a sentence that says why not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard import biases, masks
from regard.errors import ArgumentError, ArgumentTypeError
from regard.nn import MultiHeadAttention, RotaryEmbedding

KINDS = {
    "plain": {},
    "no bias": {"bias": False},
    "kdim and vdim": {"kdim": 20, "vdim": 24},
    "kdim, without bias": {"kdim": 20, "bias": False},
}


def filled(**arguments) -> nn.MultiheadAttention:
    """torch's module in evaluation mode, its biases not 0."""
    module = nn.MultiheadAttention(32, 4, dtype=torch.float64, **arguments).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5)
    return module


def inputs_for(module: nn.MultiheadAttention) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    widths = (32, 5), (module.kdim, 7), (module.vdim, 7)
    return tuple(torch.randn(3, length, width, dtype=torch.float64) for width, length in widths)


def torch_result(module: nn.MultiheadAttention, inputs: tuple, **masks_of_torch) -> tuple:
    """torch's output and per-head weights, the batch first."""
    given = inputs if module.batch_first else [t.transpose(0, 1) for t in inputs]
    out, weights = module(*given, average_attn_weights=False, **masks_of_torch)
    return (out if module.batch_first else out.transpose(0, 1)), weights


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_numbers_there_and_back(kind: str, batch_first: bool) -> None:
    module = filled(batch_first=batch_first, **KINDS[kind])
    x, key, value = inputs_for(module)
    allowed = torch.rand(5, 7) < 0.7
    allowed[:, 0] = True
    lengths = torch.tensor([7, 5, 2])
    # torch's masks are the other way round: True = may not attend.
    theirs = {"attn_mask": ~allowed, "key_padding_mask": torch.arange(7) >= lengths[:, None]}
    expected, expected_weights = torch_result(module, (x, key, value), **theirs)

    ours = MultiHeadAttention.from_torch(module)
    mask = masks.dense(allowed) & masks.padding(lengths)
    out, weights = ours(x, (key, value), mask, return_weights=True)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(weights.to_dense(), expected_weights)

    back = ours.to_torch(batch_first=batch_first)
    assert back.batch_first is batch_first
    torch.testing.assert_close(torch_result(back, (x, key, value), **theirs), (expected, expected_weights))
    for name, tensor in module.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name


def test_self_attention_with_a_causal_mask() -> None:
    module = filled(batch_first=True)
    x = torch.randn(2, 6, 32, dtype=torch.float64)
    expected, _ = module(x, x, x, attn_mask=torch.ones(6, 6, dtype=torch.bool).triu(1))
    torch.testing.assert_close(MultiHeadAttention.from_torch(module)(x, mask=masks.causal()), expected)


def test_weights_are_copied_and_settings_kept() -> None:
    module = nn.MultiheadAttention(32, 4, dropout=0.25, dtype=torch.bfloat16)
    ours = MultiHeadAttention.from_torch(module)
    assert (ours.dropout, ours.training, ours.query_projection.weight.dtype) == (0.25, True, torch.bfloat16)
    before = module.in_proj_weight.clone()
    with torch.no_grad():
        ours.query_projection.weight.zero_()
    assert torch.equal(module.in_proj_weight, before)
    back = ours.eval().to_torch()
    assert (back.dropout, back.training, back.in_proj_weight.dtype) == (0.25, False, torch.bfloat16)
    assert all(parameter.requires_grad for parameter in [*ours.parameters(), *back.parameters()])


def test_keys_that_stand_nowhere_are_refused() -> None:
    with pytest.raises(ArgumentError, match="`module` must be without add_bias_kv"):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(32, 4, add_bias_kv=True))
    with pytest.raises(ArgumentError, match="`module` must be without add_zero_attn"):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(32, 4, add_zero_attn=True))
    with pytest.raises(ArgumentTypeError, match=r"must be a torch\.nn\.MultiheadAttention, got a Linear"):
        MultiHeadAttention.from_torch(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("arguments", "lacks"),
    [
        ({"num_key_heads": 2}, "no grouped heads"),
        ({"head_dim": 6}, "heads of 8 channels only"),
        ({"value_dim": 6}, "heads of 8 channels only"),
        ({"output_bias": False}, "a bias in all projections or in none"),
        ({"qk_norm": True}, "no qk_norm"),
        ({"rotary": RotaryEmbedding(8)}, "no rotary positions"),
        ({"mask": masks.causal()}, "no mask of its own"),
        ({"score_bias": biases.alibi(4)}, "no score_bias"),
        ({"scale": 1.0}, "no scale of its own"),
        ({"softcap": 1.0}, "no softcap"),
        ({"sinks": True}, "no sinks"),
    ],
)
def test_what_torch_lacks_is_named(arguments: dict, lacks: str) -> None:
    with pytest.raises(ArgumentError, match=f"torch.nn.MultiheadAttention, which has {lacks}"):
        MultiHeadAttention(32, 4, **arguments).to_torch()
