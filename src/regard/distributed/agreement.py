"""A small exchange before each large one: every rank does the same thing, or every rank raises the same."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from regard import errors
from regard.distributed.groups import Group
from regard.errors import ArgumentError, GroupError, RegardError

# Room for a message: a part for what is always said, and a part that grows with the number of ranks.
_ROOM = 4096
_ROOM_A_RANK = 96
_LONGEST_SENTENCE = 1000  # bytes


def agree(
    group: Group,
    topic: str,
    facts: Mapping[str, Any],
    own_error: Exception | None = None,
    said: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """What every rank said, in rank order, when all are at the same `topic` with the same `facts`.

    `said` may differ from rank to rank. If a rank comes with an error, it raises that, and all others raise
    its sentence with the rank's number; if topics or facts differ, every rank raises what differs where. No
    message is left behind, so that the group can be used again.
    """
    told = {"topic": topic, "facts": dict(facts), "said": dict(said or {}), "error": _told(own_error)}
    with group.together(topic):
        heard = _exchange(group, told)
    if own_error is not None:
        raise own_error
    for rank, message in enumerate(heard):
        if message["error"] is not None:
            raise _retold(rank, *message["error"])
    first = heard[0]
    if any(m["topic"] != first["topic"] or m["facts"] != first["facts"] for m in heard):
        _same([m["topic"] for m in heard], GroupError, "all ranks must ask for the same together")
        for name in dict.fromkeys(name for message in heard for name in message["facts"]):
            _same([m["facts"].get(name) for m in heard], ArgumentError, f"`{name}` must agree on all ranks")
    return [message["said"] for message in heard]


@contextmanager
def agreed(
    group: Group, act: str, facts: Mapping[str, Any] | None = None, own_error: Exception | None = None
) -> Iterator[None]:
    """What all ranks do together once they agree; one that leaves it by an error tells the others."""
    agree(group, act, facts or {}, own_error)
    with group.together(act):
        yield


def _exchange(group: Group, mine: dict[str, Any]) -> list[dict[str, Any]]:
    room = _ROOM + _ROOM_A_RANK * group.size
    text = json.dumps(mine, ensure_ascii=False).encode()
    if len(text) > room:
        raise GroupError(f"a message of {len(text)} bytes is longer than the {room} that ranks exchange")
    sent = torch.frombuffer(bytearray(text.ljust(room)), dtype=torch.uint8)
    arrived = group.post(
        dict.fromkeys(group.others, sent),
        {rank: torch.empty(room, dtype=torch.uint8) for rank in group.others},
    ).wait()
    # What this rank said is read back too: numbers must compare as they arrive elsewhere.
    return [json.loads(_bytes(sent if rank == group.rank else arrived[rank])) for rank in range(group.size)]


def _bytes(message: Tensor) -> bytes:
    return ctypes.string_at(message.data_ptr(), message.numel())


def _same(values: list[Any], kind: type[RegardError], must: str) -> None:
    by_value: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        by_value.setdefault(json.dumps(value), []).append(rank)
    if len(by_value) > 1:
        differing = "; ".join(
            f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}: {_shown(value)}"
            for value, ranks in by_value.items()
        )
        raise kind(f"{must}, got {differing}")


def _shown(value: str) -> str:
    text = value.strip('"')
    return text if len(text) <= 120 else text[:117] + "…"


def _told(error: Exception | None) -> list[str] | None:
    if error is None:
        return None
    return [type(error).__name__, str(error).encode()[:_LONGEST_SENTENCE].decode(errors="ignore")]


def _retold(rank: int, kind: str, sentence: str) -> RegardError:
    """Another rank's error, of the same kind where it is one of ours."""
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, RegardError):
        return known(f"rank {rank}: {sentence}")
    return GroupError(f"rank {rank} failed: {sentence or kind}")
