"""Rollout is the product of the published matrices, row by row and in linear memory."""

import pytest
import torch

from answers.recorded import close, dense, generated, recorded
from regard import masks
from regard.answers import rollout
from regard.errors import ArgumentError, TooLargeError
from regard.weights import attention_weights


def published(matrices):
    """Abnar & Zuidema 2020: heads averaged, the identity added, rows normalised, layers multiplied."""
    n_tokens = matrices[0].shape[-1]
    joint = torch.eye(n_tokens, dtype=torch.float64)
    for matrix in matrices:
        layer = matrix.mean(1) + torch.eye(n_tokens, dtype=torch.float64)
        joint = layer / layer.sum(-1, keepdim=True) @ joint
    return joint


@pytest.mark.parametrize("mask", [None, masks.band(3, 5), masks.padding([11, 17]) & masks.causal()])
def test_all_rows_are_those_of_the_published_product(mask):
    recording = recorded(mask=mask)
    assert close(rollout(recording, slice(None)), published(dense(recording)))


def test_chosen_rows_come_in_the_order_of_the_tokens():
    recording = recorded()
    whole = published(dense(recording))
    assert close(rollout(recording), whole[:, -1:])
    assert close(rollout(recording, [5, 2]), whole[:, [2, 5]])


def test_many_rows_go_through_in_pieces(monkeypatch):
    recording = recorded()
    whole = rollout(recording, slice(None))
    monkeypatch.setitem(rollout.__globals__, "_PIECE_NUMBERS", 2 * 4 * 17 * 3)
    assert close(rollout(recording, slice(None)), whole, 1e-7)


def test_rows_that_a_sink_or_a_mask_shortens_are_normalised():
    nothing = masks.dense(torch.eye(17, dtype=torch.bool).logical_not().tril())  # the first row is empty
    for recording in (recorded(sink_logits=torch.tensor([3.0, 0, -2, 5])), recorded(mask=nothing)):
        rows = rollout(recording, slice(None))
        assert close(rows, published(dense(recording)))
        assert close(rows.sum(-1), torch.ones(2, 17))


def test_a_generation_is_one_text():
    recording, whole, _ = generated()
    assert close(rollout(recording, slice(None)), published(whole))


def test_a_real_encoder_as_its_own_weights_say(minilm):
    from models.eager import eager_weights
    from regard.models import watch

    encoded = minilm.encode("The cat sat on the mat, because the cat was tired.")
    with watch(minilm.model) as recording:
        minilm.run(encoded)
    expected = published([one.double() for one in eager_weights(minilm.model, input_ids=encoded.input_ids)])
    assert close(rollout(recording, slice(None)), expected, 1e-5)


def test_what_does_not_fit_is_refused():
    recording, _, _ = generated()
    with pytest.raises(ArgumentError, match=r"every token is a query and a key, got \(1, 4, 1, 10\)"):
        rollout(recording, steps=range(4, 5))
    with pytest.raises(TooLargeError, match="17 rows of rollout take 2,312 bytes"):
        rollout(recorded(), slice(None), max_bytes=2311)
    query = torch.randn(1, 2, 5, 4)
    mixed = [attention_weights(query, query), attention_weights(query[:, :, :3], query[:, :, :3])]
    with pytest.raises(ArgumentError, match="layers over the same tokens"):
        rollout(mixed)
    with pytest.raises(ArgumentError, match="at least one attention call, got none"):
        rollout([])
