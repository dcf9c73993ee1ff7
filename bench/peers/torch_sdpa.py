"""torch's fused attention, which gives the output and no weights."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from harness import Contender, Result
from patterns import Causal
from workload import Workload

NAME = "torch SDPA"


def arguments(work: Workload) -> dict:
    """The workload's pattern in torch's terms: a flag for causal, a boolean tensor for anything else."""
    grouped = {"enable_gqa": True} if work.grouped else {}
    if isinstance(work.pattern, Causal):
        return {"is_causal": True, **grouped}
    return {"attn_mask": work.allowed(torch.arange(work.length)), **grouped}


def output(work: Workload) -> Contender:
    pattern = arguments(work)

    def run() -> Result:
        return {"output": scaled_dot_product_attention(work.query, work.key, work.value, **pattern)}

    return run


def gradients(work: Workload) -> Contender:
    pattern = arguments(work)
    upstream = work.upstream()

    def run() -> Result:
        out = scaled_dot_product_attention(
            work.query, work.key, work.value, dropout_p=work.dropout_p, **pattern
        )
        by_query, by_key, by_value = torch.autograd.grad(out, (work.query, work.key, work.value), upstream)
        return {"output": out, "d query": by_query, "d key": by_key, "d value": by_value}

    return run
