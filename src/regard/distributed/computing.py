"""Forward and backward over keys that arrive from other ranks, on any engine that gives gradients."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from regard import online_softmax
from regard.distributed.blocks import bias_part, block, excluded
from regard.distributed.placement import Run
from regard.distributed.plan import Part
from regard.distributed.shards import Share
from regard.distributed.transfers import Transfer, each_segment
from regard.engines import Gradients, Wanted
from regard.online_softmax import Normalizer, State
from regard.problem import Problem


def forward(share: Share) -> tuple[Tensor, Tensor, Normalizer]:
    """The local queries' output `[B, Hq, n, Ev]`, logsumexp and normalizer, over all ranks' keys."""
    problem = share.problem
    assert problem.value is not None
    transfer = share.transfer([problem.key, problem.value])
    if transfer.at_once:
        parts = [
            share.engine.forward(block(problem, run, part.columns, key, value))
            for arrival in transfer.arrivals()
            for part, (key, value) in arrival.segments
            for run in share.runs
        ]
        output, normalizer = _joined([(output, normalizer) for output, _, normalizer in parts])
    else:
        output, normalizer = _merged(share, transfer)
    return output, normalizer.logsumexp, normalizer


def backward(
    share: Share,
    output: Tensor,
    normalizer: Normalizer,
    grad_output: Tensor,
    grad_logsumexp: Tensor | None,
    wanted: Wanted,
    grad_entropy: Tensor | None = None,
) -> Gradients:
    """Gradients in the computing dtype: of the local query, key and value complete, of bias and sinks this
    rank's share.

    Arguments are as in `engines.HasBackward`; a `grad_output` wider than the inputs is not rounded to them.
    """
    problem, dtype = share.problem, share.problem.compute_dtype
    assert problem.value is not None
    bias = problem.bias
    found = Gradients(
        query=_zeros(problem.query, wanted.query, dtype),
        key=None,
        value=None,
        bias=None if bias is None else _zeros(bias.parameter, wanted.bias, dtype),
        sink_logits=_zeros(problem.sink_logits, wanted.sink_logits, dtype),
    )
    transfer = share.transfer([problem.key, problem.value])
    returning = wanted.key or wanted.value

    def add_segment(part: Part, tensors: list[Tensor], first: bool) -> list[Tensor]:
        key, value = tensors
        sums = [torch.zeros(t.shape, dtype=dtype, device=t.device) for t in tensors]
        for run in share.runs:
            one = block(problem, run, part.columns, key, value)
            # A sink's gradient depends on no key: it is taken once, with the first keys there are.
            here = wanted._replace(sink_logits=wanted.sink_logits and first)
            if not first and excluded(one):
                continue
            rows = run.in_shard
            gradients = share.engine.backward(
                _widened(one, grad_output.dtype),
                output[:, :, rows],
                normalizer.select(slice(None), slice(None), rows),
                grad_output[:, :, rows],
                None if grad_logsumexp is None else grad_logsumexp[:, :, rows],
                here,
                None if grad_entropy is None else grad_entropy[:, :, rows],
            )
            _add(found, problem, gradients, run, part.columns)
            for total, gradient in zip(sums, (gradients.key, gradients.value), strict=True):
                if gradient is not None:
                    total += gradient
        return sums

    local = each_segment(transfer, add_segment, returning)
    return replace(
        found,
        key=local[0] if wanted.key else None,
        value=local[1] if wanted.value else None,
    )


def _merged(share: Share, transfer: Transfer) -> tuple[Tensor, Normalizer]:
    """Parts over disjoint keys, merged as they come, in the computing dtype."""
    problem, dtype = share.problem, share.problem.compute_dtype
    assert problem.value is not None
    runs = share.runs
    shape = problem.batch_size, problem.num_heads
    width = problem.value.shape[-1]
    states = [online_softmax.init((*shape, run.length), width, dtype, problem.device) for run in runs]

    def absorb_segment(part: Part, tensors: list[Tensor], first: bool) -> list[Tensor]:
        for run, state in zip(runs, states, strict=True):
            one = block(problem, run, part.columns, *tensors)
            if not excluded(one):
                absorb(state, *_part(share, one))
        return []

    each_segment(transfer, absorb_segment)
    finished = [online_softmax.finish(state, problem.sink_logits) for state in states]
    return _joined([(output.to(problem.dtype), normalizer) for output, normalizer in finished])


def _part(share: Share, problem: Problem) -> tuple[Tensor, Normalizer]:
    """A block's output, not yet rounded to the input's dtype, and its normalizer without the sink."""
    widened = _widened(problem, problem.compute_dtype)
    output, _, normalizer = share.engine.forward(replace(widened, sink_logits=None))
    return output, normalizer


def _widened(problem: Problem, dtype: torch.dtype) -> Problem:
    """The problem with its tensors in another dtype."""
    assert problem.value is not None
    return replace(
        problem, query=problem.query.to(dtype), key=problem.key.to(dtype), value=problem.value.to(dtype)
    )


def absorb(state: State, output: Tensor, part: Normalizer) -> None:
    """Take in the normalised output of more keys. An empty part (maximum −∞) has a share of exactly 0."""
    maximum = torch.maximum(state.maximum, part.maximum)
    shift = online_softmax.finite(maximum)
    decay = (state.maximum - shift).exp_()
    share = (part.maximum - shift).exp_() * part.denominator
    state.denominator.mul_(decay).add_(share)
    state.output.mul_(decay.unsqueeze(-1)).add_(share.unsqueeze(-1) * output)
    state.maximum = maximum


def _joined(parts: list[tuple[Tensor, Normalizer]]) -> tuple[Tensor, Normalizer]:
    """Runs of queries one after the other, as they stand in the shard."""
    if len(parts) == 1:
        return parts[0]
    normalizers = [normalizer for _, normalizer in parts]
    return torch.cat([output for output, _ in parts], 2), Normalizer(
        torch.cat([n.maximum for n in normalizers], 2),
        torch.cat([n.shift for n in normalizers], 2),
        torch.cat([n.denominator for n in normalizers], 2),
    )


def _add(found: Gradients, problem: Problem, some: Gradients, run: Run, columns: slice) -> None:
    """Add what one block gives to the gradients of what stays on this rank."""
    if found.query is not None and some.query is not None:
        found.query[:, :, run.in_shard] += some.query
    if found.bias is not None and some.bias is not None and problem.bias is not None:
        bias_part(problem.bias, found.bias, run, columns).add_(some.bias)
    if found.sink_logits is not None and some.sink_logits is not None:
        found.sink_logits.add_(some.sink_logits)


def _zeros(like: Tensor | None, wanted: bool, dtype: torch.dtype) -> Tensor | None:
    return None if like is None or not wanted else torch.zeros(like.shape, dtype=dtype, device=like.device)
