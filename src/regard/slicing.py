"""Exact slices of the weights or of the logits: rows formed on demand, a block of them at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.autocast import without_autocast
from regard.engines import Engine, has_rows
from regard.errors import TooLargeError
from regard.indexing import Selection
from regard.online_softmax import Normalizer
from regard.problem import Problem
from regard.scores import load_query, score

# Rows are formed in blocks of about this many logits.
_BLOCK_LOGITS = 1 << 20


def checked(selection: Selection, dtype: torch.dtype, max_bytes: int) -> Selection:
    """The selection, or `TooLargeError` if what it takes would be over `max_bytes` in this dtype."""
    n_bytes = math.prod(selection.shape) * dtype.itemsize
    if n_bytes > max_bytes:
        raise TooLargeError(
            f"this slice of the weights, {selection.shape}, would take {n_bytes:,} bytes, more than "
            f"`max_bytes` = {max_bytes:,}: ask for fewer rows, or for a statistic"
        )
    return selection


def form(engine: Engine, problem: Problem, normalizer: Normalizer | None, selection: Selection) -> Tensor:
    """What a selection takes of the weights, or of the logits where there is no normalizer."""
    width = selection.last - selection.first
    numbers = selection.rows.flatten().to(problem.device)
    shape = len(numbers), *selection.shape[selection.rows.dim() :]
    result = torch.empty(shape, dtype=problem.compute_dtype, device=problem.device)
    heads, order = (numbers // max(1, problem.n_queries)).sort(stable=True)
    present, counts = heads.unique_consecutive(return_counts=True)
    whole = isinstance(selection.columns, slice) and selection.columns == slice(None)
    columns = slice(selection.first, selection.last)
    for one, where in zip(present.tolist(), order.split(counts.tolist()), strict=True):
        head = divmod(one, problem.num_heads)
        for some in where.split(max(1, _BLOCK_LOGITS // max(1, width))):
            rows = numbers[some] % problem.n_queries
            start, stop = int(some[0]), int(some[-1]) + 1
            # The sort is stable: rows that come one after the other fill a piece of the result.
            piece = result[start:stop] if stop - start == len(some) and whole else None
            block = _rows(engine, problem, normalizer, head, rows, columns, piece)
            if block is not piece:
                result[some] = block[:, selection.columns]
    return result.view(selection.shape)


def _rows(
    engine: Engine,
    problem: Problem,
    normalizer: Normalizer | None,
    item_and_head: tuple[int, int],
    rows: Tensor,
    columns: slice,
    out: Tensor | None,
) -> Tensor:
    """Some rows of one head, `[R, C]`: in `out`, where it is given and the engine can."""
    item, head = item_and_head
    if has_rows(engine):
        if out is None:
            out = rows.new_empty((len(rows), columns.stop - columns.start), dtype=problem.compute_dtype)
        engine.rows(problem, normalizer, item, head, rows, columns, out)
        return out
    batch, heads, key_heads = (slice(i, i + 1) for i in (item, head, head // problem.group_size))
    logits = _logits(problem.select(batch, key_heads, heads), rows, columns)
    if normalizer is not None:
        logits = normalizer.select(batch, heads, rows).weights(logits)
    return logits[0, 0, :, : columns.stop - columns.start]


@without_autocast
def _logits(problem: Problem, rows: Tensor, columns: slice) -> Tensor:
    query = load_query(problem, rows)
    return score(problem, query, rows, columns.start, columns.stop, whole=False).logits
