"""How fast is a batch of texts of many lengths, padded to the longest?"""

from __future__ import annotations

from collections.abc import Iterator

from comparison import outputs_compared
from harness import Effort, TimeRow, Wanted
from patterns import Padding
from workload import Workload


def answer(effort: Effort) -> Iterator[TimeRow]:
    """16 items of 64 to 1024 keys, 8 heads × 64; with a mask value, and with the boolean tensor for both."""
    lengths = tuple(range(64, 1025, 64))
    by_value = ("regard_auto", "torch_sdpa", "onnxruntime_cpu")
    by_tensor = ("regard_drop_in", "torch_sdpa")
    work = Workload.random(Padding(lengths), max(lengths), batch=len(lengths))
    for peers in effort.choose([by_value[:2]], [by_value, by_tensor]):
        yield outputs_compared(work, peers, effort, wanted=Wanted({"torch SDPA": 1.5}))
