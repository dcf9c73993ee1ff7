"""The steps of one query end where `regard.attention` ends, and its switches do what they say."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import regard
from regard import biases, masks
from regard.checks.moments import row_moments
from regard.steps import attention_steps, row_scores

HEADS, LENGTH, DIM = 6, 20, 16
EXTRAS: list[dict[str, Any]] = [
    {},
    {"scale": 0.3},
    {"bias": biases.alibi(HEADS)},
    {"softcap": 2.0},
    {"sink_logits": torch.linspace(-1, 2, HEADS)},
    {"scale": 0.4, "softcap": 3.0, "bias": biases.alibi(HEADS), "sink_logits": torch.zeros(HEADS)},
]


def inputs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Grouped heads, a batch of two."""
    shapes = (2, HEADS, LENGTH, DIM), (2, 2, LENGTH, DIM), (2, 2, LENGTH, 5)
    query, key, value = (torch.randn(shape).to(dtype) for shape in shapes)
    return query, key, value


@pytest.mark.parametrize("extras", EXTRAS, ids=lambda extras: "+".join(extras) or "plain")
@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_the_steps_end_with_the_output_of_attention(extras: dict[str, Any], engine: str) -> None:
    query, key, value = inputs()
    out, weights = regard.attention(
        query, key, value, masks.causal(), return_weights=True, engine=engine, **extras
    )
    for item, head, row in ((0, 0, 0), (1, 4, 13), (0, 5, LENGTH - 1)):
        steps = attention_steps(weights, value, row, head=head, item=item, engine=engine)
        torch.testing.assert_close(steps.output, out[item, head, row], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(steps.weights, weights[item, head, row], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(steps["masked"], weights.logits(item, head, row), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(steps.attended, out[item, head, row], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_come_out_in_their_own(dtype: torch.dtype) -> None:
    query, key, value = inputs(dtype)
    out, weights = regard.attention(query, key, value, masks.causal(), return_weights=True)
    steps = attention_steps(weights, value, 7, head=3)
    assert steps.output.dtype == dtype
    assert steps.weights.dtype == weights.dtype
    torch.testing.assert_close(steps.output, out[0, 3, 7])


def test_each_step_follows_from_the_one_before() -> None:
    query, key, value = inputs()
    _, weights = regard.attention(query, key, value, masks.causal(), return_weights=True)
    steps = attention_steps(weights, value, 8, head=1)
    assert [step.name for step in steps.steps] == ["scores", "scaled", "masked", "weights"]
    torch.testing.assert_close(steps["scores"], key[0, 0] @ query[0, 1, 8])
    torch.testing.assert_close(steps["scaled"], steps["scores"] / 4)
    assert steps.steps[1].formula == "q · k / √16"
    assert steps["masked"][:9].equal(steps["scaled"][:9])
    assert (steps["masked"][9:] == -torch.inf).all()
    torch.testing.assert_close(steps.weights, steps["masked"].softmax(-1))
    torch.testing.assert_close(steps.output, steps.weights @ steps.value)


def test_the_measures_are_those_of_the_weights_and_of_the_checks() -> None:
    query, key, value = inputs()
    _, weights = regard.attention(query * 3, key, value, masks.causal(), return_weights=True)
    moments = row_moments(weights)
    for row in range(LENGTH):
        steps = attention_steps(weights, value, row, head=2)
        assert steps.entropy == pytest.approx(float(weights.entropy()[0, 2, row]), abs=1e-5)
        assert steps.max_weight == pytest.approx(float(weights.max_weight()[0, 2, row]), abs=1e-6)
        assert steps.gradient == pytest.approx(float(moments.jacobian[0, 2, row]), abs=1e-6)


@pytest.mark.parametrize("extras", EXTRAS, ids=lambda extras: "+".join(extras) or "plain")
@pytest.mark.parametrize(
    "switches", [{"scaled": False}, {"masked": False}, {"temperature": 3.0}], ids=lambda s: next(iter(s))
)
def test_attention_with_the_same_switches_computes_the_same(
    extras: dict[str, Any], switches: dict[str, Any]
) -> None:
    query, key, value = inputs()
    _, weights = regard.attention(query, key, value, masks.causal(), return_weights=True, **extras)
    plain = attention_steps(weights, value, 8, head=5)
    steps = attention_steps(weights, value, 8, head=5, **switches)
    torch.testing.assert_close(steps.output, steps.attended, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(steps.output, plain.output)


def test_the_switches_do_what_they_say() -> None:
    query, key, value = inputs()
    _, weights = regard.attention(query, key, value, masks.causal(), return_weights=True)
    for switches, mask, scale in (
        ({"scaled": False}, masks.causal(), 1.0),
        ({"masked": False}, None, DIM**-0.5),
        ({"temperature": 2.5}, masks.causal(), DIM**-0.5 / 2.5),
    ):
        _, expected = regard.attention(query, key, value, mask, scale=scale, return_weights=True)
        steps = attention_steps(weights, value, 8, head=5, **switches)
        torch.testing.assert_close(steps.weights, expected[0, 5, 8], rtol=1e-4, atol=1e-6)


def test_a_masked_key_reaches_nothing_whatever_it_holds() -> None:
    query, key, value = inputs()
    out = regard.attention(query, key, value, masks.causal())
    key[:, :, 9:], value[:, :, 9:] = torch.nan, torch.inf
    _, weights = regard.attention(query, key, value, masks.causal(), return_weights=True)
    steps = attention_steps(weights, value, 8, head=1)
    torch.testing.assert_close(steps.output, out[0, 1, 8], rtol=1e-5, atol=1e-6)
    assert steps["scores"][9:].isnan().all()


def test_a_query_that_may_attend_nothing_gets_nothing() -> None:
    query, key, value = (torch.randn(3, 4) for _ in range(3))
    mask = torch.tensor([[1, 1, 1], [0, 0, 0], [1, 0, 1]])
    _, weights = regard.attention(query, key, value, mask, return_weights=True)
    steps = attention_steps(weights, value, 1)
    assert (steps.output == 0).all()
    assert (steps.entropy, steps.max_weight, steps.gradient) == (0, 0, 0)
    assert torch.equal(steps.output, steps.attended)


def test_an_infinite_bias_is_a_mask() -> None:
    query, key, value = (torch.randn(3, 4) for _ in range(3))
    bias = torch.tensor([[0.0, 1.0, -torch.inf]]).expand(3, 3)
    _, weights = regard.attention(query, key, value, bias=bias, return_weights=True)
    rows = row_scores(weights, [1, 2])
    assert rows.allowed[0].tolist() == [[True, True, False]] * 2
    assert rows.bias is not None
    assert rows.bias[0].tolist() == [[0.0, 1.0, 0.0]] * 2
    steps = attention_steps(weights, value, 1, masked=False)
    assert steps.weights[2] > 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"query": 20}, "`query` must be from 0 to 19, got 20"),
        ({"head": 6}, "`head` must be from 0 to 5, got 6"),
        ({"item": 2}, "`item` must be from 0 to 1, got 2"),
        ({"query": 1.0}, r"`query` must be an int, got 1\.0"),
        ({"temperature": 0}, "`temperature` must be a number greater than 0, got 0"),
        ({"value": torch.zeros(2, 3, LENGTH, 5)}, r"`value` must have shape \(2, 2, 20, width\), got \(2, 3"),
        ({"value": None}, "`value` must be a torch.Tensor, got a NoneType"),
        ({"weights": torch.eye(3)}, "`weights` must be an AttentionWeights"),
    ],
)
def test_bad_input_gets_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    query, key, value = inputs()
    _, weights = regard.attention(query, key, value, return_weights=True)
    with pytest.raises(regard.errors.RegardError, match=sentence):
        attention_steps(**{"weights": weights, "value": value, **arguments})
