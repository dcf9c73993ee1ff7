"""A block of the attention matrix as a problem of its own: a run of queries against a run of keys."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard import biases
from regard.distributed.placement import Run
from regard.intervals import Intervals
from regard.masks.compiled import Frame, KeySets
from regard.problem import Problem


@dataclass(frozen=True, eq=False)
class ShardFrame(Frame):
    """A frame whose row i is query `rows[i]` of the whole sequence, int64 `[N]`."""

    rows: Tensor

    @property
    def query_positions(self) -> Tensor:
        """The position of every query: int64 `[B or 1, 1, N]`."""
        return self.rows.view(1, 1, -1) + self.first_query


def block(shard: Problem, run: Run, columns: slice, key: Tensor, value: Tensor | None) -> Problem:
    """The queries of `run`, and `columns` of the whole sequence's keys, held by `key` and `value`.

    `shard` has this rank's queries and a mask over all keys (see `regard.distributed.shards`).
    """
    frame = shard.frame
    return replace(
        shard,
        query=shard.query[:, :, run.in_shard],
        key=key,
        value=value,
        sets=over_columns(shard.sets.select(rows=run.in_shard), columns),
        frame=Frame(
            run.length,
            columns.stop - columns.start,
            frame.query_start + run.start,
            frame.key_start + columns.start,
            frame.device,
        ),
        bias=None
        if shard.bias is None
        else replace(shard.bias, parameter=bias_part(shard.bias, shard.bias.parameter, run, columns)),
    )


def bias_part(bias: biases.Bias, tensor: Tensor, run: Run, columns: slice) -> Tensor:
    """What belongs to a block of a tensor shaped like the bias's parameter (a view)."""
    return tensor[:, :, run.in_shard, columns] if isinstance(bias, biases.Dense) else tensor


def over_columns(sets: KeySets, columns: slice) -> KeySets:
    """The same rows' keys among some columns, counted from the first of them."""
    intervals = sets.intervals
    if columns == slice(0, intervals.n_keys):
        return sets
    starts, ends = (bounds - columns.start for bounds in (intervals.starts, intervals.ends))
    cut = Intervals.from_slots(starts, ends, columns.stop - columns.start)
    return KeySets(cut, None if sets.dense is None else sets.dense[..., columns])


def excluded(problem: Problem) -> bool:
    """Whether the mask leaves nothing of a block."""
    rows = slice(0, problem.n_queries)
    return next(problem.sets.tiles(rows, max(1, problem.n_keys)), None) is None


def reached(sets: KeySets, columns: slice) -> slice:
    """From the first to one past the last of these columns that any row may attend; empty if none."""
    if columns.stop <= columns.start or 0 in sets.intervals.starts.shape:
        return slice(columns.start, columns.start)
    if sets.dense is not None:
        rows = slice(0, sets.intervals.n_queries)
        found = sets.allowed(rows, columns).flatten(0, 2).any(0).nonzero().flatten()
        bounds = (int(found[0]), int(found[-1]) + 1) if len(found) else (0, 0)
        return slice(columns.start + bounds[0], columns.start + bounds[1])
    starts = sets.intervals.starts.clamp(columns.start, columns.stop)
    ends = sets.intervals.ends.clamp(columns.start, columns.stop)
    used = ends > starts
    first = int(starts.where(used, columns.stop).min())
    last = int(torch.where(used, ends, columns.start).max())
    return slice(first, last) if last > first else slice(columns.start, columns.start)
