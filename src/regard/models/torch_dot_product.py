"""What a call of torch's `F.scaled_dot_product_attention` computed, in regard's terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard import masks
from regard.autocast import lowered
from regard.errors import ArgumentError
from regard.models.mask_tensors import MaskReader, ReadMask
from regard.models.observation import Observation, masked
from regard.problem import check_tensors, prepare
from regard.torch_drop_in import four_dimensional_mask, heads_as_batch

_INPUTS = ("query", "key", "value")


def observe_dot_product(arguments: Mapping[str, Any], reader: MaskReader) -> Observation:
    """Read a call by torch's rules, from its arguments by name; `[..., Hq, N, E]` becomes `[B, Hq, N, E]`."""
    query, key, value = (lowered(arguments[name], arguments["query"]) for name in _INPUTS)
    check_tensors({"query": query, "key": key, "value": value})
    query, key, value = heads_as_batch(query, key, value, arguments["enable_gqa"])
    problem, _ = prepare(query, key, value, scale=arguments["scale"])
    seen = Observation(problem.query, problem.key, problem.value, scale=problem.scale)
    mask = arguments["attn_mask"]
    if arguments["is_causal"]:
        if mask is not None:
            raise ArgumentError("`attn_mask` must be None when `is_causal` is set, got both")
        return replace(seen, mask=masks.causal(), query_start=0)
    if mask is None:
        return seen
    mask = lowered(mask, arguments["query"])
    if not (mask.dim() == 2 or mask.dim() == query.dim() == 4):
        mask = four_dimensional_mask(mask, query, key, value)
    read = reader.read(mask, problem.n_queries, problem.n_keys, literally=True)
    held = _held(read, problem.n_queries, problem.n_keys)
    return masked(seen, read if held is None else read.first_keys(held))


def as_answered(output: Tensor, arguments: Mapping[str, Any]) -> Tensor:
    """An output `[B, Hq, N, Ev]` as the caller counts dimensions: `[..., Hq, N, Ev]`."""
    if all(arguments[name].dim() == 2 for name in _INPUTS):
        return output[0, 0]
    lead = torch.broadcast_shapes(*(arguments[name].shape[:-3] for name in _INPUTS))
    return output.reshape(*lead, *output.shape[1:])


def _held(read: ReadMask, n_queries: int, n_keys: int) -> int | None:
    """How many keys a preallocated cache holds, if the mask is that of a decoder's next tokens over one.

    Its queries then are the last of the keys that are held: each sees itself and nothing after.
    """
    last = read.last_key
    if read.sets is None or read.sets.dense is not None or not n_queries <= last < n_keys:
        return None
    intervals = read.sets.intervals
    ends = intervals.ends.where(intervals.ends > intervals.starts, 0).amax(-1)
    themselves = torch.arange(last - n_queries + 1, last + 1, device=ends.device)
    return last if bool((ends == themselves).all()) else None


def heads_inside(output: Tensor, seen: Observation) -> Tensor:
    """The output of a call, `[..., Hq, N, Ev]`, as it is compared with an observation: `[B, N, Hq, Ev]`."""
    batch, heads, n_queries = seen.query.shape[:3]
    return output.reshape(batch, heads, n_queries, -1).transpose(1, 2)
