"""Recordings saved and loaded; and files that are no recordings."""

import json
import os
import pickle
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from recordings import HEADS, KEY_HEADS, QUERIES, WIDTH, generation, one_call, tensors
from regard import masks
from regard.errors import MissingExtraError, RecordingError, StaleWeightsError
from regard.recording import Recording
from regard.weights import attention_weights


def holes():
    """A mask that no few intervals describe: it stays dense."""
    return masks.dense(torch.rand(2, 1, QUERIES, QUERIES) < 0.5)


MASKS = {
    "none": lambda: None,
    "causal": masks.causal,
    "left padding": lambda: masks.causal() & masks.padding([9, QUERIES], side="left"),
    "streaming": lambda: masks.streaming(2, [3, 4, 5, 6]),
    "empty rows": lambda: masks.padding([0, 5]),
    "holes": holes,
}


def saved_and_loaded(recording, path):
    recording.save(path)
    return Recording.load(path)


def assert_same_rows(one, other):
    assert torch.equal(one.to_dense(), other.to_dense())
    assert torch.equal(one.logsumexp, other.logsumexp)
    assert torch.equal(one.entropy(), other.entropy())
    assert torch.equal(one.distance(), other.distance())


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_rows_survive_a_file_to_the_bit(tmp_path, mask, dtype):
    query, key = (tensor.to(dtype) for tensor in tensors())
    weights = attention_weights(query, key, MASKS[mask](), softcap=3.0, sink_logits=torch.randn(HEADS))
    loaded = saved_and_loaded(Recording([one_call(weights)]), tmp_path / "seen")
    assert_same_rows(loaded[0].weights, weights)


def test_everything_else_survives_too(tmp_path):
    query, key = tensors()
    bias = torch.randn(1, HEADS, QUERIES, QUERIES)
    placed = attention_weights(
        query, key, masks.sliding_window(4), query_start=torch.tensor([3, 4]), key_start=2
    )
    biased = attention_weights(query, key, bias=bias, scale=0.3)
    answers = biased.statistics("entropy", top_keys=3)
    calls = [
        one_call(placed),
        one_call(biased, module="layers.1", layer=1, statistics=answers),
        one_call(None, module="layers.2", ordinal=3, step=2, layer=2, statistics=answers),
    ]
    recording = Recording(calls, model="small", tokens=["a", "</script>", "\n", "é"], without_weights=1)
    loaded = saved_and_loaded(recording, tmp_path / "seen")
    assert (loaded.model, loaded.tokens, loaded.without_weights) == ("small", recording.tokens, 1)
    for call, other in zip(loaded, recording, strict=True):
        for name in ("module", "ordinal", "step", "layer"):
            assert getattr(call, name) == getattr(other, name)
        assert call.statistics.keys() == other.statistics.keys()
    assert_same_rows(loaded[0].weights, placed)
    assert_same_rows(loaded[1].weights, biased)
    assert loaded[2].weights is None
    assert torch.equal(loaded[2].statistics["entropy"], answers["entropy"])
    assert all(map(torch.equal, loaded[2].statistics["top_keys"], answers["top_keys"]))


@pytest.mark.parametrize(
    "shape", [(5, WIDTH), (HEADS, 5, WIDTH), (2, 3, HEADS, 5, WIDTH), (0, HEADS, 5, WIDTH)]
)
def test_any_number_of_dimensions_survives(tmp_path, shape):
    query, key = torch.randn(shape), torch.randn(shape)
    weights = attention_weights(query, key)
    loaded = saved_and_loaded(Recording([one_call(weights)]), tmp_path / "seen")
    assert loaded[0].weights.shape == weights.shape
    assert_same_rows(loaded[0].weights, weights)


def test_a_generation_survives_a_file_with_its_keys_once(tmp_path):
    recording, _ = generation()
    loaded = saved_and_loaded(recording, tmp_path / "seen")
    assert_same_rows(loaded.joined("layers.0"), recording.joined("layers.0"))
    keys = [
        tensor
        for tensor in load_file(tmp_path / "seen").values()
        if tensor.shape == (1, KEY_HEADS, 11, WIDTH)
    ]
    assert len(keys) == 1


def test_stale_weights_are_not_saved(tmp_path):
    query, key = tensors()
    recording = Recording([one_call(attention_weights(query, key))])
    key.zero_()
    with pytest.raises(StaleWeightsError):
        recording.save(tmp_path / "seen")
    assert list(tmp_path.iterdir()) == []


def test_a_bias_that_is_a_formula_is_not_saved(tmp_path):
    query, key = tensors()
    weights = attention_weights(query, key, bias=regard.biases.alibi(HEADS))
    with pytest.raises(RecordingError, match=r"`layers\.0` cannot be saved: its bias is not dense"):
        Recording([one_call(weights)]).save(tmp_path / "seen")


def test_a_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    recording, _ = generation()
    path = tmp_path / "seen"
    recording.save(path)
    before = path.read_bytes()

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        Recording(recording[:1]).save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["seen"]
    assert path.read_bytes() == before


