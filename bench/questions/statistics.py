"""How fast are all statistics of the weights, against the forward pass and against building the matrix?"""

from __future__ import annotations

from collections.abc import Iterator

import torch

import regard
from comparison import load
from harness import Effort, Result, TimeRow, Wanted, compare, verify
from patterns import Causal, Dense, Window
from peers import on_regard, torch_eager
from workload import Workload

# Sums over whole columns and in another order: looser than a single output.
TOLERANCE = 1e-4
EAGER = ("regard_auto", "torch_eager")


def answer(effort: Effort) -> Iterator[TimeRow]:
    """Entropy, largest weight and logit, received, distance, top 8 keys, a 64 × 64 map; 8 heads × 64."""
    for pattern, length in effort.choose([(Causal(), 1024)], [(Dense(), 4096), (Causal(), 4096)]):
        yield against_forward(pattern, length, effort)
    quick = [(Causal(), 1024, {})]
    wanted = {torch_eager.NAME: 4.0}
    full = [(Dense(), 2048, wanted), (Causal(), 2048, wanted), (Window(256), 4096, {})]
    for pattern, length, ratios in effort.choose(quick, full):
        yield against_eager(pattern, length, ratios, effort)


def against_forward(pattern: Dense, length: int, effort: Effort) -> TimeRow:
    """The statistics alone, of weights at hand, beside the forward pass that gave them."""
    work = Workload.random(pattern, length)
    with torch.no_grad():
        allowed = on_regard.mask(work)
        weights = regard.attention(work.query, work.key, work.value, allowed, return_weights=True)[1]
        ours, forward = "regard, all statistics", "regard, forward"

        def ask() -> Result:
            return on_regard.asked(weights)

        rows = work.rows_to_check()
        verify({ours: head_of(ask(), rows)}, expected_head(work, rows), TOLERANCE)
        contenders = {ours: ask, forward: on_regard.output("auto", work)}
        return compare(f"statistics alone, {work}", ours, contenders, effort, wanted=Wanted({forward: 1.0}))


def against_eager(pattern: Dense, length: int, ratios: dict, effort: Effort) -> TimeRow:
    """Output and statistics together, beside the same from the whole matrix."""
    work = Workload.random(pattern, length)
    with torch.no_grad():
        contenders = {peer.NAME: peer.statistics(work) for peer in map(load, EAGER)}
        rows = work.rows_to_check()
        expected = expected_head(work, rows)
        verify({name: head_of(run(), rows) for name, run in contenders.items()}, expected, TOLERANCE)
        # Float64 tells of some rows of one head; of everything else that both say the same.
        verify({"regard": contenders["regard"]()}, contenders[torch_eager.NAME](), TOLERANCE)
        case = f"output and statistics, {work}"
        return compare(case, "regard", contenders, effort, wanted=Wanted(ratios))


def head_of(found: Result, rows: torch.Tensor) -> Result:
    """What is compared with float64: answers by row for some rows of the first head."""
    return {
        name: found[name][0, 0, rows]
        for name in ("entropy", "max_logit", "max_weight", "distance", "top_keys")
    }


def expected_head(work: Workload, rows: torch.Tensor) -> Result:
    """The same from the textbook formula in float64."""
    logits = work.query[0, 0, rows].double() @ work.key[0, 0].double().mT * work.scale
    allowed = work.allowed(rows)
    if allowed is not None:
        logits = logits.masked_fill(~allowed[0, 0], -torch.inf)
    weights = logits.softmax(-1)
    distance = (rows[:, None] - torch.arange(work.keys)).abs()
    return {
        "entropy": -torch.xlogy(weights, weights).sum(-1),
        "max_logit": logits.amax(-1),
        "max_weight": weights.amax(-1),
        "distance": (weights * distance).sum(-1),
        "top_keys": weights.topk(8, -1).values,
    }
