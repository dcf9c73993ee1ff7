"""The compiled engine's gradients: weights are formed again tile by tile, in linear memory."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.autocast import without_autocast
from regard.biases import Alibi, Bias, Relative
from regard.engines import native
from regard.engines.base import Gradients, Wanted
from regard.online_softmax import Normalizer
from regard.problem import Problem


@without_autocast
def backward(
    problem: Problem,
    output: Tensor,
    normalizer: Normalizer,
    grad_output: Tensor,
    grad_logsumexp: Tensor | None,
    wanted: Wanted,
    grad_entropy: Tensor | None = None,
) -> Gradients:
    """The gradients that are wanted, float32, each shaped like what it belongs to.

    `output` and `grad_output` are `[B, Hq, N, Ev]`, `grad_logsumexp` and `grad_entropy` are `[B, Hq, N]`, of
    any strides. `grad_entropy` times −(log P + 1) is added to the gradient of P.
    Raises EngineError for what `native.refusal` names, and KeyboardInterrupt within about a second of Ctrl-C.
    """
    native.check(problem)
    gradients = Gradients(
        query=_room(problem.query, wanted.query),
        key=_room(problem.key, wanted.key),
        value=_room(problem.value, wanted.value),
        bias=_bias_room(problem.bias, wanted.bias),
        sink_logits=_room(problem.sink_logits, wanted.sink_logits),
    )
    native.core().backward(
        native.bound(problem),
        _plain(output, problem.dtype),
        _plain(normalizer.shift, torch.float32).contiguous(),
        _plain(normalizer.denominator, torch.float32).contiguous(),
        _plain(grad_output, problem.dtype),
        None if grad_logsumexp is None else _plain(grad_logsumexp, torch.float32),
        None if grad_entropy is None else _plain(grad_entropy, torch.float32),
        gradients.query,
        gradients.key,
        gradients.value,
        gradients.bias,
        gradients.sink_logits,
        torch.get_num_threads(),
    )
    return gradients


def _room(like: Tensor | None, wanted: bool) -> Tensor | None:
    """Memory that the core fills, for every element."""
    return torch.empty(like.shape, dtype=torch.float32) if wanted and like is not None else None


def _bias_room(bias: Bias | None, wanted: bool) -> Tensor | None:
    """Zeros for a dense bias: the core adds what the pairs give that take part."""
    if bias is None or not wanted:
        return None
    make = torch.empty if isinstance(bias, Alibi | Relative) else torch.zeros
    return make(bias.parameter.shape, dtype=torch.float32)


def _plain(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in a dtype, its numbers in memory as they read: a view may stand for their negatives."""
    return tensor.detach().resolve_neg().to(dtype)
