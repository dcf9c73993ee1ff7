"""How fast are forward and backward together, against torch's fused attention?"""

from __future__ import annotations

from collections.abc import Iterator

from harness import Effort, TimeRow, compare, verify
from peers import regard_tiled, torch_sdpa
from workload import Workload

TOLERANCE = 5e-5


def answer(effort: Effort) -> Iterator[TimeRow]:
    """Gradients of the output's sum with respect to query, key and value."""
    quick = [("dense", 1024), ("causal", 1024)]
    full = [*quick, ("causal", 4096), ("window", 4096)]
    for pattern, length in effort.choose(quick, full):
        work = Workload.random(pattern, length, requires_grad=True)
        contenders = {peer.NAME: peer.gradients(work) for peer in (regard_tiled, torch_sdpa)}
        expected = {name: value.detach().double() for name, value in contenders[torch_sdpa.NAME]().items()}
        verify({regard_tiled.NAME: contenders[regard_tiled.NAME]()}, expected, TOLERANCE)
        yield compare(str(work), regard_tiled.NAME, contenders, effort)
