"""Head kinds, spans and retrieval are the published means and counts of the dense matrices."""

import pytest
import torch

from answers.recorded import close, dense, generated, recorded
from regard import masks
from regard.answers import (
    first_token,
    induction,
    lookback_ratio,
    previous_token,
    repeated_tokens,
    retrieval,
    span_mass,
)
from regard.errors import ArgumentError
from regard.weights import attention_weights


def test_previous_and_first_token_are_means_over_the_later_queries():
    recording = recorded()
    for previous, first, matrix in zip(
        previous_token(recording).scores, first_token(recording).scores, dense(recording), strict=True
    ):
        assert close(previous, matrix.diagonal(-1, -2, -1).mean(-1))
        assert close(first, matrix[..., 1:, 0].mean(-1))


def test_a_few_last_queries_have_them_too():
    query, key = 3 * torch.randn(1, 4, 5, 8), torch.randn(1, 2, 12, 8)
    weights = attention_weights(query, key, masks.causal())
    matrix = weights.to_dense()
    assert close(previous_token(weights).scores[0], matrix.diagonal(6, -2, -1).mean(-1))
    assert close(first_token(weights).scores[0], matrix[..., 0].mean(-1))


@pytest.mark.parametrize("start", [0, 1, 3])
@pytest.mark.parametrize("mask", [masks.causal(), None])
def test_induction_is_the_mean_mass_on_what_followed_before(start, mask):
    period = 6
    length = start + 2 * period
    query, key = 3 * torch.randn(1, 4, length, 8), torch.randn(1, 2, length, 8)
    matrix = attention_weights(query, key, mask).to_dense()
    rows = torch.arange(start + period, length)
    expected = matrix[..., rows, rows - period + 1].mean(-1)
    for first in (0, 2, period + start):
        weights = attention_weights(query[:, :, first:], key, mask)
        assert close(induction(weights, period, start=start).scores[0], expected)


def test_repeated_tokens_repeat_and_nothing_else():
    ids = repeated_tokens(50, 20, prefix=[7, 8])
    assert ids.shape == (1, 42)
    assert ids[0, :2].tolist() == [7, 8]
    assert torch.equal(ids[0, 2:22], ids[0, 22:])
    assert len(set(ids[0, 2:22].tolist())) == 20
    assert torch.equal(ids, repeated_tokens(50, 20, prefix=[7, 8]))
    assert not torch.equal(ids, repeated_tokens(50, 20, prefix=[7, 8], seed=1))
    assert set(repeated_tokens([5, 6], 5)[0].tolist()) == {5, 6}


def test_a_real_decoder_has_induction_heads(smollm2):
    from regard.models import watch

    ids = repeated_tokens(range(1000, 20000), 40, prefix=[0])
    with watch(smollm2.model) as recording:
        smollm2.model.model(ids)
    best = induction(recording, 40, start=1).top(3)
    assert best[0].score > 0.5
    assert best[0].layer > 0, "an induction head reads what a head below it wrote"
    matrix = recording[best[0].layer].weights[0, best[0].head]
    rows = torch.arange(41, 81)
    assert close(torch.tensor(best[0].score), matrix[rows, rows - 39].mean(), 1e-5)


def test_span_mass_and_lookback_ratio_are_the_published_means():
    recording, whole, _ = generated(prompt=6, steps=4)
    found = span_mass(recording, slice(2, 5), slice(6, None))
    for scores, ratio, matrix in zip(found.scores, lookback_ratio(recording, 6), whole, strict=True):
        assert close(scores, matrix[..., 6:, 2:5].sum(-1).mean(-1))
        for row in range(6, 10):
            context = matrix[..., row, :6].mean(-1)
            new = matrix[..., row, 6 : row + 1].mean(-1)
            assert close(ratio[..., row - 6], context / (context + new))
    later = lookback_ratio(recording, 3, steps=range(1, 5))
    assert later[0].shape == (1, 4, 4), "all rows of the later steps lie after the context"


def test_retrieval_counts_the_needle_tokens_that_were_top_while_copied():
    ids = torch.tensor([9, 5, 6, 7, 9, 9, 5, 6, 8])
    query, key = torch.randn(1, 2, 9, 8), torch.randn(1, 1, 9, 8)
    matrix = attention_weights(query, key, masks.causal()).to_dense()
    needle, answer = range(1, 4), range(6, 9)
    expected = []
    for head in range(2):
        copied = set()
        for t in answer:
            top = int(matrix[0, head, t - 1].argmax())
            if top in needle and ids[top] == ids[t]:
                copied.add(top)
        expected.append(len(copied) / 3)
    weights = attention_weights(query, key, masks.causal())
    assert close(retrieval(weights, ids, slice(1, 4), slice(6, 9)).scores[0][0], torch.tensor(expected))


def looking(at):
    """Weights `[1, 1, N, N]` whose row i has its top key at `at[i]`."""
    n_tokens = len(at)
    query, key = torch.zeros(1, 1, n_tokens, n_tokens), torch.eye(n_tokens).view(1, 1, n_tokens, n_tokens)
    for row, column in enumerate(at):
        query[0, 0, row, column] = 50
    return attention_weights(query, key, masks.causal())


@pytest.mark.parametrize(
    ("at", "score"),
    [
        ([0, 0, 0, 0, 0, 1, 2], 1.0),  # copies 5 and 6
        ([0, 0, 0, 0, 0, 1, 1], 0.5),  # looks at 5 while 6 is written
        ([0, 0, 0, 0, 0, 2, 1], 0.0),  # looks at the needle, and not at what is written
        ([0, 0, 0, 0, 0, 0, 0], 0.0),
    ],
)
def test_looking_at_the_needle_counts_only_where_that_token_is_written(at, score):
    ids = [9, 5, 6, 9, 8, 9, 5, 6]  # as generated: the last token is never a key
    assert retrieval(looking(at), ids, slice(1, 3), slice(6, 8)).scores[0].item() == score


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda r: induction(r, 8), r"`start` \+ 2 · `period` must be the 17 keys of `layers.0`"),
        (lambda r: lookback_ratio(r, 17), "`context` must be at least 1 and less than the 17 keys"),
        (lambda r: span_mass(r, slice(0, 3), []), "`queries` must hold at least one query"),
        (lambda r: span_mass(r, [40]), "`keys` must lie within 17 positions"),
        (
            lambda r: retrieval(r, range(17), slice(3, 3), slice(9, 12)),
            "`needle` and `answer` must each",
        ),
        (lambda r: retrieval(r, range(16), slice(3, 5), slice(9, 12)), "`ids` and `answer` must fit the 17"),
        (lambda r: retrieval(r, range(17), slice(3, 5), slice(0, 2)), "its row one token before"),
        (lambda _: repeated_tokens(0, 3), "`vocabulary` and `period` must be at least 1"),
    ],
)
def test_a_wrong_argument_is_one_sentence(ask, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        ask(recorded())
