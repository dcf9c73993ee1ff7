"""How fast is one query against a long cache, and how near to what the memory can deliver?"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ceilings import BUFFER_BYTES
from comparison import outputs_compared
from harness import Effort, TimeRow, Wanted
from patterns import Dense
from workload import Workload

KEYS = 8192
PEERS = ("regard_auto", "torch_sdpa", "onnxruntime_cpu")


def answer(effort: Effort) -> Iterator[TimeRow]:
    """8192 keys, head dim 128; caches of several layers in turn, so that none stays in the processor."""
    dtypes = (torch.float32, torch.bfloat16)
    quick = [(1, 8, dtype) for dtype in dtypes]
    full = [(batch, key_heads, dtype) for key_heads in (8, 32) for batch in (1, 8) for dtype in dtypes]
    for batch, key_heads, dtype in effort.choose(quick, full):
        work = Workload.random(
            Dense(), KEYS, queries=1, batch=batch, heads=32, key_heads=key_heads, head_dim=128, dtype=dtype
        )
        layers = [work] + [work.copy() for _ in range(1, BUFFER_BYTES // work.cache_bytes)]
        yield outputs_compared(layers, PEERS, effort, wanted=wanted(key_heads, dtype), decoding=True)


def wanted(key_heads: int, dtype: torch.dtype) -> Wanted:
    """With grouped heads torch reads every key head once for each of its query heads."""
    grouped = key_heads < 32
    if dtype == torch.float32:
        return Wanted({"torch SDPA": 2.5 if grouped else 1.3}, share=0.7 if grouped else None)
    return Wanted({"torch SDPA": 10.0 if grouped else 4.0}, share=0.7 if grouped else None)
