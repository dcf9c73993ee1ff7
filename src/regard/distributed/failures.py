"""A rank's own fault, caught to be told to the other ranks before it is raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def attempt(function: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
    """The function's result, or the error it ended with, to be told to the other ranks first."""
    try:
        return function(), None
    except Exception as error:  # noqa: BLE001 (it is raised again by `agree`)
        return None, error
