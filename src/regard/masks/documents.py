"""Packed documents: a query attends the keys of its own document."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard import intervals
from regard.compiling import without_values
from regard.errors import ArgumentError
from regard.intervals import Intervals
from regard.masks.base import Mask
from regard.masks.checks import Integers, integers
from regard.masks.compiled import Frame, KeySets


@dataclass(frozen=True, eq=False, repr=False)
class Documents(Mask):
    """See `documents`. Exactly one of the three is given."""

    lengths: Tensor | None
    ids: Tensor | None
    cu_seqlens: Tensor | None
    name = "documents"

    def compile(self, frame: Frame) -> KeySets:
        rows = self._given()
        frames = frame.items(len(rows)) if len(rows) > 1 else [frame]
        by_id = self.ids is not None
        pairs = zip(rows.to(frame.device), frames, strict=True)
        parts = [_item(row, by_id, item) for row, item in pairs]
        return KeySets(parts[0] if len(parts) == 1 else intervals.stack(parts, 0))

    def _given(self) -> Tensor:
        """One row a batch item: ids of the positions, or the documents' boundaries."""
        if self.lengths is not None:
            bounds = torch.nn.functional.pad(self.lengths.cumsum(-1), (1, 0))
        else:
            bounds = self.ids if self.ids is not None else self.cu_seqlens  # type: ignore[assignment]
        return bounds if bounds.dim() == 2 else bounds.unsqueeze(0)

    def required_size(self) -> tuple[int, int]:
        given = self._given()
        side = given.shape[1] if self.ids is not None else int(given[:, -1].min())
        return side, side


def _item(given: Tensor, by_id: bool, frame: Frame) -> Intervals:
    """The intervals of one batch item, or of all alike: those of the document each query lies in."""
    if by_id:
        bounds, starts, ends = _runs_of_ids(given)
    else:
        bounds = given
        starts, ends = given[:-1, None], given[1:, None]
    total = int(bounds[-1])
    positions = frame.query_positions
    _inside(positions, total, "query")
    first = torch.as_tensor(frame.first_key, device=frame.device).view(-1)
    _inside(torch.cat([first, first + frame.n_keys - 1]) if frame.n_keys else first[:0], total, "key")
    if total == 0:
        return frame.intervals(0, 0)
    document = torch.searchsorted(bounds, positions, right=True) - 1
    first = first.view(-1, 1, 1, 1)
    return Intervals.from_slots(starts[document] - first, ends[document] - first, frame.n_keys)


def _runs_of_ids(ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Runs of equal ids: bounds `[R + 1]`, and for each run the starts and ends `[R, K]` of its id's runs."""
    changes = torch.nonzero(ids[1:] != ids[:-1]).flatten() + 1
    edge = ids.new_zeros(1)
    starts = torch.cat([edge, changes]) if len(ids) else edge[:0]
    bounds = torch.cat([starts, edge + len(ids)])
    _, document, counts = torch.unique(ids[starts], return_inverse=True, return_counts=True)
    order = torch.argsort(document, stable=True)
    rank = torch.arange(len(order), device=ids.device) - (counts.cumsum(0) - counts)[document[order]]
    slots = int(counts.max()) if len(counts) else 1
    table = ids.new_zeros((2, len(counts), slots))
    table[0, document[order], rank] = starts[order]
    table[1, document[order], rank] = bounds[1:][order]
    return bounds, table[0, document], table[1, document]


def _inside(positions: Tensor, total: int, kind: str) -> None:
    if positions.numel() and not (int(positions.min()) >= 0 and int(positions.max()) < total):
        raise ArgumentError(
            f"`documents` describes positions 0 to {total - 1}, and a {kind} stands at position "
            f"{int(positions.min()) if int(positions.min()) < 0 else int(positions.max())}"
        )


def documents(
    lengths: Integers | None = None, *, ids: Integers | None = None, cu_seqlens: Integers | None = None
) -> Mask:
    """Sequences packed one after another, each attending only itself (both directions; `& causal()` for one).

    Give exactly one of: `lengths`, integers `[D]` or `[B, D]` (zeros allowed); `ids`, a document number for
    every position, `[T]` or `[B, T]` (equal numbers are one document, wherever they stand); `cu_seqlens`,
    ascending boundaries `[D + 1]` or `[B, D + 1]` that begin with 0. A query or key at a position outside is
    an error.
    """
    given = {"lengths": lengths, "ids": ids, "cu_seqlens": cu_seqlens}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise ArgumentError(
            "`documents` takes exactly one of `lengths`, `ids` and `cu_seqlens`, got "
            f"{' and '.join(named) or 'none'}"
        )
    least = None if ids is not None else 0
    checked = {
        name: None if value is None else integers(value, name, ranks=(1, 2), least=least)
        for name, value in given.items()
    }
    bounds = checked["cu_seqlens"]
    if (
        bounds is not None
        and not without_values(bounds)
        and (
            bounds.shape[-1] == 0
            or bool((bounds[..., 0] != 0).any())
            or bool((bounds.diff(dim=-1) < 0).any())
        )
    ):
        raise ArgumentError(f"`cu_seqlens` must begin with 0 and never decrease, got {bounds.tolist()}")
    return Documents(**checked)
