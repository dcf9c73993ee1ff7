"""Norm-weighted attention: how long the vectors are that the weights are multiplied with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.answers.brief import Brief
from regard.answers.layers import Layer, Source, layers_of
from regard.errors import ArgumentError
from regard.weights import AttentionWeights

# The vectors f(x) of some keys are formed in pieces of about this many numbers.
_PIECE_NUMBERS = 1 << 22


@dataclass(frozen=True, eq=False, repr=False)
class NormWeighted(Brief):
    """‖Pᵢⱼ f(xⱼ)‖ = Pᵢⱼ · ‖f(xⱼ)‖ for one layer, `[B, Hq, N, M]`, computed when asked for.

    `norms` are the lengths ‖f(xⱼ)‖, `[B, Hq, M]`.
    """

    name: str
    weights: AttentionWeights
    norms: Tensor

    def rows(self, queries: Any) -> Tensor:
        """Some rows (an index of the N queries: an int, slice or indices): `[B, Hq, …, M]`."""
        rows = self.weights[:, :, queries]
        return rows * (self.norms if rows.dim() == 3 else self.norms.unsqueeze(2))

    def received(self, mean: bool = False) -> Tensor:
        """Σᵢ ‖Pᵢⱼ f(xⱼ)‖ over all queries, `[B, Hq, M]`; or its mean over those that may attend the key."""
        return self.weights.received(mean=mean) * self.norms


def norm_weighted(
    source: Source, projections: Sequence[Tensor] | None = None, *, steps: range | None = None
) -> list[NormWeighted]:
    """Norm-weighted attention (Kobayashi et al. 2020, "Attention is not only a weight"): ‖Pᵢⱼ f(xⱼ)‖.

    f(x) is what a head adds for a key of weight 1: its value vector, through the head's part of the output
    projection if `projections` are given, as the authors do. A sink has much weight and a short vector.

    Args:
        source: a recording that was watched with `values=True`, or calls of one.
        projections: for each layer the weight of its output projection, `[D, Hq · Ev]`, as `nn.Linear` holds
            it; None for the lengths of the values themselves.
        steps: the steps of one generation, where the recording holds more than one.

    Returns:
        A `NormWeighted` for each layer, in linear memory.

    Raises:
        ArgumentError: the values were not kept, or a projection does not fit its layer.
    """
    layers = layers_of(source, steps)
    if projections is not None and len(projections) != len(layers):
        raise ArgumentError(
            f"`projections` must have a weight for each of {len(layers)} layers, got {len(projections)}"
        )
    given = [None] * len(layers) if projections is None else projections
    return [
        NormWeighted(layer.name, layer.weights, _norms(layer, projection))
        for layer, projection in zip(layers, given, strict=True)
    ]


@torch.no_grad()
def _norms(layer: Layer, projection: Tensor | None) -> Tensor:
    if layer.values is None:
        raise ArgumentError(
            f"`{layer.name}` was recorded without its values: watch with `regard.watch(model, values=True)`"
        )
    values, heads = layer.values.to(layer.weights.dtype), layer.weights.shape[1]
    group = heads // values.shape[1]
    if projection is None:
        lengths: Tensor = values.norm(dim=-1)
        return lengths.repeat_interleave(group, 1)
    width = values.shape[-1]
    if projection.dim() != 2 or projection.shape[1] != heads * width:
        raise ArgumentError(
            f"a projection of `{layer.name}` must have shape (width, {heads} heads * {width}), got "
            f"{tuple(projection.shape)}"
        )
    by_head = projection.detach().to(values).unflatten(1, (heads, width))  # [D, Hq, Ev]
    norms = values.new_empty((values.shape[0], heads, values.shape[2]))
    together = max(1, _PIECE_NUMBERS // max(1, values.shape[0] * projection.shape[0]))
    for head in range(heads):
        for start in range(0, values.shape[2], together):
            keys = slice(start, start + together)
            norms[:, head, keys] = (values[:, head // group, keys] @ by_head[:, head].mT).norm(dim=-1)
    return norms
