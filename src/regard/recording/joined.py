"""Calls that continue one another, put together into one matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard import biases
from regard.errors import ArgumentError
from regard.intervals import Intervals
from regard.masks.compiled import KeySets
from regard.online_softmax import Normalizer
from regard.problem import Problem
from regard.recording.calls import Call
from regard.recording.keys import KeySpan
from regard.recording.parts import Parts
from regard.weights import AttentionWeights


def join(calls: Sequence[Call]) -> AttentionWeights:
    """One matrix whose rows are the rows of all calls in order, over the keys of the whole sequence."""
    weights = [call.weights for call in calls if call.weights is not None]
    if len(weights) < len(calls):
        raise ArgumentError(
            f"`{calls[0].module}` cannot be joined: {len(calls) - len(weights)} calls kept no weights"
        )
    if len(calls) == 1:
        return weights[0]
    spans = [call.keys for call in calls if call.keys is not None]
    parts = [Parts.of(one) for one in weights]
    problems = [part.problem for part in parts]
    if len(spans) < len(calls) or not _continuous(calls, spans, problems):
        raise ArgumentError(
            f"`{calls[0].module}` has {len(calls)} calls that do not continue one another: name the `steps` "
            "of one generation"
        )
    first, n_keys = problems[0], max(span.stop for span in spans)
    for name in ("scale", "softcap"):
        if len({getattr(problem, name) for problem in problems}) > 1:
            raise ArgumentError(f"`{calls[0].module}` cannot be joined: its `{name}` changes between calls")
    n_queries = sum(problem.n_queries for problem in problems)
    offsets = [span.start for span in spans]
    problem = replace(
        first,
        query=torch.cat([problem.query for problem in problems], 2),
        key=spans[0].keys.columns(0, n_keys),
        sets=_joined_sets(problems, offsets, n_keys),
        bias=_joined_bias(problems, offsets, n_keys),
        frame=replace(first.frame, n_queries=n_queries, n_keys=n_keys, key_start=0),
    )
    normalizer = Normalizer(
        *(
            torch.cat([getattr(part.normalizer, name) for part in parts], 2)
            for name in ("maximum", "shift", "denominator")
        )
    )
    return Parts(problem, normalizer, parts[0].layout).assemble()


def _continuous(calls: Sequence[Call], spans: Sequence[KeySpan], problems: Sequence[Problem]) -> bool:
    """Whether every call's queries are the next ones of one sequence, or all attend the very same keys."""
    if any(span.keys is not spans[0].keys for span in spans):
        return False
    if any(call.skipped_rows[0] for call in calls[1:]) or any(call.skipped_rows[1] for call in calls[:-1]):
        return False
    pairs = list(pairwise(spans))
    counts = [
        problem.n_queries + sum(call.skipped_rows) for call, problem in zip(calls, problems, strict=True)
    ]
    grows = all(
        after.stop - count == before.stop for (before, after), count in zip(pairs, counts[1:], strict=True)
    )
    return grows or all((after.start, after.stop) == (before.start, before.stop) for before, after in pairs)


def _joined_sets(problems: Sequence[Problem], offsets: Sequence[int], n_keys: int) -> KeySets:
    """Each call's key sets, moved to where its keys stand in the sequence, under one another."""
    slots = max(problem.sets.intervals.starts.shape[-1] for problem in problems)
    starts: list[Tensor] = []
    ends: list[Tensor] = []
    for problem, offset in zip(problems, offsets, strict=True):
        intervals = problem.sets.intervals
        empty = intervals.ends <= intervals.starts
        for bounds, moved in ((intervals.starts, starts), (intervals.ends, ends)):
            bounds = (bounds + offset).masked_fill(empty, n_keys)
            moved.append(pad(bounds, (0, slots - bounds.shape[-1]), value=n_keys))
    intervals = Intervals(_under_one_another(starts), _under_one_another(ends), n_keys)
    if all(problem.sets.dense is None for problem in problems):
        return KeySets(intervals)
    dense = []
    for problem, offset in zip(problems, offsets, strict=True):
        bits = problem.sets.dense
        if bits is None:
            bits = torch.ones(
                (1, 1, problem.n_queries, problem.n_keys), dtype=torch.bool, device=problem.device
            )
        dense.append(pad(bits, (offset, n_keys - offset - problem.n_keys)))
    return KeySets(intervals, _under_one_another(dense))


def _joined_bias(problems: Sequence[Problem], offsets: Sequence[int], n_keys: int) -> biases.Bias | None:
    first = problems[0].bias
    if all(problem.bias is None for problem in problems):
        return None
    if not isinstance(first, biases.Dense) and all(_same_bias(problem.bias, first) for problem in problems):
        return first  # it speaks of positions, which are the sequence's own
    parts = []
    for problem, offset in zip(problems, offsets, strict=True):
        if problem.bias is not None and not isinstance(problem.bias, biases.Dense):
            raise ArgumentError("calls with a bias can be joined only if it is dense, or the same in all")
        values = problem.query.new_zeros((1, 1, problem.n_queries, problem.n_keys))
        values = values if problem.bias is None else problem.bias.parameter
        values = values.expand(-1, -1, problem.n_queries, problem.n_keys)
        parts.append(pad(values, (offset, n_keys - offset - problem.n_keys)))
    return biases.dense(_under_one_another(parts))


def _same_bias(one: biases.Bias | None, other: biases.Bias | None) -> bool:
    if one is None or other is None:
        return one is other
    return type(one) is type(other) and torch.equal(one.parameter, other.parameter)


def _under_one_another(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate `[B or 1, Hq or 1, N, ...]` along the rows."""
    lead = torch.broadcast_shapes(*(part.shape[:2] for part in parts))
    return torch.cat([part.expand(*lead, *part.shape[2:]) for part in parts], 2)
