"""Alignment is what Whisper's code makes of the same cross-attention."""

import numpy as np
import pytest
import torch
import transformers
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

from answers.recorded import close
from models.eager import implementation
from regard.answers import align
from regard.answers.alignment import median_filter
from regard.answers.warping import warp
from regard.errors import ArgumentError
from regard.models import watch
from regard.weights import attention_weights


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (5, 12), (12, 5), (20, 20)])
def test_warping_finds_the_path_of_whispers_code(shape):
    for _ in range(5):
        # Few small integers: there are many ties, and sums are exact.
        cost = torch.randint(0, 3, shape).double()
        rows, columns = warp(cost)
        expected = _dynamic_time_warping(cost.numpy())
        assert np.array_equal(rows.numpy(), expected[0])
        assert np.array_equal(columns.numpy(), expected[1])
    flat = warp(torch.zeros(shape))
    assert np.array_equal(torch.stack(flat).numpy(), np.stack(_dynamic_time_warping(np.zeros(shape))))


@pytest.mark.parametrize("width", [1, 3, 7])
@pytest.mark.parametrize("length", [2, 4, 30])
def test_the_median_filter_is_whispers(width, length):
    values = torch.randn(2, 3, length)
    assert torch.equal(median_filter(values, width), _median_filter(values, width))


def whisper():
    torch.manual_seed(0)
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2}
    more = {"decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 60}
    ends = {"max_source_positions": 40, "max_target_positions": 30, "num_mel_bins": 8, "pad_token_id": 0}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    config = transformers.WhisperConfig(**sizes, **more, **ends, **tokens, suppress_tokens=[])
    model = transformers.WhisperForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(5)
    return model


def test_a_whisper_model_is_aligned_as_its_own_code_aligns_it():
    model = whisper()
    inputs = {"input_features": torch.randn(1, 8, 80), "decoder_input_ids": torch.arange(4, 24).view(1, 20)}
    heads, frames = [(0, 1), (1, 0), (1, 3)], 33
    with watch(model, layers="*.encoder_attn") as recording:
        model(**inputs)
    found = align(recording, heads, tokens=slice(3, -1), frames=frames)
    with implementation(model, "eager"):
        seen = model(**inputs, output_attentions=True).cross_attentions
    weights = torch.stack([seen[layer][0, head] for layer, head in heads])[..., :frames]
    weights = weights / weights.sum(-1, keepdim=True)  # the softmax over the frames that are sound
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    matrix = _median_filter((weights - mean) / deviation, 7).mean(0)[3:-1]
    assert close(found.matrix, matrix, 1e-3)
    tokens, times = _dynamic_time_warping(-found.matrix.double().numpy())
    assert np.array_equal(found.tokens.numpy(), tokens)
    assert np.array_equal(found.frames.numpy(), times)
    jumps = np.pad(np.diff(tokens), (1, 0), constant_values=1).astype(bool)
    assert np.array_equal(found.begins.numpy(), times[jumps])


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
def test_the_steps_of_a_generation_are_aligned_as_one_pass():
    model = whisper()
    features, ids = torch.randn(1, 8, 80), torch.arange(4, 14).view(1, 10)
    encoded = model.model.encoder(features)
    with watch(model, layers="*.encoder_attn") as whole:
        model(encoder_outputs=encoded, decoder_input_ids=ids)
    with watch(model, layers="*.encoder_attn") as steps:
        cache = None
        for piece in ids.split([4, 1, 1, 1, 1, 1, 1], 1):
            out = model(
                encoder_outputs=encoded, decoder_input_ids=piece, past_key_values=cache, use_cache=True
            )
            cache = out.past_key_values
    ours, theirs = align(steps, [(0, 0), (1, 2)]), align(whole, [(0, 0), (1, 2)])
    assert close(ours.matrix, theirs.matrix, 1e-3)
    assert torch.equal(ours.begins, theirs.begins)


def test_tokens_that_look_at_later_and_later_frames_are_found():
    begins = [0, 4, 5, 11, 18]
    query, key = torch.zeros(1, 1, 5, 24), torch.eye(24).view(1, 1, 24, 24)
    for row, (first, last) in enumerate(zip(begins, [*begins[1:], 24], strict=True)):
        query[0, 0, row, first:last] = 20
    assert align(attention_weights(query, key), [(0, 0)], width=1).begins.tolist() == begins


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"heads": []}, "`heads` must hold at least one"),
        ({"heads": [(1, 0)]}, r"pairs of 1 layers, got \(1, 0\)"),
        ({"heads": [(0, 0)], "width": 4}, "`width` must be odd"),
        ({"heads": [(0, 0)], "frames": 0}, "at least one of each"),
    ],
)
def test_a_wrong_argument_is_one_sentence(arguments, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        align(attention_weights(torch.randn(1, 1, 5, 4), torch.randn(1, 1, 9, 4)), **arguments)
