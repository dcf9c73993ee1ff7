"""A mask as words, integers and tensors, which a traced graph can hold, and the mask from these again.

`causal() & padding(lengths)` is "and causal padding tensor 'right" and [], [lengths]: names in front of what
they are made from, as fields follow one another. Building it anew goes through the public functions, whose
checks of values thus come when there are values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from regard.errors import ArgumentTypeError
from regard.masks.base import And, Mask, Not, Or
from regard.masks.dense import Dense, Scanned, dense
from regard.masks.documents import Documents, documents
from regard.masks.several import PerBatch, PerHead, per_batch, per_head
from regard.masks.structured import (
    Band,
    Causal,
    Padding,
    Prefix,
    Sinks,
    SlidingWindow,
    Streaming,
    band,
    causal,
    padding,
    prefix,
    sinks,
    sliding_window,
    streaming,
)

# What each class is called, and how one is made from the values of its fields.
_KINDS: dict[str, tuple[type[Mask], Callable[..., Mask]]] = {
    "and": (And, And),
    "or": (Or, Or),
    "not": (Not, Not),
    "causal": (Causal, causal),
    "sliding_window": (SlidingWindow, sliding_window),
    "band": (Band, band),
    "padding": (Padding, padding),
    "prefix": (Prefix, prefix),
    "sinks": (Sinks, sinks),
    "streaming": (Streaming, streaming),
    "documents": (Documents, lambda lengths, ids, cu: documents(lengths, ids=ids, cu_seqlens=cu)),
    "dense": (Dense, dense),
    "scanned": (Scanned, Scanned),
    "per_batch": (PerBatch, per_batch),
    "per_head": (PerHead, per_head),
}


def flatten(value: Any, numbers: list[int], tensors: list[Tensor]) -> str:
    """The words for a mask, or for a part of one, whose integers and tensors are appended in their order."""
    if value is None:
        return "none"
    if isinstance(value, Tensor):
        tensors.append(value)
        return "tensor"
    if isinstance(value, str):
        return "'" + value
    if isinstance(value, Mask):
        known = _KINDS.get(value.name)
        if known is None or type(value) is not known[0]:
            raise ArgumentTypeError(
                f"`mask` must be made of the masks of regard.masks to be traced, got a {type(value).__name__}"
            )
        given = [getattr(value, f.name) for f in fields(value) if f.init]  # type: ignore[arg-type]
        return " ".join([value.name, *(flatten(part, numbers, tensors) for part in given)])
    if isinstance(value, tuple):
        return " ".join([f"list{len(value)}", *(flatten(part, numbers, tensors) for part in value)])
    if not isinstance(value, int | torch.SymInt):
        raise ArgumentTypeError(
            f"a traced call takes masks of regard.masks, tensors and ints, got a {type(value).__name__}"
        )
    numbers.append(value)  # type: ignore[arg-type]  # in some traces an int is a symbol
    return "number"


def rebuild(words: str, numbers: Sequence[int], tensors: Sequence[Tensor]) -> Any:
    """What `flatten` was given, checked as when a user makes it."""
    return _next(iter(words.split()), iter(numbers), iter(tensors))


def _next(words: Iterator[str], numbers: Iterator[int], tensors: Iterator[Tensor]) -> Any:
    word = next(words)
    if word == "none":
        return None
    if word == "tensor":
        return next(tensors)
    if word == "number":
        return next(numbers)
    if word.startswith("'"):
        return word[1:]
    if word.startswith("list"):
        return [_next(words, numbers, tensors) for _ in range(int(word[4:]))]
    kind, make = _KINDS[word]
    count = sum(field.init for field in fields(kind))  # type: ignore[arg-type]
    return make(*(_next(words, numbers, tensors) for _ in range(count)))
