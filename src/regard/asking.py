"""From what a user asks of the weights, by name or with an argument, to checked statistics."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from regard import statistics
from regard.errors import ArgumentError, ArgumentTypeError
from regard.indexing import members
from regard.problem import Problem
from regard.statistics import Statistic

Keys = slice | Sequence[int] | Tensor

_PLAIN: dict[str, type[Statistic]] = {
    "entropy": statistics.Entropy,
    "distance": statistics.Distance,
    "diagonals": statistics.Diagonals,
}
# Kept, or computed from what is kept without looking at a tile.
KEPT = ("logsumexp", "max_logit", "max_weight")
NAMES = (*KEPT, "received", *_PLAIN)
_WITH_ARGUMENT = ("top_keys", "pooled", "mass")


def named(names: Sequence[str], problem: Problem) -> dict[str, Statistic]:
    """The statistics that need a pass and no argument."""
    asked: dict[str, Statistic] = {}
    for name in names:
        if name not in NAMES:
            advice = f": `{name}` takes an argument, as in {name}=…" if name in _WITH_ARGUMENT else ""
            raise ArgumentError(f"`names` must be among {', '.join(NAMES)}, got {name!r}{advice}")
        if name not in KEPT:
            asked[name] = received(None, False, problem) if name == "received" else _PLAIN[name]()
    return asked


def top_keys(k: int) -> Statistic:
    """The k largest."""
    return statistics.TopKeys(_count(k, "top_keys"))


def pooled(shape: tuple[int, int]) -> Statistic:
    """Block means, (rows, cols) of them."""
    if not isinstance(shape, Sequence) or len(shape) != 2:
        raise ArgumentTypeError(f"`pooled` must be (rows, cols), got {shape!r}")
    return statistics.Pooled(_count(shape[0], "rows"), _count(shape[1], "cols"))


def mass(keys: Keys, problem: Problem) -> Statistic:
    """The mass on a set of keys."""
    return statistics.Mass(members(keys, problem.n_keys, "keys").to(problem.device))


def received(queries: Keys | None, mean: bool, problem: Problem) -> Statistic:
    """What keys receive from a set of queries, None for all."""
    chosen = None if queries is None else members(queries, problem.n_queries, "queries").to(problem.device)
    return statistics.Received(chosen, mean)


def _count(value: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(f"`{name}` must be an int, got {value!r}")
    if value < 1:
        raise ArgumentError(f"`{name}` must be at least 1, got {value}")
    return value
