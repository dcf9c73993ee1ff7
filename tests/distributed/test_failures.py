"""When ranks disagree, die or fall silent, every rank gets an error that says who and why, in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import failure_checks as checks
import pytest
import torch
from world import World

import regard.distributed
from regard import errors

Worlds = Callable[[int], World]
SILENCE_S = 3.0


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[World]:
    """A world of three that ends with the test, and has a timeout longer than any test."""
    world = World(3, tmp_path, timeout_s=300)
    yield world
    world.close()


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_disagree(world: Worlds, size: int) -> None:
    world(size).run(checks.disagreements)


@pytest.mark.parametrize(("when", "method"), [("at work", "ring"), ("before the gradients", "gather")])
def test_a_rank_that_dies(doomed: World, when: str, method: str) -> None:
    sentences = doomed.run(checks.a_rank_dies, when, method, dying=(1,))
    assert any(sentence and "rank 1" in sentence for sentence in sentences)
    for rank in (0, 2):
        assert "did not answer" in sentences[rank] or "could not reach" in sentences[rank]


def test_a_rank_that_is_silent(world: Worlds) -> None:
    sentences = world(3).run(checks.a_rank_is_silent, SILENCE_S)
    for rank in (0, 2):
        assert "rank 1 did not answer" in sentences[rank]
        assert "imed out" in sentences[rank]


def test_groups_and_meshes(world: Worlds) -> None:
    world(4).run(checks.groups)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_shard_and_gather(world: Worlds, size: int) -> None:
    world(size).run(checks.helpers)


def test_without_a_process_group() -> None:
    q, k, v = (torch.randn(1, 2, 3, 4) for _ in range(3))
    with pytest.raises(errors.ArgumentError, match="init_process_group"):
        regard.distributed.attention(q, k, v)
