"""The most telling heads of a view, as a table: a few for each thing that heads are known to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

from regard.viewer import HeadSummary, ViewData

_OF_EACH_KIND = 3
_FAR_REACH = "far reach: mean distance × (1 − mass on the first token)."
_ONE_TOKEN = "One token can attend to nothing but itself: there are no heads to compare."


def _far_link(line: HeadSummary) -> float:
    return line.link_weight if abs(line.link_query - line.link_key) > 1 else 0.0


_KINDS: Sequence[tuple[str, Callable[[HeadSummary], float]]] = (
    ("previous token", lambda line: line.previous),
    ("sharp link", _far_link),
    ("far reach", lambda line: line.reach),
    ("broad", lambda line: line.entropy),
    ("first token", lambda line: line.first),
)


def telling_heads(lines: Sequence[HeadSummary]) -> list[tuple[str, HeadSummary]]:
    """For each kind the heads that do it most. Kinds choose in turns, and no head is chosen twice."""
    left = list(lines)
    chosen: dict[str, list[HeadSummary]] = {kind: [] for kind, _ in _KINDS}
    for _ in range(_OF_EACH_KIND):
        for kind, measure in _KINDS:
            able = [line for line in left if isfinite(measure(line))]
            if able:
                best = max(able, key=measure)
                left.remove(best)
                chosen[kind].append(best)
    return [(kind, line) for kind, lines_of_kind in chosen.items() for line in lines_of_kind]


def print_heads(view: ViewData) -> None:
    """Print the table to standard output, or that one token leaves nothing to compare."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    tokens = view.header["tokens"]
    if len(tokens) == 1:
        Console().print(_ONE_TOKEN, highlight=False, soft_wrap=True)
        return
    title = Text(f"{view.header['model']}: the most telling heads")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("Does most", no_wrap=True, min_width=max(len(kind) for kind, _ in _KINDS))
    for name in ("Head", "Entropy\n(nats)", "First", "Previous", "Distance\n(tokens)"):
        table.add_column(name, justify="right", no_wrap=True, min_width=max(5, *map(len, name.split("\n"))))
    # The one column that gives way where a terminal is narrow: rich shrinks none that may not wrap.
    table.add_column("Sharpest link")
    kind_before = ""
    for kind, line in telling_heads(view.summaries):
        if kind_before not in ("", kind):
            table.add_section()
        numbers = (f"{line.entropy:.2f}", f"{line.first:.0%}", f"{line.previous:.0%}", f"{line.distance:.1f}")
        # Text, not markup: a token may read "[bold]".
        link = Text(_link(line, tokens), no_wrap=True, overflow="ellipsis")
        table.add_row(kind if kind != kind_before else "", f"{line.layer}.{line.head}", *numbers, link)
        kind_before = kind
    Console().print(table)
    Console().print(_FAR_REACH, highlight=False)


def _link(line: HeadSummary, tokens: Sequence[str]) -> str:
    if line.link_query < 0:
        return "none"
    query, key = (printable(tokens[at]) for at in (line.link_query, line.link_key))
    return f"{line.link_weight:.2f}  {query} → {key}"


def printable(token: str) -> str:
    """A token for a terminal: no control character reaches it, a blank one shows what it is."""
    if token == "":  # the rest of a character that a token before it shows
        return "⋯"
    shown = token.strip() or token
    if shown.isprintable() and shown.strip():
        return shown
    return shown.replace("\n", "↵").replace(" ", "␣") if shown.strip(" \n") == "" else ascii(shown)[1:-1]
