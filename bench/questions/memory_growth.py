"""How much memory do output and statistics take, against the dense formula?"""

from __future__ import annotations

from collections.abc import Iterator

from harness import Effort
from memory import MemoryRow, available, grown

HEADS = 8
# Eager holds logits, weights and a product of them at once.
MATRICES_OF_EAGER = 4
MOST_GROWTH = 64 * 2**20


def answer(effort: Effort) -> Iterator[MemoryRow]:
    """Causal self-attention, head dim 64; eager as far as this machine can hold it."""
    for length in effort.choose([2048], [2048, 8192, 32768]):
        matrix = HEADS * length * length * 4
        case = f"causal, N = {length}, {HEADS} heads × 64, float32"
        wanted = MOST_GROWTH if length == 32768 else None
        yield grown("regard_auto", "statistics", "causal", length, HEADS, case, wanted)
        if effort.name != "quick":
            yield grown("torch_sdpa", "output", "causal", length, HEADS, case)
        if MATRICES_OF_EAGER * matrix > available() // 2:
            yield MemoryRow(case, "torch eager, statistics", None, None, matrix, "does not fit this machine")
        else:
            yield grown("torch_eager", "statistics", "causal", length, HEADS, case)
