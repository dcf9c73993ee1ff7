"""One line of numbers a head: what it looks at, and its sharpest link."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

import torch
from torch import Tensor

from regard.viewer.answers import Answers


@dataclass(frozen=True)
class HeadSummary:
    """Means over the queries of one head of batch item 0.

    `entropy` is in nats and `distance` in tokens, over the queries that may attend something; `first` and
    `previous` are the mass put on the first token and on the token before, over the queries after the
    first. The sharpest link is the greatest weight on a key that is neither the first token nor the query
    itself: `link_query` and `link_key` are token indices, −1 if there is none. `induction` is the mass on
    what followed earlier occurrences of the query's token, over queries that repeat one. A number that a
    model's NaN has spoiled is NaN here, and induction where no token repeats.
    """

    layer: int
    head: int
    module: str
    entropy: float
    first: float
    previous: float
    distance: float
    link_query: int
    link_key: int
    link_weight: float
    induction: float = nan

    @property
    def reach(self) -> float:
        """Distance to anything but the first token, which is far away from everybody; in tokens."""
        return self.distance * (1.0 - self.first)


def summarise(layer: int, module: str, answers: Answers) -> list[HeadSummary]:
    """The summaries of one call's heads."""
    n_queries, n_keys = answers.n_queries, answers.n_keys
    offset = n_keys - n_queries
    live = answers.top_weights[..., 0] != 0
    later = (torch.arange(n_queries) + offset > 0).expand_as(live)
    # Entry r of the diagonals has i - j = r - (M - 1), and the query i stands at token i + offset.
    before_it = n_keys - offset
    previous = answers.diagonals.double()[:, before_it : before_it + 1].sum(-1) / later[0].sum().clamp(min=1)
    induction = answers.induction.double().mean(-1).tolist()
    numbers = zip(
        _mean(answers.entropy, live).tolist(),
        _mean(answers.on_first, later).tolist(),
        previous.tolist(),
        _mean(answers.distance, live).tolist(),
        _sharpest(answers.top_weights, answers.top_keys, offset),
        strict=True,
    )
    return [
        HeadSummary(layer, head, module, e, f, p, d, *link, induction[head])
        for head, (e, f, p, d, link) in enumerate(numbers)
    ]


def columns(lines: list[HeadSummary]) -> dict[str, list[Any]]:
    """The summaries of one call as JSON holds them: a list a number, six digits, null where it is NaN."""
    names = ("entropy", "first", "previous", "distance", "induction")
    numbers = {name: [_rounded(getattr(line, name)) for line in lines] for name in names}
    links = [[line.link_query, line.link_key, _rounded(line.link_weight)] for line in lines]
    return {**numbers, "link": links}


def _rounded(value: float) -> float | None:
    return float(f"{value:.6g}") if isfinite(value) else None


def _mean(values: Tensor, rows: Tensor) -> Tensor:
    return values.double().where(rows, 0.0).sum(-1) / rows.sum(-1).clamp(min=1)


def _sharpest(weights: Tensor, keys: Tensor, offset: int) -> list[tuple[int, int, float]]:
    n_queries, kept = weights.shape[-2:]
    position = torch.arange(n_queries)[:, None] + offset
    allowed = (keys > 0) & (keys != position)
    best, where = weights.where(allowed, -1.0).flatten(1).max(-1)
    found = []
    for head, (weight, flat) in enumerate(zip(best.tolist(), where.tolist(), strict=True)):
        query, rank = divmod(flat, kept)
        found.append((query + offset, int(keys[head, query, rank]), weight) if weight > 0 else (-1, -1, 0.0))
    return found
