"""What the literature asks of attention, asked of a recording: one small file each, in linear memory."""

from regard.answers.alignment import Alignment, align
from regard.answers.heavy import heavy_hitters, observation_scores
from regard.answers.kinds import first_token, induction, previous_token, repeated_tokens
from regard.answers.norms import NormWeighted, norm_weighted
from regard.answers.retrieval import retrieval
from regard.answers.rollout import rollout
from regard.answers.scores import HeadScores, KeyScores, ScoredHead
from regard.answers.sinks import Sinks, sinks
from regard.answers.spans import lookback_ratio, span_mass

__all__ = [
    "Alignment",
    "HeadScores",
    "KeyScores",
    "NormWeighted",
    "ScoredHead",
    "Sinks",
    "align",
    "first_token",
    "heavy_hitters",
    "induction",
    "lookback_ratio",
    "norm_weighted",
    "observation_scores",
    "previous_token",
    "repeated_tokens",
    "retrieval",
    "rollout",
    "sinks",
    "span_mass",
]
