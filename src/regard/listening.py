"""Who is told of the attention that regard computes: nobody, unless a watched model calls it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from regard.problem import Problem

T = TypeVar("T")


class Listeners(Generic[T]):
    """Those who are told of something, each for the time of a block, in whatever thread.

    `install` is called before the first comes, and what it returns after the last has gone.
    """

    def __init__(self, install: Callable[[], Callable[[], None]] | None = None) -> None:
        self.now: tuple[T, ...] = ()
        self._install = install
        self._uninstall: Callable[[], None] | None = None
        self._lock = threading.Lock()

    @contextmanager
    def among(self, one: T) -> Iterator[None]:
        """With `one` among them, last, until the block ends."""
        with self._lock:
            if self._install is not None and not self.now:
                self._uninstall = self._install()
            self.now = (*self.now, one)
        try:
            yield
        finally:
            with self._lock:
                self.now = tuple(other for other in self.now if other is not one)
                if self._uninstall is not None and not self.now:
                    self._uninstall()
                    self._uninstall = None


class _Thread(threading.local):
    silent = 0


# Each is told what was computed, or in words why there is no one matrix of its weights. The short way tells
# nobody: it is closed while a watched model runs, since a function mode is active then.
listeners: Listeners[Callable[[Problem | str], None]] = Listeners()
_thread = _Thread()


def tell(call: Problem | str) -> None:
    """Tell everybody who listens, unless the call is part of one that is heard as a whole."""
    if not is_silent():
        for listener in listeners.now:
            listener(call)


@contextmanager
def silently() -> Iterator[None]:
    """In this thread, what is computed in the block is part of a call that is heard as a whole."""
    _thread.silent += 1
    try:
        yield
    finally:
        _thread.silent -= 1


def is_silent() -> bool:
    """Whether this thread computes part of a call that is heard as a whole."""
    return _thread.silent > 0
