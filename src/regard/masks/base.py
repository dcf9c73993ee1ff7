"""What every mask is: a value that says, for query positions and key positions, who may attend whom."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from regard.errors import ArgumentError, ArgumentTypeError
from regard.intervals import Intervals
from regard.masks.compiled import Frame, KeySets
from regard.masks.runs import Run


class Mask(ABC):
    """Which keys each query may attend; True means may attend. Combine masks with `&`, `|` and `~`."""

    name: ClassVar[str]

    @abstractmethod
    def compile(self, frame: Frame) -> KeySets:
        """The key sets of every row of one call."""

    @cached_property
    def run(self) -> Run | None:
        """The mask as one run of keys that moves with the query, if it is that for every item and head."""
        return None

    def to(self, device: torch.device | str) -> Mask:
        """The same mask with its tensors on `device`."""
        moved: dict[str, Any] = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Tensor | Mask):
                moved[field.name] = value.to(device)
            elif isinstance(value, tuple):
                moved[field.name] = tuple(part.to(device) for part in value)
        return replace(self, **moved) if moved else self  # type: ignore[type-var]

    def to_dense(
        self,
        n_queries: int,
        n_keys: int,
        query_start: int | Tensor | None = None,
        key_start: int | Tensor = 0,
    ) -> Tensor:
        """The bool matrix of one call: `[N, M]`, or `[B or 1, Hq or 1, N, M]` where items or heads differ.

        >>> masks.sliding_window(2).to_dense(3, 3).int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [0, 1, 1]], dtype=torch.int32)
        """
        dense = self.compile(Frame.of(n_queries, n_keys, query_start, key_start)).to_dense()
        return dense[0, 0] if dense.shape[:2] == (1, 1) else dense

    def intervals(
        self,
        n_queries: int,
        n_keys: int,
        query_start: int | Tensor | None = None,
        key_start: int | Tensor = 0,
    ) -> Intervals:
        """The key intervals of every row; a dense mask with too many runs a row has none and raises."""
        sets = self.compile(Frame.of(n_queries, n_keys, query_start, key_start))
        if sets.dense is not None:
            raise ArgumentError(
                f"{self!r} has rows of too many separate runs of keys to be held as intervals"
            )
        return sets.intervals

    def draw(
        self,
        n_queries: int | None = None,
        n_keys: int | None = None,
        query_start: int | Tensor | None = None,
        key_start: int | Tensor = 0,
    ) -> str:
        """A picture in characters: `■` may attend, `·` may not, `▒` some of the pairs a cell stands for."""
        from regard.masks.draw import as_text

        return as_text(self, n_queries, n_keys, query_start, key_start)

    def parts(self) -> Iterator[Mask]:
        """The masks that this one is made of."""
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, Mask):
                    yield part

    def telling_size(self) -> int:
        """A number of queries and keys at which a drawing shows what the mask does."""
        return max((part.telling_size() for part in self.parts()), default=12)

    def required_size(self) -> tuple[int, int] | None:
        """The only (or largest) number of queries and keys it can be compiled for, if there is one."""
        required = [size for part in self.parts() if (size := part.required_size()) is not None]
        return (min(n for n, _ in required), min(m for _, m in required)) if required else None

    def __and__(self, other: Mask) -> Mask:
        return And(self, _mask(other, "&"))

    def __or__(self, other: Mask) -> Mask:
        return Or(self, _mask(other, "|"))

    def __invert__(self) -> Mask:
        return Not(self)

    def __bool__(self) -> NoReturn:
        raise ArgumentTypeError(
            f"a mask has no truth value ({self!r}): combine masks with &, | and ~ instead of `and`, `or` and "
            "`not`, and test `mask is not None`"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mask):
            return NotImplemented
        return type(self) is type(other) and all(
            _same(getattr(self, field.name), getattr(other, field.name))
            for field in fields(self)  # type: ignore[arg-type]
        )

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        given = ((f.name, getattr(self, f.name)) for f in fields(self))  # type: ignore[arg-type]
        return f"{self.name}({', '.join(f'{k}={_shown(v)}' for k, v in given if v is not None)})"

    def __str__(self) -> str:
        return self.draw()

    def _repr_html_(self) -> str:
        from regard.masks.draw import as_html

        return as_html(self)


def _mask(other: object, sign: str) -> Mask:
    if not isinstance(other, Mask):
        advice = ": wrap a tensor as masks.dense(tensor)" if isinstance(other, Tensor) else ""
        raise ArgumentTypeError(f"`{sign}` combines two masks, and got a {type(other).__name__}{advice}")
    return other


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one.cpu(), other.cpu())
    return type(one) is type(other) and bool(one == other)


def _shown(value: object) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    return str(value.tolist()) if value.numel() <= 64 else f"<{list(value.shape)} tensor>"


@dataclass(frozen=True, eq=False, repr=False)
class And(Mask):
    """Pairs that both masks allow."""

    left: Mask
    right: Mask
    name = "and"

    @cached_property
    def run(self) -> Run | None:
        left, right = self.left.run, self.right.run
        return None if left is None or right is None else left & right

    def compile(self, frame: Frame) -> KeySets:
        if (run := self.run) is not None:
            return KeySets(frame.run(run))
        return self.left.compile(frame) & self.right.compile(frame)

    def __repr__(self) -> str:
        return f"({self.left!r} & {self.right!r})"


@dataclass(frozen=True, eq=False, repr=False)
class Or(Mask):
    """Pairs that either mask allows."""

    left: Mask
    right: Mask
    name = "or"

    def compile(self, frame: Frame) -> KeySets:
        return self.left.compile(frame) | self.right.compile(frame)

    def __repr__(self) -> str:
        return f"({self.left!r} | {self.right!r})"


@dataclass(frozen=True, eq=False, repr=False)
class Not(Mask):
    """Pairs that the mask forbids."""

    mask: Mask
    name = "not"

    def compile(self, frame: Frame) -> KeySets:
        return ~self.mask.compile(frame)

    def __repr__(self) -> str:
        return f"~{self.mask!r}"
