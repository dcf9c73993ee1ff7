"""What a call to the registered attention function may carry: honoured, or refused with a sentence."""

import re

import pytest
import torch

from models.dense import predicate_mask
from regard.errors import ModelError
from regard.models.computing import compute
from regard.models.heard import HeardCall
from regard.models.registering import attention_function
from regard.testing import assert_agrees, textbook_attention


class SomeAttention(torch.nn.Module):
    is_causal = True
    layer_idx = 3


def tensors(n_queries=6, n_keys=6, batch=2):
    torch.manual_seed(0)
    return (
        torch.randn(batch, 4, n_queries, 8),
        torch.randn(batch, 2, n_keys, 8),
        torch.randn(batch, 2, n_keys, 8),
    )


def answer(inputs, mask=None, module=None, **options):
    output, weights = attention_function(module or SomeAttention(), *inputs, mask, **options)
    assert output.is_contiguous()
    assert weights is None
    return output.transpose(1, 2)


def textbook(inputs, allowed=None, **options):
    query, key, value = (t.double() for t in inputs)
    options = {name: t.double() if torch.is_tensor(t) else t for name, t in options.items()}
    key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    return textbook_attention(query, key, value, allowed, **options).output


def causal(n_queries=6, n_keys=6):
    return predicate_mask(lambda b, i, j: j <= i + n_keys - n_queries, 1, 1, n_queries, n_keys)


SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])
BIAS = torch.randn(1, 4, 6, 6, generator=torch.Generator().manual_seed(1))
STEP_BIAS = torch.randn(1, 4, 1, 9, generator=torch.Generator().manual_seed(1))
ENDS = torch.tensor([0, 2, 6], dtype=torch.int32)


@pytest.mark.parametrize(
    ("options", "allowed", "expected"),
    [
        ({}, causal(), {}),
        ({"is_causal": False}, None, {}),
        ({"scaling": 0.7}, causal(), {"scale": 0.7}),
        ({"softcap": 0.5}, causal(), {"softcap": 0.5}),
        ({"s_aux": SINKS}, causal(), {"sink_logits": SINKS}),
        ({"position_bias": BIAS}, causal(), {"bias": BIAS}),
        ({"position_bias": BIAS, "is_causal": False}, None, {"bias": BIAS}),
        ({"sliding_window": 2}, predicate_mask(lambda b, i, j: i - 2 < j <= i, 1, 1, 6, 6), {}),
        ({"sliding_window": 6}, causal(), {}),
        (
            {"sliding_window": 2, "is_causal": False},
            predicate_mask(lambda b, i, j: abs(i - j) < 2, 1, 1, 6, 6),
            {},
        ),
        (
            {"cu_seq_lens_q": ENDS, "cu_seq_lens_k": ENDS},
            predicate_mask(lambda b, i, j: j <= i and (i < 2) == (j < 2), 1, 1, 6, 6),
            {},
        ),
        (
            {"dropout": 0.0, "position_ids": torch.arange(6), "use_cache": True, "head_mask": None},
            causal(),
            {},
        ),
    ],
)
def test_an_option_is_honoured(options, allowed, expected):
    assert_agrees(answer(tensors(), **options), textbook(tensors(), allowed, **expected))


@pytest.mark.parametrize(
    ("options", "allowed", "expected"),
    [
        ({"position_ids": torch.tensor([[8]]), "use_cache": True, "dropout": 0.0}, None, {}),
        ({"scaling": 0.7}, None, {"scale": 0.7}),
        ({"softcap": 0.5}, None, {"softcap": 0.5}),
        ({"s_aux": SINKS}, None, {"sink_logits": SINKS}),
        ({"position_bias": STEP_BIAS}, None, {"bias": STEP_BIAS}),
        ({"sliding_window": 2}, torch.arange(9)[None] > 6, {}),
    ],
)
def test_a_step_of_one_query_honours_what_it_carries(options, allowed, expected):
    """The short way of such a step is only for those that carry nothing."""
    assert_agrees(answer(tensors(1, 9), **options), textbook(tensors(1, 9), allowed, **expected))


def test_a_step_of_one_query_refuses_what_is_not_known():
    with pytest.raises(ModelError, match="`head_mask` is given"):
        answer(tensors(1, 9), head_mask=torch.ones(4))


def test_a_mask_says_everything_that_is_allowed():
    allowed = torch.rand(2, 1, 6, 9, generator=torch.Generator().manual_seed(2)) < 0.7
    allowed[..., 0] = True
    expected = textbook(tensors(6, 9), allowed)
    assert_agrees(answer(tensors(6, 9), allowed, sliding_window=2), expected)
    added = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    assert_agrees(answer(tensors(6, 9), added), expected)


