"""Why scores are divided by √d_k: softmax of random queries and keys, with the division and without."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from regard.attention import attention
from regard.checks.moments import row_moments
from regard.nn.checks import check_size

DIMS = tuple(4**power for power in range(1, 7))


@dataclass(frozen=True)
class ScalingRow:
    """One measurement, with the scores divided by √d_k (`scaled`) or not.

    `score_variance` is over a query's scores, a mean over queries. The others are of the typical (median)
    query: `entropy` in nats, `max_weight`, `jacobian` (the norm of diag(p) − p pᵀ) and `gradient`, the norm
    of what reaches the query when a random gradient of norm 1 comes in at its output. `max_gradient` is the
    largest of all queries.
    """

    head_dim: int
    scaled: bool
    score_variance: float
    entropy: float
    max_weight: float
    jacobian: float
    gradient: float
    max_gradient: float


@dataclass(frozen=True)
class ScalingStudy:
    """The rows of a study, those with the scale first; `print(study)` shows its table."""

    rows: tuple[ScalingRow, ...]

    def table(self) -> str:
        """The measurements as plain text."""
        columns = ("d_k", "scale", "variance", "entropy", "max weight", "Jacobian", "gradient", "largest")
        cells: list[tuple[str, ...]] = [columns]
        for row in self.rows:
            numbers = (_short(number) for number in astuple(row)[2:])
            cells.append((str(row.head_dim), "1/√d_k" if row.scaled else "1", *numbers))
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ("  ".join(map(str.rjust, line, widths)) for line in cells)
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the measurements over d_k and save them; the name's ending chooses PNG, SVG or PDF.

        Raises `MissingExtraError` without matplotlib.
        """
        from regard.checks.scaling_plot import save_plot

        save_plot(self.rows, path)


def scaling_study(
    dims: Sequence[int] = DIMS, *, n_queries: int = 256, n_keys: int = 256, seed: int = 0
) -> ScalingStudy:
    """Measure softmax over scores of random queries and keys, for each d_k, with and without 1/√d_k.

    Queries, keys and values are standard normal, as at the start of training, in float64 and the same for the
    same seed. Unscaled, a score has variance d_k: softmax turns into an argmax, and what reaches the typical
    query is nothing, while the few queries near a tie get gradients √d_k times too large. Scaled, nothing
    depends on d_k (Vaswani et al. 2017, section 3.2.1).

    >>> print(scaling_study((4, 64, 1024)))  # doctest: +SKIP
    """
    for name, size in {"n_queries": n_queries, "n_keys": n_keys}.items():
        check_size(name, size)
    for dim in dims:
        check_size("dims", dim)
    cases = ((dim, scaled) for scaled in (True, False) for dim in dims)
    return ScalingStudy(tuple(_measure(*case, n_queries, n_keys, seed) for case in cases))


_VALUE_DIM = 16


def _measure(head_dim: int, scaled: bool, n_queries: int, n_keys: int, seed: int) -> ScalingRow:
    generator = torch.Generator().manual_seed(seed)
    query, key, value, incoming = (
        torch.randn(1, length, width, generator=generator, dtype=torch.float64)
        for length, width in (
            (n_queries, head_dim),
            (n_keys, head_dim),
            (n_keys, _VALUE_DIM),
            (n_queries, _VALUE_DIM),
        )
    )
    query.requires_grad_()
    scale = head_dim**-0.5 if scaled else 1.0
    with torch.enable_grad():
        output, weights = attention(query, key, value, scale=scale, return_weights=True)
        incoming /= incoming.norm(dim=-1, keepdim=True)
        (gradient,) = torch.autograd.grad(output, query, incoming)
    norms, weights = gradient.norm(dim=-1), weights.detach()
    moments = row_moments(weights)

    def typical(of_queries: Tensor) -> float:
        return float(of_queries.median())

    return ScalingRow(
        head_dim,
        scaled,
        float(moments.variance.mean()),
        typical(weights.entropy()),
        typical(weights.max_weight()),
        typical(moments.jacobian),
        typical(norms),
        float(norms.max()),
    )


def _short(number: float) -> str:
    """Three digits."""
    if number >= 100:
        return f"{number:.0f}"
    return f"{number:#.3g}" if number == 0 or number >= 1e-3 else f"{number:.1e}"
