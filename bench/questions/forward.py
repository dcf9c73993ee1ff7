"""How fast is the output, against torch's fused attention and eager with weights?"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from harness import Effort, TimeRow, compare, verify
from peers import regard_tiled, torch_eager, torch_sdpa
from workload import Workload

# Errors of float32 attention on normal numbers lie near 1e-6.
TOLERANCE = 2e-5


def answer(effort: Effort) -> Iterator[TimeRow]:
    """Dense, causal and windowed self-attention; eager only as far as its matrix is reasonable."""
    quick = [("dense", 1024), ("causal", 2048), ("window", 4096)]
    full = [*quick, ("dense", 4096), ("causal", 4096), ("causal", 8192), ("window", 8192)]
    for pattern, length in effort.choose(quick, full):
        work = Workload.random(pattern, length)
        peers = [regard_tiled, torch_sdpa, *([torch_eager] if length <= 4096 else [])]
        contenders = {peer.NAME: peer.output(work) for peer in peers}
        rows = torch.linspace(0, length - 1, 65).long()
        results = {name: {"output": run()["output"][..., rows, :]} for name, run in contenders.items()}
        verify(results, {"output": work.expected_rows(rows)}, TOLERANCE)
        yield compare(str(work), regard_tiled.NAME, contenders, effort)
