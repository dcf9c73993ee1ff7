"""Serving a live view from the command line: its address first, then nothing until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
import webbrowser
from collections.abc import Sequence

from regard.recording import Recording
from regard.viewer import Answered


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of every command that serves."""
    parser.add_argument("--port", type=_port, default=0, metavar="N", help="the port (default: a free one)")
    parser.add_argument("--no-open", action="store_true", help="do not open the address in a browser")


def serve(
    recording: Recording,
    title: str,
    port: int,
    no_open: bool,
    *,
    steps: range | None = None,
    answers: Sequence[Answered] = (),
) -> None:
    """Serve until Ctrl-C. The first line on standard output is the address, and there is no other."""
    from regard.viewer.server.running import live_view

    view = live_view(recording, title=title, steps=steps, port=port, answers=answers)
    sys.stdout.write(f"{view.url}\n")
    sys.stdout.flush()
    sys.stderr.write("Ctrl-C ends it.\n")
    if not no_open and _has_screen():
        # Some browsers return only when they are closed.
        threading.Thread(target=_open, args=(view.url,), daemon=True).start()
    view.run()


def _open(url: str) -> None:
    with contextlib.suppress(webbrowser.Error, OSError):
        webbrowser.open(url)


def _has_screen() -> bool:
    """Whether a browser would be a window: without a screen it would take the terminal over."""
    return sys.platform in ("win32", "darwin") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be a port between 0 and 65535, got {text!r}")
    return int(text)
