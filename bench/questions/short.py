"""How fast are short sequences in a batch, where each head is a small problem?"""

from __future__ import annotations

from collections.abc import Iterator

from comparison import outputs_compared
from harness import Effort, TimeRow, Wanted
from patterns import Dense
from workload import Workload


def answer(effort: Effort) -> Iterator[TimeRow]:
    """Batch 8, 12 heads × 64, 128 tokens: a small encoder's attention."""
    few = ("regard_auto", "torch_sdpa", "onnxruntime_cpu", "torch_eager")
    more = ("openvino_sdpa", "jax_attention", "regard_tiled")
    work = Workload.random(Dense(), 128, batch=8, heads=12)
    for peers in effort.choose([few], [(*few, *more)]):
        yield outputs_compared(work, peers, effort, wanted=Wanted({"torch SDPA": 1.0}))
