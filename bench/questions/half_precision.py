"""How fast is attention in bfloat16 and float16?"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from comparison import outputs_compared
from harness import Effort, TimeRow, Wanted
from patterns import Causal, Dense
from workload import Workload


def answer(effort: Effort) -> Iterator[TimeRow]:
    """8 heads × 64; the share is of the float32 multiply-adds, whatever instructions are used."""
    peers = ("regard_auto", "torch_sdpa")
    bf16 = [
        (pattern, length, torch.bfloat16, more, 2.0)
        for length, more in ((1024, ("jax_attention",)), (4096, ()))
        for pattern in (Dense(), Causal())
    ]
    full = [*bf16, (Dense(), 4096, torch.float16, (), 1.1)]
    quick = [bf16[0], (Dense(), 1024, torch.float16, (), 1.1)]
    for pattern, length, dtype, more, ratio in effort.choose(quick, full):
        work = Workload.random(pattern, length, dtype=dtype)
        yield outputs_compared(work, (*peers, *more), effort, wanted=Wanted({"torch SDPA": ratio}))
