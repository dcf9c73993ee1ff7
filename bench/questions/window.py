"""How fast is a causal sliding window, against the boolean mask and against a kernel that skips blocks?"""

from __future__ import annotations

from collections.abc import Iterator

from comparison import outputs_compared
from harness import Effort, TimeRow, Wanted
from patterns import Window
from workload import Workload


def answer(effort: Effort) -> Iterator[TimeRow]:
    """A window of 256, 8 heads × 64; torch SDPA gets it as a boolean tensor, which is all it takes."""
    peers = ("regard_auto", "torch_sdpa", "torch_flex", "onnxruntime_cpu", "regard_tiled")
    for length in effort.choose([4096], [8192]):
        wanted = Wanted({"torch SDPA": 15.0, "FlexAttention": 3.0} if length == 8192 else {})
        work = Workload.random(Window(256), length)
        yield outputs_compared(work, peers, effort, wanted=wanted)
