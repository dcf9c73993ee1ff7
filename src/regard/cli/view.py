"""`regard view`: a saved recording as a live view."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from regard.cli.serving import add_options, serve
from regard.recording import Recording


def add_to(commands: Any) -> None:
    """Add this command to the parser's."""
    parser = commands.add_parser(
        "view",
        help="look into a saved recording: zoom from all heads down to single weights",
        description="Serves a recording, as Recording.save writes it, on an address of this machine alone: "
        "every map is computed when it is looked at. The file is read as data; no code in it is run.",
    )
    parser.add_argument("recording", metavar="RECORDING", help="the file")
    parser.add_argument(
        "--steps", type=_steps, metavar="A:B", help="steps A to B−1 alone: one generation of several"
    )
    add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Read it and serve it."""
    recording = Recording.load(options.recording)
    serve(recording, Path(options.recording).name, options.port, options.no_open, steps=options.steps)


def _steps(text: str) -> range:
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be two numbers such as 0:12, got {text!r}")
    return range(int(first), int(last))
