"""Which engine computes: `auto` follows the table below; a name means that engine or an error.

| device, dtype | auto |
|---|---|
| any | tiled |
"""

from __future__ import annotations

from regard.engines import reference, tiled
from regard.engines.base import Engine, Gradients, HasBackward, Wanted
from regard.errors import ArgumentError, EngineError
from regard.problem import Problem

__all__ = ["NAMES", "Engine", "Gradients", "HasBackward", "Wanted", "choose", "engine_name"]

_ENGINES: dict[str, Engine] = {"reference": reference, "tiled": tiled}

NAMES = ("auto", *_ENGINES)


def choose(name: str, problem: Problem) -> Engine:
    """The engine for a problem. A named one is never replaced by another."""
    if name == "auto":
        return tiled
    if name == "native":
        raise EngineError(
            "engine 'native' is not part of this version of regard: use engine='auto' or 'tiled'"
        )
    if not isinstance(name, str) or name not in _ENGINES:
        raise ArgumentError(f"`engine` must be one of {', '.join(map(repr, NAMES))}, got {name!r}")
    return _ENGINES[name]


def engine_name(engine: Engine) -> str:
    """The name under which `choose` finds an engine again."""
    return next(name for name, known in _ENGINES.items() if known is engine)
