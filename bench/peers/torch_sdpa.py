"""torch's fused attention, which gives the output and no weights."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from harness import Contender, Result
from workload import Workload

NAME = "torch SDPA"


def arguments(work: Workload) -> dict:
    """The workload's pattern in torch's terms: a flag for causal, a boolean matrix for a window."""
    if work.pattern == "causal":
        return {"is_causal": True}
    return {"attn_mask": work.allowed(torch.arange(work.length))}


def output(work: Workload) -> Contender:
    pattern = arguments(work)

    def run() -> Result:
        with torch.no_grad():
            return {"output": scaled_dot_product_attention(work.query, work.key, work.value, **pattern)}

    return run


def gradients(work: Workload) -> Contender:
    pattern = arguments(work)

    def run() -> Result:
        out = scaled_dot_product_attention(work.query, work.key, work.value, **pattern)
        by_query, by_key, by_value = torch.autograd.grad(out.sum(), (work.query, work.key, work.value))
        return {"output": out, "d query": by_query, "d key": by_key, "d value": by_value}

    return run
