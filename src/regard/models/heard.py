"""One attention call of a model: as it was made, how it is to be computed, and what was answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from regard.masks import Mask
from regard.online_softmax import Normalizer


@dataclass(frozen=True, eq=False)
class HeardCall:
    """An attention call as a model made it, and what was answered.

    - `engine`: the engine of regard that computes it; None leaves it to the model's own function
    - `besides`: who may attend whom besides, by the wish of a `use`
    - `output`: the answer, `[B, N, Hq, Ev]`, once there is one
    - `normalizer`: of its weights, if regard computed it while somebody was listening
    """

    module: nn.Module
    implementation: str
    query: Tensor
    key: Tensor
    value: Tensor
    attention_mask: Any
    options: dict[str, Any]
    output: Tensor | None = None
    engine: str | None = None
    besides: Mask | None = None
    normalizer: Normalizer | None = None
