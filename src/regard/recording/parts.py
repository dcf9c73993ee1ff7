"""Taking weights apart into what they are computed from, and putting them together again."""

from __future__ import annotations

from dataclasses import dataclass

from regard.engines import choose
from regard.online_softmax import Normalizer
from regard.problem import Layout, Problem
from regard.weights import AttentionWeights


@dataclass(frozen=True, eq=False)
class Parts:
    """A problem without value, the normalizer of its rows, and the shape the caller sees."""

    problem: Problem
    normalizer: Normalizer
    layout: Layout

    @classmethod
    def of(cls, weights: AttentionWeights) -> Parts:
        """The parts of weights that are not stale."""
        return cls(weights._current(), weights._normalizer, weights._layout)

    def assemble(self) -> AttentionWeights:
        """The weights that these parts are of, to the bit."""
        engine = choose("auto", self.problem)
        return AttentionWeights(self.problem, engine, self.normalizer, self.layout, self.normalizer.logsumexp)
