"""Threads that wait in one's stead, so that Ctrl-C and news from other ranks get through meanwhile."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

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
    awaited = [works[0][0]]

    def wait_for_all() -> None:
        for awaited[0], work in works:
            work.wait()

    task = _helper_of_this_thread().begin(wait_for_all)
    try:
        while not task.ends(TICK_S):
            meanwhile(awaited[0])
    except BaseException:
        give_up()
        if not task.ends(TICK_S):
            del _OF_THREAD.helper
        raise
    if task.error is not None:
        raise UnansweredError(awaited[0]) from task.error


class Task:
    """Something that a helper does: over when `ends` says so, with a `result` or an `error`."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: Exception | None = None
        self._function: Callable[[], Any] | None = function
        self._at_work = threading.Lock()  # an event would take twice as long
        self._at_work.acquire()

    def ends(self, within_s: float) -> bool:
        """Wait for its end; whether it came in time. Not to be asked again once it has."""
        return self._at_work.acquire(timeout=within_s)

    def run(self) -> None:
        function, self._function = self._function, None  # not to hold on to buffers until the next task
        assert function is not None
        try:
            self.result = function()
        except Exception as error:  # noqa: BLE001 (it is raised where the task is waited for)
            self.error = error
        finally:
            self._at_work.release()


class Helper:
    """A thread that does one task after the other; it ends with its last reference, or its last task."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_serve, args=(self._tasks,), name="regard-wait", daemon=True)
        self._thread.start()
        weakref.finalize(self, self._tasks.put, None)

    @property
    def alive(self) -> bool:
        """False in a forked child, which has the object without its thread."""
        return self._thread.is_alive()

    def begin(self, function: Callable[[], Any]) -> Task:
        """Have it called in the thread."""
        task = Task(function)
        self._tasks.put(task)
        return task


_OF_THREAD = threading.local()


def _helper_of_this_thread() -> Helper:
    known: Helper | None = getattr(_OF_THREAD, "helper", None)
    if known is None or not known.alive:
        known = _OF_THREAD.helper = Helper()
    return known


def _serve(tasks: queue.SimpleQueue[Task | None]) -> None:
    while (task := tasks.get()) is not None:
        task.run()
        del task
