"""What does a call cost when there is next to nothing to compute?"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.functional import scaled_dot_product_attention

import regard
from harness import Contender, Effort, TimeRow, Wanted, compare, verify
from patterns import Causal, Dense
from workload import Workload


def answer(effort: Effort) -> Iterator[TimeRow]:
    """One head, 4 tokens, head dim 8: bare calls, with torch recording gradients and not."""
    causal = regard.masks.causal()
    for pattern, recording in ((Dense(), False), (Dense(), True), (Causal(), False)):
        work = Workload.random(pattern, 4, heads=1, head_dim=8)
        query, key, value = work.query, work.key, work.value
        if isinstance(pattern, Causal):
            calls = {
                "regard": lambda q=query, k=key, v=value: regard.attention(q, k, v, causal),
                "torch SDPA": lambda q=query, k=key, v=value: scaled_dot_product_attention(
                    q, k, v, is_causal=True
                ),
            }
        else:
            calls = {
                "regard": lambda q=query, k=key, v=value: regard.attention(q, k, v),
                "torch SDPA": lambda q=query, k=key, v=value: scaled_dot_product_attention(q, k, v),
            }
        with torch.set_grad_enabled(recording):
            yield measured(work, calls, f"{work}, gradients {'on' if recording else 'off'}", effort)


def measured(work: Workload, calls: dict, case: str, effort: Effort) -> TimeRow:
    """A row of bare calls, which give the output itself."""
    contenders: dict[str, Contender] = calls
    expected = {"output": work.expected_rows(torch.arange(work.length))}
    verify({name: {"output": run()} for name, run in calls.items()}, expected, 1e-5)
    return compare(case, "regard", contenders, effort, wanted=Wanted({"torch SDPA": 1.0}))
