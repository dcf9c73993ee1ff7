"""Sums along the diagonals of a matrix tile: what relative positions have in common."""

from __future__ import annotations

from torch import Tensor


def diagonal_sums(tile: Tensor) -> Tensor:
    """`[..., R, C]` to `[..., R + C − 1]`: entry d is the sum of the entries with row − column = d − (C − 1).

    Rows are laid into a buffer one element longer than the result, so that reading it back with the
    result's width shifts each row one place further: a sum over rows is then a sum over diagonals, in a
    fixed order and without an index for every entry.
    """
    *lead, n_rows, n_columns = tile.shape
    width = n_rows + n_columns - 1
    if n_rows == 0 or n_columns == 0:
        return tile.new_zeros((*lead, max(width, 0)))
    skewed = tile.new_zeros((*lead, n_rows, width + 1))
    skewed[..., :n_columns] = tile.flip(-1)
    sums: Tensor = skewed.flatten(-2)[..., : n_rows * width].unflatten(-1, (n_rows, width)).sum(-2)
    return sums
