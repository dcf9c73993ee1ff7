"""How fast is attention whose values are wider than its keys?"""

from __future__ import annotations

from collections.abc import Iterator

from comparison import outputs_compared
from harness import Effort, TimeRow, Wanted
from patterns import Dense
from workload import Workload


def answer(effort: Effort) -> Iterator[TimeRow]:
    """Head dim 64 for keys and 128 for values, N = 2048, 8 heads."""
    peers = ("regard_auto", "torch_sdpa", "onnxruntime_cpu")
    work = Workload.random(Dense(), 2048, value_dim=128)
    for chosen in effort.choose([peers[:2]], [peers]):
        yield outputs_compared(work, chosen, effort, wanted=Wanted({"torch SDPA": 2.0}))
