"""One attention call as it was seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from regard.recording.keys import KeySpan
from regard.weights import AttentionWeights


@dataclass(frozen=True, eq=False)
class Call:
    """One attention call of a model.

    - `module`: the name of the module that made it, as in `model.named_modules()`
    - `ordinal`: how many calls the same module had made before, in the same forward pass
    - `step`: the forward pass of the model, 0 first; in a generation the prompt is 0, then one a token
    - `layer`: the place of (module, ordinal) in the order in which calls were first seen, 0 first
    - `weights`: the exact weights, detached; None if only statistics were kept
    - `statistics`: what was asked for, by name (see `AttentionWeights.statistics`)
    - `keys`: where the keys are kept, if they are shared with other calls
    - `heads`: which query heads of the module the heads of `weights` and `statistics` are; None for all
    - `skipped_rows`: how many of the call's queries before, and how many after, the rows were not kept
    """

    module: str
    ordinal: int
    step: int
    layer: int
    weights: AttentionWeights | None
    statistics: dict[str, Any] = field(default_factory=dict)
    keys: KeySpan | None = None
    heads: tuple[int, ...] | None = None
    skipped_rows: tuple[int, int] = (0, 0)

    @property
    def values(self) -> Tensor | None:
        """The values `[B, Hkv, M, Ev]`, if the watch was to keep them."""
        return None if self.keys is None else self.keys.values()

    def __repr__(self) -> str:
        kept = "statistics only" if self.weights is None else f"weights {tuple(self.weights.shape)}"
        return f"Call({self.module!r}, ordinal={self.ordinal}, step={self.step}, {kept})"
