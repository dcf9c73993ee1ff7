"""One attention call: as it was made, how it is to be computed, and what was answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from regard.masks import Mask
from regard.online_softmax import Normalizer


@dataclass(frozen=True, eq=False, kw_only=True)
class Call:
    """What becomes of an attention call, whoever made it.

    - `engine`: the engine of regard that computes it; None leaves it to the function that was called
    - `besides`: who may attend whom besides, by the wish of a `use`
    - `name`: of the module that made it, where a `use` knows it
    - `normalizer`: of its weights, if regard computed it while somebody was listening
    """

    engine: str | None = None
    besides: Mask | None = None
    name: str | None = None
    normalizer: Normalizer | None = None


AnyCall = TypeVar("AnyCall", bound=Call)


class Plan(Protocol):
    """How calls are to be computed, by the wish of one `use`."""

    def __call__(self, call: AnyCall, /) -> AnyCall:
        """The call with an engine, if it is to be computed with regard; the same call, if it is not."""


@dataclass(frozen=True, eq=False)
class HeardCall(Call):
    """A call of an attention function of transformers; `output` is `[B, N, Hq, Ev]`, once it is known."""

    module: nn.Module
    implementation: str
    query: Tensor
    key: Tensor
    value: Tensor
    attention_mask: Any
    options: dict[str, Any]
    output: Tensor | None = None


@dataclass(frozen=True, eq=False)
class FunctionCall(Call):
    """A call of one of torch's attention functions, its arguments by name, defaults included.

    Arguments are those of `F.multi_head_attention_forward` if `multi_head`, else those of
    `F.scaled_dot_product_attention`.
    """

    multi_head: bool
    arguments: dict[str, Any]
