"""Counting a model's forward passes while they happen, each thread for itself."""

from __future__ import annotations

import threading


class Steps:
    """The number of the forward pass that a call in this thread belongs to, 0 first.

    A call outside any forward pass belongs to the next one: a generation runs the encoder of an
    encoder-decoder by itself before the first pass of the whole.
    """

    def __init__(self) -> None:
        self.begun = 0
        self._lock = threading.Lock()
        self._running = threading.local()

    @property
    def current(self) -> int:
        running: int | None = getattr(self._running, "step", None)
        return self.begun if running is None else running

    def begin(self) -> None:
        """A pass begins in this thread."""
        with self._lock:
            self._running.step = self.begun
            self.begun += 1

    def end(self) -> None:
        """It has ended."""
        self._running.step = None
