"""Which heads and rows of its calls a watch keeps: all, or those that were chosen."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from regard.errors import ArgumentError, ArgumentTypeError, NothingSeenError
from regard.models.observation import Observation
from regard.models.part import part_of
from regard.models.selection import require_names

Indices = int | Iterable[int]
Heads = Indices | Mapping[str, Indices] | None
Rows = int | slice | None


@dataclass(frozen=True, eq=False)
class Part:
    """What is kept of one call; `heads` and `skipped_rows` say which part it is, as `Call` has them."""

    seen: Observation
    heads: tuple[int, ...] | None
    skipped_rows: tuple[int, int]

    @property
    def n_queries(self) -> int:
        """How many queries the whole call has."""
        return self.seen.query.shape[-2] + sum(self.skipped_rows)


class Chosen:
    """Heads by index, for all modules or for those that a pattern names; rows by a slice of the queries."""

    def __init__(self, heads: Heads, rows: Rows, model: nn.Module) -> None:
        self._rows = _checked_rows(rows)
        by_pattern = heads if isinstance(heads, Mapping) else {} if heads is None else {"*": heads}
        self._heads = {pattern: _checked_heads(chosen) for pattern, chosen in by_pattern.items()}
        self._all_heads = heads is None
        require_names("heads", self._heads, model)
        self._unseen = set(self._heads)
        self._empty = self._kept = 0

    def __contains__(self, module: str) -> bool:
        """Whether any head of a module's calls is chosen."""
        matched = {pattern for pattern in self._heads if fnmatchcase(module, pattern)}
        self._unseen -= matched
        return self._all_heads or bool(matched)

    def part(self, module: str, seen: Observation) -> Part | None:
        """The chosen part of a call, or None if none of its rows is chosen."""
        n_heads, n_queries = seen.query.shape[1:3]
        rows = range(n_queries)[self._rows]
        if self._rows != slice(None):
            if not rows:
                self._empty += 1
                return None
            self._kept += 1
        heads = None if self._all_heads else self._of(module, n_heads)
        if heads is not None or len(rows) < n_queries:
            seen = part_of(seen, heads, rows)
        return Part(seen, heads, (rows.start, n_queries - rows.stop))

    def _of(self, module: str, n_heads: int) -> tuple[int, ...]:
        chosen = next(heads for pattern, heads in self._heads.items() if fnmatchcase(module, pattern))
        for head in chosen:
            if not -n_heads <= head < n_heads:
                raise ArgumentError(f"`heads` must lie within its {n_heads} heads, got {head}")
        return tuple(head % n_heads for head in chosen)

    def require_seen(self, n_layers: int) -> None:
        """Raise if a pattern named no module that made a call, or if no call had any of the rows."""
        if self._unseen:
            missing = ", ".join(repr(pattern) for pattern in sorted(self._unseen))
            raise NothingSeenError(
                f"`heads` names {missing}, which is none of the {n_layers} attention layers that were seen"
            )
        if self._empty and not self._kept:
            raise NothingSeenError(
                f"`rows` must take some query of some call, got {self._rows}, which takes none of the "
                f"{self._empty} calls that were seen"
            )


def _checked_heads(chosen: Any) -> tuple[int, ...]:
    wanted = "`heads` must be indices of heads, or a dict of module name pattern to indices"
    if isinstance(chosen, str | Mapping):
        raise ArgumentTypeError(f"{wanted}, got {chosen!r}")
    items = list(chosen) if isinstance(chosen, Iterable) else [chosen]
    if not items:
        raise ArgumentError(f"`heads` must hold at least one index, got {chosen!r}")
    for item in items:
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise ArgumentTypeError(f"{wanted}, got {item!r}, a {type(item).__name__}")
    return tuple(operator.index(item) for item in items)


def _checked_rows(rows: Any) -> slice:
    if rows is None:
        return slice(None)
    if isinstance(rows, int) and not isinstance(rows, bool):
        return slice(rows, rows + 1 or None)
    if not isinstance(rows, slice):
        raise ArgumentTypeError(f"`rows` must be a slice of the queries or one index, got {rows!r}")
    bounds = (rows.start, rows.stop)
    if rows.step not in (None, 1) or not all(one is None or hasattr(one, "__index__") for one in bounds):
        raise ArgumentError(f"`rows` must be a slice of integers with a step of 1, got {rows!r}")
    return rows
