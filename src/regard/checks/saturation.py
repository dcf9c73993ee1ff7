"""How far softmax is from useful gradients: which heads are flat, which saturated, and what to do."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.checks.advice import Verdict, advice, verdict
from regard.checks.moments import row_moments
from regard.errors import ArgumentTypeError
from regard.recording.parts import Parts
from regard.weights import AttentionWeights

# One key has more than this weight.
_SATURATED = 0.99
# The entropy is less than this below that of equal weights, in nats: logits that differ by ±0.2.
_FLAT = 0.02


@dataclass(frozen=True, eq=False)
class Saturation:
    """What each head's softmax does, over the rows that may attend at least two keys, all `[Hq]`.

    `rows` is how many these are. `flat` and `saturated` are shares of them, 0 to 1: the entropy is within
    0.02 nats of that of equal weights; one key has more than 0.99 of the weight. `resting` is the share of
    rows saturated on the one key that most such rows of the head and batch item choose. `gradient` is the
    mean norm of the softmax Jacobian diag(p) − p pᵀ, which every gradient to queries and keys is multiplied
    by: at most 1/2, 0 when saturated. `entropy` (nats) and `spread` (standard deviation of a row's logits)
    are means, `max_logit` is the largest of all rows. `advice` says what to do, a sentence each.
    """

    rows: Tensor
    flat: Tensor
    saturated: Tensor
    resting: Tensor
    gradient: Tensor
    entropy: Tensor
    spread: Tensor
    max_logit: Tensor
    advice: tuple[str, ...]

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """One word for each head; "" where at least half of its rows are neither flat nor saturated."""
        measures = zip(self.flat, self.saturated, self.resting, self.gradient, self.rows, strict=True)
        return tuple(verdict(*(float(number) for number in of_head)) for of_head in measures)

    def __str__(self) -> str:
        lines = ["head   flat  saturated  gradient  entropy  spread  max logit"]
        columns = self.flat, self.saturated, self.gradient, self.entropy, self.spread, self.max_logit
        for head, (word, *numbers) in enumerate(zip(self.verdicts, *columns, strict=True)):
            flat, saturated, *others = map(float, numbers)
            line = f"{flat:5.0%}  {saturated:9.0%}  "
            line += "{:8.3f}  {:7.2f}  {:6.1f}  {:9.1f}".format(*others)
            lines.append(f"{head:4d}  {' ' * len(line) if word == 'no choice' else line}  {word}".rstrip())
        return "\n".join([*lines, *self.advice])


@torch.no_grad()
def saturation(weights: AttentionWeights) -> Saturation:
    """Per head, how much of the softmax is flat or saturated, the gradient left, and what to do.

    `weights` are those of one attention call (`return_weights=True`, or a call of a recording), `[..., Hq, N,
    M]`; batch items are taken together. Takes a few passes over the tiles, in linear memory.

    >>> out, w = regard.attention(q, k, v, masks.causal(), scale=1.0, return_weights=True)
    >>> print(saturation(w).advice[0])  # doctest: +ELLIPSIS
    the scale is 1, 8 times 1/√64, and the logits of a row spread by up to ...
    """
    if not isinstance(weights, AttentionWeights):
        raise ArgumentTypeError(
            f"`weights` must be an AttentionWeights, as `return_weights=True` gives, got a "
            f"{type(weights).__name__}"
        )
    problem = Parts.of(weights).problem
    moments = row_moments(weights)
    heads = problem.num_heads
    judged = _by_head(moments.n_keys >= 2, heads)
    entropy, max_weight, max_logit, n_keys = (
        _by_head(each.double(), heads)
        for each in (weights.entropy(), weights.max_weight(), weights.max_logit(), moments.n_keys)
    )
    saturated = judged & (max_weight > _SATURATED)
    flat = judged & (n_keys.clamp(min=1).log() - entropy < _FLAT)
    gradient, variance = _by_head(moments.jacobian, heads), _by_head(moments.variance, heads)
    rows = judged.sum((0, 2))
    found = {
        "rows": rows,
        "flat": _mean(flat.double(), judged),
        "saturated": _mean(saturated.double(), judged),
        "resting": _chosen_most(weights, saturated) / rows,
        "gradient": _mean(gradient, judged),
        "entropy": _mean(entropy, judged),
        "spread": _mean(variance.sqrt(), judged),
        "max_logit": max_logit.masked_fill(~judged, -math.inf).transpose(0, 1).flatten(1).amax(-1),
    }
    measured = Saturation(**found, advice=())
    logit = float(max_logit[judged].abs().nan_to_num(0, 0, 0).max()) if bool(judged.any()) else 0.0
    sentences = advice(
        measured.verdicts,
        scale=problem.scale,
        head_dim=problem.query.shape[-1],
        dtype=problem.query.dtype,
        spreads=measured.spread.tolist(),
        largest_logit=logit,
    )
    return Saturation(**found, advice=sentences)


def _by_head(of_rows: Tensor, heads: int) -> Tensor:
    """`[..., Hq, N]` as `[B, Hq, N]`; 2-D inputs have one head."""
    return of_rows.reshape(-1, heads, of_rows.shape[-1])


def _mean(of_rows: Tensor, judged: Tensor) -> Tensor:
    """The mean over batch items and judged rows, `[Hq]`; NaN for a head that has none."""
    return of_rows.masked_fill(~judged, 0).sum((0, 2)) / judged.sum((0, 2))


def _chosen_most(weights: AttentionWeights, saturated: Tensor) -> Tensor:
    """How many saturated rows choose the key that most of them choose, summed over batch items, `[Hq]`."""
    batch, heads, _ = saturated.shape
    chosen = _by_head(weights.top_keys(1)[1].squeeze(-1), heads)
    counts = torch.zeros(batch, heads, weights.shape[-1], dtype=torch.int64, device=chosen.device)
    counts.scatter_add_(2, chosen.clamp(min=0), saturated.long())
    return counts.amax(-1).sum(0)
