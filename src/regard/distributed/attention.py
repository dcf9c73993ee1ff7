"""Exact attention over a sequence that several processes hold together, and how it takes part in autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.biases import Bias
from regard.compiling import outside_graphs
from regard.distributed import computing
from regard.distributed.agreement import agreed
from regard.distributed.failures import attempt
from regard.distributed.groups import ProcessGroups, resolve
from regard.distributed.shards import Asked, Share, take_share
from regard.distributed.weights import ShardedWeights
from regard.engines import Wanted
from regard.gradients import detached, inputs_of, with_inputs
from regard.masks import Mask
from regard.online_softmax import Normalizer


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | Tensor | None = None,
    *,
    group: ProcessGroups = None,
    return_weights: Literal[False] = False,
    bias: Bias | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    query_start: int | Sequence[int] | Tensor | None = None,
    key_start: int | Sequence[int] | Tensor = 0,
    method: str = "auto",
    sharding: str = "contiguous",
    engine: str = "auto",
) -> Tensor: ...


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | Tensor | None = None,
    *,
    group: ProcessGroups = None,
    return_weights: Literal[True],
    bias: Bias | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    query_start: int | Sequence[int] | Tensor | None = None,
    key_start: int | Sequence[int] | Tensor = 0,
    method: str = "auto",
    sharding: str = "contiguous",
    engine: str = "auto",
) -> tuple[Tensor, ShardedWeights]: ...


@outside_graphs
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | Tensor | None = None,
    *,
    group: ProcessGroups = None,
    return_weights: bool = False,
    bias: Bias | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    query_start: int | Sequence[int] | Tensor | None = None,
    key_start: int | Sequence[int] | Tensor = 0,
    method: str = "auto",
    sharding: str = "contiguous",
    engine: str = "auto",
) -> Tensor | tuple[Tensor, ShardedWeights]:
    """`regard.attention` on shards along the sequence: every rank of the group calls it, each with its own.

    Shards may have any lengths, 0 too, and follow one another in rank order (`sharding="contiguous"`), or lie
    as `regard.distributed.shard(..., sharding="balanced")` cuts them. Masks and biases speak of positions in
    the whole sequence; a dense one has the rows of the local queries and the columns of all keys. Keys that
    no local query may attend are neither sent here nor computed with.

    Args:
        query: this rank's queries, `[..., Hq, n, E]`, of N on all ranks. dtypes and strides as in
            `regard.attention`.
        key: this rank's keys, `[..., Hkv, m, E]`, of M on all ranks.
        value: this rank's values, `[..., Hkv, m, Ev]`.
        mask: who may attend whom; the same on all ranks.
        group: a process group, a `DeviceMesh` of one dimension, or None for all processes.
        return_weights: also return the weights (`ShardedWeights`).
        query_start: position of the sequence's first query; by default the N queries are the last positions.
        key_start: position of the sequence's first key.
        method: "gather" brings all keys to each rank and gives the output in the bits of one process; "ring"
            works on one shard while the next is on its way, in memory that does not grow with the number of
            ranks; "auto" gathers up to 256 MiB of keys and values.
        sharding: "contiguous" or "balanced".
        engine: "auto" or "tiled".
        bias, scale, softcap, sink_logits, dropout_p, seed: as in `regard.attention`. `seed=None` draws from
            the generator of rank 0.

    Returns:
        The local queries' output `[..., Hq, n, Ev]`, or (output, weights). Gradients of query, key and value
        are those of the sum of all ranks' losses, if every rank calls backward; a bias's parameter and the
        sink logits, which all ranks hold, get this rank's share, to be summed as for every such parameter.

    Raises:
        ArgumentError, ArgumentTypeError: on every rank, naming the argument and the rank at fault.
        GroupError: a rank died, was silent for the group's timeout, or called something else.

    Example:
        >>> import torch.distributed as dist
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> part = [regard.distributed.shard(tensor, dim=-2) for tensor in (q, k, v)]
        >>> out, w = regard.distributed.attention(*part, masks.causal(), return_weights=True)
        >>> out.shape, w.entropy().shape, w.received().shape
        (torch.Size([1, 8, 4096, 64]), torch.Size([1, 8, 4096]), torch.Size([1, 8, 4096]))
        >>> dist.destroy_process_group()

    Sources: Liu et al. 2023, "Ring attention with blockwise transformers"; merging as in Dao et al. 2022.
    """
    asked = Asked(
        mask,
        bias,
        scale,
        softcap,
        sink_logits,
        dropout_p,
        seed,
        query_start,
        key_start,
        method,
        sharding,
        engine,
    )
    share = take_share(resolve(group), query, key, value, asked, return_weights)
    output, logsumexp, normalizer = _attend(share)
    output = share.layout.restore(output)
    if not return_weights:
        return output
    return output, ShardedWeights(share, normalizer, logsumexp)


def _attend(share: Share) -> tuple[Tensor, Tensor, Normalizer]:
    inputs = inputs_of(share.problem)
    share = replace(share, problem=detached(share.problem))
    if not (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)):
        return _forward(share)
    output, logsumexp, *parts = _ShardedAttention.apply(share, *inputs)  # type: ignore[no-untyped-call]
    return output, logsumexp, Normalizer(*parts)


def _forward(share: Share) -> tuple[Tensor, Tensor, Normalizer]:
    with share.group.together(share.name):
        return computing.forward(share)


class _ShardedAttention(torch.autograd.Function):
    """One node in every rank's graph: keeps the rank's own tensors, and fetches the others' again."""

    @staticmethod
    def forward(ctx: Any, share: Share, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        output, logsumexp, normalizer = _forward(share)
        parts = normalizer.maximum, normalizer.shift, normalizer.denominator
        ctx.share = replace(share, problem=with_inputs(share.problem, [None] * len(inputs)))
        ctx.save_for_backward(*inputs, share.problem.sets.dense, output, *parts)
        ctx.mark_non_differentiable(*parts)
        ctx.set_materialize_grads(False)
        return output, logsumexp, *parts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        share, grad_output, grad_logsumexp = ctx.share, *gradients[:2]
        # What was changed in place since is refused here; the other ranks must hear of it.
        saved, error = attempt(lambda: ctx.saved_tensors)
        with agreed(share.group, f"the gradients of {share.name}", own_error=error):
            assert saved is not None
            *inputs, _, output, maximum, shift, denominator = saved
            share = replace(share, problem=with_inputs(share.problem, inputs))
            found = computing.backward(
                share,
                output,
                Normalizer(maximum, shift, denominator),
                torch.zeros_like(output) if grad_output is None else grad_output,
                grad_logsumexp,
                Wanted(*ctx.needs_input_grad[1:]),
            )
        result = found.query, found.key, found.value, found.bias, found.sink_logits
        cast = (
            None if g is None or t is None else g.to(t.dtype) for g, t in zip(result, inputs, strict=True)
        )
        return None, *cast
