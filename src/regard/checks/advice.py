"""From measures of a softmax to a word for each head and sentences on what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch

Verdict = Literal["", "flat", "saturated", "resting", "not finite", "no choice"]

# A scale is named as the cause if it is this many times 1/√head_dim and logits spread this far, or if it is
# as much too small and they hardly spread.
_ODD_SCALE = 1.5
_WIDE = 3.0
# Rounding of queries and keys that moves a logit by this many nats changes weights by a quarter.
_COARSE = 0.25


def verdict(flat: float, saturated: float, resting: float, gradient: float, rows: float) -> Verdict:
    """One word for a head: what at least half of its rows are."""
    if not rows:
        return "no choice"
    if not math.isfinite(gradient):
        return "not finite"
    if saturated >= 0.5:
        return "resting" if resting >= 0.9 * saturated else "saturated"
    return "flat" if flat >= 0.5 else ""


def advice(
    verdicts: Sequence[Verdict],
    *,
    scale: float,
    head_dim: int,
    dtype: torch.dtype,
    spreads: Sequence[float],
    largest_logit: float,
) -> tuple[str, ...]:
    """What the verdicts come from and what helps: sentences, the gravest first."""
    usual = scale * math.sqrt(head_dim)
    of_scale = f"the scale is {scale:.3g}, {usual:.3g} times 1/√{head_dim}"
    widest = max(filter(math.isfinite, spreads), default=0.0)

    def counted(word: Verdict) -> str:
        return f"{verdicts.count(word)} of {len(verdicts)} heads {word}"

    def spread(word: Verdict) -> float:
        found = [each for each, of_head in zip(spreads, verdicts, strict=True) if of_head == word]
        return sum(found) / len(found)

    sentences = []
    if "not finite" in verdicts:
        sentences.append(f"{counted('not finite')}: look for NaN or infinities in their queries and keys")
    if usual > _ODD_SCALE and widest > _WIDE:
        sentences.append(
            f"{of_scale}, and the logits of a row spread by up to ±{widest:.1f}, where ±1 lets gradients "
            "through: divide scores by √head_dim, unless queries and keys are normalised or trained for this"
        )
    if "saturated" in verdicts:
        sentences.append(
            f"{counted('saturated')}: the logits of a row spread by ±{spread('saturated'):.1f}: bound them "
            "with qk_norm, a softcap, or by clipping the query and key weights"
        )
    if "resting" in verdicts:
        sentences.append(
            f"{counted('resting')}: nearly all weight goes to one and the same key (an attention sink), as "
            "in heads with nothing to do; no fault, but no gradient either"
        )
    if "flat" in verdicts:
        cause = "usual before training; afterwards, its queries and keys have learnt nothing"
        if usual < 1 / _ODD_SCALE:
            cause = f"{of_scale}: is it applied twice?"
        sentences.append(
            f"{counted('flat')}: the logits of a row spread by only ±{spread('flat'):.2f}, so that the head "
            f"averages: {cause}"
        )
    # Half a unit in the last place of queries and keys each.
    rounding = largest_logit * torch.finfo(dtype).eps
    if rounding >= _COARSE:
        sentences.append(
            f"a logit of {largest_logit:.0f} from queries and keys in {dtype} may be off by ±{rounding:.2g}: "
            "compute them in a wider format, or bound the logits"
        )
    return tuple(sentences) or ("nothing to do",)
