"""How every rank learns why its group is lost, when messages no longer get through: by notes in its store."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from regard.distributed.waiting import Helper

# How long a rank that was let down waits to hear whether the other one was let down itself, in seconds.
_HEARING_S = 1.0
# A store that takes longer than this, in seconds, is lost too, and is not asked again.
_STORE_S = 2.0
_LOST = "regard/lost"


class Board:
    """The notes of one group, as one of its ranks reads and writes them.

    Each rank notes whom it waits for, if long or in vain. The first that knows why the group is lost says so,
    and all others repeat its sentence. So a rank which sees its neighbour give up names the one that kept
    the neighbour waiting. Without the store, which may be lost with the rank that keeps it, every rank says
    what it knows itself.
    """

    def __init__(self, rank: int, open_store: Callable[[], Any]) -> None:
        self.rank = rank
        self.lost: str | None = None
        self._waits_for: list[int] = []
        self._store: Any = None
        self._helper: Helper | None = Helper()
        # Made at once: without the rank that keeps the store it could not be made.
        self._store = self._ask(lambda: _own(open_store()))
        # A group of the same name may have been lost before this one was made.
        self._before = self._read(_LOST)
        self._note([], None)

    def lose(self, sentence: str) -> str:
        """Say why the group is lost. The answer is what was said first, perhaps by another rank."""
        said = json.dumps([secrets.token_hex(4), sentence])
        first = self._ask(lambda: self._store.compare_set(_LOST, self._before or "", said).decode())
        self.lost = json.loads(first)[1] if first else sentence
        assert self.lost is not None
        return self.lost

    def look(self) -> str | None:
        """Why the group is lost, if any rank said so."""
        said = self._read(_LOST)
        if said is not None and said != self._before:
            self.lost = json.loads(said)[1]
        return self.lost

    def waits_for(self, ranks: list[int]) -> None:
        """Note for whom this rank has been waiting; [] when it is no more."""
        if ranks != self._waits_for:
            self._note(ranks, None)

    def let_down(self, ranks: list[int], cause: str) -> str:
        """Why the group is lost, now that these ranks did not answer: the fault may lie behind them."""
        self._note(ranks, cause)
        until = time.monotonic() + _HEARING_S
        while time.monotonic() < until and self._helper is not None:
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
            note = self._read(_note_of(last[0]))
            after, cause_there = json.loads(note) if note else ([], None)
            if not after:
                return last, why
            last, why = after, cause_there or why
        return ranks, cause  # nobody is the last one

    def _note(self, ranks: list[int], cause: str | None) -> None:
        self._waits_for = ranks
        self._ask(lambda: self._store.set(_note_of(self.rank), json.dumps([ranks, cause])))

    def _read(self, key: str) -> str | None:
        def read() -> str | None:
            return str(self._store.get(key).decode()) if self._store.check([key]) else None

        found: str | None = self._ask(read)
        return found

    def _ask(self, question: Callable[[], Any]) -> Any:
        """What the store answers; None if it does not, for a store may keep one waiting without end."""
        if self._helper is None:
            return None
        task = self._helper.begin(question)
        if not task.ends(_STORE_S) or task.error is not None:
            self._helper = None
        return task.result


def named(ranks: list[int]) -> str:
    """Some ranks of which one is at fault, in words."""
    some = sorted(set(ranks))
    return f"rank {some[0]}" if len(some) == 1 else "one of the ranks " + ", ".join(map(str, some))


def _note_of(rank: int) -> str:
    return f"regard/{rank} waits for"


def _own(store: Any) -> Any:
    """A connection of one's own, for the backend may be waiting on the other one."""
    try:
        return store.clone()
    except RuntimeError:  # a store written in Python has none to give
        return store


_BOARDS: WeakKeyDictionary[dist.ProcessGroup, Board] = WeakKeyDictionary()


def board_of(group: dist.ProcessGroup) -> Board:
    """The one board that this process has of a group."""
    if group not in _BOARDS:
        _BOARDS[group] = Board(dist.get_rank(group), group.get_group_store)
    return _BOARDS[group]
