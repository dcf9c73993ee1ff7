"""Matrix products over tiles: grouped heads, bits that do not depend on the company, and no 0 × NaN.

Vectorised kernels treat the ends of odd-sized arrays differently in the last bit. Operands here are padded
with zeros to a multiple of `ALIGNMENT`: with aligned ends a row's result does not depend on the batch around
it or on the number of threads.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

ALIGNMENT = 16

# Columns whose vectors hold NaN or infinities are added by hand, a few at a time (see `product`).
_SPECIAL_COLUMNS = 16


class Pairs(Protocol):
    """Whatever knows which pairs of a tile take part: asked only when something is not finite."""

    @property
    def allowed(self) -> Tensor: ...


def load(tensor: Tensor, rows: slice | Tensor, dtype: torch.dtype, *, align_rows: bool = True) -> Tensor:
    """Some rows of `[B, H, L, D]` in the computing dtype, D and (if asked) the rows padded with zeros."""
    block = tensor[:, :, rows].to(dtype)
    missing = [-size % ALIGNMENT for size in block.shape[-2:]]
    if not align_rows:
        missing[0] = 0
    return _padded(block, *missing)


def _padded(block: Tensor, rows: int, columns: int = 0) -> Tensor:
    """A block with so many rows and columns of zeros after its last."""
    if rows == columns == 0:
        return block
    if block.numel() == 0:  # torch 2.9 refuses to pad nothing
        height, width = block.shape[-2:]
        return block.new_zeros((*block.shape[:-2], height + rows, width + columns))
    return pad(block, (0, columns, 0, rows))


def load_finite(finite: Tensor | None, columns: slice) -> Tensor | None:
    """What `finite_rows` found, for the rows that `load` takes: the padding is finite. None if all are."""
    if finite is None:
        return None
    block = finite[:, :, columns]
    return None if bool(block.all()) else pad(block, (0, -block.shape[-1] % ALIGNMENT), value=True)


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """`[B, Hq, R, X] @ [B, Hkv, X, Y]` with grouped heads: the heads of a group are more rows of one product.

    X and Y must be aligned; the rows are padded here.
    """
    batch, heads, n_rows, inner = left.shape
    key_heads = right.shape[1]
    if key_heads == 0:
        return left.new_zeros((batch, heads, n_rows, right.shape[-1]))
    rows = left.reshape(batch * key_heads, heads // key_heads * n_rows, inner)
    extra = -rows.shape[1] % ALIGNMENT
    columns = right.reshape(batch * key_heads, *right.shape[-2:])
    result = torch.bmm(_padded(rows, extra), columns)
    return result[:, : rows.shape[1]].reshape(batch, heads, n_rows, right.shape[-1])


def matmul_transposed(left: Tensor, right: Tensor, key_heads: int) -> Tensor:
    """leftᵀ @ right, summed over head groups: `[B, Hq, R, C]`, `[B, Hq, R, D]` to `[B, Hkv, C, D]`."""
    batch, heads, n_rows, _ = left.shape
    one, other = (
        t.reshape(batch * key_heads, heads // key_heads * n_rows, t.shape[-1]) for t in (left, right)
    )
    extra = -one.shape[1] % ALIGNMENT
    one, other = _padded(one, extra), _padded(other, extra)
    return torch.bmm(one.mT, other).view(batch, key_heads, left.shape[-1], right.shape[-1])


def finite_rows(tensor: Tensor) -> Tensor | None:
    """Which rows of `[B, H, L, D]` are free of NaN and infinities: bool `[B, H, L]`, or None if all are.

    One number decides the usual case: a sum is finite only if every term is. (One that overflows is no
    proof of the contrary, and only costs the closer look.)
    """
    if tensor.numel() == 0 or bool(torch.isfinite(tensor.sum())):
        return None
    finite = torch.isfinite(tensor).all(-1)
    return None if bool(finite.all()) else finite


def product(weights: Tensor, vectors: Tensor, pairs: Pairs, finite: Tensor | None) -> Tensor:
    """Σ over allowed pairs of weight × vector: `[B, Hq, R, X]` and `[B, Hkv, X, D]` give `[B, Hq, R, D]`.

    The weights of excluded pairs are 0, and 0 × NaN is NaN. So vectors with anything not finite in them
    (`finite` False, `[B, Hkv, X]`; None if there are none) stay out of the matrix product, in which every row
    then gets exactly what it would get without them, and are added to the rows that may attend them.
    """
    if finite is None:
        return matmul(weights, vectors)
    total = matmul(weights, vectors.masked_fill(~finite.unsqueeze(-1), 0))
    group = weights.shape[1] // vectors.shape[1]
    allowed, special = pairs.allowed, (~finite).flatten(0, 1).any(0).nonzero().flatten()
    for some in special.split(_SPECIAL_COLUMNS):
        their = (~finite[..., some]).repeat_interleave(group, 1).unsqueeze(-2) & allowed[..., some]
        values = vectors[:, :, some].repeat_interleave(group, 1).unsqueeze(2)
        values = values.masked_fill(~their.unsqueeze(-1), 0)
        total += (weights[..., some].masked_fill(~their, 0).unsqueeze(-1) * values).sum(-2)
    return total


def product_transposed(
    weights: Tensor, vectors: Tensor, pairs: Pairs, finite: Tensor | None, key_heads: int
) -> Tensor:
    """Σ over the allowed pairs of a column, with the care of `product`; shapes as in `matmul_transposed`."""
    if finite is None:
        return matmul_transposed(weights, vectors, key_heads)
    total = matmul_transposed(weights, vectors.masked_fill(~finite.unsqueeze(-1), 0), key_heads)
    allowed, special = pairs.allowed, (~finite).flatten(0, 1).any(0).nonzero().flatten()
    for some in special.split(_SPECIAL_COLUMNS):
        their = (~finite[:, :, some]).unsqueeze(-1) & allowed[:, :, some]
        values = vectors[:, :, some].unsqueeze(-2).masked_fill(~their.unsqueeze(-1), 0)
        terms = (weights[:, :, some].masked_fill(~their, 0).unsqueeze(-1) * values).sum(2)
        total += terms.unflatten(1, (key_heads, -1)).sum(2)
    return total
