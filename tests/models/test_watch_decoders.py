"""Watching a decoder: SmolLM2, its prompt, padded batches and generations."""

import pytest
import torch

import regard
from models.eager import assert_rows_equal, assert_statistics_equal, eager_weights, implementation
from regard.models import watch
from regard.recording.parts import Parts

TEXT = "The cat sat on the mat, and the cat"


def left_padded(loaded):
    return loaded.tokenizer([TEXT, "Once upon"], padding=True, padding_side="left", return_tensors="pt")


def greedy(model, inputs, count, **kwargs):
    return model.generate(**inputs, max_new_tokens=count, min_new_tokens=count, do_sample=False, **kwargs)


def test_a_prompt_is_seen_as_eager_computes_it(smollm2):
    inputs = smollm2.tokenizer(TEXT, return_tensors="pt")
    expected = eager_weights(smollm2.model, **inputs)
    plain = smollm2.model(**inputs).logits
    with watch(smollm2.model) as recording:
        watched = smollm2.model(**inputs).logits
    assert torch.equal(plain, watched)
    assert [call.module for call in recording] == [f"model.layers.{i}.self_attn" for i in range(30)]
    live = torch.ones_like(inputs["input_ids"])
    for call, weights in zip(recording, expected, strict=True):
        assert Parts.of(call.weights).problem.num_key_heads == 3
        assert_rows_equal(call.weights, weights, live)
        assert_statistics_equal(call.weights, weights, live)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_a_padded_batch_is_seen_exactly_and_padding_is_empty(smollm2, side, kernel):
    inputs = smollm2.tokenizer([TEXT, "Once upon"], padding=True, padding_side=side, return_tensors="pt")
    expected = eager_weights(smollm2.model, **inputs)
    with implementation(smollm2.model, kernel):
        plain = smollm2.model(**inputs).logits
        with watch(smollm2.model) as recording:
            watched = smollm2.model(**inputs).logits
    assert torch.equal(plain, watched)
    live = inputs["attention_mask"] if side == "left" else torch.ones_like(inputs["attention_mask"])
    for call, weights in zip(recording, expected, strict=True):
        assert_rows_equal(call.weights, weights, live)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_generation_joins_to_the_rows_of_one_eager_pass(smollm2, cache):
    inputs = left_padded(smollm2)
    plain = greedy(smollm2.model, inputs, 5, cache_implementation=cache, disable_compile=True)
    with watch(smollm2.model, layers=[0, 17, 29]) as recording:
        watched = greedy(smollm2.model, inputs, 5, cache_implementation=cache, disable_compile=True)
    assert torch.equal(plain, watched)
    assert [call.step for call in recording] == [step for step in range(5) for _ in range(3)]
    n_prompt = inputs["input_ids"].shape[1]
    assert [call.weights.shape[-2:] for call in recording[::3]] == [(n_prompt, n_prompt)] + [
        (1, n_prompt + step) for step in range(1, 5)
    ]
    # The last token that was generated has not been through the model.
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 4), value=1)
    expected = eager_weights(smollm2.model, input_ids=watched[:, :-1], attention_mask=mask)
    for layer in (0, 17, 29):
        joined = recording.joined(f"model.layers.{layer}.self_attn")
        assert_rows_equal(joined, expected[layer], mask)
        assert_statistics_equal(joined, expected[layer], mask)
        calls = [call for call in recording if call.layer == layer]
        # One row and many have kernels of their own.
        torch.testing.assert_close(joined[..., -1, :], calls[-1].weights[..., 0, :])
        positions = (torch.arange(n_prompt + 4)[:, None] - torch.arange(n_prompt + 4)).abs()
        distance = (joined.to_dense() * positions).sum(-1)
        torch.testing.assert_close(joined.distance(), distance, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(
            calls[-1].weights.distance()[..., 0], distance[..., -1], atol=1e-4, rtol=1e-5
        )


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_keys_of_a_generation_are_kept_once(smollm2, cache):
    inputs = smollm2.tokenizer(TEXT, return_tensors="pt")
    with watch(smollm2.model, layers=[3]) as recording:
        greedy(smollm2.model, inputs, 12, cache_implementation=cache, disable_compile=True)
    spans = [call.keys for call in recording]
    assert all(span.keys is spans[0].keys for span in spans)
    n_prompt = inputs["input_ids"].shape[1]
    assert spans[0].keys.length == n_prompt + 11
    assert [(span.start, span.stop) for span in spans] == [(0, n_prompt + i) for i in range(12)]


def test_two_generations_join_apart(smollm2):
    first, second = (smollm2.tokenizer(text, return_tensors="pt") for text in (TEXT, "Paris is"))
    with watch(smollm2.model, layers=["*.layers.4.*"]) as recording:
        greedy(smollm2.model, first, 3)
        greedy(smollm2.model, second, 3)
    module = "model.layers.4.self_attn"
    with pytest.raises(regard.errors.ArgumentError, match="steps"):
        recording.joined(module)
    n_second = second["input_ids"].shape[1]
    assert recording.joined(module, steps=range(3, 6)).shape[-2:] == (n_second + 2, n_second + 2)
