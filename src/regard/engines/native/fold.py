"""The compiled engine's answers about the weights: every question of `statistics`, and rows of the matrix.

All that is asked at once is answered in one pass over the tiles that the mask reaches. Sums over queries are
taken over fixed pieces of the rows and added in order, so that no answer depends on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.engines import native
from regard.online_softmax import Normalizer
from regard.problem import Problem
from regard.statistics import (
    Applied,
    AppliedTransposed,
    Diagonals,
    Distance,
    Entropy,
    Mass,
    Pooled,
    Received,
    Statistic,
    TopKeys,
)


def fold(problem: Problem, normalizer: Normalizer, statistics: Sequence[Statistic]) -> list[Statistic]:
    """Answer the statistics that the core knows, by their exact type; the others are returned unasked.

    Raises EngineError for what `native.refusal` names, and KeyboardInterrupt within about a second of Ctrl-C.
    """
    native.check(problem)
    others: list[Statistic] = []
    # A pass answers one question of a kind: of two sets of keys, say, the second goes to another pass.
    passes: list[dict[type[Statistic], Statistic]] = []
    for statistic in statistics:
        kind = type(statistic)
        if type(statistic) is AppliedTransposed:
            _transposed(problem, normalizer, statistic)
        elif kind not in _QUESTIONS:
            others.append(statistic)
        else:
            free = next((asked for asked in passes if kind not in asked), None)
            if free is None:
                passes.append(free := {})
            free[kind] = statistic
    for asked in passes:
        tensors: dict[str, Any] = {}
        for kind, statistic in asked.items():
            tensors |= _QUESTIONS[kind](statistic, problem)
        native.core().fold(native.bound(problem), *_of_rows(normalizer), torch.get_num_threads(), **tensors)
    return others


def rows(
    problem: Problem,
    normalizer: Normalizer | None,
    item: int,
    head: int,
    numbers: Tensor,
    columns: slice,
    result: Tensor,
) -> None:
    """Fill `result` `[R, C]`, float32, with some rows of one head: weights, or logits without a normalizer.

    `numbers` are int64 `[R]`, `columns` `start` to `stop`.
    """
    native.check(problem)
    given = (None, None) if normalizer is None else _of_rows(normalizer)
    numbers = numbers.contiguous()
    native.core().fold_rows(
        native.bound(problem),
        *given,
        item,
        head,
        numbers,
        columns.start,
        columns.stop,
        result,
        torch.get_num_threads(),
    )


def _of_rows(normalizer: Normalizer) -> tuple[Tensor, Tensor]:
    return normalizer.shift.contiguous(), normalizer.denominator.contiguous()


def _vectors(x: Tensor) -> Tensor:
    """A right-hand side as the core reads it."""
    return (x if x.dtype in native.DTYPES else x.to(torch.float32)).detach().resolve_neg()


def _transposed(problem: Problem, normalizer: Normalizer, statistic: AppliedTransposed) -> None:
    statistic.begin(problem)
    native.core().fold_transposed(
        native.bound(problem),
        *_of_rows(normalizer),
        _vectors(statistic.x),
        statistic.result,
        torch.get_num_threads(),
    )


def _result(name: str) -> Callable[[Any, Problem], dict[str, Tensor | None]]:
    """A question that has nothing but an answer."""

    def ask(statistic: Statistic, problem: Problem) -> dict[str, Tensor | None]:
        statistic.begin(problem)
        return {name: statistic.result}

    return ask


def _mass(statistic: Mass, problem: Problem) -> dict[str, Tensor | None]:
    statistic.begin(problem)
    return {"mass": statistic.result, "mass_keys": statistic.keys.contiguous()}


def _received(statistic: Received, problem: Problem) -> dict[str, Tensor | None]:
    statistic.begin(problem)
    chosen = statistic.queries
    return {
        "received": statistic.result,
        "allowed": statistic.allowed,
        "queries": None if chosen is None else chosen.contiguous(),
    }


def _top_keys(statistic: TopKeys, problem: Problem) -> dict[str, Tensor | None]:
    shape = problem.batch_size, problem.num_heads, problem.n_queries, statistic.k
    weights = torch.zeros(shape, dtype=torch.float32, device="cpu")
    indices = torch.full(shape, -1, dtype=torch.int64, device="cpu")
    logits = torch.empty_like(weights) if statistic.with_logits else None
    statistic.ranked = weights, indices, logits
    return {"top_weights": weights, "top_columns": indices, "top_logits": logits}


def _applied(statistic: Applied, problem: Problem) -> dict[str, Tensor | None]:
    statistic.begin(problem)
    return {"x": _vectors(statistic.x), "applied": statistic.result}


def _pooled(statistic: Pooled, problem: Problem) -> dict[str, Any]:
    statistic.begin(problem)
    if statistic.within is None:
        return {"pooled": statistic.result}
    (row, column), (n_queries, n_keys) = statistic.within
    place = {"first_row": row, "all_rows": n_queries, "first_column": column, "all_columns": n_keys}
    return {"pooled": statistic.result, **place}


_QUESTIONS: dict[type[Statistic], Callable[[Any, Problem], dict[str, Any]]] = {
    Entropy: _result("entropy"),
    Distance: _result("distance"),
    Mass: _mass,
    Received: _received,
    TopKeys: _top_keys,
    Diagonals: _result("diagonals"),
    Pooled: _pooled,
    Applied: _applied,
}
