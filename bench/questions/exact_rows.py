"""How fast are some exact rows of the weights over a very long sequence?"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

import ceilings
import regard
from comparison import InTurn
from harness import Contender, Effort, Result, TimeRow, Wanted, Work, compare, verify
from patterns import Dense
from workload import Workload

ROWS = [3, 9, 10, 22, 31, 40, 52, 63]


def answer(effort: Effort) -> Iterator[TimeRow]:
    """8 rows of one head × 128, another head at each call; the least it takes is to read the keys once."""
    length = effort.choose([32768], [131072])[0]
    # The keys of all heads together are larger than the caches.
    heads = ceilings.BUFFER_BYTES // (length * 128 * 4)
    work = Workload.random(Dense(), length, queries=64, heads=heads, head_dim=128, value_dim=8)
    with torch.no_grad():
        weights = regard.attention(work.query, work.key, work.value, return_weights=True)[1]
        ours = [lambda head=head: {"rows": weights[0, head, ROWS]} for head in range(heads)]
        theirs = [by_formula(work, head) for head in range(heads)]
        for run, head in ((ours[0], 0), (ours[-1], heads - 1)):
            query, key = work.query[0, head, ROWS].double(), work.key[0, head].double()
            expected = {"rows": (query @ key.mT * work.scale).softmax(-1)}
            verify({"regard": run(), "torch, q kᵀ and softmax": theirs[head]()}, expected, 1e-4)
        contenders: dict[str, Contender] = {"regard": InTurn(ours), "torch, q kᵀ and softmax": InTurn(theirs)}
        amount = Work(length * 128 * 4, ceilings.reads())
        case = f"{len(ROWS)} rows of one head, M = {length}, head dim 128, float32"
        wanted = Wanted(share=0.5 if length == 131072 else None)
        yield compare(case, "regard", contenders, effort, work=amount, wanted=wanted)


def by_formula(work: Workload, head: int) -> Contender:
    """The same rows in two torch operations: here the dense formula is no waste."""

    def run() -> Result:
        scores = work.query[0, head, ROWS] @ work.key[0, head].mT
        return {"rows": (scores / math.sqrt(128)).softmax(-1)}

    return run
