"""Where the text comes from: the argument, a file, a pipe, or the one that is built in."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from regard.errors import ArgumentError

_TITLE_LENGTH = 60


@dataclass(frozen=True)
class Given:
    """A text, and what the page is called."""

    text: str
    title: str


def read_text(argument: str | None, file: str | None) -> Given:
    """The text to look at. Refuses two of them, a file that cannot be read, and one without content."""
    if argument is not None and file is not None:
        raise ArgumentError("`look` takes TEXT or --file, not both")
    if file is not None:
        given = Given(decoded(_file_bytes(file), file), Path(file).name)
    elif argument == "-" or (argument is None and _is_fed(sys.stdin)):
        text = decoded(sys.stdin.buffer.read(), "standard input")
        given = Given(text, _title(text))
    elif argument is not None:
        given = Given(argument, _title(argument))
    else:
        text = resources.files("regard.cli").joinpath("demo.txt").read_text(encoding="utf-8").strip()
        given = Given(text, "The House That Jack Built")
    if not given.text.strip():
        raise ArgumentError("the text must hold something to read, got an empty text")
    return given


def _is_fed(stream: object) -> bool:
    """Whether somebody pipes or redirects a text in: a terminal and /dev/null say nothing."""
    try:
        mode = os.fstat(stream.fileno()).st_mode  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _file_bytes(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ArgumentError(
            f"`--file` must name a file that can be read, got {file}: {error.strerror}"
        ) from None


def decoded(content: bytes, source: str) -> str:
    """Bytes of a source as the text that they must be."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"the text must be UTF-8, got byte {content[error.start]:#04x} at {error.start} of {source}"
        ) from None


def _title(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _TITLE_LENGTH else words[: _TITLE_LENGTH - 1].rsplit(" ", 1)[0] + "…"