def test_one_query_attends_every_key_and_more_start_an_empty_cache():
    assert_agrees(answer(tensors(1, 9)), textbook(tensors(1, 9)))
    query, key, value = tensors(6, 9)
    key[..., 6:, :] = value[..., 6:, :] = torch.nan
    expected = textbook((query, key[..., :6, :], value[..., :6, :]), causal())
    assert_agrees(answer((query, key, value)), expected)


def test_learned_queries_of_one_item_meet_the_keys_of_all():
    query, key, value = tensors()
    expected = textbook((query[:1].expand(2, -1, -1, -1), key, value))
    assert_agrees(answer((query[:1], key, value), is_causal=False), expected)


def test_dropout_keeps_the_mean_and_follows_torchs_seed():
    inputs = tensors()
    torch.manual_seed(5)
    first = answer(inputs, dropout=0.3)
    torch.manual_seed(5)
    assert torch.equal(answer(inputs, dropout=0.3), first)
    mean = torch.stack([answer(inputs, dropout=0.3) for _ in range(2000)]).mean(0)
    torch.testing.assert_close(mean, answer(inputs), atol=0.15, rtol=0)


def test_gradients_reach_everything_a_call_carries():
    inputs = [t.double().requires_grad_() for t in tensors()]
    carried = {"position_bias": BIAS.double().requires_grad_(), "s_aux": SINKS.double().requires_grad_()}
    added = torch.randn(2, 1, 6, 6, dtype=torch.double).masked_fill(~causal(), torch.finfo(torch.double).min)
    added.requires_grad_()
    with torch.enable_grad():
        for _ in range(2):  # the mask is known again, and so must be what leads to it
            ours = torch.autograd.grad(
                answer(inputs, added, **carried).square().sum(), [*inputs, added, *carried.values()]
            )
        bias = added + carried["position_bias"]
        exact = textbook(inputs, causal(), bias=bias, sink_logits=carried["s_aux"])
        expected = torch.autograd.grad(exact.square().sum(), [*inputs, added, *carried.values()])
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_a_mask_read_without_gradients_gets_them_later():
    inputs = tensors()
    added = torch.randn(1, 1, 6, 6, requires_grad=True)
    answer(inputs, added)
    with torch.enable_grad():
        assert torch.autograd.grad(answer(inputs, added).sum(), added)[0].abs().sum() > 0


def test_a_mask_changed_in_place_is_read_again():
    allowed = causal().expand(2, 1, 6, 6).clone()
    before = answer(tensors(), allowed)
    allowed[..., 0] = False
    allowed[..., 0, 0] = True
    after = answer(tensors(), allowed)
    assert_agrees(after, textbook(tensors(), allowed))
    assert not torch.equal(before, after)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"head_mask": torch.ones(4)}, "`head_mask` is given, which is none of"),
        ({"indices": torch.zeros(2, 6, 3)}, "`indices` is given"),
        ({"s_aux": torch.zeros(3)}, "its sinks must be one logit for each of 4 heads"),
        ({"softcap": -1.0}, "`softcap` must be greater than 0"),
        ({"dropout": 1.5}, "`dropout_p` must be between 0 and 1"),
        ({"position_bias": torch.zeros(1, 4, 5, 6)}, "its position bias must have shape"),
        ({"cu_seq_lens_q": ENDS, "cu_seq_lens_k": ENDS + 1}, "different `cu_seq_lens`"),
        ({"cu_seq_lens_q": 2 * ENDS}, "one batch item of 6 tokens, got `cu_seq_lens` up to 12"),
        ({"mask": torch.ones(2, 6)}, "its attention mask must"),
        ({"mask": torch.ones(2, 1, 6, 6, dtype=torch.long)}, "must be boolean or added to the scores"),
    ],
)
def test_what_cannot_be_honoured_is_refused_and_named(options, sentence):
    wanted = r"^the attention of SomeAttention \(layer 3\) cannot be computed with regard: .*" + re.escape(
        sentence
    )
    with pytest.raises(ModelError, match=wanted):
        answer(tensors(), **options)


def test_weights_too_large_to_give_are_refused_with_the_way_out():
    inputs = tensors(16500, 16500, 1)
    query, key, value = inputs[0][:, :1, :, :1], inputs[1][:, :1, :, :1], inputs[2][:, :1, :, :1]
    with pytest.raises(ModelError, match=r"`output_attentions` asks .*bytes.*regard\.watch gives"):
        attention_function(SomeAttention(), query, key, value, None, output_attentions=True)


@pytest.mark.parametrize("option", [{"softcap": 2.0}, {"s_aux": SINKS}])
def test_what_sdpa_would_pass_over_is_refused_in_its_place(option):
    call = HeardCall(SomeAttention(), "sdpa", *tensors(), None, option, engine="auto")
    with pytest.raises(ModelError, match=f'`{next(iter(option))}` is given, which "sdpa" does not compute'):
        compute(call, keep_normalizer=False)
