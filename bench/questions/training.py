"""How fast are forward and backward together, with and without dropout, against torch's fused attention?"""

from __future__ import annotations

from collections.abc import Iterator

import torch

import ceilings
from comparison import load
from harness import Contender, Effort, Result, TimeRow, Wanted, Work, compare, verify
from patterns import Causal, Window
from workload import Workload

TOLERANCES = {torch.float32: 5e-5, torch.bfloat16: 5e-2}
PEERS = ("regard_auto", "torch_sdpa")
# Five products for the two of the forward pass, one of them computed again.
PASSES = 3.5


def answer(effort: Effort) -> Iterator[TimeRow]:
    """Gradients with respect to query, key and value; 8 heads × 64."""
    bf16, dropped = {"dtype": torch.bfloat16}, {"dropout_p": 0.1}
    quick = [(Causal(), 1024, {}, 1.6), (Causal(), 1024, dropped, 5.0)]
    full = [
        *quick,
        (Causal(), 4096, {}, 1.25),
        (Causal(), 4096, dropped, 8.0),
        (Window(256), 8192, {}, 10.0),
        (Causal(), 4096, bf16, 1.5),
    ]
    for pattern, length, options, ratio in effort.choose(quick, full):
        work = Workload.random(pattern, length, requires_grad=True, **options)
        contenders: dict[str, Contender] = {}
        for peer in map(load, PEERS):
            check(peer, work)
            contenders[peer.NAME] = peer.gradients(work)
        amount = Work(work.flops * PASSES, ceilings.multiply_adds())
        case = f"forward and backward, {work}"
        yield compare(case, "regard", contenders, effort, work=amount, wanted=Wanted({"torch SDPA": ratio}))


def check(peer: object, work: Workload) -> None:
    """Stop unless a contender's gradients are right: by float64 without dropout, by their laws with it."""
    found = peer.gradients(work)()
    if not work.dropout_p:
        tolerance = TOLERANCES[work.query.dtype]
        last = work.query.shape[1] - 1
        # In float64 a head of a long sequence takes a while.
        for head in {0, last} if work.length <= 4096 else {last}:
            ours = {name: tensor[:, head : head + 1] for name, tensor in found.items()}
            verify({peer.NAME: ours}, expected_head(work, head), tolerance)
        return
    said = laws(work, found, work.expected_rows(work.rows_to_check()))
    one = torch.ones(1, dtype=torch.float64)
    verify({peer.NAME: said}, dict.fromkeys(said, one), 0.1)


def expected_head(work: Workload, head: int) -> Result:
    """Output and gradients of one head by the textbook formula and autograd in float64."""
    inputs = [
        tensor.detach()[:, head : head + 1].double().requires_grad_()
        for tensor in (work.query, work.key, work.value)
    ]
    query, key, value = inputs
    scores = query @ key.mT * work.scale
    allowed = work.allowed(torch.arange(work.length))
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    output = scores.softmax(-1) @ value
    upstream = work.upstream()[:, head : head + 1].double()
    by_query, by_key, by_value = torch.autograd.grad(output, inputs, upstream)
    return {"output": output.detach(), "d query": by_query, "d key": by_key, "d value": by_value}


def laws(work: Workload, found: Result, plain: torch.Tensor) -> Result:
    """Ratios that are 1 whichever weights fell: the noise to its expected size, and of sums that must agree.

    The output is linear in the value, so Σ dV·V = Σ dO·O if the same weights fell in both passes; scores are
    bilinear in query and key, so Σ dQ·Q = Σ dK·K.
    """
    by_output = (work.upstream().double() * found["output"].double()).sum()
    rows = work.rows_to_check()
    noise = (found["output"][..., rows, :].double() - plain).square().sum(-1) / variance(work, rows)
    by_value, by_query, by_key = (
        (found[f"d {name}"].double() * getattr(work, name).detach().double()).sum()
        for name in ("value", "query", "key")
    )
    return {
        "size of the noise": noise[..., 1:].mean()[None],
        "sum of d value · value": (by_value / by_output)[None],
        "sum of d key · key": (by_key / by_query)[None],
    }


def variance(work: Workload, rows: torch.Tensor) -> torch.Tensor:
    """What dropping weights with probability p adds to each row, p / (1 − p) Σ P² v², `[B, Hq, rows]`."""
    key = work.key.detach().double()
    scores = work.query.detach().double()[..., rows, :] @ key.mT * work.scale
    allowed = work.allowed(rows)
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    odds = work.dropout_p / (1 - work.dropout_p)
    return odds * (weights.square() @ work.value.detach().double().square()).sum(-1)
