"""The worlds of 1 to 4 processes that the tests of this folder share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Processes of a world import the checks by name.
sys.path.insert(0, str(Path(__file__).parent))
os.environ["OMP_NUM_THREADS"] = "1"

from world import World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], World]]:
    """The world of a size, started when first asked for, and again if a check broke it."""
    worlds: dict[int, World] = {}

    def of(size: int) -> World:
        if size in worlds and not worlds[size].alive:
            worlds.pop(size).close()
        if size not in worlds:
            worlds[size] = World(size, tmp_path_factory.mktemp("world"))
        return worlds[size]

    yield of
    for one in worlds.values():
        one.close()
