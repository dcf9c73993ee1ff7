"""Weights over shards answer as those of one process: per query, per key, and of the whole matrix."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import travel_checks
import weights_checks as checks
from world import World

Worlds = Callable[[int], World]
METHODS = ["gather", "ring"]
SOME = ["streaming", "left padding", "nothing"]
MORE = [*SOME, "none", "causal", "window per head", "documents per item", "sinks", "not", "per batch"]


@pytest.mark.parametrize(
    ("size", "method", "sharding", "names"),
    [
        (2, "gather", "balanced", SOME),
        (3, "gather", "contiguous", SOME),
        (2, "ring", "contiguous", SOME),
        (2, "ring", "balanced", SOME),
        (3, "ring", "contiguous", MORE),
        (3, "ring", "balanced", SOME),
        (4, "ring", "contiguous", SOME),
        (4, "ring", "balanced", MORE),
    ],
)
def test_every_answer(world: Worlds, size: int, method: str, sharding: str, names: list[str]) -> None:
    world(size).run(checks.every_answer, method, sharding, names)


@pytest.mark.parametrize(
    ("size", "method", "sharding"),
    [
        (3, "gather", "contiguous"),
        (4, "gather", "balanced"),
        (3, "ring", "contiguous"),
        (4, "ring", "balanced"),
    ],
)
def test_rows_and_products(world: Worlds, size: int, method: str, sharding: str) -> None:
    world(size).run(checks.rows_and_products, method, sharding)


@pytest.mark.parametrize("method", METHODS)
def test_biases_sinks_and_dense_masks(world: Worlds, method: str) -> None:
    world(3).run(checks.with_everything, method)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_ties_between_ranks(world: Worlds, dtype: torch.dtype) -> None:
    world(3).run(checks.ties, "ring", dtype)


def test_keys_without_weight_are_ranked(world: Worlds) -> None:
    world(3).run(checks.underflown, "ring")


@pytest.mark.parametrize("method", METHODS)
def test_logsumexp_carries_gradients(world: Worlds, method: str) -> None:
    world(3).run(checks.logsumexp_carries_gradients, method)


@pytest.mark.parametrize(
    ("size", "method", "sharding"),
    [
        (3, "gather", "contiguous"),
        (2, "gather", "balanced"),
        (3, "ring", "balanced"),
        (4, "ring", "contiguous"),
    ],
)
def test_entropy_and_mass_carry_gradients(world: Worlds, size: int, method: str, sharding: str) -> None:
    world(size).run(checks.statistics_carry_gradients, method, sharding)


def test_detached_weights(world: Worlds) -> None:
    world(2).run(checks.detached_weights)


def test_a_change_in_place_is_told_to_all(world: Worlds) -> None:
    world(2).run(checks.changes_are_noticed)


@pytest.mark.parametrize("method", METHODS)
def test_what_one_rank_refuses_all_refuse(world: Worlds, method: str) -> None:
    world(3).run(checks.what_one_rank_refuses, method)


@pytest.mark.parametrize("method", METHODS)
def test_statistics_of_ones_own(world: Worlds, method: str) -> None:
    world(2).run(checks.kinds_of_their_own, method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [2, 4])
def test_questions_send_what_the_mask_needs(world: Worlds, size: int, method: str) -> None:
    world(size).run(travel_checks.sent_for_questions, method)


def test_a_ring_holds_three_shards(world: Worlds) -> None:
    world(4).run(travel_checks.shards_held)


def test_a_ring_folds_no_block_in_vain(world: Worlds) -> None:
    world(3).run(travel_checks.blocks_folded)
