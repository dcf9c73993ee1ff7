"""How much memory do output and statistics take, against the dense formula?"""

from __future__ import annotations

from collections.abc import Iterator

from harness import Effort
from memory import MemoryRow, available, peak_growth
from peers import regard_tiled, torch_eager, torch_sdpa

HEADS = 4
# Eager holds logits, weights and a product of them at once.
MATRICES_OF_EAGER = 4


def answer(effort: Effort) -> Iterator[MemoryRow]:
    """Causal self-attention, head dim 64; eager as far as this machine can hold it."""
    lengths = effort.choose([2048, 8192], [2048, 8192, 32768])
    for length in lengths:
        matrix = HEADS * length * length * 4
        case = f"causal, N = {length}, {HEADS} heads × 64, float32"
        yield MemoryRow(case, regard_tiled.NAME, grown("regard_tiled", "statistics", length), matrix)
        yield MemoryRow(
            case, f"{torch_sdpa.NAME}, output alone", grown("torch_sdpa", "output", length), matrix
        )
        if MATRICES_OF_EAGER * matrix > available() // 2:
            yield MemoryRow(case, torch_eager.NAME, None, matrix, "does not fit this machine")
        else:
            yield MemoryRow(case, torch_eager.NAME, grown("torch_eager", "statistics", length), matrix)


def grown(peer: str, task: str, length: int) -> int:
    return peak_growth(peer, task, "causal", length, HEADS)
