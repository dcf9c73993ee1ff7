"""Saturation against the dense matrix, and what it says of heads made to be flat, saturated or at rest."""

from __future__ import annotations

import math

import pytest
import torch

import regard
from regard import biases, masks
from regard.checks import saturation
from regard.checks.moments import row_moments
from regard.errors import ArgumentTypeError, StaleWeightsError
from regard.testing import make_inputs


def weights_of(*inputs, mask=None, **options):
    return regard.attention(*inputs, mask, return_weights=True, **options)[1]


CASES = {
    "plain": {},
    "causal": {"mask": masks.causal()},
    "sinks": {"sink_logits": torch.tensor([0.5, 2.0, -1.0, 0.0])},
    "nearly saturated": {"scale": 12.0},
    "a bias that excludes": {},
}


def excluding_bias(length: int) -> biases.Bias:
    bias = torch.randn(length, length)
    return biases.dense(bias.masked_fill(torch.rand(length, length) < 0.3, -math.inf))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("length", [17, 300])
def test_the_moments_are_those_of_the_dense_matrix(case: str, length: int) -> None:
    options = {"bias": excluding_bias(length)} if "bias" in case else CASES[case]
    w = weights_of(*make_inputs(length, dtype=torch.float64), **options)
    p, logits = w.to_dense(), w.logits()
    allowed = logits > -math.inf
    found = row_moments(w)
    torch.testing.assert_close(found.n_keys, allowed.sum(-1).double())
    jacobians = torch.diag_embed(p[:, :, :8]) - p[:, :, :8, :, None] * p[:, :, :8, None, :]
    torch.testing.assert_close(
        found.jacobian[:, :, :8], jacobians.flatten(-2).norm(dim=-1), rtol=1e-6, atol=1e-12
    )
    mean = logits.masked_fill(~allowed, 0).sum(-1) / allowed.sum(-1)
    squares = (logits - mean[..., None]).square().masked_fill(~allowed, 0).sum(-1)
    torch.testing.assert_close(found.variance, squares / allowed.sum(-1))


def test_the_moments_of_a_large_common_logit() -> None:
    """Logits near −120 that differ by little: their variance is no difference of large numbers."""
    q, k, v = make_inputs(65, head_dim=16)
    near = row_moments(weights_of(q + 5.5, k - 5.5, v)).variance
    q, k = (q + 5.5).double(), (k - 5.5).double()
    torch.testing.assert_close(near, row_moments(weights_of(q, k, v.double())).variance, rtol=1e-4, atol=1e-6)


def heads() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Four heads: flat, healthy, saturated on keys of their own, saturated on the first key."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, 40, 64, generator=generator) for _ in range(3))
    q[:, 0] *= 0.05
    q[:, 2] = 20 * k[:, 2]
    q[:, 3, :, 0], k[:, 3, :, 0] = 40.0, torch.tensor([40.0] + [0.0] * 39)
    return q, k, v


def test_verdicts() -> None:
    found = saturation(weights_of(*heads(), mask=masks.causal()))
    assert found.verdicts == ("flat", "", "saturated", "resting")
    assert found.rows.tolist() == [78] * 4, "a row that may attend one key has no choice"
    assert found.flat[0] > 0.9
    assert found.saturated[:2].tolist() == [0, 0]
    assert found.saturated[2:].tolist() == [1, 1]
    assert found.resting[2] < 0.2
    assert found.resting[3] == 1
    assert found.gradient[1] > 0.1
    assert (found.gradient[2:] < 1e-6).all()
    flat, resting, saturated = sorted(found.advice[-3:], key=lambda sentence: sentence.split()[4])
    assert flat.startswith("1 of 4 heads flat: ")
    assert resting.startswith("1 of 4 heads resting: ")
    assert saturated.startswith("1 of 4 heads saturated: ")
    assert "qk_norm" in saturated


def test_each_number_is_what_it_says() -> None:
    w = weights_of(*heads(), mask=masks.causal())
    p, found = w.to_dense().double()[:, :, 1:], saturation(w)
    entropy = -(p * p.clamp(min=1e-300).log()).sum(-1)
    torch.testing.assert_close(found.entropy, entropy.mean((0, 2)), rtol=1e-5, atol=1e-6)
    equal = torch.arange(2, 41).double().log() - entropy < 0.02
    torch.testing.assert_close(found.flat, equal.double().mean((0, 2)))
    torch.testing.assert_close(found.saturated, (p.amax(-1) > 0.99).double().mean((0, 2)))
    torch.testing.assert_close(found.max_logit, w.logits()[:, :, 1:].amax((0, 2, 3)).double())


def test_a_scale_that_is_missing_or_applied_twice() -> None:
    q, k, v = (torch.randn(1, 2, 50, 64) for _ in range(3))
    assert saturation(weights_of(q, k, v)).advice == ("nothing to do",)
    missing = saturation(weights_of(q, k, v, scale=1.0)).advice[0]
    assert missing.startswith("the scale is 1, 8 times 1/√64, and the logits")
    assert "divide scores by √head_dim" in missing
    twice = saturation(weights_of(q, k, v, scale=1 / 64)).advice[0]
    assert twice.startswith("2 of 2 heads flat")
    assert "the scale is 0.0156, 0.125 times 1/√64: is it applied twice?" in twice


def test_coarse_logits_in_a_short_format() -> None:
    q, k, v = (torch.randn(1, 2, 50, 64) for _ in range(3))
    q[..., 0], k[..., 0] = 40.0, 40.0
    short = saturation(weights_of(*(t.bfloat16() for t in (q, k, v)))).advice
    assert any("torch.bfloat16 may be off by" in sentence for sentence in short)
    assert saturation(weights_of(q, k, v)).advice == ("nothing to do",)


def test_heads_without_a_choice_and_heads_that_are_not_finite() -> None:
    q, k, v = make_inputs(6)
    alone = saturation(weights_of(q, k, v, mask=masks.band(0, 0)))
    assert alone.verdicts == ("no choice",) * 4
    assert "nan" not in str(alone)
    q[0, 1, 3, 0] = math.nan
    spoiled = saturation(weights_of(q, k, v))
    assert spoiled.verdicts == ("", "not finite", "", "")
    assert spoiled.advice[0].startswith("1 of 4 heads not finite")


def test_inputs_without_batch_or_heads() -> None:
    q, k, v = make_inputs(20, batch=(), query_heads=1, key_heads=1)
    assert saturation(weights_of(q[0], k[0], v[0])).rows.tolist() == [20]
    assert saturation(weights_of(q, k, v)).rows.tolist() == [20]
    many = make_inputs(20, batch=(2, 3))
    assert saturation(weights_of(*many)).rows.tolist() == [120] * 4


def test_the_table_has_a_line_for_each_head() -> None:
    lines = str(saturation(weights_of(*heads(), mask=masks.causal()))).splitlines()
    assert lines[0].split() == ["head", "flat", "saturated", "gradient", "entropy", "spread", "max", "logit"]
    assert [line.split()[0] for line in lines[1:5]] == ["0", "1", "2", "3"]
    assert lines[4].endswith("resting")


def test_what_cannot_be_asked() -> None:
    with pytest.raises(ArgumentTypeError, match=r"`weights` must be an AttentionWeights.*got a Tensor"):
        saturation(torch.eye(3))
    q, k, v = make_inputs(6)
    w = weights_of(q, k, v)
    q.zero_()
    with pytest.raises(StaleWeightsError):
        saturation(w)
