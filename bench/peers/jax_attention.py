"""jax.nn.dot_product_attention, compiled by XLA for the processor."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

from harness import Contender, Result
from patterns import Causal, Documents, Padding, Window
from peers import Unfit
from workload import Workload

NAME = "JAX"


def output(work: Workload) -> Contender:
    if find_spec("jax") is None:
        raise Unfit("not installed: pip install jax")
    if torch.get_num_threads() != len(os.sched_getaffinity(0)):
        raise Unfit("XLA takes every core, whatever number of threads is asked for")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    pattern: dict = {}
    match work.pattern:
        case Causal():
            pattern = {"is_causal": True}
        case Window(size):
            pattern = {"is_causal": True, "local_window_size": (size - 1, 0)}
        case Padding(lengths):
            pattern = {"key_value_seq_lengths": jax.numpy.array(lengths)}
        case Documents():
            raise Unfit("has no packed documents")
    # JAX keeps the heads after the length; turned round before the timing begins.
    query, key, value = (
        jax.dlpack.from_dlpack(t.transpose(1, 2).contiguous()) for t in (work.query, work.key, work.value)
    )
    attention = jax.jit(lambda *inputs: jax.nn.dot_product_attention(*inputs, **pattern))

    def run() -> Result:
        out = attention(query, key, value).block_until_ready()
        return {"output": torch.from_dlpack(out).transpose(1, 2)}

    return run
