"""The two forms that most answers take: a number for each head, and a number for each key of each head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.answers.brief import Brief
from regard.errors import ArgumentError


class ScoredHead(NamedTuple):
    """One head and its score, the mean over batch items; layers and heads are counted from 0."""

    score: float
    layer: int
    head: int
    module: str


@dataclass(frozen=True, eq=False, repr=False)
class HeadScores(Brief):
    """A score for each head: `modules` names the layers, `scores` has a tensor `[B, Hq]` for each of them."""

    modules: tuple[str, ...]
    scores: tuple[Tensor, ...]

    def top(self, k: int = 10) -> list[ScoredHead]:
        """The k heads that score highest, the highest first; a score of NaN never does."""
        heads = [
            ScoredHead(score, layer, head, self.modules[layer])
            for layer, of_layer in enumerate(self.scores)
            for head, score in enumerate(of_layer.mean(0).tolist())
            if score == score
        ]
        return sorted(heads, key=lambda one: -one.score)[:k]


@dataclass(frozen=True, eq=False, repr=False)
class KeyScores(Brief):
    """A score for each key of each head: `scores` has a tensor `[B, Hq, M]` for each of the `modules`."""

    modules: tuple[str, ...]
    scores: tuple[Tensor, ...]

    def top(self, k: int) -> list[tuple[Tensor, Tensor]]:
        """For each layer the k keys that score highest in each head: (scores, key indices), `[B, Hq, k]`."""
        found = (of_layer.topk(min(k, of_layer.shape[-1])) for of_layer in self.scores)
        return [(one.values, one.indices) for one in found]

    def mean(self) -> Tensor:
        """The mean over the heads of all layers, `[B, M]`; the layers must have the same keys."""
        lengths = {of_layer.shape[-1] for of_layer in self.scores}
        if len(lengths) > 1:
            raise ArgumentError(f"a mean over layers needs the same keys in all of them, got {lengths} keys")
        return torch.cat(self.scores, 1).mean(1)
