"""Pictures of masks: characters for a terminal, SVG for a notebook."""

from __future__ import annotations

from html import escape

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.masks.base import Mask

_LARGEST_SIDE = 48  # cells; a larger mask is drawn with several pairs to a cell
_MOST_PANELS = 4  # batch items and heads drawn, of a mask that differs between them


def as_text(
    mask: Mask,
    n_queries: int | None,
    n_keys: int | None,
    query_start: int | Tensor | None,
    key_start: int | Tensor,
) -> str:
    """Queries down, keys across: `■` may attend, `·` may not, `▒` some of the pairs in the cell may."""
    try:
        panels, total, size = _panels(mask, n_queries, n_keys, query_start, key_start)
    except RegardError as error:
        if n_queries is not None or n_keys is not None:
            raise
        return f"{mask!r} (not drawn: {error})"
    lines = [f"{mask!r}, {size[0]} queries × {size[1]} keys"]
    for caption, share in panels:
        lines += [caption] if total > 1 else []
        lines += [" ".join("·" if x == 0 else "■" if x == 1 else "▒" for x in row) for row in share.tolist()]
    if total > len(panels):
        lines.append(f"… and {total - len(panels)} more")
    return "\n".join(lines)


def as_html(mask: Mask) -> str:
    """The drawing at its natural size, as inline SVG."""
    try:
        panels, _, size = _panels(mask, None, None, None, 0)
    except RegardError as error:
        return f"<code>{escape(repr(mask))}</code> (not drawn: {escape(str(error))})"
    pictures = []
    for caption, share in panels:
        height, width = share.shape
        cells = "".join(
            f'<rect x="{x * 8}" y="{y * 8}" width="7" height="7" fill="#2166ac" fill-opacity="{value:.2f}"/>'
            for y, row in enumerate(share.tolist())
            for x, value in enumerate(row)
            if value > 0
        )
        pictures.append(
            f'<figure style="display:inline-block;margin:4px"><svg width="{width * 8}" height="{height * 8}" '
            f'role="img" aria-label="{escape(repr(mask))} {caption}"><rect width="100%" height="100%" '
            f'fill="#8882"/>{cells}</svg><figcaption>{caption}</figcaption></figure>'
        )
    caption = f"<code>{escape(repr(mask))}</code>, {size[0]} queries × {size[1]} keys"
    return f"<div>{caption}<br>{''.join(pictures)}</div>"


def _panels(
    mask: Mask,
    n_queries: int | None,
    n_keys: int | None,
    query_start: int | Tensor | None,
    key_start: int | Tensor,
) -> tuple[list[tuple[str, Tensor]], int, tuple[int, int]]:
    natural = mask.required_size() or (mask.telling_size(),) * 2
    size = natural[0] if n_queries is None else n_queries, natural[1] if n_keys is None else n_keys
    dense = mask.to_dense(*size, query_start, key_start)
    dense = dense if dense.dim() == 4 else dense[None, None]
    batch, heads = dense.shape[:2]
    panels = []
    for index in range(min(batch * heads, _MOST_PANELS)):
        item, head = divmod(index, heads)
        names = [f"batch item {item}"] * (batch > 1) + [f"head {head}"] * (heads > 1)
        panels.append((", ".join(names), _shares(dense[item, head].cpu())))
    return panels, batch * heads, size


def _shares(matrix: Tensor) -> Tensor:
    """The share of allowed pairs in each cell, of at most `_LARGEST_SIDE` cells a side."""
    height, width = (min(side, _LARGEST_SIDE) for side in matrix.shape)
    if height == 0 or width == 0:
        return torch.zeros((height, width))
    if matrix.shape == (height, width):
        return matrix.float()
    return torch.nn.functional.adaptive_avg_pool2d(matrix.float()[None], (height, width))[0]
