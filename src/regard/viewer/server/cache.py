"""Answers that were computed, as many as fit into a number of bytes; the longest unasked for goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Any


class Cache:
    """A mapping that forgets, for several threads. What alone is larger than all of it is not kept."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = Lock()
        self.n_bytes = 0

    def get(self, name: Hashable) -> Any | None:
        """The answer, which counts as asked for just now; None if it is not here."""
        with self._lock:
            if name not in self._kept:
                return None
            self._kept.move_to_end(name)
            return self._kept[name][0]

    def put(self, name: Hashable, answer: Any, n_bytes: int) -> None:
        """Keep an answer, and let others go until all fit."""
        with self._lock:
            if name in self._kept:
                self.n_bytes -= self._kept.pop(name)[1]
            if n_bytes > self._max_bytes:
                return
            self._kept[name] = answer, n_bytes
            self.n_bytes += n_bytes
            while self.n_bytes > self._max_bytes:
                _, (_, freed) = self._kept.popitem(last=False)
                self.n_bytes -= freed
