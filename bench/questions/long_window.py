"""Does the time of a sliding window grow in proportion to the length?"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from comparison import TOLERANCES, chosen_rows
from harness import Effort, TimeRow, Wanted, compare, verify
from patterns import Window
from peers import regard_auto
from workload import Workload

# Longer inputs leave the caches, which costs something that is no more work.
LINEAR = 0.8


def answer(effort: Effort) -> Iterator[TimeRow]:
    """Times for every 8192 queries; the contenders are lengths, and a ratio of 1 is perfectly linear."""
    lengths = effort.choose([8192, 32768], [8192, 16384, 32768, 65536, 131072])
    contenders, parts = {}, {}
    with torch.no_grad():
        for length in lengths:
            work = Workload.random(Window(256), length)
            rows = work.rows_to_check()
            run = regard_auto.output(work)
            expected = {"output": work.expected_rows(rows)}
            verify({f"N = {length}": chosen_rows(run(), rows)}, expected, TOLERANCES[work.query.dtype])
            contenders[f"N = {length}"], parts[f"N = {length}"] = run, length / lengths[0]
        first, last = (f"N = {length}" for length in (lengths[0], lengths[-1]))
        case = "window 256, 8 heads × 64, float32, time for each 8192 queries"
        wanted = Wanted({first: LINEAR} if lengths[-1] == 131072 else {})
        yield compare(case, last, contenders, effort, wanted=wanted, parts=parts)
