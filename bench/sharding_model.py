"""A short model of the time that a rank takes: its share of one process's time, and what its messages cost.

For N tokens on R ranks, T(N, R) = T₁(N) · g / R + a + b · bytes, with T₁ the time of one process with one
thread, g what the busiest rank computes over the mean, and the bytes that a rank sends and receives. The cost
of a call, a, and that of a byte, b, are fitted to all points at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch


@dataclass(frozen=True)
class Point:
    """What was measured: processor seconds of the busiest rank, and of one process in the same rounds."""

    length: int
    ranks: int
    sharding: str
    imbalance: float
    moved_bytes: int
    alone_seconds: float
    seconds: float

    @property
    def computing(self) -> float:
        """Seconds of computing, by the model."""
        return self.alone_seconds * self.imbalance / self.ranks

    def as_json(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class Model:
    """Seconds that a call costs, and seconds that a byte costs."""

    a: float
    b: float

    def seconds(self, point: Point) -> float:
        """What the model says of a point."""
        return point.computing + self.a + self.b * point.moved_bytes

    def __str__(self) -> str:
        return f"a = {self.a * 1e3:.2g} ms, b = {self.b * 1e9:.2g} ms/MB"


def fitted(points: Sequence[Point]) -> Model:
    """The model with the least sum of squared relative errors, neither of its costs negative."""
    weights = torch.tensor([1 / point.seconds for point in points], dtype=torch.float64)
    columns = torch.tensor([[1.0, point.moved_bytes] for point in points], dtype=torch.float64)
    rest = torch.tensor([point.seconds - point.computing for point in points], dtype=torch.float64)
    # Bytes in megabytes, or the two columns would have nothing in common.
    scale = torch.tensor([1.0, 1e6], dtype=torch.float64)
    system, goal = columns / scale * weights[:, None], rest * weights
    both = torch.linalg.lstsq(system, goal[:, None]).solution.flatten()
    if bool((both < 0).any()):
        alone = [(column @ goal / (column @ column)).clamp(min=0) for column in system.T]
        choices = [torch.stack([alone[0], alone[0] * 0]), torch.stack([alone[1] * 0, alone[1]])]
        both = min(choices, key=lambda x: float((system @ x - goal).square().sum()))
    a, b = (both / scale).tolist()
    return Model(a, b)
