"""regard behind torch's signature: the mask comes as a dense boolean tensor, as models hand it over."""

from __future__ import annotations

import regard
from harness import Contender, Result
from peers.torch_sdpa import arguments
from workload import Workload

NAME = "regard drop-in"


def output(work: Workload) -> Contender:
    pattern = arguments(work)

    def run() -> Result:
        return {"output": regard.scaled_dot_product_attention(work.query, work.key, work.value, **pattern)}

    return run
