"""How rotary frequencies are stretched for contexts longer than those of training, one value a method.

Names and meanings are those that transformers' configurations use under `rope_type`, so that a model's own
numbers can be handed over. All arithmetic is in float32, in which the models were trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.errors import ArgumentError, ArgumentTypeError


def plain_frequencies(dim: int, base: float | Tensor, device: torch.device | None) -> Tensor:
    """Radians a position for each pair of channels, base^(−2i/dim): float32 `[dim / 2]`."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim
    frequencies: Tensor = 1.0 / base**exponents
    return frequencies


@dataclass(frozen=True)
class Scaling:
    """No scaling, and the base of the others."""

    needs_length: ClassVar[bool] = False

    @property
    def magnitude(self) -> float:
        """What the rotated channels are multiplied by, in query and key alike."""
        return 1.0

    def frequencies(
        self, dim: int, base: float, device: torch.device | None, length: Tensor | None
    ) -> Tensor:
        """Radians a position, `[dim / 2]`; `length` is one more than the last position, if `needs_length`."""
        return plain_frequencies(dim, base, device)


@dataclass(frozen=True)
class Linear(Scaling):
    """Position interpolation: every position divided by `factor` (Chen et al. 2023)."""

    factor: float

    def frequencies(
        self, dim: int, base: float, device: torch.device | None, length: Tensor | None
    ) -> Tensor:
        return plain_frequencies(dim, base, device) / self.factor


@dataclass(frozen=True)
class Dynamic(Scaling):
    """Dynamic NTK: past the original length, a base that grows with the length of the call."""

    factor: float
    original_max_position_embeddings: int
    needs_length: ClassVar[bool] = True

    def frequencies(
        self, dim: int, base: float, device: torch.device | None, length: Tensor | None
    ) -> Tensor:
        if length is None or dim == 2:  # one pair of channels turns by 1 a position whatever the base
            return plain_frequencies(dim, base, device)
        original = self.original_max_position_embeddings
        stretch = self.factor * length.clamp(min=original) / original - (self.factor - 1)
        return plain_frequencies(dim, base * stretch ** (dim / (dim - 2)), device)


@dataclass(frozen=True)
class Llama3(Scaling):
    """Llama 3.1: slow pairs are divided by `factor`, fast ones stay, those between go over smoothly."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def frequencies(
        self, dim: int, base: float, device: torch.device | None, length: Tensor | None
    ) -> Tensor:
        plain = plain_frequencies(dim, base, device)
        turns = self.original_max_position_embeddings * plain / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = kept.clamp(0, 1)
        return (1 - kept) * plain / self.factor + kept * plain


@dataclass(frozen=True)
class Yarn(Scaling):
    """YaRN (Peng et al. 2023): as Llama 3.1, but with a ramp over channels, and sharper attention."""

    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    @property
    def magnitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._sharpening(self.mscale) / self._sharpening(self.mscale_all_dim)
        return self._sharpening(1.0)

    def _sharpening(self, weight: float) -> float:
        return 0.1 * weight * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def frequencies(
        self, dim: int, base: float, device: torch.device | None, length: Tensor | None
    ) -> Tensor:
        plain = plain_frequencies(dim, base, device)
        first, last = (self._pair_with_turns(turns, dim, base) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dim - 1)
        if first == last:
            last += 0.001
        pairs = torch.arange(dim // 2, dtype=torch.float32, device=device)
        slow = ((pairs - first) / (last - first)).clamp(0, 1)
        return plain / self.factor * slow + plain * (1 - slow)

    def _pair_with_turns(self, turns: float, dim: int, base: float) -> float:
        """The (fractional) pair of channels that turns this often over the original length."""
        positions = self.original_max_position_embeddings
        return dim * math.log(positions / (turns * 2 * math.pi)) / (2 * math.log(base))


_KINDS: dict[str, type[Scaling]] = {
    "default": Scaling,
    "linear": Linear,
    "dynamic": Dynamic,
    "yarn": Yarn,
    "llama3": Llama3,
}


def parse(scaling: Mapping[str, Any] | None) -> Scaling:
    """The scaling that a mapping describes, such as `{"rope_type": "linear", "factor": 4.0}`."""
    if scaling is None:
        return Scaling()
    if not isinstance(scaling, Mapping):
        raise ArgumentTypeError(f"`scaling` must be a mapping or None, got a {type(scaling).__name__}")
    given = {key: value for key, value in scaling.items() if value is not None}
    name = given.pop("rope_type", None)
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ArgumentError(
            f"`scaling` must name its 'rope_type', one of {', '.join(map(repr, _KINDS))}, got {name!r}"
        )
    known = {field.name: field for field in fields(kind)}
    for key, value in given.items():
        if key not in known:
            takes = ", ".join(map(repr, known)) or "nothing more"
            raise ArgumentError(f"`scaling` of rope_type {name!r} takes {takes}, got {key!r}")
        if not isinstance(value, int | float):
            raise ArgumentTypeError(f"`scaling` must hold numbers, got {value!r} for {key!r}")
        if value <= 0 and not isinstance(value, bool):
            raise ArgumentError(f"`scaling` must hold numbers greater than 0, got {value} for {key!r}")
    for key, field in known.items():
        if field.default is MISSING and key not in given:
            raise ArgumentError(f"`scaling` of rope_type {name!r} must hold {key!r}, got {sorted(given)}")
    return kind(**given)
