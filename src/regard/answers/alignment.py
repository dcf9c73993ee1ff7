"""Which frame of the input each token of the output was read from: cross-attention, aligned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.answers.brief import Brief
from regard.answers.layers import Source, layers_of
from regard.answers.warping import warp
from regard.errors import ArgumentError


@dataclass(frozen=True, eq=False, repr=False)
class Alignment(Brief):
    """A monotonic path through the aligned tokens and the frames.

    `matrix` `[R, C]` is what was aligned (float32); `tokens` and `frames`, int64 `[steps]`, the path, each
    counted from 0.
    """

    matrix: Tensor
    tokens: Tensor
    frames: Tensor

    @property
    def begins(self) -> Tensor:
        """The frame at which each of the R tokens begins, int64 `[R]`."""
        first = torch.ones_like(self.tokens, dtype=torch.bool)
        first[1:] = self.tokens.diff() > 0
        return self.frames[first]


def align(
    source: Source,
    heads: Sequence[tuple[int, int]],
    *,
    tokens: slice = slice(None),
    frames: int | None = None,
    width: int = 7,
    logit_scale: float = 1.0,
    item: int = 0,
    steps: range | None = None,
) -> Alignment:
    """Align tokens with frames by cross-attention, as Whisper's word timestamps do.

    The logits of the chosen heads, over the frames that are sound, go through a softmax; each frame's column
    is standardised over the tokens, each row smoothed by a median filter over the frames, and the mean over
    heads is the matrix through which dynamic time warping finds the best monotonic path. Radford et al.
    2022, "Robust speech recognition via large-scale weak supervision"; `whisper/timing.py`.

    Args:
        source: a recording of cross-attention (all of a generation's steps), or calls of one, or
            `AttentionWeights` `[B, Hq, N, M]` of the decoder's layers, in order.
        heads: (layer, head) pairs that are known to align, such as Whisper's `alignment_heads`; layers are
            counted among those of `source`.
        tokens: the rows to align; all N rows take part in the standardisation.
        frames: how many of the M keys are real, the rest being padding; all by default.
        width: of the median filter, odd.
        logit_scale: multiplies the logits, `qk_scale` in Whisper's code.
        item: the batch item.
        steps: the steps of one generation, where the recording holds more than one.

    Returns:
        An `Alignment`; its memory is that of the matrices of the chosen heads, `[heads, N, frames]`.
    """
    layers = layers_of(source, steps, cross=True)
    if not heads:
        raise ArgumentError("`heads` must hold at least one (layer, head), got none")
    if width < 1 or width % 2 == 0:
        raise ArgumentError(f"`width` must be odd and at least 1, got {width}")
    chosen = []
    for layer, head in heads:
        if not 0 <= layer < len(layers) or not 0 <= head < layers[layer].weights.shape[1]:
            raise ArgumentError(
                f"`heads` must be (layer, head) pairs of {len(layers)} layers, got {(layer, head)}"
            )
        chosen.append(layers[layer].weights.logits(item, head)[:, :frames].float())
    if len({logits.shape for logits in chosen}) > 1 or not chosen[0].numel():
        raise ArgumentError(
            "the chosen heads must have the same queries and keys, at least one of each, got "
            f"{sorted({tuple(logits.shape) for logits in chosen})}"
        )
    weights = (torch.stack(chosen) * logit_scale).softmax(-1)
    deviation, mean = torch.std_mean(weights, -2, keepdim=True, unbiased=False)
    matrix = median_filter((weights - mean) / deviation, width).mean(0)[tokens]
    return Alignment(matrix, *warp(-matrix))


def median_filter(values: Tensor, width: int) -> Tensor:
    """The median over `width` neighbours on the last axis, mirrored at its ends; a shorter axis is left."""
    half = width // 2
    if values.shape[-1] <= half:
        return values
    mirrored = pad(values, (half, half), mode="reflect")
    return mirrored.unfold(-1, width, 1).sort().values[..., half]
