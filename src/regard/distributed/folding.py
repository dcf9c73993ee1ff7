"""Questions to the weights and rows of them, over keys that arrive from other ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from regard.distributed.blocks import block, excluded
from regard.distributed.placement import Run
from regard.distributed.plan import Part
from regard.distributed.questions import Block, Question
from regard.distributed.shards import Share
from regard.distributed.transfers import each_segment
from regard.indexing import Selection, among
from regard.online_softmax import Normalizer
from regard.slicing import form

# Rows are formed in pieces of about this many entries.
_PIECE_ENTRIES = 1 << 20


def fold(share: Share, normalizer: Normalizer, asked: Sequence[Question]) -> list[Any]:
    """Each question's answer for this rank, from one pass over the keys of all ranks.

    Every rank must ask the same. Blocks that the mask excludes are not folded.
    """
    problem = share.problem
    transfer = share.transfer([problem.key, *(t for one in asked for t in one.beside)])
    runs = [(run, _of(normalizer, run)) for run in share.runs]

    def fold_segment(part: Part, tensors: list[Tensor], first: bool) -> list[Tensor]:
        key, *beside = tensors
        due = [[_nothing(share, part.length, width) for width in one.widths] for one in asked]
        for run, some in runs:
            shown = Block(run, part.columns, block(problem, run, part.columns, key, None), some)
            # What is folded first makes room for the answers: it may add nothing to them.
            if not first and excluded(shown.problem):
                continue
            came = iter(beside)
            statistics = [one.of(run, part.columns, list(islice(came, len(one.beside)))) for one in asked]
            share.engine.fold(shown.problem, some, statistics)
            for one, statistic, theirs in zip(asked, statistics, due, strict=True):
                one.take(shown, statistic, theirs)
        return [tensor for theirs in due for tensor in theirs]

    returning = any(one.widths for one in asked)
    due = iter(each_segment(transfer, fold_segment, returning))
    return [one.answer(share.plan, list(islice(due, len(one.widths)))) for one in asked]


def rows(share: Share, normalizer: Normalizer | None, selection: Selection) -> Tensor:
    """What a selection of this rank's rows takes of the weights, or of the logits without a normalizer.

    Every rank must take part; each may select what it likes.
    """
    wanted = torch.arange(selection.first, selection.last)[selection.columns].reshape(-1)
    numbers = selection.rows.flatten()
    result = torch.full(
        (len(numbers), len(wanted)),
        -torch.inf if normalizer is None else 0,
        dtype=share.problem.compute_dtype,
        device=share.problem.device,
    )

    def fill(part: Part, tensors: list[Tensor], first: bool) -> list[Tensor]:
        (key,) = tensors
        inside = ((wanted >= part.columns.start) & (wanted < part.columns.stop)).nonzero().flatten()
        columns = wanted[inside] - part.columns.start
        for run in share.runs if len(columns) else ():
            one = block(share.problem, run, part.columns, key, None)
            if excluded(one):
                continue
            some = None if normalizer is None else _of(normalizer, run)
            for places, local in _in_run(numbers, run, share.problem.n_queries, len(columns)):
                formed = form(share.engine, one, some, among(local, columns))
                _place(result, places, inside, formed)
        return []

    each_segment(share.transfer([share.problem.key]), fill)
    return result.view(selection.shape)


def _in_run(numbers: Tensor, run: Run, n_queries: int, width: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Which of the flat row numbers lie in a run, and their numbers among its rows, a piece at a time."""
    heads, row = numbers // max(1, n_queries), numbers % max(1, n_queries) - run.local
    places = ((row >= 0) & (row < run.length)).nonzero().flatten()
    for some in places.split(max(1, _PIECE_ENTRIES // width)):
        yield some, heads[some] * run.length + row[some]


def _place(result: Tensor, rows: Tensor, columns: Tensor, entries: Tensor) -> None:
    """Write entries `[R, C]` where they belong; in the usual case, columns that are neighbours, by rows."""
    first, last = int(columns[0]), int(columns[-1]) + 1
    if last - first == len(columns) and bool((columns.diff() == 1).all()):
        result[:, first:last][rows] = entries
    else:
        result[rows.unsqueeze(-1), columns] = entries


def _of(normalizer: Normalizer, run: Run) -> Normalizer:
    return normalizer.select(slice(None), slice(None), run.in_shard)


def _nothing(share: Share, length: int, width: int) -> Tensor:
    """What keys are due before anything is folded."""
    problem = share.problem
    shape = problem.batch_size, problem.num_heads, length, width
    return torch.zeros(shape, dtype=problem.compute_dtype, device=problem.device)
