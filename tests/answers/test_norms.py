"""Norm-weighted attention is the length of the weighted vectors, and values are recorded when asked for."""

import pytest
import torch
import transformers

from answers.recorded import HEADS, WIDTH, close, dense, generated, recorded
from regard.answers import norm_weighted
from regard.errors import ArgumentError, RecordingError
from regard.models import watch
from regard.recording import Recording


def grouped(values):
    """Each key head's values for every query head of its group."""
    return values.double().repeat_interleave(HEADS // values.shape[1], 1)


def test_it_is_the_length_of_each_weighted_value():
    recording = recorded()
    for found, call, matrix in zip(norm_weighted(recording), recording, dense(recording), strict=True):
        expected = (matrix.unsqueeze(-1) * grouped(call.values).unsqueeze(2)).norm(dim=-1)
        assert close(found.rows(slice(None)), expected, 1e-5)
        assert close(found.rows(-1), expected[:, :, -1], 1e-5)
        assert close(found.received(), expected.sum(-2), 1e-5)
        assert close(found.received(mean=True), expected.sum(-2) / torch.arange(17, 0, -1), 1e-5)


def test_with_an_output_projection_it_is_the_length_of_what_a_head_adds(monkeypatch):
    recording = recorded()
    projections = [torch.nn.Linear(HEADS * WIDTH, 24, bias=False).weight for _ in recording]
    monkeypatch.setitem(norm_weighted.__globals__, "_PIECE_NUMBERS", 2 * 24 * 5)
    for found, call, matrix, weight in zip(
        norm_weighted(recording, projections), recording, dense(recording), projections, strict=True
    ):
        for head in range(HEADS):
            part = weight.double()[:, head * WIDTH : (head + 1) * WIDTH]
            added = grouped(call.values)[:, head] @ part.T
            expected = (matrix[:, head].unsqueeze(-1) * added.unsqueeze(1)).norm(dim=-1)
            assert close(found.rows(slice(None))[:, head], expected, 1e-5)


def test_a_generation_has_the_values_of_all_its_tokens():
    recording, whole, values = generated()
    for found, matrix, value in zip(norm_weighted(recording), whole, values, strict=True):
        assert close(found.rows(slice(None)), matrix * grouped(value).norm(dim=-1).unsqueeze(2), 1e-5)


def small():
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).eval()


def test_a_watched_generation_keeps_values_once():
    model, ids = small(), torch.arange(3, 12).view(1, 9)
    with watch(model, values=True) as recording:
        ids = model.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0)
    with watch(model, values=True) as whole:
        model(ids[:, :-1])
    for found, expected in zip(norm_weighted(recording), norm_weighted(whole), strict=True):
        assert close(found.norms, expected.norms, 1e-5)
        assert close(found.received(), expected.received(), 1e-4)
    kept = {id(call.keys.keys.values) for call in recording}
    assert len(kept) == 2, "one growing tensor of values a layer"
    output = whole[1].weights @ whole[1].values
    projected = model.model.layers[1].self_attn.o_proj(output.transpose(1, 2).flatten(2))
    seen = []
    model.model.layers[1].self_attn.register_forward_hook(lambda _, __, out: seen.append(out[0]))
    model(ids[:, :-1])
    assert close(projected, seen[0], 1e-5), "they are the values that the model attended with"


def test_values_count_against_the_budget():
    model, ids = small(), torch.arange(3, 12).view(1, 9)
    one_call = 9 * 8 * 4 * (4 + 2)
    with (
        pytest.warns(UserWarning, match="`max_bytes` is used up"),
        watch(model, values=True, max_bytes=one_call + 9 * 8 * 4 * 2 - 1) as recording,
    ):
        model(ids)
    assert recording.without_weights == 2


def test_without_values_the_sentence_says_how_to_keep_them():
    model = small()
    with watch(model) as recording:
        model(torch.arange(3, 12).view(1, 9))
    assert recording[0].values is None
    with pytest.raises(ArgumentError, match=r"recorded without its values: watch with"):
        norm_weighted(recording)


def test_a_projection_that_does_not_fit_is_refused():
    with pytest.raises(ArgumentError, match="a weight for each of 3 layers, got 1"):
        norm_weighted(recorded(), [torch.zeros(3, 3)])
    with pytest.raises(ArgumentError, match=r"must have shape \(width, 4 heads \* 8\), got \(3, 3\)"):
        norm_weighted(recorded(), [torch.zeros(3, 3)] * 3)


def test_values_are_saved_and_loaded(tmp_path):
    recording, _, _ = generated()
    recording.save(tmp_path / "a.safetensors")
    loaded = Recording.load(tmp_path / "a.safetensors")
    for ours, theirs in zip(loaded, recording, strict=True):
        assert torch.equal(ours.values, theirs.values)
    for ours, theirs in zip(norm_weighted(loaded), norm_weighted(recording), strict=True):
        assert torch.equal(ours.norms, theirs.norms)


def test_saved_values_of_another_length_are_refused(tmp_path):
    from safetensors import safe_open
    from safetensors.torch import save_file

    path = tmp_path / "a.safetensors"
    Recording([recorded()[0]]).save(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    name = metadata["recording"].split('"values": "')[1].split('"')[0]
    tensors[name] = tensors[name][:, :, :-1].contiguous()
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(RecordingError, match="`values` must be for keys of shape"):
        Recording.load(path)
