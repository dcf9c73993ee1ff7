"""What a view asks of the weights of one call, in ONE pass over them, and how the finest part is stored."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor

from regard.viewer.codes import codes, index_width, indices, pack
from regard.viewer.induction import Repeats
from regard.viewer.plan import Plan
from regard.viewer.seen import edges
from regard.weights import AttentionWeights

# The sharpest link needs three keys of a query: two may be the first token and the query itself.
FOR_THE_LINK = 3


@dataclass(frozen=True, eq=False)
class Answers:
    """Statistics of batch item 0 on the CPU: `[H, N]` a query, `[H, M]` a key, `[H, N, k]` the top keys.

    `induction` is of the queries that repeat a token, see `regard.viewer.induction`.
    """

    entropy: Tensor
    distance: Tensor
    on_first: Tensor
    received: Tensor
    diagonals: Tensor
    pooled: Tensor
    top_weights: Tensor
    top_keys: Tensor
    induction: Tensor

    @property
    def n_queries(self) -> int:
        return self.entropy.shape[-1]

    @property
    def n_keys(self) -> int:
        return self.received.shape[-1]

    def packed_keys(self, plan: Plan) -> bytes:
        """The strongest keys of the sampled queries, and the profiles over queries and keys, as a blob."""
        # The last query of each bin: the very last of the text is always among them.
        rows = edges(self.n_queries, plan.sampled_queries)[1:] - 1
        width = index_width(self.n_keys)
        return pack(
            (codes(self.top_weights[:, rows, : plan.kept_keys], 1.0), 2),
            (indices(self.top_keys[:, rows, : plan.kept_keys], width), width),
            (codes(_binned(self.entropy, plan.sampled_queries), log(max(2, self.n_keys))), 2),
            (codes(_binned(self.distance, plan.sampled_queries), self.n_keys), 2),
            (codes(_binned(self.received, plan.sampled_keys), self.n_queries), 2),
        )


def ask(weights: AttentionWeights, plan: Plan, top_keys: int, repeats: Repeats) -> Answers:
    """Ask everything at once."""
    answers = weights.statistics(
        "entropy",
        "distance",
        "received",
        "diagonals",
        mass=slice(0, 1),
        pooled=(plan.map_rows, plan.map_columns),
        top_keys=max(top_keys, FOR_THE_LINK),
    )

    def item(answer: Any) -> Tensor:
        chosen: Tensor = answer[0].cpu()
        return chosen

    top_weights, keys = answers["top_keys"]
    return Answers(
        entropy=item(answers["entropy"]),
        distance=item(answers["distance"]),
        on_first=item(answers["mass"]),
        received=item(answers["received"]),
        diagonals=item(answers["diagonals"]),
        pooled=item(answers["pooled"]),
        top_weights=item(top_weights),
        top_keys=item(keys),
        induction=repeats.mass(weights),
    )


def _binned(values: Tensor, bins: int) -> Tensor:
    """Means over `bins` pieces of the last axis; the values themselves where each piece is one."""
    if values.shape[-1] == bins:
        return values
    ends = edges(values.shape[-1], bins)
    sums = torch.nn.functional.pad(values.double().cumsum(-1), (1, 0))
    return (sums[..., ends[1:]] - sums[..., ends[:-1]]) / (ends[1:] - ends[:-1])
