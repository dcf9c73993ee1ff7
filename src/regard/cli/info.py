"""`regard info`: which engines there are, what the native one runs on, which variables are set."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from regard.engines import native
from regard.errors import EngineError

# What changes how regard, or the threads it borrows, compute; shown where set.
_VARIABLES = ("REGARD_ISA", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def add_to(commands: Any) -> None:
    """Add this command to the parser's."""
    parser = commands.add_parser(
        "info",
        help="say which engines there are, and what the native one runs on",
        description="Prints versions, engines, the native engine's instruction set and why it is that one, "
        "the threads it runs on, and the variables that are set. What to put into a report of a fault.",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print it, as a table where rich is installed."""
    lines = facts()
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        width = max(len(name) for name, _ in lines)
        sys.stdout.writelines(f"{name:<{width}}  {value}\n" for name, value in lines)
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in lines:
        table.add_row(Text(name), Text(value))
    # A pipe has no width to fold at: what is long stays on its line there.
    console = Console()
    console.print(table, width=None if console.is_terminal else 1000)


def facts() -> list[tuple[str, str]]:
    """Name and value of everything that is told, in order."""
    return [
        ("regard", _regard_version()),
        ("Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}"),
        ("torch", f"{torch.__version__}, {torch.get_num_threads()} threads"),
        ("engines", "native, tiled, reference" if native.is_built() else "tiled, reference"),
        *_native_facts(),
        *((name, os.environ[name]) for name in _VARIABLES if name in os.environ),
    ]


def _native_facts() -> list[tuple[str, str]]:
    if not native.is_built():
        return [("native engine", f"not available: {native.refusal()}")]
    runnable = ("it can run", ", ".join(native.runnable_isas()))
    try:
        chosen = [("instruction set", native.isa()), ("because", native.isa_reason())]
    except EngineError as error:
        chosen = [("instruction set", f"none: {error}")]
    return [*chosen, runnable, ("native threads", native.thread_runtime())]


def _regard_version() -> str:
    try:
        return version("regard")
    except PackageNotFoundError:
        return "run from its source"
