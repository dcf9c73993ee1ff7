"""What every engine offers: the same few operations on a validated problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeGuard

from torch import Tensor

from regard.online_softmax import Normalizer
from regard.problem import Problem
from regard.statistics import Statistic


class Wanted(NamedTuple):
    """Which gradients are asked for."""

    query: bool
    key: bool
    value: bool
    bias: bool
    sink_logits: bool


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients in the computing dtype, each shaped like what it belongs to; None where not wanted."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    bias: Tensor | None
    sink_logits: Tensor | None


class Engine(Protocol):
    """An engine is a module with these functions."""

    def forward(self, problem: Problem) -> tuple[Tensor, Tensor, Normalizer]:
        """The output `[B, Hq, N, Ev]` (Ev = 0 without a value), its logsumexp, the weights' normalizer."""

    def fold(self, problem: Problem, normalizer: Normalizer, statistics: Sequence[Statistic]) -> None:
        """Show the weights, tile by tile, to all of the statistics in one pass."""


class HasBackward(Engine, Protocol):
    """An engine whose forward pass torch cannot differentiate, and which gives the gradients itself."""

    def backward(
        self,
        problem: Problem,
        output: Tensor,
        normalizer: Normalizer,
        grad_output: Tensor,
        grad_logsumexp: Tensor | None,
        wanted: Wanted,
        grad_entropy: Tensor | None = None,
    ) -> Gradients:
        """Gradients of query, key, value, the bias's parameter and the sink logits, as far as wanted.

        `grad_entropy` `[B, Hq, N]` times −(log P + 1) is added to the gradient of P; what the entropy means
        for the denominator is the caller's to add to `grad_logsumexp`. Not with dropout.
        """


class HasMatrix(Engine, Protocol):
    """An engine that holds the whole matrix, and that torch differentiates, any number of times."""

    def matrix(self, problem: Problem) -> Tensor:
        """The weights `[B, Hq, N, M]`, with gradients."""


class HasRows(Engine, Protocol):
    """An engine that forms rows of the matrix itself."""

    def rows(
        self,
        problem: Problem,
        normalizer: Normalizer | None,
        item: int,
        head: int,
        numbers: Tensor,
        columns: slice,
        result: Tensor,
    ) -> None:
        """Fill `result` `[R, C]` with the rows `numbers`, int64 `[R]`, of one head, in the computing dtype.

        They are weights, or logits without a normalizer. `columns` has a start and a stop.
        """


def has_rows(engine: Engine) -> TypeGuard[HasRows]:
    """Whether it is such an engine."""
    return hasattr(engine, "rows")


def has_matrix(engine: Engine) -> TypeGuard[HasMatrix]:
    """Whether it is such an engine."""
    return hasattr(engine, "matrix")


def has_backward(engine: Engine) -> TypeGuard[HasBackward]:
    """Whether it is such an engine; `isinstance` would take long, in every call, to find that out."""
    return hasattr(engine, "backward")
