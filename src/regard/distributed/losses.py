"""How every rank learns why its group is lost, when messages no longer get through: by notes in its store."""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager, suppress
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

# How long a rank that was let down waits to hear whether the other one was let down itself, in seconds.
_HEARING_S = 1.0
_LOST = "regard/lost"


class Board:
    """The notes of one group, as one of its ranks reads and writes them.

    Each rank notes whom it waits for, if long or in vain. The first that knows why the group is lost says so,
    and all others repeat its sentence. So a rank which sees its neighbour give up names the one that kept
    the neighbour waiting.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank: int = dist.get_rank(group)
        self.lost: str | None = None
        self.connected: set[torch.device] = set()
        self._waits_for: list[int] = []
        store = group.get_group_store()
        # A connection of its own, for the backend may be waiting on the other one; and made at once, for it
        # could not be made without the rank that keeps the store.
        self._store: Any = store.clone() if hasattr(store, "clone") else store

    def lose(self, sentence: str) -> str:
        """Say why the group is lost. The answer is what was said first, perhaps by another rank."""
        self.lost = sentence
        with _as_far_as_it_goes():
            self.lost = self._store.compare_set(_LOST, "", sentence).decode()
        return self.lost

    def look(self) -> str | None:
        """Why the group is lost, if any rank said so."""
        self.lost = self._read(_LOST) or self.lost
        return self.lost

    def waits_for(self, ranks: list[int]) -> None:
        """Note for whom this rank has been waiting; [] when it is no more."""
        if ranks != self._waits_for:
            self._note(ranks, None)

    def let_down(self, ranks: list[int], cause: str) -> str:
        """Why the group is lost, now that these ranks did not answer: the fault may lie behind them."""
        self._note(ranks, cause)
        until = time.monotonic() + _HEARING_S
        while time.monotonic() < until:
            if sentence := self.look():
                return sentence
            time.sleep(_HEARING_S / 20)
        faulty, cause = self._behind(ranks, cause)
        return self.lose(f"{named(faulty)} did not answer: {cause}")

    def _behind(self, ranks: list[int], cause: str) -> tuple[list[int], str]:
        """The last of those that keep one another waiting, and what its neighbour saw of it."""
        seen = {self.rank}
        last, why = ranks, cause
        while len(last) == 1 and last[0] not in seen:
            seen.add(last[0])
            note = self._read(f"regard/{last[0]} waits for")
            after, cause_there = json.loads(note) if note else ([], None)
            if not after:
                return last, why
            last, why = after, cause_there or why
        return ranks, cause  # nobody is the last one

    def _note(self, ranks: list[int], cause: str | None) -> None:
        self._waits_for = ranks
        with _as_far_as_it_goes():
            self._store.set(f"regard/{self.rank} waits for", json.dumps([ranks, cause]))

    def _read(self, key: str) -> str | None:
        with _as_far_as_it_goes():
            if self._store.check([key]):
                return str(self._store.get(key).decode())
        return None


def named(ranks: list[int]) -> str:
    """Some ranks of which one is at fault, in words."""
    some = sorted(set(ranks))
    return f"rank {some[0]}" if len(some) == 1 else "one of the ranks " + ", ".join(map(str, some))


def _as_far_as_it_goes() -> AbstractContextManager[None]:
    """The store may be lost too, with the rank that keeps it; then every rank says what it knows itself."""
    return suppress(RuntimeError)


_BOARDS: WeakKeyDictionary[dist.ProcessGroup, Board] = WeakKeyDictionary()


def board_of(group: dist.ProcessGroup) -> Board:
    """The one board that this process has of a group."""
    if group not in _BOARDS:
        _BOARDS[group] = Board(group)
    return _BOARDS[group]
