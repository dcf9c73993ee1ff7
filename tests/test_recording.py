"""Recordings made by hand: sequences of calls, and calls joined into one matrix."""

import pytest
import torch

from recordings import HEADS, KEY_HEADS, WIDTH, generation, one_call, tensors
from regard import masks
from regard.errors import ArgumentError
from regard.recording import Recording
from regard.recording.keys import GrowingKeys
from regard.weights import attention_weights


def test_a_generation_joins_into_one_matrix():
    recording, whole = generation()
    joined = recording.joined("layers.0")
    torch.testing.assert_close(joined.to_dense(), whole.to_dense(), atol=1e-6, rtol=0)
    torch.testing.assert_close(joined.received(), whole.received(), atol=1e-5, rtol=0)
    torch.testing.assert_close(joined.distance(), whole.distance(), atol=1e-5, rtol=0)
    for call in recording[1:]:
        # One row and eleven are computed by different kernels: their last bits may differ.
        row = joined[0, :, 6 + call.step, : 7 + call.step]
        torch.testing.assert_close(row, call.weights[0, :, 0], atol=1e-6, rtol=0)
    assert joined.shape == (1, HEADS, 11, 11)


def test_part_of_a_generation_joins():
    recording, whole = generation()
    joined = recording.joined("layers.0", steps=range(2, 5))
    torch.testing.assert_close(joined.to_dense(), whole[..., 8:, :], atol=1e-6, rtol=0)


def test_masks_and_biases_join():
    query, key = tensors(9, 9, batch=1)
    bias, mask = torch.randn(1, 1, 9, 9), torch.rand(1, HEADS, 9, 9) < 0.5
    growing, calls = GrowingKeys(key[..., :5, :]), []
    for step, (first, stop) in enumerate([(0, 5), (5, 9)]):
        start = growing.continued_by(key[..., :stop, :], stop - first) if step else 0
        span = growing.add(key[..., :stop, :], start)
        part = masks.dense(mask[..., first:stop, :stop])
        weights = attention_weights(
            query[..., first:stop, :],
            span.tensor(),
            part,
            bias=bias[..., first:stop, :stop].clone() if step else None,
        )
        calls.append(one_call(weights, step=step, keys=span))
    bias[..., :5, :] = 0
    mask = mask.clone()
    mask[..., :5, 5:] = False
    expected = attention_weights(query, key, masks.dense(mask), bias=bias)
    torch.testing.assert_close(
        Recording(calls).joined("layers.0").to_dense(), expected.to_dense(), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ({"module": "layers.9"}, "`module` must be one of the 1 recorded modules, got 'layers.9'"),
        ({"module": "layers.0", "ordinal": 2}, "no recorded call of ordinal 2"),
        ({"module": "layers.0", "steps": range(9, 10)}, "no recorded call"),
        ({"module": "layers.0", "steps": range(0, 5, 2)}, "do not continue one another: name the `steps`"),
    ],
)
def test_what_does_not_join_says_why(call, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        generation()[0].joined(**call)


def test_calls_that_differ_in_scale_do_not_join():
    recording, _ = generation(steps=1)
    call = recording[1]
    other = attention_weights(torch.randn(1, HEADS, 1, WIDTH), call.keys.tensor(), scale=0.5)
    with pytest.raises(ArgumentError, match="its `scale` changes"):
        Recording([recording[0], one_call(other, step=1, keys=call.keys)]).joined("layers.0")


def test_growing_leaves_earlier_weights_alone():
    key = torch.randn(1, KEY_HEADS, 40, WIDTH)
    growing = GrowingKeys(key[..., :3, :])
    span = growing.add(key[..., :3, :], 0)
    weights = attention_weights(torch.randn(1, HEADS, 3, WIDTH), span.tensor())
    before = weights.to_dense()
    for stop in range(4, 41):
        growing.add(key[..., :stop, :], growing.continued_by(key[..., :stop, :], 1))
    assert torch.equal(weights.to_dense(), before)
    assert torch.equal(growing.columns(0, 40), key)


def test_keys_of_another_sequence_are_told_apart():
    key = torch.randn(2, KEY_HEADS, 6, WIDTH)
    growing = GrowingKeys(key)
    longer = torch.cat([key, torch.randn(2, KEY_HEADS, 1, WIDTH)], 2)
    assert growing.continued_by(longer, 1) == 0
    assert growing.continued_by(longer[:, :, 2:], 1) == 2
    assert growing.continued_by(key, 3) == 0
    assert growing.continued_by(key, 6) is None
    assert growing.continued_by(longer.flip(0), 1) is None
    assert growing.continued_by(longer[:1], 1) is None
    assert growing.continued_by(longer.double(), 1) is None


def test_a_recording_is_a_sequence():
    recording, _ = generation()
    assert len(recording) == 5
    assert [call.step for call in recording] == [0, 1, 2, 3, 4]
    assert recording[-1].step == 4
    assert [call.step for call in recording[1:3]] == [1, 2]
    assert recording.modules == ["layers.0"]
    assert repr(recording) == "<Recording: 5 calls, 1 modules, 5 steps>"
