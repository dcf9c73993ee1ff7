"""A sequence that several processes hold is attended as in one process: output, gradients, every option."""

from __future__ import annotations

from collections.abc import Callable

import output_checks as checks
import pytest
import torch
import travel_checks
from sequences import MASKS
from world import World

from regard.distributed import groups
from regard.distributed.placement import Placement
from regard.distributed.plan import Plan

Worlds = Callable[[int], World]
ALL = list(MASKS)
SOME = ["none", "left padding", "streaming", "per batch", "nothing"]


@pytest.mark.parametrize(
    ("size", "sharding", "names"),
    [(1, "contiguous", SOME), (2, "balanced", ALL), (3, "contiguous", ALL), (4, "balanced", SOME)],
)
def test_gathering_gives_the_bits_of_one_process(
    world: Worlds, size: int, sharding: str, names: list[str]
) -> None:
    world(size).run(checks.bits_of_one_process, sharding, torch.float32, names)


def test_a_shard_may_have_a_few_rows_only(world: Worlds) -> None:
    world(2).run(checks.few_rows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_gathering_gives_the_bits_in_every_dtype(world: Worlds, dtype: torch.dtype) -> None:
    world(2).run(checks.bits_of_one_process, "contiguous", dtype, SOME)


@pytest.mark.parametrize(
    ("size", "method", "sharding", "dtype", "names"),
    [
        (2, "ring", "contiguous", torch.float32, ALL),
        (3, "ring", "balanced", torch.float32, SOME),
        (4, "ring", "contiguous", torch.float32, SOME),
        (3, "gather", "balanced", torch.float32, SOME),
        (2, "ring", "balanced", torch.bfloat16, SOME),
        (2, "ring", "balanced", torch.float16, SOME),
        (2, "ring", "balanced", torch.float64, SOME),
        (2, "gather", "contiguous", torch.bfloat16, SOME),
    ],
)
def test_errors_stay_within_the_budget(
    world: Worlds, size: int, method: str, sharding: str, dtype: torch.dtype, names: list[str]
) -> None:
    world(size).run(checks.within_budget, method, sharding, dtype, names)


@pytest.mark.parametrize(
    ("size", "method", "sharding"),
    [
        (1, "gather", "contiguous"),
        (2, "ring", "balanced"),
        (3, "ring", "contiguous"),
        (4, "gather", "balanced"),
    ],
)
def test_every_option(world: Worlds, size: int, method: str, sharding: str) -> None:
    world(size).run(checks.options_agree, method, sharding)


@pytest.mark.parametrize(("size", "method"), [(1, "ring"), (2, "gather"), (3, "ring"), (4, "gather")])
def test_any_lengths(world: Worlds, size: int, method: str) -> None:
    world(size).run(checks.lengths_agree, method)


@pytest.mark.parametrize("size", [1, 3])
def test_any_rank_and_layout(world: Worlds, size: int) -> None:
    world(size).run(checks.ranks_and_layouts)


@pytest.mark.parametrize("method", ["gather", "ring"])
def test_a_key_that_nobody_attends_changes_nothing(world: Worlds, method: str) -> None:
    world(3).run(checks.isolated, method)


@pytest.mark.parametrize(
    ("size", "sharding", "method"), [(2, "balanced", "gather"), (3, "contiguous", "ring")]
)
def test_a_training_step_on_shards(world: Worlds, size: int, sharding: str, method: str) -> None:
    world(size).run(checks.training_step, sharding, method)


@pytest.mark.parametrize("method", ["gather", "ring"])
def test_results_repeat_bit_for_bit(world: Worlds, method: str) -> None:
    world(4).run(checks.repeats_itself, method)


def test_dropout_is_drawn_by_rank_0(world: Worlds) -> None:
    world(3).run(checks.draws_one_seed)


def test_checkpointing(world: Worlds) -> None:
    world(2).run(checks.checkpointed)


@pytest.mark.parametrize("method", ["gather", "ring"])
@pytest.mark.parametrize("size", [2, 4])
def test_keys_are_sent_no_further_than_needed(world: Worlds, size: int, method: str) -> None:
    world(size).run(travel_checks.sent_no_further_than_needed, method)


def test_the_columns_between_what_is_held_and_needed() -> None:
    """They are filled with zeros where keys are gathered: nothing there may come from old memory."""
    keys = Placement.of([10, 0, 10, 10], "contiguous")
    group = groups.Group(None, 0, 4, frozenset({"cpu"}), True, None)
    needs = [(0, 0), (0, 0), (12, 15), (0, 0)]
    assert Plan(group, keys, [needs] * 4).gaps() == [slice(10, 12), slice(15, 30)]
    assert Plan(group, keys, [[(0, 10), (0, 0), (10, 20), (20, 30)]] * 4).gaps() == []
