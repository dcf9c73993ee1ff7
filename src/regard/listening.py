"""Who is told of the attention that regard computes: nobody, unless a model that calls it is being watched."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from regard.problem import Problem

# What was computed, or in words why there is no one matrix of its weights.
Listener = Callable[[Problem | str], None]

listeners: tuple[Listener, ...] = ()
_lock = threading.Lock()


class _Thread(threading.local):
    silent = 0


_thread = _Thread()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell `listener` of every eager call, in whatever thread, until the block ends.

    The short way tells nobody. It is closed while a watched model runs: a function mode is then active.
    """
    global listeners
    with _lock:
        listeners = (*listeners, listener)
    try:
        yield
    finally:
        with _lock:
            listeners = tuple(other for other in listeners if other is not listener)


def tell(call: Problem | str) -> None:
    """Tell everybody who listens, unless the call is a part of one that is heard as a whole."""
    if not is_silent():
        for listener in listeners:
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
    """Whether this thread computes a part of a call that is heard as a whole."""
    return _thread.silent > 0
