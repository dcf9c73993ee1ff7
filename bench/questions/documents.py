"""How fast are documents packed into one sequence?"""

from __future__ import annotations

from collections.abc import Iterator

from comparison import outputs_compared
from harness import Effort, TimeRow, Wanted
from patterns import Documents
from workload import Workload


def answer(effort: Effort) -> Iterator[TimeRow]:
    """Documents of 512 that see all of themselves, 8 heads × 64."""
    peers = ("regard_auto", "torch_sdpa", "torch_flex", "regard_tiled")
    for count, chosen in effort.choose([(8, ("regard_auto", "torch_sdpa"))], [(16, peers)]):
        work = Workload.random(Documents((512,) * count), 512 * count)
        wanted = Wanted({"torch SDPA": 8.0} if count == 16 else {})
        yield outputs_compared(work, chosen, effort, wanted=wanted)
