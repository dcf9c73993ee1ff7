"""How fast is causal float32 attention, where half of the work can be left out?"""

from __future__ import annotations

from collections.abc import Iterator

from comparison import outputs_compared
from harness import Effort, TimeRow, Wanted
from patterns import Causal
from workload import Workload

FEW = ("regard_auto", "torch_sdpa", "onnxruntime_cpu")
MANY = (*FEW, "openvino_sdpa", "regard_tiled", "torch_eager")
ALL = (*MANY, "jax_attention", "torch_flex")


def answer(effort: Effort) -> Iterator[TimeRow]:
    """8 heads × 64; rates count the pairs that the mask allows."""
    quick = [(1024, MANY, 1.5)]
    full = [(1024, ALL, 1.5), (4096, (*FEW, "torch_flex"), 1.25)]
    for length, peers, ratio in effort.choose(quick, full):
        work = Workload.random(Causal(), length)
        yield outputs_compared(work, peers, effort, wanted=Wanted({"torch SDPA": ratio}))
