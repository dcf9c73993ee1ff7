"""Attention sinks: keys that receive much from every query, whatever they mean."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from regard.answers.brief import Brief
from regard.answers.layers import Source, layers_of
from regard.answers.scores import HeadScores, KeyScores
from regard.errors import ArgumentError
from regard.recording.parts import Parts


@dataclass(frozen=True, eq=False, repr=False)
class Sinks(Brief):
    """The keys that are sinks.

    `received` are the mean masses `[B, Hq, M]` of each layer, `is_sink` the bools of the same shape that say
    which of them exceed `threshold`.
    """

    threshold: float
    received: KeyScores
    is_sink: tuple[Tensor, ...]

    @property
    def heads(self) -> HeadScores:
        """For each head, the mean mass on its strongest sink; 0 for a head that has none."""
        masked = (
            received.masked_fill(~sink, 0)
            for received, sink in zip(self.received.scores, self.is_sink, strict=True)
        )
        return HeadScores(self.received.modules, tuple(one.amax(-1) for one in masked))

    def share(self) -> Tensor:
        """For each key, the share of all heads for which it is a sink, `[B, M]` (Gu et al. 2024, Sinkₖ)."""
        return KeyScores(self.received.modules, tuple(one.float() for one in self.is_sink)).mean()


def sinks(source: Source, threshold: float = 0.3, *, steps: range | None = None) -> Sinks:
    """The keys whose mean received mass exceeds `threshold`, in each head of each layer.

    Key k receives αₖ = (1 / nₖ) Σᵢ Pᵢₖ over the nₖ queries that may attend it (Gu et al. 2024, "When
    attention sink emerges", section 3; the phenomenon: Xiao et al. 2023). A key that one query alone could
    lift over the threshold, nₖ · threshold ≤ 1, is not judged: such are the last tokens of any text.

    Args:
        source: a recording, calls of one, or `AttentionWeights`, each `[B, Hq, N, M]`.
        threshold: between 0 and 1.
        steps: the steps of one generation, where the recording holds more than one.

    Raises:
        ArgumentError: a threshold that is no share, or calls that kept no weights.

    >>> sinks(recording).heads.top(1)[0].score > 0.3
    False
    """
    if not 0 < threshold < 1:
        raise ArgumentError(f"`threshold` must lie between 0 and 1, got {threshold}")
    layers = layers_of(source, steps)
    received, found = [], []
    for layer in layers:
        mean = layer.weights.received(mean=True)
        enough = Parts.of(layer.weights).problem.sets.queries_per_key() * threshold > 1
        received.append(mean)
        found.append((mean > threshold) & enough.expand_as(mean))
    names = tuple(layer.name for layer in layers)
    return Sinks(threshold, KeyScores(names, tuple(received)), tuple(found))
