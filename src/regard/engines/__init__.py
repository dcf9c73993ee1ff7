"""Which engine computes: `auto` follows the table below; a name means that engine or an error.

| device, dtype | auto |
|---|---|
| CPU (Linux, native core built), float32, bfloat16, float16 | native |
| anything else | tiled |

The table is fixed: no timing and no size of the problem enters. A statistic of your
own is shown its tiles by the tiled engine, from the normalizer that the native forward pass gives.
"""

from __future__ import annotations

from collections.abc import Sequence

from regard.engines import native, reference, tiled
from regard.engines.base import (
    Engine,
    Gradients,
    HasBackward,
    HasRows,
    Wanted,
    has_backward,
    has_matrix,
    has_rows,
)
from regard.engines.native import backward as native_backward
from regard.engines.native import fold as native_fold
from regard.errors import ArgumentError
from regard.online_softmax import Normalizer
from regard.problem import Problem
from regard.statistics import Statistic

__all__ = [
    "NAMES",
    "Engine",
    "Gradients",
    "HasBackward",
    "HasRows",
    "Wanted",
    "choose",
    "engine_name",
    "has_backward",
    "has_matrix",
    "has_rows",
]


class _Native:
    """The native engine: a module for each of its operations."""

    forward = staticmethod(native.forward)
    backward = staticmethod(native_backward.backward)
    rows = staticmethod(native_fold.rows)

    @staticmethod
    def fold(problem: Problem, normalizer: Normalizer, statistics: Sequence[Statistic]) -> None:
        """The core answers what it knows; any other statistic is shown tiles by the tiled engine."""
        others = native_fold.fold(problem, normalizer, statistics)
        if others:
            tiled.fold(problem, normalizer, others)


_ENGINES: dict[str, Engine] = {"reference": reference, "tiled": tiled, "native": _Native()}

NAMES = ("auto", *_ENGINES)


def choose(name: str, problem: Problem) -> Engine:
    """The engine for a problem. A named one is never replaced by another."""
    if name == "auto":
        return _ENGINES["tiled" if native.refusal(problem) else "native"]
    if not isinstance(name, str) or name not in _ENGINES:
        raise ArgumentError(f"`engine` must be one of {', '.join(map(repr, NAMES))}, got {name!r}")
    if name == "native":
        native.check(problem)
    return _ENGINES[name]


def engine_name(engine: Engine) -> str:
    """The name under which `choose` finds an engine again."""
    return next(name for name, known in _ENGINES.items() if known is engine)
