"""The mask of a FlashAttention call: which keys are real, and options for the rest."""

from __future__ import annotations

import torch
from torch import Tensor

from regard import masks
from regard.errors import ModelError
from regard.intervals import Intervals
from regard.masks.base import Mask
from regard.masks.compiled import KeySets
from regard.models.huggingface import HeardCall
from regard.recording.rows import Rows


def flash_mask(call: HeardCall, n_queries: int, n_keys: int, device: torch.device) -> Mask | None:
    """Causal from the bottom right, a window, packed documents and a mask `[B, M]` of real keys, combined.

    A query that is itself padding attends nothing: the kernel never sees it.
    """
    options = call.options
    causal = options.get("is_causal")
    causal = getattr(call.module, "is_causal", False) if causal is None else causal
    window = options.get("sliding_window")
    parts: list[Mask] = [masks.causal()] if causal else []
    if window is not None and n_keys > window:
        parts.append(masks.sliding_window(window) if causal else masks.band(window - 1, window - 1))
    if options.get("cu_seq_lens_q") is not None:
        parts.append(_packed(options["cu_seq_lens_q"], options.get("cu_seq_lens_k"), n_queries, n_keys))
    if call.attention_mask is not None:
        parts.append(_real(call.attention_mask, n_queries, n_keys, device))
    if not parts:
        return None
    combined = parts[0]
    for part in parts[1:]:
        combined = combined & part
    return combined


def _packed(query_ends: Tensor, key_ends: Tensor | None, n_queries: int, n_keys: int) -> Mask:
    if n_queries != n_keys or (key_ends is not None and not torch.equal(query_ends, key_ends)):
        raise ModelError(
            "its packed sequences must have as many queries as keys, got different `cu_seq_lens`"
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
