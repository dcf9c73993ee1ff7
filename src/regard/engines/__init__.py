"""Which engine computes: `auto` follows the table below; a name means that engine or an error.

| device, dtype | auto |
|---|---|
| CPU (Linux, native core built), float32, bfloat16, float16 | native |
| anything else | tiled |

The table is fixed: no timing and no size of the problem enters. The native engine's statistics and gradients
are computed by the tiled engine, from the normalizer that the native forward pass gives.
"""

from __future__ import annotations

from regard.engines import native, native_backward, reference, tiled
from regard.engines.base import Engine, Gradients, HasBackward, Wanted, has_backward
from regard.errors import ArgumentError
from regard.problem import Problem

__all__ = [
    "NAMES",
    "Engine",
    "Gradients",
    "HasBackward",
    "Wanted",
    "choose",
    "engine_name",
    "has_backward",
]


class _Native:
    """The native engine, completed by the tiled one where the core has no kernel of its own yet."""

    forward = staticmethod(native.forward)
    fold = staticmethod(tiled.fold)
    backward = staticmethod(native_backward.backward)


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
