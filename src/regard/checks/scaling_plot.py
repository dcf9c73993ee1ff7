"""The scaling study drawn: each measurement over d_k, with and without the scale."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard.errors import MissingExtraError

if TYPE_CHECKING:
    from regard.checks.scaling import ScalingRow

_PANELS = {
    "score_variance": "variance of a query's scores",
    "entropy": "entropy of its weights (nats)",
    "max_weight": "largest weight",
    "jacobian": "norm of the softmax Jacobian",
    "gradient": "gradient, typical query",
    "max_gradient": "gradient, largest",
}
_ON_A_LOG_SCALE = {"score_variance", "jacobian", "gradient", "max_gradient"}


def save_plot(rows: Sequence[ScalingRow], path: str | os.PathLike[str]) -> None:
    """Save six panels, one for each measurement; the name's ending chooses the format."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("plots need matplotlib: `pip install regard[plot]`") from None
    # A figure of its own, without pyplot: no window, no state that other plots share.
    figure = Figure(figsize=(10, 6), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(2, 3).flat, _PANELS.items(), strict=True):
        for scaled, label, style in ((True, "scores / √d_k", "o-"), (False, "scores as they are", "s--")):
            shown = [row for row in rows if row.scaled is scaled]
            axes.plot(
                [row.head_dim for row in shown], [getattr(row, name) for row in shown], style, label=label
            )
        axes.set_xscale("log", base=2)
        if name in _ON_A_LOG_SCALE:
            axes.set_yscale("log")
        axes.set(title=title, xlabel="d_k")
    figure.axes[0].legend()
    figure.savefig(path)
