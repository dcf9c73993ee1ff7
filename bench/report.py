"""What the person sees and what is kept: tables on the terminal, one JSON file of each run."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.live import Live
from rich.table import Table

import regard
from harness import Effort, TimeRow
from memory import MemoryRow

console = Console()
RESULTS = Path(__file__).parent / "results"
HEADINGS = {TimeRow: ("median", "ratio"), MemoryRow: ("peak growth", "one matrix")}


def machine() -> dict[str, str | float]:
    """What the numbers depend on besides the code."""
    return {
        "regard": regard.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
    }


def processor() -> str:
    """The processor's name as Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def print_machine(effort: Effort) -> None:
    """Open the report with the machine and how the ratios are to be read."""
    console.print(", ".join(f"{name} {value}" for name, value in machine().items()))
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


def show(question: str, rows: Iterable[TimeRow | MemoryRow]) -> list[TimeRow | MemoryRow]:
    """Print a question and a table that grows as its rows are measured; give the rows back."""
    console.print(f"\n[bold cyan]{question}[/bold cyan]")
    table = Table(box=None, pad_edge=False)
    shown = []
    with Live(table, console=console, auto_refresh=False) as live:
        for row in rows:
            if not shown:
                table.add_column("case and contender")
                for heading in HEADINGS[type(row)]:
                    table.add_column(heading, justify="right")
            if not shown or row.case != shown[-1].case:
                table.add_row(f"[bold]{row.case}[/bold]")
            for cells in time_cells(row) if isinstance(row, TimeRow) else [memory_cells(row)]:
                table.add_row(*cells)
            shown.append(row)
            live.refresh()
    console.print()
    return shown


def time_cells(row: TimeRow) -> Iterator[tuple[str, str, str]]:
    """A line for each contender."""
    for name, seconds in row.seconds.items():
        ratio = row.ratios.get(name)
        said = f"{ratio[1]:.2f} ({ratio[0]:.2f} to {ratio[2]:.2f})" if ratio else "1"
        yield f"  {name}", f"{seconds * 1e3:,.1f} ms", said


def memory_cells(row: MemoryRow) -> tuple[str, str, str]:
    """The peak, beside the size of one matrix of weights."""
    growth = row.why_not if row.growth_bytes is None else f"{row.growth_bytes / 2**20:,.0f} MiB"
    return f"  {row.contender}", growth, f"{row.matrix_bytes / 2**20:,.0f} MiB"


def write_json(answers: list[dict], effort: Effort) -> None:
    """Keep the numbers, under the effort's name; a later run of the same effort replaces them."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{effort.name}.json"
    content = {"machine": machine(), "effort": effort.name, "answers": answers}
    file.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    console.print(f"\nwritten: {file}", highlight=False, soft_wrap=True)
