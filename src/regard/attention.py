"""The public functions of attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor

from regard import listening, online_softmax
from regard.autocast import as_autocast_has_it
from regard.biases import Bias
from regard.compiling import outside_graphs, seen_from_outside, stand_for_others
from regard.engines import choose
from regard.errors import ArgumentError, ArgumentTypeError, EngineError
from regard.gradients import attend
from regard.masks import Mask
from regard.opaque import attend as attend_opaquely
from regard.problem import prepare
from regard.short_way import briefly
from regard.weights import AttentionWeights


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | Tensor | None = None,
    *,
    bias: Bias | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    query_start: int | Sequence[int] | Tensor | None = None,
    key_start: int | Sequence[int] | Tensor = 0,
    return_weights: Literal[False] = False,
    engine: str = "auto",
) -> Tensor: ...


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | Tensor | None = None,
    *,
    bias: Bias | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    query_start: int | Sequence[int] | Tensor | None = None,
    key_start: int | Sequence[int] | Tensor = 0,
    return_weights: Literal[True],
    engine: str = "auto",
) -> tuple[Tensor, AttentionWeights]: ...


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | Tensor | None = None,
    *,
    bias: Bias | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    query_start: int | Sequence[int] | Tensor | None = None,
    key_start: int | Sequence[int] | Tensor = 0,
    return_weights: bool = False,
    engine: str = "auto",
) -> Tensor | tuple[Tensor, AttentionWeights]:
    """Exact scaled dot-product attention, softmax(Q Kᵀ · scale) V, in linear memory.

    Args:
        query: `[..., Hq, N, E]`; 3-D is `[Hq, N, E]`, 2-D `[N, E]`. float32, bfloat16, float16 or float64,
            any strides.
        key: `[..., Hkv, M, E]`. Hkv divides Hq: query head h uses key head h // (Hq // Hkv).
        value: `[..., Hkv, M, Ev]`. Leading dimensions of the three broadcast.
        mask: who may attend whom: a value from `regard.masks`, or a boolean (or 0/1 integer) tensor, `[N, M]`
            or `[B or 1, Hq or 1, N, M]`, True = may attend.
        bias: added to the scores after scale and softcap: a value from `regard.biases`, or a floating-point
            tensor of those shapes. −inf excludes as a mask does.
        scale: factor on the scores; 1/√E by default.
        softcap: scores become softcap · tanh(score / softcap).
        sink_logits: `[Hq]`, a logit that joins each row's denominator and takes its share of the weight.
        dropout_p: probability of dropping a weight, in [0, 1]; the others are divided by 1 − dropout_p.
        seed: decides together with the positions what is dropped; None draws one from torch's generator.
        query_start: position of the first query, an int or `[B]`; by default the queries are the last N
            positions.
        key_start: position of the first key, an int or `[B]`.
        return_weights: also return the weights, as a matrix that is never stored (`AttentionWeights`).
        engine: "auto", "native", "tiled" or "reference"; a named engine computes, or raises.

    Returns:
        The output `[..., Hq, N, Ev]` in the input's dtype, or (output, weights). A query that may attend
        nothing gets 0. Gradients flow to query, key, value, the bias's tensor and the sink logits.

    Under `torch.compile` and `torch.export` a call is one operator, whatever the mask (`fullgraph=True`
    works); with `return_weights` a graph ends here. vmap and reverse mode of torch.func work; forward mode
    and second derivatives want engine="reference". Autocast lowers the inputs as for torch's own function.

    Raises:
        ArgumentError, ArgumentTypeError: naming the argument, what it must be and what came.
        EngineError: the engine asked for cannot serve the problem.

    Example:
        >>> q, k, v = (torch.randn(1, 8, 4096, 64) for _ in range(3))
        >>> out, w = regard.attention(q, k, v, masks.causal(), return_weights=True)
        >>> out.shape, w.shape, w[0, 3, 4000].sum()
        (torch.Size([1, 8, 4096, 64]), torch.Size([1, 8, 4096, 4096]), tensor(1.0000))

    Sources: Vaswani et al. 2017, equation 1; Dao et al. 2022 (tiles); grouped heads: Ainslie et al. 2023.
    """
    # The first question is one that a trace answers; those on the short way are none for it.
    if (
        not torch.compiler.is_compiling()
        and not return_weights
        and bias is None
        and softcap is None
        and sink_logits is None
        and seed is None
        and type(dropout_p) is float
        and dropout_p == 0
        and (engine == "auto" or engine == "native")
    ):
        output = briefly(query, key, value, mask, scale, query_start, key_start)
        if output is not None:
            return output
    if value is None:  # what only weights are computed from may leave out
        raise ArgumentTypeError("`value` must be a torch.Tensor, got None")
    query, key, value = as_autocast_has_it(query, key, value)
    options: dict[str, Any] = {
        "bias": bias,
        "scale": scale,
        "softcap": softcap,
        "sink_logits": sink_logits,
        "dropout_p": dropout_p,
        "seed": seed,
        "query_start": query_start,
        "key_start": key_start,
    }
    if return_weights:
        return _with_weights(query, key, value, mask, engine, options)
    if torch.compiler.is_compiling() or seen_from_outside(query, key, value, by_torch=engine == "reference"):
        return attend_opaquely(query, key, value, mask, engine=engine, **options)
    problem, layout = prepare(query, key, value, mask, **options)
    output, _, _ = attend(choose(engine, problem), problem)
    if listening.listeners.now:
        listening.tell(problem)
    return layout.restore(output)


@outside_graphs
def _with_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | Tensor | None,
    engine: str,
    options: dict[str, Any],
) -> tuple[Tensor, AttentionWeights]:
    """The output and the weights, for which a compiled graph ends: they keep the problem."""
    if stand_for_others(query, key, value):
        raise EngineError(
            "weights cannot be kept of tensors that stand for others, as in vmap: leave out `return_weights`"
        )
    problem, layout = prepare(query, key, value, mask, **options)
    chosen = choose(engine, problem)
    output, logsumexp, normalizer = attend(chosen, problem)
    weights = AttentionWeights(problem, chosen, normalizer, layout, logsumexp)
    if listening.listeners.now:
        listening.tell(problem)
    return layout.restore(output), weights


def merge(
    parts: Sequence[tuple[Tensor, Tensor]], *, sink_logits: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention over all keys from attention over pieces of them.

    `parts` are pairs (output `[..., Hq, N, Ev]`, logsumexp `[..., Hq, N]`) over disjoint keys; `sink_logits`
    `[Hq]` joins here if the parts were computed without it. Returns such a pair. Pieces in which a query may
    attend nothing (logsumexp −inf) count for nothing; differentiable in outputs and logsumexps.

    >>> out_1, w_1 = regard.attention(q, k[..., :9, :], v[..., :9, :], return_weights=True)
    >>> out_2, w_2 = regard.attention(q, k[..., 9:, :], v[..., 9:, :], return_weights=True)
    >>> out, logsumexp = regard.merge([(out_1, w_1.logsumexp), (out_2, w_2.logsumexp)])
    """
    if not isinstance(parts, Sequence):
        raise ArgumentTypeError(
            f"`parts` must be a list of (output, logsumexp), got a {type(parts).__name__}"
        )
    if len(parts) == 0:
        raise ArgumentError("`parts` must hold at least one (output, logsumexp) pair, got none")
    for index, part in enumerate(parts):
        if not (
            isinstance(part, tuple | list)
            and len(part) == 2
            and all(isinstance(t, Tensor) and t.is_floating_point() for t in part)
        ):
            raise ArgumentTypeError(
                "`parts` must hold (output, logsumexp) pairs of floating-point tensors, got "
                f"{part!r} at {index}"
            )
    shape = parts[0][0].shape
    for index, (output, logsumexp) in enumerate(parts):
        if output.dim() < 2 or output.shape != shape or logsumexp.shape != shape[:-1]:
            raise ArgumentError(
                f"`parts` must agree: outputs {tuple(shape)} of rank 2 or more and logsumexps "
                f"{tuple(shape[:-1])}, got {tuple(output.shape)} and {tuple(logsumexp.shape)} at {index}"
            )
    heads = shape[-3] if len(shape) > 2 else 1
    if sink_logits is not None and not isinstance(sink_logits, Tensor):
        raise ArgumentTypeError(f"`sink_logits` must be a tensor, got a {type(sink_logits).__name__}")
    if sink_logits is not None and sink_logits.shape != (heads,):
        raise ArgumentError(f"`sink_logits` must have shape ({heads},), got {tuple(sink_logits.shape)}")
    return online_softmax.merge(parts, sink_logits)
