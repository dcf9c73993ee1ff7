"""Tensors whose elements lie more than 2³¹ apart: every offset is counted in 64 bits."""

import mmap

import pytest
import torch

import regard
from engine_cases import in_tiles
from regard import biases, masks
from regard.testing import Inputs, assert_same_bits, make_inputs


def far(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers, the last row 2³¹ elements behind the first; the pages between are never touched."""
    *lead, width = tensor.shape
    rows = tensor.numel() // width
    step = 2**31 // (rows - 1) + 1
    size = (rows * step + width) * tensor.element_size()
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        room = torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=tensor.dtype)
    except OSError:
        pytest.skip(f"no {size >> 30} GiB of addresses here")
    view = room[: rows * step].view(rows, step)[:, :width].unflatten(0, lead)
    view.copy_(tensor)
    assert (view[(-1,) * len(lead)].data_ptr() - view.data_ptr()) // tensor.element_size() >= 2**31
    return view


@in_tiles
@pytest.mark.parametrize("n_queries", [2, 33])
def test_far_offsets(n_queries: int, engine: str) -> None:
    inputs = make_inputs(n_queries, 65, dtype=torch.bfloat16)
    written = torch.randn(2, 4, n_queries, 65).bfloat16()
    table = torch.rand(2, 4, n_queries, 65) < 0.5
    near = regard.attention(*inputs, masks.dense(table), bias=biases.dense(written), engine=engine)
    for place, name in enumerate(Inputs._fields):
        laid = list(inputs)
        laid[place] = far(laid[place])
        out = regard.attention(*laid, masks.dense(table), bias=biases.dense(written), engine=engine)
        assert_same_bits(out, near, what=f"the output where the {name} is far")
    out = regard.attention(*inputs, masks.dense(table), bias=biases.dense(far(written)), engine=engine)
    assert_same_bits(out, near, what="the output where the bias is far")
    out = regard.attention(*inputs, masks.dense(far(table)), bias=biases.dense(written), engine=engine)
    assert_same_bits(out, near, what="the output where the mask is far")
