"""When ranks disagree, die or fall silent, every rank gets an error that says who and why, in time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import failure_checks as checks
import pytest
import torch
from world import World

import regard.distributed
from regard import errors
from regard.distributed import groups

Worlds = Callable[..., World]
SILENCE_S = 3.0


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Worlds that end with the test, and have a timeout longer than any test."""
    worlds: list[World] = []

    def of(size: int, **options: Any) -> World:
        worlds.append(World(size, tmp_path, timeout_s=300, **options))
        return worlds[-1]

    yield of
    for world in worlds:
        world.close()


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_disagree(world: Worlds, size: int) -> None:
    world(size).run(checks.disagreements)


@pytest.mark.parametrize(
    ("size", "when", "method"),
    [(4, "at work", "ring"), (3, "at work", "gather"), (3, "before the gradients", "gather")],
)
def test_a_rank_that_dies(doomed: Worlds, size: int, when: str, method: str) -> None:
    sentences = doomed(size).run(checks.a_rank_dies, when, method, 1, dying=(1,))
    for rank in range(size):
        assert rank == 1 or sentences[rank].startswith("rank 1 did not answer: "), sentences


def test_the_rank_that_keeps_the_store_dies(doomed: Worlds) -> None:
    sentences = doomed(3, store="tcp").run(checks.a_rank_dies, "at work", "ring", 0, dying=(0,))
    for rank in (1, 2):
        assert sentences[rank].startswith("rank 0 did not answer: "), sentences


def test_a_rank_that_is_silent(world: Worlds) -> None:
    sentences = world(3).run(checks.a_rank_is_silent, SILENCE_S)
    for rank in (0, 2):
        assert sentences[rank].startswith("rank 1 did not answer: Timed out"), sentences


@pytest.mark.parametrize("ends", [False, True])
def test_the_rank_behind_another_is_named(doomed: Worlds, ends: bool) -> None:
    dying = (3,) if ends else ()
    sentences = doomed(4).run(checks.one_waits_for_the_next, SILENCE_S, ends, dying=dying)
    for rank in range(3):
        assert sentences[rank].startswith("rank 3 did not answer: "), sentences


@pytest.mark.parametrize("method", ["gather", "ring"])
def test_a_rank_that_leaves_by_an_error(world: Worlds, method: str) -> None:
    world(3).run(checks.a_rank_leaves, method)


def test_a_change_in_place_before_the_gradients_is_told_to_all(world: Worlds) -> None:
    world(3).run(checks.changed_before_the_gradients)


def test_a_change_in_place_before_the_gradients_of_answers_is_told_to_all(world: Worlds) -> None:
    world(3).run(checks.answers_changed_before_the_gradients)


def test_old_news_are_no_news(world: Worlds, tmp_path: Path) -> None:
    world(2).run(checks.lost_and_made_again, str(tmp_path))


def test_a_store_that_does_not_answer(world: Worlds) -> None:
    world(1).run(checks.the_store_says_nothing)


def test_a_wait_that_fails_otherwise(world: Worlds) -> None:
    world(2).run(checks.a_wait_that_fails_otherwise)


def test_ctrl_c_on_two_interfaces(doomed: Worlds) -> None:
    doomed(3, interfaces="lo,lo").run(checks.two_interfaces)


def test_two_groups_at_once(world: Worlds) -> None:
    world(2).run(checks.two_at_once)


def test_weights_of_a_destroyed_group(world: Worlds) -> None:
    world(2).run(checks.destroyed)


def test_devices_that_messages_travel_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the names of the backends alone: what the GPU's has, it sends from there."""
    known = {
        "cpu:gloo,cuda:nccl": ({"cpu", "cuda"}, True),
        "cuda:nccl": ({"cuda"}, False),
        "cpu:gloo,cuda:gloo": ({"cpu"}, True),
        "cpu:mpi,cuda:mpi": ({"cpu", "cuda"}, False),
    }
    for named, ways in known.items():
        monkeypatch.setattr(groups.dist, "get_backend_config", lambda _, named=named: named)
        assert groups._ways(None) == ways


def test_ctrl_c_ends_a_wait_and_is_told(world: Worlds) -> None:
    sentences = world(3).run(checks.ctrl_c)
    assert re.match(r"rank 0 left attention: KeyboardInterrupt$", sentences[1]), sentences


def test_groups_and_meshes(world: Worlds) -> None:
    world(4).run(checks.groups)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_shard_and_gather(world: Worlds, size: int) -> None:
    world(size).run(checks.helpers)


def test_without_a_process_group() -> None:
    q, k, v = (torch.randn(1, 2, 3, 4) for _ in range(3))
    with pytest.raises(errors.ArgumentError, match="init_process_group"):
        regard.distributed.attention(q, k, v)
