"""The one thread that computes, step by step: the most urgent first, and nothing nobody waits for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any


class Job:
    """Some work in steps: `steps` yields None after each, then the result."""

    def __init__(self, steps: Iterator[Any], urgency: int, number: int) -> None:
        self.steps = steps
        self.urgency = urgency
        self.number = number
        self.result: Future[Any] = Future()

    def step(self) -> bool:
        """Take one step; False when there is none left."""
        # Withdrawn in the meantime, its future is cancelled: then what was found is let go.
        with suppress(InvalidStateError):
            try:
                found = next(self.steps)
            except Exception as error:  # noqa: BLE001 (it is raised again where the result is asked for)
                self.result.set_exception(error)
                return False
            if found is not None:
                self.result.set_result(found)
            return found is None
        return False


class Worker:
    """Runs jobs; one thread is enough, since the core itself computes on all of torch's."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._changed = threading.Condition()
        self._count = 0
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="regard-viewer", daemon=True)
        self._thread.start()

    def submit(self, steps: Iterator[Any], urgency: int) -> Job:
        """Have it done: the lower the number, the more urgent; of equals, the latest first."""
        with self._changed:
            self._count += 1
            job = Job(steps, urgency, self._count)
            self._jobs.append(job)
            self._changed.notify()
        return job

    def withdraw(self, job: Job) -> None:
        """Nobody waits for it: the step that is being taken is its last."""
        with self._changed:
            if job in self._jobs:
                self._jobs.remove(job)
        job.result.cancel()

    def close(self) -> None:
        """Stop after the present step."""
        with self._changed:
            self._closed = True
            left, self._jobs = self._jobs, []
            self._changed.notify()
        for job in left:
            job.result.cancel()
        self._thread.join(timeout=10)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            if not job.result.cancelled() and job.step():
                continue
            with self._changed:
                if job in self._jobs:
                    self._jobs.remove(job)

    def _next(self) -> Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            if self._closed:
                return None
            return min(self._jobs, key=lambda job: (job.urgency, -job.number))
