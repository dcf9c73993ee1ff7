"""Watching small random models, each for one thing that its attention calls carry."""

import pytest
import torch
import transformers
from transformers.modeling_utils import AttentionInterface

from models import small
from models.eager import assert_rows_equal, assert_statistics_equal, eager_weights, implementation
from models.small import IDS, LEFT_PADDING, build
from regard import masks
from regard.errors import ModelError
from regard.models import watch
from regard.recording.parts import Parts


def watched(model, inputs, kernel):
    """Calls seen over a batch; the output is compared with that of the model alone."""
    with implementation(model, kernel):
        plain = model(**inputs).logits
        with watch(model) as recording:
            assert torch.equal(model(**inputs).logits, plain)
    return recording


def parts(call):
    return Parts.of(call.weights).problem


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("padded", [False, True])
def test_a_plain_decoder(kernel, padded):
    model = small.llama()
    inputs = {"input_ids": IDS} | ({"attention_mask": LEFT_PADDING} if padded else {})
    live = LEFT_PADDING if padded else torch.ones_like(IDS)
    for call, expected in zip(watched(model, inputs, kernel), eager_weights(model, **inputs), strict=True):
        assert_rows_equal(call.weights, expected, live)
        assert_statistics_equal(call.weights, expected, live)
        assert parts(call).sets.dense is None, "a causal, padded mask is a few intervals"


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_a_sliding_window(kernel):
    model = small.mistral()
    inputs = {"input_ids": IDS, "attention_mask": LEFT_PADDING}
    for call, expected in zip(watched(model, inputs, kernel), eager_weights(model, **inputs), strict=True):
        assert_rows_equal(call.weights, expected, LEFT_PADDING)
        assert (call.weights[1] > 0).sum(-1).max() == 4


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("window", [4, 15])
def test_a_window_slides_over_a_generation(kernel, cache, window):
    model = build("MistralForCausalLM", "MistralConfig", sliding_window=window)
    count = {"max_new_tokens": 7, "min_new_tokens": 7, "do_sample": False}
    with implementation(model, kernel):
        plain = model.generate(IDS, cache_implementation=cache, disable_compile=True, **count)
        with watch(model) as recording:
            ids = model.generate(IDS, cache_implementation=cache, disable_compile=True, **count)
    assert torch.equal(ids, plain)
    assert recording[-1].weights.shape[-1] == window, "the cache holds what the window reaches"
    for layer, expected in enumerate(eager_weights(model, input_ids=ids[:, :-1])):
        joined = recording.joined(f"model.layers.{layer}.self_attn")
        assert_rows_equal(joined, expected)
        last = [call for call in recording if call.layer == layer][-1]
        torch.testing.assert_close(last.weights.distance()[..., 0], joined.distance()[..., -1])


def test_softcap_and_window_of_gemma():
    model = small.gemma()
    inputs = {"input_ids": IDS, "attention_mask": LEFT_PADDING}
    recording = watched(model, inputs, "eager")
    for call, expected in zip(recording, eager_weights(model, **inputs), strict=True):
        assert parts(call).softcap == 1.5
        assert_rows_equal(call.weights, expected, LEFT_PADDING)
    assert (recording[0].weights.max_logit() <= 1.5).all()


def test_sinks_take_their_share_in_gpt_oss():
    model = small.gpt_oss()
    inputs = {"input_ids": IDS, "attention_mask": LEFT_PADDING}
    recording = watched(model, inputs, "eager")
    for call, expected in zip(recording, eager_weights(model, **inputs), strict=True):
        assert_rows_equal(call.weights, expected, LEFT_PADDING)
        assert call.weights.to_dense().sum(-1)[1].max() < 1 - 1e-6


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_position_bias_and_attention_to_an_encoder(kernel):
    model = small.t5()
    inputs = {"input_ids": IDS, "attention_mask": LEFT_PADDING.flip(-1), "decoder_input_ids": IDS[:, :6]}
    recording = watched(model, inputs, kernel)
    with implementation(model, "eager"):
        out = model(**inputs, output_attentions=True)
    expected = {
        "encoder.block.{}.layer.0.SelfAttention": out.encoder_attentions,
        "decoder.block.{}.layer.0.SelfAttention": out.decoder_attentions,
        "decoder.block.{}.layer.1.EncDecAttention": out.cross_attentions,
    }
    calls = {call.module: call for call in recording}
    assert len(calls) == 6
    for name, layers in expected.items():
        for layer, weights in enumerate(layers):
            assert_rows_equal(calls[name.format(layer)].weights, weights)


