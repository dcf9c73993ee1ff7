"""How fast is dense float32 attention, and how near to what the processor can do?"""

from __future__ import annotations

from collections.abc import Iterator

from comparison import outputs_compared
from harness import Effort, TimeRow, Wanted
from patterns import Dense
from workload import Workload

FEW = ("regard_auto", "torch_sdpa", "onnxruntime_cpu")
MANY = (*FEW, "openvino_sdpa", "regard_tiled", "torch_eager")
ALL = (*MANY, "jax_attention", "torch_flex")


def answer(effort: Effort) -> Iterator[TimeRow]:
    """8 heads; the contenders that are several times slower only where a round stays short."""
    quick = [(1024, 64, MANY), (4096, 64, FEW)]
    full = [
        (1024, 64, ALL),
        (4096, 64, MANY),
        (8192, 64, FEW),
        (1024, 128, MANY),
        (4096, 128, FEW),
        (8192, 128, FEW),
    ]
    for length, head_dim, peers in effort.choose(quick, full):
        wanted = Wanted({"torch SDPA": 1.15}, share=0.8 if length >= 4096 else None)
        work = Workload.random(Dense(), length, head_dim=head_dim)
        yield outputs_compared(work, peers, effort, wanted=wanted)
