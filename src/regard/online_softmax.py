"""Softmax over keys that arrive in pieces: a running maximum, denominator and weighted sum.

Milakov & Gimelshein 2018, "Online normalizer calculation for softmax". With m the largest logit so far, the
sums are kept relative to m; when a piece raises it to m', what was summed is multiplied by exp(m − m').
Maximum and denominator stay apart to the end: near −90 the rounding of their combination, the logsumexp,
is already a visible error in exp(s − logsumexp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass
class State:
    """`maximum` and `denominator` `[B, Hq, R]`, and `output` `[B, Hq, R, D]`, all relative to the maximum."""

    maximum: Tensor
    denominator: Tensor
    output: Tensor


@dataclass(frozen=True, eq=False)
class Normalizer:
    """What turns a row's logits into weights: p = exp(s − shift) / denominator.

    All `[B, Hq, N]`. `maximum` is the largest logit over keys, −∞ for an empty row; `shift` is what is taken
    from logits: the maximum (the sink's logit where that is larger, 0 where there is nothing); `denominator`
    includes the sink, and is 0 only in an empty row without one.
    """

    maximum: Tensor
    shift: Tensor
    denominator: Tensor

    @property
    def logsumexp(self) -> Tensor:
        """Natural logarithm of the sum of exponentials; −∞ for an empty row."""
        return (self.shift + self.divisor.log()).masked_fill(self.denominator == 0, -torch.inf)

    @property
    def max_weight(self) -> Tensor:
        """The weight of the largest logit."""
        return (self.maximum - self.shift).exp() / self.divisor

    @cached_property
    def divisor(self) -> Tensor:
        """The denominator, 1 where it is 0, so that an empty row's weights are 0 / 1."""
        return self.denominator.masked_fill(self.denominator == 0, 1)

    @cached_property
    def _spoiled(self) -> bool:
        """Whether NaN or +∞ has got into some row."""
        return not bool((self.shift + self.denominator).isfinite().all())

    def clone(self) -> Normalizer:
        """A copy that owns its tensors."""
        return Normalizer(self.maximum.clone(), self.shift.clone(), self.denominator.clone())

    def select(
        self, batch: slice, heads: slice | list[int], rows: slice | Tensor = slice(None)
    ) -> Normalizer:
        """The part for some batch items, heads and rows."""
        parts = (t[batch, heads][:, :, rows] for t in (self.maximum, self.shift, self.denominator))
        return Normalizer(*parts)

    def weights(self, logits: Tensor) -> Tensor:
        """exp(s − shift) / denominator for logits `[B, Hq, R, C]` of these rows, computed in place.

        An excluded pair's weight is 0 also in a spoiled row, where the formula gives NaN.
        """
        excluded = logits == -torch.inf if self._spoiled else None
        weights = logits.sub_(self.shift.unsqueeze(-1)).exp_().div_(self.divisor.unsqueeze(-1))
        return weights if excluded is None else weights.masked_fill_(excluded, 0)

    def surprise(self, logits: Tensor, weights: Tensor) -> Tensor:
        """−log p = log(denominator) − (s − shift), and 0 for a weight of 0, for 0 · log 0 is 0."""
        surprise = self.divisor.log().unsqueeze(-1) - (logits - self.shift.unsqueeze(-1))
        return surprise.masked_fill_(weights == 0, 0)


def init(shape: tuple[int, ...], value_dim: int, dtype: torch.dtype, device: torch.device) -> State:
    """Nothing seen yet."""
    return State(
        torch.full(shape, -torch.inf, dtype=dtype, device=device),
        torch.zeros(shape, dtype=dtype, device=device),
        torch.zeros((*shape, value_dim), dtype=dtype, device=device),
    )


def update(state: State, logits: Tensor, weighted_sum: Callable[[Tensor], Tensor] | None) -> None:
    """Take in the logits of one piece of keys, `[B, Hq, R, C]`; `weighted_sum(p)` is the piece's Σ p v.

    `logits` is used up. A row that has seen nothing but −∞ stays empty: its maximum must not become the
    shift, for −∞ − (−∞) is NaN.
    """
    maximum = torch.maximum(state.maximum, logits.amax(-1))
    shift = finite(maximum)
    weights = logits.sub_(shift.unsqueeze(-1)).exp_()
    decay = (state.maximum - shift).exp_()
    state.denominator.mul_(decay).add_(weights.sum(-1))
    if weighted_sum is not None:
        state.output.mul_(decay.unsqueeze(-1)).add_(weighted_sum(weights))
    state.maximum = maximum


def finite(maximum: Tensor) -> Tensor:
    """The maximum where there is one, 0 in rows that hold nothing."""
    return maximum.masked_fill(maximum == -torch.inf, 0)


def finish(state: State, sink_logits: Tensor | None) -> tuple[Tensor, Normalizer]:
    """The output `[B, Hq, R, D]` and the normalizer; the sink, `[Hq]`, joins the denominator here, once."""
    maximum, shift = state.maximum, finite(state.maximum)
    if sink_logits is not None:
        sink = sink_logits.to(maximum.dtype).view(1, -1, 1).expand_as(maximum)
        shift = finite(torch.maximum(maximum, sink))
        decay = (maximum - shift).exp()
        state.denominator.mul_(decay).add_((sink - shift).exp())
        state.output.mul_(decay.unsqueeze(-1))
    normalizer = Normalizer(maximum, shift, state.denominator)
    return state.output.div_(normalizer.divisor.unsqueeze(-1)), normalizer


def merge(parts: Sequence[tuple[Tensor, Tensor]], sink_logits: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Normalised outputs `[..., Hq, N, Ev]` and their logsumexps `[..., Hq, N]` over disjoint keys, as one.

    Differentiable in both. Parts are added in the order given.
    """
    outputs = [output for output, _ in parts]
    dtype = torch.promote_types(parts[0][1].dtype, torch.float32)
    logsumexps = torch.stack([logsumexp.to(dtype) for _, logsumexp in parts])
    maximum = logsumexps.detach().amax(0)
    if sink_logits is not None:
        maximum = torch.maximum(maximum, sink_logits.detach().to(dtype).unsqueeze(-1))
    shift = finite(maximum)
    shares = (logsumexps - shift).exp()
    total = torch.zeros_like(shift)
    merged = torch.zeros(outputs[0].shape, dtype=dtype, device=outputs[0].device)
    for share, output, logsumexp in zip(shares, outputs, logsumexps, strict=True):
        total = total + share
        # An empty part holds no answer: whatever stands in its output must not be multiplied by 0 and added.
        empty = (logsumexp == -torch.inf).unsqueeze(-1)
        merged = merged + share.unsqueeze(-1) * output.to(dtype).masked_fill(empty, 0)
    if sink_logits is not None:
        total = total + (sink_logits.to(dtype).unsqueeze(-1) - shift).exp()
    nothing = total == 0
    divisor = total.masked_fill(nothing, 1)
    logsumexp = (shift + divisor.log()).masked_fill(nothing, -torch.inf)
    return (merged / divisor.unsqueeze(-1)).to(outputs[0].dtype), logsumexp
