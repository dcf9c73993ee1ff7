"""An answer for the page: a number for each head, for each token, or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from regard.errors import ArgumentError


@dataclass(frozen=True)
class Answered:
    """What was asked of a recording, and what came out; numbers are shares, or other sizes from 0 up.

    `heads` has a list of numbers for each call of the view, one a head; `tokens` has one for each of its
    tokens. Either may be None. `note` says in a sentence or two what the numbers are.
    """

    name: str
    title: str
    note: str
    heads: Sequence[Sequence[float]] | None = None
    tokens: Sequence[float] | None = None

    def entry(self, heads: Sequence[int], n_tokens: int) -> dict[str, Any]:
        """What the header of a view says of it; `heads` are the numbers of heads of the view's calls."""
        if self.heads is not None and [len(of_layer) for of_layer in self.heads] != list(heads):
            raise ArgumentError(
                f"`heads` of the answer {self.name!r} must have a number for each head of {len(heads)} calls"
            )
        if self.tokens is not None and len(self.tokens) != n_tokens:
            raise ArgumentError(
                f"`tokens` of the answer {self.name!r} must have {n_tokens} numbers, got {len(self.tokens)}"
            )
        return {
            "name": self.name,
            "title": self.title,
            "note": self.note,
            "heads": None if self.heads is None else [_rounded(of_layer) for of_layer in self.heads],
            "tokens": None if self.tokens is None else _rounded(self.tokens),
        }


def _rounded(numbers: Sequence[float]) -> list[float | None]:
    return [float(f"{number:.4g}") if isfinite(number) else None for number in numbers]
