"""The raw material of the steps: products q · k of some queries with every key, masked keys among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.autocast import without_autocast
from regard.problem import Problem
from regard.recording.parts import Parts
from regard.reference import dot_products
from regard.weights import AttentionWeights


@dataclass(frozen=True, eq=False)
class RowScores:
    """Some queries of one batch item against all M keys, in the computing dtype.

    `scores` `[H, R, M]` are the products q · k as they are, of masked keys too; `allowed` `[H, R, M]` is True
    where a query may attend; `bias` `[H, R, M]` is what is added after scale and softcap, or None. A bias of
    −inf excludes: it counts in `allowed` and stands as 0.
    """

    scores: Tensor
    allowed: Tensor
    bias: Tensor | None


def row_scores(weights: AttentionWeights, queries: Sequence[int], *, item: int = 0) -> RowScores:
    """The scores of some queries, for all heads of one batch item, with memory for these rows only.

    >>> out, w = regard.attention(q, k, v, masks.causal(), return_weights=True)
    >>> row_scores(w, [0, 4095]).scores.shape
    torch.Size([8, 2, 4096])
    """
    problem = Parts.of(weights).problem
    return scores_of(problem.select(slice(item, item + 1), slice(0, problem.num_key_heads)), queries)


@torch.no_grad()
@without_autocast
def scores_of(problem: Problem, queries: Sequence[int]) -> RowScores:
    """The same for all heads of a problem of one batch item."""
    dtype, columns = problem.compute_dtype, slice(0, problem.n_keys)
    rows = torch.tensor(queries, dtype=torch.int64, device=problem.device)
    query = problem.query[:, :, rows].to(dtype)
    key = problem.key.to(dtype).repeat_interleave(problem.group_size, 1)
    shape = 1, problem.num_heads, len(rows), problem.n_keys
    allowed, bias = problem.sets.allowed(rows, columns), None
    if problem.bias is not None:
        added = problem.bias.tile(problem.frame, rows, columns, dtype).expand(shape)
        allowed = allowed & (added != -torch.inf)
        bias = added.masked_fill(added == -torch.inf, 0)[0]
    # Masked keys are to be looked at as well: here, and only here, nothing is kept out of the product.
    scores = dot_products(query, key, torch.ones((), dtype=torch.bool, device=problem.device).expand(shape))
    return RowScores(scores[0], allowed.expand(shape)[0], bias)
