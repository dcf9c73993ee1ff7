"""What is gained when a model hands its mask over as a dense boolean tensor, through the drop-in?"""

from __future__ import annotations

from collections.abc import Iterator

from comparison import outputs_compared
from harness import Effort, TimeRow, Wanted
from patterns import Documents, Window
from workload import Workload


def answer(effort: Effort) -> Iterator[TimeRow]:
    """Both get the same tensor in every call; finding the runs in it is part of regard's time."""
    peers = ("regard_drop_in", "torch_sdpa")
    quick = [(Window(256), 4096, {})]
    full = [(Window(256), 8192, {"torch SDPA": 6.0}), (Documents((512,) * 16), 8192, {})]
    for pattern, length, ratios in effort.choose(quick, full):
        work = Workload.random(pattern, length)
        yield outputs_compared(work, peers, effort, wanted=Wanted(ratios))
