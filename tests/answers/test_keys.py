"""Sinks, heavy hitters and observed keys are the published sums of the dense matrices."""

import pytest
import torch
from torch.nn.functional import avg_pool1d, max_pool1d

from answers.recorded import close, dense, generated, recorded
from regard import masks
from regard.answers import heavy_hitters, observation_scores, sinks
from regard.errors import ArgumentError, ArgumentTypeError
from regard.weights import attention_weights


def test_heavy_hitters_are_the_column_sums():
    recording = recorded()
    found = heavy_hitters(recording)
    assert found.modules == ("layers.0", "layers.1", "layers.2")
    for scores, matrix in zip(found.scores, dense(recording), strict=True):
        assert close(scores, matrix.sum(-2), 1e-5)
    top = found.top(4)[1]
    assert torch.equal(top[1], found.scores[1].topk(4).indices)
    assert close(found.mean(), torch.stack([m.sum(-2) for m in dense(recording)]).mean((0, 2)), 1e-5)


def test_a_mean_counts_the_queries_that_may_attend():
    recording = recorded(mask=masks.sliding_window(5))
    counts = torch.tensor([5.0] * 13 + [4, 3, 2, 1])
    for scores, matrix in zip(heavy_hitters(recording, mean=True).scores, dense(recording), strict=True):
        assert close(scores, matrix.sum(-2) / counts, 1e-5)


@pytest.mark.parametrize(("pooling", "pool"), [("average", avg_pool1d), ("max", max_pool1d)])
def test_observation_scores_are_those_of_the_published_listing(pooling, pool):
    recording = recorded()
    found = observation_scores(recording, window=4, kernel_size=5, pooling=pooling)
    for scores, matrix in zip(found.scores, dense(recording), strict=True):
        expected = pool(matrix[..., -4:, :-4].sum(-2), kernel_size=5, padding=2, stride=1)
        assert close(scores, expected, 1e-5)


def test_a_sink_is_a_key_whose_mean_mass_exceeds_the_threshold():
    recording = recorded(40)
    matrices = dense(recording)
    found = sinks(recording, 0.05)
    for received, sink, matrix in zip(found.received.scores, found.is_sink, matrices, strict=True):
        mean = matrix.sum(-2) / torch.arange(40, 0, -1)
        assert close(received, mean)
        # Of the last 20 keys no more than 20 queries each could say so, and 20 · 0.05 is not over 1.
        assert torch.equal(sink[..., :20], mean[..., :20] > 0.05)
        assert not sink[..., 20:].any()
        assert bool((mean[..., 20:] > 0.05).any()), "the rule has something to leave out"
    share = torch.stack([sink.double() for sink in found.is_sink]).mean((0, 2))
    assert close(found.share(), share)


def test_a_head_that_rests_on_the_first_token_is_found():
    query, key = torch.randn(1, 2, 30, 8), torch.randn(1, 2, 30, 8)
    query[:, 1, :, 0] = 20
    key[:, 1, 0, 0] = 20
    weights = attention_weights(query, key, masks.causal())
    best = sinks(weights).heads.top(2)
    assert (best[0].head, best[1].score) == (1, 0)
    assert best[0].score > 0.99
    assert sinks(weights).is_sink[0].nonzero().tolist() == [[0, 1, 0]]


def test_a_generation_gives_what_one_pass_gives():
    recording, whole, _ = generated()
    for scores, matrix in zip(heavy_hitters(recording).scores, whole, strict=True):
        assert close(scores, matrix.sum(-2), 1e-5)
    # Some steps alone: the matrix of the last token.
    last = heavy_hitters(recording, steps=range(4, 5))
    assert close(last.scores[0], whole[0][..., -1, :])


def test_a_real_decoder_has_its_sink_at_the_first_token(smollm2):
    from regard.models import watch

    encoded = smollm2.encode("The quick brown fox jumps over the lazy dog, and the dog does not mind at all.")
    with watch(smollm2.model) as recording:
        smollm2.run(encoded)
    share = sinks(recording).share()
    assert share.argmax() == 0
    assert share[0, 0] > 0.5
    assert share[0, 1:].max() < share[0, 0] / 2


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda r: sinks(r, 1.5), "`threshold` must lie between 0 and 1, got 1.5"),
        (lambda r: observation_scores(r, 0), "`window` must be at least 1, .*, got 0"),
        (
            lambda r: observation_scores(r, 17),
            "`window` must be .* less than the 17 keys of `layers.0`",
        ),
        (lambda r: observation_scores(r, 4, kernel_size=4), "`kernel_size` must be odd"),
        (
            lambda r: observation_scores(r, 4, pooling="sum"),
            "`pooling` must be 'average' or 'max'",
        ),
    ],
)
def test_a_wrong_argument_is_one_sentence(ask, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        ask(recorded())


def test_what_is_no_recording_is_refused():
    with pytest.raises(ArgumentTypeError, match=r"must be a recording, calls of one, or .*, got int"):
        heavy_hitters([3])
    with pytest.raises(ArgumentError, match=r"must have shape \(batch, heads, queries, keys\).*got \(5, 5\)"):
        heavy_hitters(attention_weights(torch.randn(5, 4), torch.randn(5, 4)))


def test_results_show_shapes_and_not_every_number():
    weights = [attention_weights(*torch.randn(2, 1, 2, 9, 8)) for _ in range(3)]
    assert repr(heavy_hitters(weights)) == (
        "KeyScores(modules=('0', … 3 in all), scores=(tensor[1, 2, 9], … 3 in all))"
    )
    assert len(repr(sinks(weights))) < 200
