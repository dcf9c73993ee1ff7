"""Dynamic time warping: the cheapest monotonic path through a matrix of costs."""

from __future__ import annotations

import torch
from torch import Tensor

_DIAGONAL, _DOWN, _ACROSS = 0, 1, 2


def warp(cost: Tensor) -> tuple[Tensor, Tensor]:
    """The path from the first to the last entry of `cost` `[N, M]`: rows and columns, int64 `[steps]` each.

    Every step goes one row down, one column across, or both, and the sum of the entries passed is least.
    Of equal ways the one across wins, as in Whisper's code. Sakoe & Chiba 1978.

    >>> warp(torch.tensor([[0.0, 1, 1], [1, 0, 0]]))
    (tensor([0, 1, 1]), tensor([0, 1, 2]))
    """
    n_rows, n_columns = cost.shape
    cost = cost.detach().double().cpu()
    # total[i, j] and step[i, j] are of the path to entry (i - 1, j - 1). An anti-diagonal needs only the two
    # before it, and so is computed at once.
    total = torch.full((n_rows + 1, n_columns + 1), torch.inf, dtype=torch.float64)
    total[0, 0] = 0
    step = torch.zeros((n_rows + 1, n_columns + 1), dtype=torch.int8)
    for diagonal in range(2, n_rows + n_columns + 1):
        i = torch.arange(max(1, diagonal - n_columns), min(n_rows, diagonal - 1) + 1)
        j = diagonal - i
        both, down, across = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        taken = torch.full_like(i, _ACROSS, dtype=torch.int8)
        taken[(down < both) & (down < across)] = _DOWN
        taken[(both < down) & (both < across)] = _DIAGONAL
        before = across.where(taken == _ACROSS, down.where(taken == _DOWN, both))
        total[i, j], step[i, j] = cost[i - 1, j - 1] + before, taken
    step[0, :], step[:, 0] = _ACROSS, _DOWN
    taken_steps, row, column = step.tolist(), n_rows, n_columns
    path = []
    while row > 0 or column > 0:
        path.append((row - 1, column - 1))
        one = taken_steps[row][column]
        row -= one != _ACROSS
        column -= one != _DOWN
    rows, columns = torch.tensor(path[::-1]).T
    return rows, columns
