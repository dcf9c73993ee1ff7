"""Waiting for messages in a thread of its own: Ctrl-C and news from other ranks get through meanwhile."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Sequence

import torch.distributed as dist

# How often who waits long looks up from it, in seconds.
TICK_S = 0.5

Works = Sequence[tuple[list[int], dist.Work]]


class UnansweredError(Exception):
    """A work failed: the ranks it was for, and the backend's error as its cause."""

    def __init__(self, ranks: list[int]) -> None:
        super().__init__(ranks)
        self.ranks = ranks


def finish(works: Works, meanwhile: Callable[[list[int]], None], give_up: Callable[[], None]) -> None:
    """Wait for works, each with the ranks it depends on; `UnansweredError` for the first that fails.

    A backend's own wait ends for nothing but its message or its timeout. So a helper thread does it, and
    while it lasts `meanwhile` is called every `TICK_S` with the ranks that are waited for; it may raise, as
    may a signal's handler. Then `give_up` has to end what the helper waits for: no thread may be left in the
    backend when the interpreter ends.
    """
    if not works:
        return
    pending = _Pending(works)
    _helper().queue.put(pending)
    try:
        while not pending.running.acquire(timeout=TICK_S):
            meanwhile(pending.ranks)
    except BaseException:
        give_up()
        if not pending.running.acquire(timeout=TICK_S):
            del _OF_THREAD.helper
        raise
    if pending.error is not None:
        raise UnansweredError(pending.ranks) from pending.error


class _Pending:
    """Works that are being waited for, one after the other."""

    def __init__(self, works: Works) -> None:
        self.running = threading.Lock()  # free when all is done; an event would take twice as long
        self.running.acquire()
        self.error: RuntimeError | None = None
        self.ranks = works[0][0]
        self._works = works

    def run(self) -> None:
        try:
            for ranks, work in self._works:
                self.ranks = ranks
                work.wait()
        except RuntimeError as error:
            self.error = error
        finally:
            self.running.release()


class _Helper:
    """A thread that waits for another one; it ends with it, or with the wait that it was left to."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[_Pending | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=_serve, args=(self.queue,), name="regard-wait", daemon=True)
        self.thread.start()
        weakref.finalize(self, self.queue.put, None)


_OF_THREAD = threading.local()


def _helper() -> _Helper:
    known: _Helper | None = getattr(_OF_THREAD, "helper", None)
    if known is None or not known.thread.is_alive():  # a forked child has the object without its thread
        known = _OF_THREAD.helper = _Helper()
    return known


def _serve(pending: queue.SimpleQueue[_Pending | None]) -> None:
    while (one := pending.get()) is not None:
        one.run()
        del one  # not to hold on to buffers until the next wait
