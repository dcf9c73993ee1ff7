"""Watching encoders: MiniLM, and an ALBERT whose layers are one shared module."""

import pytest
import torch

from models.eager import assert_rows_equal, assert_statistics_equal, eager_weights, implementation
from regard.models import watch
from regard.recording.parts import Parts

TEXTS = ["the cat sat on the mat", "a much longer sentence about attention, and about what it attends"]


def padded(loaded, side="right"):
    return loaded.tokenizer(TEXTS, padding=True, padding_side=side, return_tensors="pt")


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_rows_and_statistics_are_those_of_eager_and_the_output_is_unchanged(minilm, side, kernel):
    inputs = padded(minilm, side)
    expected = eager_weights(minilm.model, **inputs)
    with implementation(minilm.model, kernel):
        plain = minilm.model(**inputs).last_hidden_state
        with watch(minilm.model, ["entropy", "received"]) as recording:
            watched = minilm.model(**inputs).last_hidden_state
    assert torch.equal(plain, watched)
    assert [call.module for call in recording] == [f"encoder.layer.{i}.attention.self" for i in range(6)]
    everyone = torch.ones_like(inputs["attention_mask"])
    for call, weights in zip(recording, expected, strict=True):
        assert_rows_equal(call.weights, weights, everyone)
        assert_statistics_equal(call.weights, weights, everyone)
        assert torch.equal(call.statistics["entropy"], call.weights.entropy())
        assert not call.weights.to_dense()[0][..., inputs["attention_mask"][0] == 0].any()


def test_one_module_called_twelve_times_is_twelve_layers(albert):
    ids = torch.randint(5, 500, (2, 19), generator=torch.Generator().manual_seed(0))
    expected = eager_weights(albert, input_ids=ids)
    plain = albert(ids).last_hidden_state
    with watch(albert) as recording:
        watched = albert(ids).last_hidden_state
        albert(ids)
    assert torch.equal(plain, watched)
    assert len(recording) == 24
    assert len(recording.modules) == 1
    assert [(call.step, call.ordinal, call.layer) for call in recording] == [
        (step, layer, layer) for step in (0, 1) for layer in range(12)
    ]
    for call in recording:
        assert_rows_equal(call.weights, expected[call.ordinal])


def test_layers_of_a_shared_module_are_chosen_by_index(albert):
    with watch(albert, layers=[0, 11]) as recording:
        albert(torch.tensor([[5, 6, 7]]))
    assert [call.ordinal for call in recording] == [0, 11]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_seen_as_it_computes(minilm, dtype):
    inputs = padded(minilm)
    with torch.autocast("cpu", dtype=dtype):
        plain = minilm.model(**inputs).last_hidden_state
        with watch(minilm.model, ["entropy"]) as recording:
            watched = minilm.model(**inputs).last_hidden_state
    assert torch.equal(plain, watched)
    assert Parts.of(recording[0].weights).problem.dtype == dtype
    assert recording[0].statistics["entropy"].dtype == torch.float32


def test_inference_mode_leaves_tensors_that_work_outside_of_it(minilm):
    inputs = padded(minilm)
    with torch.inference_mode(), watch(minilm.model, ["entropy"]) as recording:
        minilm.model(**inputs)
    call = recording[3]
    assert not Parts.of(call.weights).problem.query.is_inference()
    assert not call.statistics["entropy"].is_inference()
    assert_rows_equal(call.weights, eager_weights(minilm.model, **inputs)[3])


def test_training_is_watched_without_touching_gradients(minilm):
    inputs = padded(minilm)
    parameter = minilm.model.encoder.layer[0].attention.self.query.weight

    def gradient():
        with torch.enable_grad():
            return torch.autograd.grad(minilm.model(**inputs).last_hidden_state.square().sum(), parameter)[0]

    plain = gradient()
    with watch(minilm.model) as recording:
        watched = gradient()
    assert torch.equal(plain, watched)
    assert len(recording) == 6
    assert not Parts.of(recording[0].weights).problem.query.requires_grad


def test_recomputation_in_the_backward_pass_is_not_recorded_again(minilm):
    model = minilm.model
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    try:
        with torch.enable_grad(), watch(model) as recording:
            model(**padded(minilm)).last_hidden_state.sum().backward()
    finally:
        model.eval()
        model.activation_checkpointing_disable()
        model.zero_grad(set_to_none=True)
    assert len(recording) == 6