def test_without_safetensors_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(MissingExtraError, match=r"`pip install regard\[hf\]`"):
        Recording().save(tmp_path / "seen")


def test_files_that_are_no_recordings(tmp_path):
    path = tmp_path / "seen"
    with pytest.raises(RecordingError, match="seen is not a readable recording: there is no such file"):
        Recording.load(path)
    with pytest.raises(RecordingError, match="it is a folder"):
        Recording.load(tmp_path)
    for content in (b"", b"hello", b"\xff" * 100, pickle.dumps({"format": "regard.recording"})):
        path.write_bytes(content)
        with pytest.raises(RecordingError, match="damaged or no safetensors file"):
            Recording.load(path)
    save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(RecordingError, match="a safetensors file of something else"):
        Recording.load(path)


def test_a_file_cut_short_anywhere_is_refused(tmp_path):
    path = tmp_path / "seen"
    generation(steps=1)[0].save(path)
    content = path.read_bytes()
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        with pytest.raises(RecordingError):
            Recording.load(path)


def weights_of(content):
    return content["calls"][0]["weights"]


HOSTILE = {
    "a version to come": (lambda m, c, t: m.update(version="2"), "its version is '2'"),
    "no description": (lambda m, c, t: m.update(recording="{"), "not JSON"),
    "nesting without end": (lambda m, c, t: m.update(recording="[" * 100_000), "not JSON"),
    "a list for an object": (lambda m, c, t: m.update(recording="[]"), "must be a JSON object, got list"),
    "no calls": (lambda m, c, t: c.pop("calls"), "`calls` of the description must be a list, got None"),
    "a call that is a number": (lambda m, c, t: c.update(calls=[3]), "call 0 must be a JSON object, got int"),
    "tokens that are numbers": (
        lambda m, c, t: c.update(tokens=[1]),
        "`tokens` .* must be a list of strings",
    ),
    "a negative step": (
        lambda m, c, t: c["calls"][0].update(step=-1),
        "`step` of call 0 must be an integer, 0",
    ),
    "a module that is a list": (
        lambda m, c, t: c["calls"][0].update(module=[]),
        "`module` of call 0 must be a string",
    ),
    "a tensor that is not there": (lambda m, c, t: weights_of(c).update(query="q"), "does not hold, 'q'"),
    "statistics of nothing": (lambda m, c, t: c["calls"][0].update(statistics={"a": 7}), "does not hold, 7"),
    "keys for queries": (
        lambda m, c, t: weights_of(c).update(query=weights_of(c)["starts"]),
        "belong together",
    ),
    "a span outside": (lambda m, c, t: weights_of(c).update(span=[0, 99]), r"`span` must lie in .*\[0, 99\]"),
    "a span of one": (lambda m, c, t: weights_of(c).update(span=[0]), r"`span` must lie in .*\[0\]"),
    "a scale of words": (
        lambda m, c, t: weights_of(c).update(scale="big"),
        "`scale` .* must be a number, got 'big'",
    ),
    "a scale without end": (
        lambda m, c, t: weights_of(c).update(scale=float("inf")),
        "belong together.*finite",
    ),
    "a wrong batch shape": (
        lambda m, c, t: weights_of(c).update(batch_shape=[7]),
        "`batch_shape` must hold 1 items",
    ),
    "intervals outside": (
        lambda m, c, t: t[weights_of(c)["ends"]].fill_(99),
        "intervals must lie in the 7 keys",
    ),
    "intervals below": (
        lambda m, c, t: t[weights_of(c)["starts"]].fill_(-1),
        "intervals must lie in the 7 keys",
    ),
    "intervals of floats": (
        lambda m, c, t: t.update({weights_of(c)["starts"]: t[weights_of(c)["starts"]].float()}),
        "two int64 tensors",
    ),
    "intervals that overlap": (
        lambda m, c, t: t.update(
            {
                weights_of(c)[side]: t[weights_of(c)[side]].repeat(1, 1, 1, 2).clone()
                for side in ("starts", "ends")
            }
        ),
        "sorted and disjoint",
    ),
    "maxima of other rows": (
        lambda m, c, t: t.update({weights_of(c)["maximum"]: torch.zeros(1, HEADS, 3)}),
        "row maxima and denominators must be",
    ),
    "queries of too few dimensions": (
        lambda m, c, t: t.update({weights_of(c)["query"]: torch.zeros(7, WIDTH)}),
        "`query` must have rank 4",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_in_one_sentence(tmp_path, name):
    change, sentence = HOSTILE[name]
    path = tmp_path / "seen"
    generation(steps=1)[0].save(path)
    stored, metadata, content = edited(path)
    change(metadata, content, stored)
    if metadata["recording"] is None:
        metadata["recording"] = json.dumps(content)
    save_file({n: tensor.contiguous() for n, tensor in stored.items()}, path, metadata=metadata)
    with pytest.raises(RecordingError, match=sentence) as caught:
        Recording.load(path)
    assert "\n" not in str(caught.value)


def edited(path):
    """A file's tensors, its metadata (the description None until it is written back) and its description."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    content = json.loads(metadata["recording"])
    return load_file(path), metadata | {"recording": None}, content
