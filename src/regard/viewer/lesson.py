"""What the lesson of a page needs: exact scores of some queries with every key, and the lengths of values."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from regard.recording.parts import Parts
from regard.steps import row_scores
from regard.viewer.codes import float_bits, linear, pack
from regard.viewer.seen import Seen, edges


def lesson_entry(call: Seen) -> dict[str, Any]:
    """What the header of a view says of a call, so that its blob can be read and its steps computed."""
    problem = Parts.of(call.weights).problem
    return {
        "scale": problem.scale,
        "dim": problem.query.shape[-1],
        "softcap": problem.softcap,
        "sinks": problem.sink_logits is not None,
        "bias": problem.bias is not None,
        "value_heads": call.value_heads,
    }


def lesson_blob(call: Seen, n_queries: int) -> bytes:
    """The scores of the last query of each of `n_queries` bins, of all heads, as a blob."""
    queries = (edges(call.n_queries, n_queries)[1:] - 1).tolist()
    rows = row_scores(call.weights, queries)
    arrays = [*linear(rows.scores), (rows.allowed.to(torch.int32), 1)]
    if rows.bias is not None:
        arrays += linear(rows.bias)
    if call.values is not None:
        arrays += linear(_lengths(call.values[0]))
    sinks = Parts.of(call.weights).problem.sink_logits
    if sinks is not None:
        arrays.append((float_bits(sinks), 4))
    return pack(*arrays)


def lesson_data(call: Seen, head: int, query: int) -> dict[str, Any]:
    """The same for one query of one head, with nothing rounded, as the front end's `lesson` takes it.

    Ready for JSON, but for the tokens; what is not finite is null.
    """
    rows, entry = row_scores(call.weights, [query]), lesson_entry(call)
    sinks = Parts.of(call.weights).problem.sink_logits
    norms = None
    if call.values is not None:
        norms = _finite(_lengths(call.values[0, head * call.value_heads // call.heads]))
    return {
        "scores": _finite(rows.scores[head, 0]),
        "allowed": rows.allowed[head, 0].tolist(),
        "bias": None if rows.bias is None else _finite(rows.bias[head, 0]),
        "norms": norms,
        "sink": None if sinks is None else _finite(sinks[head : head + 1])[0],
        **{name: entry[name] for name in ("scale", "dim", "softcap")},
    }


def _lengths(values: Tensor) -> Tensor:
    lengths: Tensor = values.double().norm(dim=-1)
    return lengths


def _finite(numbers: Tensor) -> list[float | None]:
    return [number if math.isfinite(number) else None for number in numbers.tolist()]
