"""The command line, `regard`: one file a command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from regard.cli import explain, info, look, view
from regard.errors import RegardError

FAILED, INTERRUPTED = 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code: 0, 2 for anything the user can put right, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="regard", description="Exact attention that you can see into.")
    parser.add_argument("--version", action="version", version=f"regard {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    look.add_to(commands)
    view.add_to(commands)
    explain.add_to(commands)
    info.add_to(commands)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except RegardError as error:
        sys.stderr.write(f"regard: {error}\n")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _version() -> str:
    try:
        return version("regard")
    except PackageNotFoundError:
        return "run from its source"
