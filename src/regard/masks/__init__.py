"""Masks as values: who may attend whom, by position, combined with `&`, `|` and `~`.

>>> from regard import masks
>>> print(masks.causal() & masks.sliding_window(3))  # doctest: +SKIP
"""

from regard.masks.base import Mask
from regard.masks.dense import dense
from regard.masks.documents import documents
from regard.masks.several import per_batch, per_head
from regard.masks.structured import band, causal, padding, prefix, sinks, sliding_window, streaming

__all__ = [
    "Mask",
    "band",
    "causal",
    "dense",
    "documents",
    "padding",
    "per_batch",
    "per_head",
    "prefix",
    "sinks",
    "sliding_window",
    "streaming",
]
