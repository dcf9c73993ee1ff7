"""The answers of a view, on the terminal: a table each, of the heads and the tokens that come first."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from regard.cli.telling import printable
from regard.viewer import Answered

_ROWS, _BAR = 6, 16


def print_answers(answers: Sequence[Answered], tokens: Sequence[str], *, stderr: bool = False) -> None:
    """Print each answer to standard output or error; nothing where nothing was asked."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(stderr=stderr)
    for answer in answers:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        columns = []
        if answer.heads is not None:
            table.add_column("Head", justify="right", no_wrap=True, min_width=5)
            table.add_column("", no_wrap=True, min_width=_BAR + 6)
            columns.append(_foremost_heads(answer.heads))
        if answer.tokens is not None:
            table.add_column("Token", no_wrap=True, overflow="ellipsis")
            table.add_column("", no_wrap=True, min_width=_BAR + 6)
            columns.append(_foremost_tokens(answer.tokens, tokens))
        for row in range(max((len(column) for column in columns), default=0)):
            cells = [cell for column in columns for cell in (column[row] if row < len(column) else ("", ""))]
            table.add_row(*(Text(cell) for cell in cells))  # Text, not markup: a token may read "[bold]"
        console.print(Text("\n" + answer.title, style="bold"))
        console.print(Text(answer.note, style="dim"))
        console.print(table)


def _foremost_heads(heads: Sequence[Sequence[float]]) -> list[tuple[str, str]]:
    names = [(value, f"{layer}.{head}") for layer, row in enumerate(heads) for head, value in enumerate(row)]
    return _barred(names)


def _foremost_tokens(values: Sequence[float], tokens: Sequence[str]) -> list[tuple[str, str]]:
    return _barred([(value, f"{at} {printable(tokens[at])}") for at, value in enumerate(values)])


def _barred(named: list[tuple[float, str]]) -> list[tuple[str, str]]:
    """The names with the greatest numbers, each with its number and a bar; zeros and NaN are left out."""
    best = sorted((one for one in named if isfinite(one[0]) and one[0]), key=lambda one: -one[0])[:_ROWS]
    return [
        (name, f"{_number(value)} {'█' * max(1, round(_BAR * value / best[0][0]))}") for value, name in best
    ]


def _number(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"
