"""What `--ask` can ask of a model and a text: each question by name, and how its numbers are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from regard import answers
from regard.cli.probes import induction_scores, retrieval_scores
from regard.models.loading import Encoded, LoadedModel
from regard.recording import Recording
from regard.viewer import Answered

Numbers = list[float]
# What a question finds: a number for each head of each layer, and one for each token; either may be None.
Found = tuple[list[Numbers] | None, Numbers | None]
_WINDOW = 32


@dataclass(frozen=True)
class Question:
    """A question: what it is called, what its numbers are, and how they are found."""

    name: str
    title: str
    note: str
    find: Callable[[LoadedModel, Encoded, Recording], Found]

    def answer(self, loaded: LoadedModel, encoded: Encoded, recording: Recording) -> Answered:
        """Ask it of the recording of this text; some run the model over a text of their own."""
        heads, tokens = self.find(loaded, encoded, recording)
        return Answered(self.name, self.title, self.note, heads, tokens)


def _heads(scores: answers.HeadScores) -> list[Numbers]:
    return [of_layer[0].tolist() for of_layer in scores.scores]


def _rollout(_: LoadedModel, __: Encoded, recording: Recording) -> Found:
    return None, answers.rollout(recording)[0, 0].tolist()


def _sinks(_: LoadedModel, __: Encoded, recording: Recording) -> Found:
    found = answers.sinks(recording)
    return _heads(found.heads), found.share()[0].tolist()


def _heavy(_: LoadedModel, encoded: Encoded, recording: Recording) -> Found:
    return None, (answers.heavy_hitters(recording).mean()[0] / len(encoded.tokens)).tolist()


def _window(_: LoadedModel, encoded: Encoded, recording: Recording) -> Found:
    n_tokens = len(encoded.tokens)
    window = max(1, min(_WINDOW, n_tokens // 2))
    seen = answers.observation_scores(recording, window).mean()[0] / window
    return None, [*seen.tolist(), *[0.0] * window]


def _previous(_: LoadedModel, __: Encoded, recording: Recording) -> Found:
    return _heads(answers.previous_token(recording)), None


def _first(_: LoadedModel, __: Encoded, recording: Recording) -> Found:
    return _heads(answers.first_token(recording)), None


def _norms(_: LoadedModel, __: Encoded, recording: Recording) -> Found:
    shares = []
    for layer in answers.norm_weighted(recording):
        received = layer.received()[0]
        shares.append(received / received.sum(-1, keepdim=True))
    return None, torch.cat(shares).mean(0).tolist()


def _induction(loaded: LoadedModel, _: Encoded, __: Recording) -> Found:
    return _heads(induction_scores(loaded)), None


def _retrieval(loaded: LoadedModel, encoded: Encoded, _: Recording) -> Found:
    return _heads(retrieval_scores(loaded, encoded)), None


QUESTIONS: Sequence[Question] = (
    Question(
        "rollout",
        "Rollout to the last token",
        "How much of each input token reaches the last one through all layers, if a layer passes on half its "
        "input and half what its heads attend (Abnar & Zuidema 2020).",
        _rollout,
    ),
    Question(
        "sinks",
        "Attention sinks",
        "Heads: the mean weight that the strongest sink receives. Tokens: the share of all heads for which "
        "the token is a sink, receiving more than 0.3 on average (Xiao et al. 2023; Gu et al. 2024).",
        _sinks,
    ),
    Question(
        "heavy",
        "Heavy hitters",
        "The share of all attention, over heads, layers and queries, that each token receives (H2O, Zhang et "
        "al. 2023).",
        _heavy,
    ),
    Question(
        "window",
        "What the end of the text observes",
        f"The mean weight that each token receives from the last {_WINDOW} queries (half of a short text), "
        "averaged over 5 neighbours (SnapKV, Li et al. 2024).",
        _window,
    ),
    Question(
        "previous",
        "Previous-token heads",
        "The mean weight on the token before the query (Olsson et al. 2022).",
        _previous,
    ),
    Question(
        "first",
        "Heads that rest on the first token",
        "The mean weight that later queries put on the first token (Xiao et al. 2023).",
        _first,
    ),
    Question(
        "norms",
        "Norm-weighted attention",
        "The share that each token receives if every weight counts with the length of its value vector, "
        "over heads and layers: sinks have short ones (Kobayashi et al. 2020).",
        _norms,
    ),
    Question(
        "induction",
        "Induction heads",
        "On random tokens that repeat: the mean weight on the token that followed the same one before "
        "(Olsson et al. 2022). The model reads a text of its own for this.",
        _induction,
    ),
    Question(
        "retrieval",
        "Retrieval heads",
        "A sentence is hidden in the text and stated again at its end: the share of its tokens that are the "
        "head's strongest key while they are written (after Wu et al. 2024, on an answer that is given).",
        _retrieval,
    ),
)
NAMES = tuple(question.name for question in QUESTIONS)


def chosen(names: Sequence[str]) -> list[Question]:
    """The questions of these names, each once, in the order of the list above."""
    return [question for question in QUESTIONS if question.name in names]
