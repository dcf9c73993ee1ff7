"""What the person sees: the machine, tables that grow as they are measured, and what was reached."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.live import Live
from rich.table import Table

import results
from harness import Effort, TimeRow, WrongResultError
from memory import MemoryRow

# A log or a pipe has no width of its own, and tables are for reading.
console = Console(width=None if sys.stdout.isatty() else 140)
HEADINGS = {
    TimeRow: ("median", "rate", "ratio", "wanted"),
    MemoryRow: ("peak growth", "results", "one matrix", "wanted"),
}
Cells = tuple[str, ...]


def print_machine(effort: Effort, rates: dict[str, float]) -> None:
    """Open the report with the machine and how the ratios are to be read."""
    console.print(", ".join(f"{name} {value}" for name, value in results.machine().items()), highlight=False)
    for name, rate in rates.items():
        console.print(f"  at most: {name.replace(',', f': {rate:,.0f}')}", highlight=False)
    console.print(
        f"{effort.name} run. A ratio is the peer's time over regard's in the same round: above 1, regard is "
        "faster. Medians, with quartiles in parentheses."
    )
    if os.getloadavg()[0] > 0.5 * (os.cpu_count() or 1):
        console.print(
            "This machine is busy with other work, where worker threads wait for one another: "
            "--threads 1 gives ratios that hold better, and no ratio here is exact.",
            style="yellow",
        )


def show(question: str, rows: Iterable[TimeRow | MemoryRow]) -> tuple[list[TimeRow | MemoryRow], str]:
    """Print a question and a table that grows as its rows are measured.

    Gives the rows, and what was wrong if a result was: then the question ends there.
    """
    console.print(f"\n[bold cyan]{question}[/bold cyan]")
    table = Table(box=None, pad_edge=False)
    shown = []
    wrong = ""
    with Live(table, console=console, auto_refresh=False) as live:
        try:
            for row in rows:
                if not shown:
                    table.add_column("case and contender")
                    for heading in HEADINGS[type(row)]:
                        table.add_column(heading, justify="right")
                if not shown or row.case != shown[-1].case or isinstance(row, TimeRow):
                    table.add_row(f"[bold]{row.case}[/bold]")
                for cells in time_cells(row) if isinstance(row, TimeRow) else [memory_cells(row)]:
                    table.add_row(*cells)
                shown.append(row)
                live.refresh()
        except WrongResultError as error:
            wrong = str(error)
    if wrong:
        console.print(f"bench: {wrong}", style="bold red", highlight=False)
    console.print()
    return shown, wrong


def time_cells(row: TimeRow) -> Iterator[Cells]:
    """A line for each contender, and one for each that did not take part."""
    verdicts = {verdict["against"]: verdict for verdict in row.verdicts()}
    for name, seconds in row.seconds.items():
        ratio = row.ratios.get(name)
        said = f"{ratio[1]:.2f} ({ratio[0]:.2f} to {ratio[2]:.2f})" if ratio else "1"
        verdict = verdicts.get(name)
        rate = row.rate(name)
        told = "" if rate is None or row.work is None else f"{rate:,.1f} {row.work.ceiling.unit}"
        if name == row.subject and row.work is not None and row.share is not None:
            told += f", {row.share[1]:.0%} of {row.work.ceiling.name}"
            verdict = verdicts.get(f"share of {row.work.ceiling.name}")
        yield f"  {name}", duration(seconds), told, said, wanted(verdict)
    for name, why in row.left_out.items():
        yield f"  [dim]{name}: {why}[/dim]", "", "", "", ""


def memory_cells(row: MemoryRow) -> Cells:
    """The peak, what of it was returned, and the size of one matrix of weights."""
    sizes = (row.growth_bytes, row.result_bytes, row.matrix_bytes)
    growth, returned, matrix = (f"{size / 2**20:,.0f} MiB" if size is not None else "" for size in sizes)
    verdict = row.verdicts()
    return (
        f"  {row.contender}",
        growth or row.why_not,
        returned,
        matrix,
        wanted(verdict[0] if verdict else None),
    )


def wanted(verdict: dict | None) -> str:
    """What was wanted of a line, and whether it was reached."""
    if verdict is None:
        return ""
    least = verdict["wanted"]
    said = f"{least:.0%}" if verdict["against"].startswith("share") else f"{least:.3g}"
    return f"{said} [green]reached[/green]" if verdict["reached"] else f"{said} [red]not reached[/red]"


def duration(seconds: float) -> str:
    """Seconds in the unit that gives three digits or so."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return (
                f"{seconds / size:,.3g} {unit}" if seconds / size < 100 else f"{seconds / size:,.0f} {unit}"
            )
    return f"{seconds * 1e9:.0f} ns"


def print_verdicts(verdicts: list[dict]) -> None:
    """Close the report with how much of what was wanted came, and name what did not."""
    if not verdicts:
        return
    missed = [verdict for verdict in verdicts if not verdict["reached"]]
    console.print(f"[bold]{len(verdicts) - len(missed)} of {len(verdicts)} wanted figures reached[/bold]")
    for verdict in missed:
        got = f"{verdict['got']:.3g}, wanted {verdict['wanted']:.3g}"
        console.print(f"  not reached: {verdict['case']}: {verdict['against']} {got}", highlight=False)
