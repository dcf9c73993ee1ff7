"""What the contenders that are regard share: the tasks, on an engine by name."""

from __future__ import annotations

import torch

import regard
from harness import Contender, Result
from patterns import Causal, Documents, Padding, Window
from workload import Workload

STATISTICS = ("entropy", "received", "max_logit", "max_weight", "distance")


def mask(work: Workload) -> regard.masks.Mask | None:
    """The workload's pattern as a mask value."""
    match work.pattern:
        case Causal():
            return regard.masks.causal()
        case Window(size):
            return regard.masks.sliding_window(size)
        case Documents(lengths):
            return regard.masks.documents(lengths=torch.tensor(lengths))
        case Padding(lengths):
            return regard.masks.padding(torch.tensor(lengths))
    return None


def output(engine: str, work: Workload) -> Contender:
    allowed = mask(work)

    def run() -> Result:
        return {"output": regard.attention(work.query, work.key, work.value, allowed, engine=engine)}

    return run


def statistics(engine: str, work: Workload) -> Contender:
    allowed = mask(work)

    def run() -> Result:
        out, weights = regard.attention(
            work.query, work.key, work.value, allowed, engine=engine, return_weights=True
        )
        return {"output": out, **asked(weights)}

    return run


def asked(weights: regard.AttentionWeights) -> Result:
    """What is asked of the weights, in one pass."""
    found = weights.statistics(*STATISTICS, top_keys=8, pooled=(64, 64))
    return {**found, "top_keys": found["top_keys"][0]}


def gradients(engine: str, work: Workload) -> Contender:
    allowed = mask(work)
    upstream = work.upstream()

    def run() -> Result:
        out = regard.attention(
            work.query, work.key, work.value, allowed, dropout_p=work.dropout_p, engine=engine
        )
        by_query, by_key, by_value = torch.autograd.grad(out, (work.query, work.key, work.value), upstream)
        return {"output": out, "d query": by_query, "d key": by_key, "d value": by_value}

    return run
