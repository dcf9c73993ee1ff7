"""torch's compiled FlexAttention, which skips the blocks that a predicate excludes."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from harness import Contender, Result
from patterns import Causal, Documents, Padding, Window
from peers import Unfit
from workload import Workload

NAME = "FlexAttention"
Predicate = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def output(work: Workload) -> Contender:
    if not any(map(shutil.which, ("g++", "clang++"))):
        raise Unfit("compiling FlexAttention needs a C++ compiler")
    # Compiled when it is verified, before it is timed. What was compiled for earlier shapes counts towards a
    # limit, past which torch no longer compiles.
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    blocks = block_mask(work)

    def run() -> Result:
        return {
            "output": compiled(work.query, work.key, work.value, block_mask=blocks, enable_gqa=work.grouped)
        }

    return run


def block_mask(work: Workload) -> BlockMask | None:
    """The workload's pattern as the blocks that FlexAttention visits; None when all."""
    allowed = predicate(work)
    if allowed is None:
        return None
    batch = work.query.shape[0] if isinstance(work.pattern, Padding) else None
    return create_block_mask(allowed, batch, None, work.length, work.keys, device="cpu")


def predicate(work: Workload) -> Predicate | None:
    """The pattern in FlexAttention's terms: a function of batch, head, query and key index."""
    match work.pattern:
        case Causal():
            return lambda batch, head, query, key: key <= query
        case Window(size):
            return lambda batch, head, query, key: (key <= query) & (query - key < size)
        case Documents(lengths):
            document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
            return lambda batch, head, query, key: document[query] == document[key]
        case Padding(lengths):
            counts = torch.tensor(lengths)
            return lambda batch, head, query, key: key < counts[batch]
    return None
