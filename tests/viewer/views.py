"""Calls to make views of, and a reader of the view format written from its description alone."""

from __future__ import annotations

import math
import zlib
from typing import Any

import torch
from torch import Tensor

import regard
from regard import masks
from regard.recording import Call
from regard.viewer import ViewData

HOSTILE = [
    "</script><script>window.harmed = 1</script>",
    '<img src=x onerror="window.harmed = 2">',
    "<!-- <script>",
    "\n",
    "\t",
    "",
    " the",
    "##ing",
    "]]>&amp;'\"`",
    "\u202eevil",
    "\ud83d",
    "🦊",
]


def call(
    heads: int = 2,
    n_queries: int = 12,
    n_keys: int | None = None,
    mask: Any = None,
    module: str = "model.0.attention",
    **options: Any,
) -> Call:
    """One call on random queries and keys, sharp enough that heads look at something."""
    n_keys = n_queries if n_keys is None else n_keys
    query, key = torch.randn(1, heads, n_queries, 16) * 2, torch.randn(1, heads, n_keys, 16)
    mask = masks.causal() if mask is None else mask
    _, weights = regard.attention(query, key, key, mask, return_weights=True, **options)
    return Call(module, 0, 0, 0, weights)


def dense(one: Call) -> Tensor:
    """All weights of batch item 0, `[H, N, M]`, in float64."""
    assert one.weights is not None
    return one.weights.to_dense()[0].double()


def edges(length: int, bins: int) -> list[int]:
    return [b * length // bins for b in range(bins + 1)]


class Reader:
    """Takes arrays off a blob, in the order in which the description lists them."""

    def __init__(self, blob: bytes) -> None:
        self.rest = zlib.decompress(blob)

    def integers(self, *shape: int, width: int = 2) -> Tensor:
        count = math.prod(shape)
        planes = torch.frombuffer(bytearray(self.rest[: count * width]), dtype=torch.uint8).view(width, count)
        self.rest = self.rest[count * width :]
        return sum(planes[byte].to(torch.int64) << 8 * byte for byte in range(width)).view(shape)

    def values(self, *shape: int, top: float) -> Tensor:
        return top * (self.integers(*shape).double() / 65535) ** 2


def read_map(view: ViewData, layer: int = 0) -> Tensor:
    reader = Reader(view.blobs[f"map/{layer}"])
    cells = reader.values(view.header["calls"][layer]["heads"], *view.header["map"], top=1)
    assert reader.rest == b""
    return cells


def read_keys(view: ViewData, layer: int = 0) -> dict[str, Tensor]:
    header = view.header
    heads, n_queries, n_keys = header["calls"][layer]["heads"], header["queries"], header["keys"]
    sampled, kept = header["sampled_queries"], header["kept_keys"]
    reader = Reader(view.blobs[f"keys/{layer}"])
    found = {
        "weights": reader.values(heads, sampled, kept, top=1),
        "keys": reader.integers(heads, sampled, kept, width=header["index_width"]),
        "entropy": reader.values(heads, sampled, top=math.log(max(2, n_keys))),
        "distance": reader.values(heads, sampled, top=n_keys),
        "received": reader.values(heads, header["sampled_keys"], top=n_queries),
    }
    assert reader.rest == b""
    return found


def read_mask(view: ViewData, number: int) -> Tensor:
    """The mask as a bool matrix `[N, M]`."""
    slots, n_queries = view.header["masks"][number]["intervals"], view.header["queries"]
    reader = Reader(view.blobs[f"mask/{number}"])
    starts, ends = (reader.integers(n_queries, slots, width=view.header["index_width"]) for _ in range(2))
    assert reader.rest == b""
    keys = torch.arange(view.header["keys"])
    return ((keys >= starts[..., None]) & (keys < ends[..., None])).any(1)
