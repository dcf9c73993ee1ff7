"""regard on its portable engine, which is made of torch operations."""

from __future__ import annotations

import torch

import regard
from harness import Contender, Result
from workload import Workload

NAME = "regard tiled"
STATISTICS = ("entropy", "received", "max_logit", "max_weight", "distance", "diagonals")


def mask(work: Workload) -> regard.masks.Mask | None:
    """The workload's pattern as a mask value."""
    if work.pattern == "dense":
        return None
    return regard.masks.causal() if work.pattern == "causal" else regard.masks.sliding_window(work.window)


def output(work: Workload) -> Contender:
    allowed = mask(work)

    def run() -> Result:
        with torch.no_grad():
            return {"output": regard.attention(work.query, work.key, work.value, allowed, engine="tiled")}

    return run


def statistics(work: Workload) -> Contender:
    allowed = mask(work)

    def run() -> Result:
        with torch.no_grad():
            out, weights = regard.attention(
                work.query, work.key, work.value, allowed, engine="tiled", return_weights=True
            )
            found = weights.statistics(*STATISTICS, top_keys=8, pooled=(64, 64), mass=slice(0, 1))
        return {"output": out, **found, "top_keys": found["top_keys"][0]}

    return run


def gradients(work: Workload) -> Contender:
    allowed = mask(work)

    def run() -> Result:
        out = regard.attention(work.query, work.key, work.value, allowed, engine="tiled")
        by_query, by_key, by_value = torch.autograd.grad(out.sum(), (work.query, work.key, work.value))
        return {"output": out, "d query": by_query, "d key": by_key, "d value": by_value}

    return run
