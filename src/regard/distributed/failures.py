"""A rank's own fault, caught to be told to the other ranks before it is raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from regard.errors import RegardError

Result = TypeVar("Result")

# What a check of one rank's arguments may raise, and the other ranks must hear of.
LOCAL_FAULTS = (RegardError, ValueError, TypeError, RuntimeError, MemoryError)


def attempt(function: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
    """The function's result, or the error it ended with, to be told to the other ranks first."""
    try:
        return function(), None
    except LOCAL_FAULTS as error:
        return None, error