def test_the_encoder_of_a_generation_is_part_of_its_first_step():
    model = small.t5()
    with watch(model) as recording:
        model.generate(IDS, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert {call.step for call in recording if call.module.startswith("encoder")} == {0}
    assert {call.step for call in recording if call.module.startswith("decoder")} == {0, 1, 2, 3}
    crossing = "decoder.block.0.layer.1.EncDecAttention"
    assert recording.joined(crossing).shape == (2, 4, 4, 13)
    assert len({id(call.keys.keys) for call in recording if call.module == crossing}) == 1
    assert recording.joined("decoder.block.0.layer.0.SelfAttention").shape == (2, 4, 4, 4)


def test_a_prompt_into_an_empty_preallocated_cache_has_no_keys_after_it():
    model = small.llama()
    cache = transformers.StaticCache(config=model.config, max_cache_len=40)
    with watch(model) as recording:
        model(IDS, cache=cache)
        model(IDS[:, :3], cache=cache)
    assert [call.weights.shape[-2:] for call in recording[::2]] == [(13, 13), (3, 16)]
    expected = eager_weights(model, input_ids=torch.cat([IDS, IDS[:, :3]], 1))
    for layer in range(2):
        assert_rows_equal(recording.joined(f"model.layers.{layer}.self_attn"), expected[layer])


def test_beams_that_change_places_are_recorded_but_do_not_join():
    model = small.llama()
    with watch(model) as recording:
        model.generate(IDS, max_new_tokens=8, min_new_tokens=8, num_beams=3, do_sample=False)
    assert [call.step for call in recording[::2]] == list(range(8))
    for call in recording:
        torch.testing.assert_close(call.weights.to_dense().sum(-1), torch.ones(call.weights.shape[:-1]))


def test_a_bidirectional_mask_with_holes_stays_exact():
    model = small.llama()
    allowed = torch.rand(2, 1, 13, 13, generator=torch.Generator().manual_seed(1)) < 0.5
    allowed |= torch.eye(13, dtype=torch.bool)
    with watch(model) as recording:
        model(IDS, attention_mask=allowed)
    for call in recording:
        assert torch.equal(call.weights.logits() > -torch.inf, allowed.expand(2, 4, 13, 13))


def test_an_additive_mask_is_a_bias_where_it_is_more_than_a_mask():
    model = small.llama()
    added = torch.randn(1, 1, 13, 13, generator=torch.Generator().manual_seed(1))
    added.masked_fill_(~masks.causal().to_dense(13, 13), torch.finfo(torch.float32).min)
    inputs = {"input_ids": IDS, "attention_mask": added}
    for kernel in ("sdpa", "eager"):
        for call, expected in zip(
            watched(model, inputs, kernel), eager_weights(model, **inputs), strict=True
        ):
            assert_rows_equal(call.weights, expected)
            assert parts(call).bias is not None


@pytest.mark.parametrize("change", ["gate", "scale", "keys"])
def test_a_function_that_does_more_than_it_is_told_is_refused(change):
    def odd_attention(module, query, key, value, attention_mask, **options):
        sdpa = AttentionInterface()["sdpa"]
        if change == "scale":
            options["scaling"] *= 1.5
        if change == "keys":
            key = key.roll(1, 2)
        output, _ = sdpa(module, query, key, value, attention_mask, **options)
        if change == "gate":
            output = output * torch.sigmoid(query.mean(-1)).mT[..., None]
        return output, None

    AttentionInterface.register("odd", odd_attention)
    transformers.AttentionMaskInterface.register("odd", transformers.masking_utils.sdpa_mask)
    try:
        model = small.llama()
        wanted = r"model\.layers\.0\.self_attn.*own output"
        with implementation(model, "odd"), pytest.raises(ModelError, match=wanted), watch(model):
            model(IDS)
    finally:
        del (
            AttentionInterface._global_mapping["odd"],
            transformers.AttentionMaskInterface._global_mapping["odd"],
        )
