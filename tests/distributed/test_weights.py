"""Weights over shards answer as those of one process: per query, per key, and of the whole matrix."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import weights_checks as checks
from world import World

Worlds = Callable[[int], World]


@pytest.mark.parametrize(
    ("size", "method", "sharding"),
    [
        (2, "gather", "balanced"),
        (3, "gather", "contiguous"),
        (3, "ring", "balanced"),
        (4, "ring", "contiguous"),
    ],
)
def test_every_answer(world: Worlds, size: int, method: str, sharding: str) -> None:
    names = ["streaming", "left padding", "nothing"]
    world(size).run(checks.every_answer, method, sharding, names)


@pytest.mark.parametrize(("size", "sharding"), [(3, "contiguous"), (4, "balanced")])
def test_rows_and_products(world: Worlds, size: int, sharding: str) -> None:
    world(size).run(checks.rows_and_products, sharding)


@pytest.mark.parametrize("method", ["gather", "ring"])
def test_biases_sinks_and_dense_masks(world: Worlds, method: str) -> None:
    world(3).run(checks.with_everything, method)


@pytest.mark.parametrize("method", ["gather", "ring"])
def test_logsumexp_carries_gradients(world: Worlds, method: str) -> None:
    world(3).run(checks.logsumexp_carries_gradients, method)


def test_a_change_in_place_is_told_to_all(world: Worlds) -> None:
    world(2).run(checks.changes_are_noticed)
