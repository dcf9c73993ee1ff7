"""How weights show themselves in a notebook: their size, and small heat maps of the first heads."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from regard.weights import AttentionWeights

_CELLS = 24  # a side
_HEADS = 6
_MOST_WEIGHTS = 1 << 25  # beyond this many, drawing would keep a notebook waiting


@torch.no_grad()
def summary(weights: AttentionWeights) -> str:
    """An HTML fragment without scripts."""
    shape = " × ".join(str(size) for size in weights.shape)
    n_bytes = weights.shape.numel() * weights.dtype.itemsize
    head = (
        f"<b>AttentionWeights</b> {shape}, {escape(str(weights.dtype).removeprefix('torch.'))}, computed on "
        f"demand ({n_bytes / 2**20:,.1f} MiB if it were stored)"
    )
    if not 0 < weights.shape.numel() <= _MOST_WEIGHTS:
        return f"<div>{head}</div>"
    maps = weights.pooled(_CELLS, _CELLS).reshape(-1, _CELLS, _CELLS)
    entropy = weights.entropy().reshape(len(maps), -1).mean(-1)
    figures = "".join(
        _figure(maps[i].sqrt().tolist(), f"{i}: {float(entropy[i]):.2f} nats")
        for i in range(min(len(maps), _HEADS))
    )
    return f"<div>{head}<br>{figures}</div>"


def _figure(values: list[list[float]], caption: str) -> str:
    top = max((value for row in values for value in row), default=0) or 1
    cells = "".join(
        f'<rect x="{x * 4}" y="{y * 4}" width="4" height="4" fill-opacity="{value / top:.2f}"/>'
        for y, row in enumerate(values)
        for x, value in enumerate(row)
        if value > 0
    )
    side = _CELLS * 4
    return (
        f'<figure style="display:inline-block;margin:4px"><svg width="{side}" height="{side}" role="img" '
        f'aria-label="head {caption}" fill="#2166ac"><rect width="100%" height="100%" fill="#8881"/>'
        f"{cells}</svg><figcaption>{caption}</figcaption></figure>"
    )
