"""Who may attend whom where options say it, as FlashAttention has it: windows, packing and real keys."""

from __future__ import annotations

from functools import reduce
from operator import and_

import torch
from torch import Tensor

from regard import masks
from regard.errors import ModelError
from regard.intervals import Intervals
from regard.masks.base import Mask
from regard.masks.compiled import KeySets
from regard.models.heard import HeardCall
from regard.recording.rows import Rows


def flash_mask(call: HeardCall, n_queries: int, n_keys: int, device: torch.device) -> Mask | None:
    """Causal from the bottom right, a window, packed documents and a mask `[B, M]` of real keys, combined.

    A query that is itself padding attends nothing: the kernel never sees it.
    """
    causal = call.options.get("is_causal")
    causal = getattr(call.module, "is_causal", False) if causal is None else causal
    return combined(
        masks.causal() if causal else None,
        window(call, n_keys, causal),
        packed(call, n_queries, n_keys),
        None if call.attention_mask is None else _real(call.attention_mask, n_queries, n_keys, device),
    )


def combined(*parts: Mask | None) -> Mask | None:
    """What all of the masks allow; None where there are none."""
    given = [part for part in parts if part is not None]
    return reduce(and_, given) if given else None


def window(call: HeardCall, n_keys: int, causal: bool) -> Mask | None:
    """The option `sliding_window`: None where it reaches every key."""
    size = call.options.get("sliding_window")
    if size is None or n_keys <= size:
        return None
    return masks.sliding_window(size) if causal else masks.band(size - 1, size - 1)


def packed(call: HeardCall, n_queries: int, n_keys: int) -> Mask | None:
    """The options `cu_seq_lens_q` and `cu_seq_lens_k`: sequences one after another in one batch item."""
    query_ends, key_ends = (call.options.get(f"cu_seq_lens_{which}") for which in ("q", "k"))
    if query_ends is None:
        return None
    if n_queries != n_keys or (key_ends is not None and not torch.equal(query_ends, key_ends)):
        raise ModelError(
            "its packed sequences must have as many queries as keys, got different `cu_seq_lens`"
        )
    if int(query_ends[-1]) != n_queries:
        raise ModelError(
            f"its packed sequences must fill one batch item of {n_queries} tokens, got `cu_seq_lens` up to "
            f"{int(query_ends[-1])}"
        )
    return masks.documents(cu_seqlens=query_ends.detach().cpu().long())


def _real(mask: Tensor, n_queries: int, n_keys: int, device: torch.device) -> Mask:
    if not isinstance(mask, Tensor) or mask.dim() != 2 or mask.shape[-1] < n_keys:
        came = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ModelError(f"its attention mask must have shape (batch, {n_keys}), got {came}")
    real = mask[:, -n_keys:].to(device) != 0
    keys = KeySets.from_dense(real[:, None, None, :].expand(-1, 1, n_queries, n_keys))
    if n_queries > n_keys:
        return Rows(keys)
    queries = real[:, None, n_keys - n_queries :].long() * n_keys
    return Rows(keys & KeySets(Intervals.between(torch.zeros_like(queries), queries, n_keys)))
