"""Checks of what questions send and hold that run on every rank of a world: counted, not timed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from sequences import MASKS, Both, Call
from torch import Tensor

import regard
from regard.distributed import groups, plan, transfers

LENGTH = 64
KEY = 2 * 2 * 24  # batch × key heads × E: numbers for each key
HEADS = 2 * 4  # batch × heads: numbers for what each key is due


def sent_no_further_than_needed(rank: int, size: int, method: str) -> None:
    """Bytes on their way are those of the keys that masks reach, and no more."""
    lengths = [100] * size
    numbers = 2 * 2 * (24 + 16)  # batch × key heads × (E + Ev), for each key
    for mask, keys in (
        (MASKS["nothing"](), 0),
        (regard.masks.sliding_window(11), 10 if rank < size - 1 else 0),
        (regard.masks.causal(), 100 * (size - 1 - rank)),
        (None, 100 * (size - 1)),
        (regard.masks.documents(lengths=lengths), 0),
    ):
        with _counted() as sent:
            Both(rank, size, Call(mask, lengths=lengths, method=method), backward=False)
        assert sum(sent) == keys * numbers, (mask, sum(sent) / numbers, keys)


def sent_for_questions(rank: int, size: int, method: str) -> None:
    """A question sends the keys that the mask reaches, what belongs to them, and what they are due."""
    calls = {
        "nothing": (MASKS["nothing"](), 0, 0),
        "window": (regard.masks.sliding_window(11), 10 * (rank < size - 1), 10 * (rank > 0)),
        "causal": (regard.masks.causal(), LENGTH * (size - 1 - rank), LENGTH * rank),
        "documents": (regard.masks.documents(lengths=[LENGTH] * size), 0, 0),
    }
    for name, (mask, given, taken) in calls.items():
        call = Call(mask, lengths=[LENGTH] * size, method=method)
        both = Both(rank, size, call, weights=True)
        mine = both.weights
        vectors = both.whole[2][:, :2, both.columns].detach()
        questions: dict[str, tuple[Callable[[], Any], int]] = {
            "entropy": (mine.entropy, given * KEY),
            "rows": (lambda mine=mine: mine[..., :3, :], given * KEY),
            "several": (lambda mine=mine: mine.statistics("distance", top_keys=3, mass=[1]), given * KEY),
            "w @ x": (lambda mine=mine, x=vectors: mine @ x, given * (KEY + vectors.numel() // LENGTH)),
            "received": (lambda mine=mine: mine.received(mean=True), given * KEY + taken * HEADS * 2),
            "the gradient": (mine.entropy().sum().backward, given * KEY + taken * KEY),
        }
        for what, (ask, numbers) in questions.items():
            with _counted() as sent:
                ask()
            assert sum(sent) == numbers, (name, what, sum(sent), numbers)


def shards_held(rank: int, size: int) -> None:
    """In a ring no more than two shards are here besides the own one; gathering, all of them are."""
    for method, sharding in (("ring", "contiguous"), ("ring", "balanced"), ("gather", "contiguous")):
        call = Call(None, lengths=[LENGTH] * size, method=method, sharding=sharding)
        with _held() as peak:
            both = Both(rank, size, call, weights=True)
        peaks = {"attention": peak[0] / (KEY + 2 * 2 * 16)}
        mine = both.weights
        questions: dict[str, Callable[[], Any]] = {
            "entropy": mine.entropy,
            "several": lambda mine=mine: mine.statistics("distance", "received", "diagonals", top_keys=3),
            "pooled": lambda mine=mine: mine.pooled(3, 3),
            "rows": mine.to_dense,
            "gradient": mine.entropy().sum().backward,
        }
        for name, ask in questions.items():
            with _held() as peak:
                ask()
            peaks[name] = peak[0] / KEY
        for name, keys in peaks.items():
            assert keys == LENGTH * (2 if method == "ring" else size - 1), (method, sharding, name, keys)


def blocks_folded(rank: int, size: int) -> None:
    """One pass for several questions, and no block that the mask excludes."""
    own = {rank, 2 * size - 1 - rank}  # of the runs into which balanced shards cut the sequence
    seen = sum(key < query for query in own for key in set(range(2 * size)) - own)
    blocks = (
        (regard.masks.causal(), "contiguous", rank + 1),
        (regard.masks.causal(), "balanced", 3 + seen),
        (MASKS["nothing"](), "contiguous", 1),
    )
    for mask, sharding, count in blocks:
        call = Call(mask, lengths=[LENGTH] * size, method="ring", sharding=sharding)
        mine = Both(rank, size, call, backward=False, weights=True).weights
        folds = []
        engine = mine._share.engine

        class Counting:
            rows = staticmethod(engine.rows)

            @staticmethod
            def fold(problem: Any, normalizer: Any, statistics: Any, engine=engine, folds=folds) -> None:
                folds.append(len(statistics))
                engine.fold(problem, normalizer, statistics)

        mine._share = replace(mine._share, engine=Counting)
        mine.statistics("entropy", "received", "diagonals", top_keys=3, pooled=(2, 2))
        assert folds == [5] * count, (sharding, folds)


@contextmanager
def _counted() -> Iterator[list[int]]:
    """The sizes of all messages sent meanwhile, but those of agreement."""
    sent: list[int] = []
    post = groups.Group.post

    def counting(self: Any, sends: Any, receives: Any) -> Any:
        sent.extend(t.numel() for t in sends.values() if t.dtype != torch.uint8)
        return post(self, sends, receives)

    groups.Group.post = counting
    try:
        yield sent
    finally:
        groups.Group.post = post


@contextmanager
def _held() -> Iterator[list[int]]:
    """How many numbers of others' keys are here at once at most, arrived or on their way."""
    peak, alive = [0], []
    fetch = plan.fetch

    def counting(*arguments: Any) -> Any:
        messages = fetch(*arguments)
        arriving: list[Tensor] = list(messages.into.values())
        alive.extend((weakref.ref(tensor.untyped_storage()), tensor.numel()) for tensor in arriving)
        peak[0] = max(peak[0], sum(numbers for storage, numbers in alive if storage() is not None))
        return messages

    plan.fetch = transfers.fetch = counting
    try:
        yield peak
    finally:
        plan.fetch = transfers.fetch = fetch
