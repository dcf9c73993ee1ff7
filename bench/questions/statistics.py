"""How fast are output and all statistics together, against the dense formula?"""

from __future__ import annotations

from collections.abc import Iterator

from harness import Effort, TimeRow, compare, verify
from peers import regard_tiled, torch_eager
from workload import Workload

# Sums over whole columns and diagonals, in another order: looser than a single output.
TOLERANCE = 1e-4


def answer(effort: Effort) -> Iterator[TimeRow]:
    """Every statistic that regard's contender names, all in one pass over the weights."""
    quick = [("causal", 1024), ("window", 2048)]
    full = [*quick, ("dense", 2048), ("causal", 2048), ("causal", 4096), ("window", 4096)]
    for pattern, length in effort.choose(quick, full):
        work = Workload.random(pattern, length)
        contenders = {peer.NAME: peer.statistics(work) for peer in (regard_tiled, torch_eager)}
        expected = {name: value.double() for name, value in contenders[torch_eager.NAME]().items()}
        verify({regard_tiled.NAME: contenders[regard_tiled.NAME]()}, expected, TOLERANCE)
        yield compare(str(work), regard_tiled.NAME, contenders, effort)
