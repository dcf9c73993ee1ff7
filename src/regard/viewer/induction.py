"""Induction: where the text repeats, how much a query puts on what followed its token before.

A head that copies finds an earlier occurrence of the present token and attends the token after it (Olsson et
al. 2022, "In-context learning and induction heads").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.weights import AttentionWeights

# Of a long text this many queries are asked, evenly spread: a row of each costs next to nothing.
_MOST_QUERIES = 256


@dataclass(frozen=True, eq=False)
class Repeats:
    """Queries whose token stands earlier in the text, int64 `[R]`, and the keys after it, bool `[R, M]`."""

    queries: Tensor
    followers: Tensor

    @classmethod
    def of(cls, tokens: Sequence[str], n_queries: int) -> Repeats:
        """The repeats in a text of M tokens, of which the queries are the last."""
        offset = len(tokens) - n_queries
        places: dict[str, list[int]] = {}
        for at, token in enumerate(tokens):
            places.setdefault(token, []).append(at)
        # What follows directly is the token itself where it is doubled: that is no copying.
        repeats = [at for at in range(offset, len(tokens)) if tokens[at] and places[tokens[at]][0] + 1 < at]
        kept = min(len(repeats), _MOST_QUERIES)
        chosen = [repeats[i * len(repeats) // kept] for i in range(kept)]
        followers = torch.zeros(kept, len(tokens), dtype=torch.bool)
        for row, at in enumerate(chosen):
            followers[row, [place + 1 for place in places[tokens[at]] if place + 1 < at]] = True
        return cls(torch.tensor(chosen, dtype=torch.int64) - offset, followers)

    def mass(self, weights: AttentionWeights) -> Tensor:
        """The mass that each of these queries puts on the followers, `[H, R]`, in batch item 0."""
        if not len(self.queries):
            return torch.zeros(weights.shape[1], 0)
        rows = [weights[0, head, self.queries].cpu() for head in range(weights.shape[1])]
        return torch.stack([row.masked_fill(~self.followers, 0).sum(-1) for row in rows])
