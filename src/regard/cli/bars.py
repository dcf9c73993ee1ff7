"""Numbers on a terminal: as a bar that grows from 0 in both directions, and as few digits as tell them."""

from __future__ import annotations

import math


def bar(number: float, low: float, high: float, width: int) -> str:
    """A bar from 0 to `number` on an axis from `low` (0 or less) to `high` (0 or more), `width` cells wide.

    Half a cell is its precision; what is less, but not 0, is a thin line. Nothing for NaN.

    >>> bar(1, -1, 2, 6)
    '  ██'
    """
    if math.isnan(number) or number == 0 or high <= low:
        return ""
    halves = 2 * width / (high - low)
    # The zero stands between two cells, so that bars in both directions meet there.
    zero = 2 * round(-low * halves / 2)
    size = round(min(max(number, low), high) * halves)
    if number > 0:
        size = min(size, 2 * width - zero)
        return " " * (zero // 2) + ("█" * (size // 2) + "▌" * (size % 2) or "▏")
    size = min(-size, zero)
    return " " * ((zero - max(2, size)) // 2) + ("▐" * (size % 2) + "█" * (size // 2) or "▕")


def number_text(number: float) -> str:
    """A score or logit in at most seven characters."""
    if number == -math.inf:
        return "−∞"
    return f"{number:.2f}" if abs(number) < 9999 else f"{number:.1e}"


def weight_text(number: float) -> str:
    """A weight with three digits after the point, or that it is smaller than these can say."""
    if number == 0:
        return "0"
    return "<.001" if number < 0.0005 else f"{number:.3f}"
