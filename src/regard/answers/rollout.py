"""Attention rollout: how much of each input token reaches a token of the last layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.answers.layers import Layer, Source, layers_of, require_square
from regard.errors import ArgumentError, TooLargeError
from regard.indexing import members
from regard.recording.parts import Parts

# Rows are pushed through a layer together in pieces of about this many numbers a layer's answer.
_PIECE_NUMBERS = 1 << 24


def rollout(
    source: Source,
    queries: slice | Sequence[int] | Tensor = slice(-1, None),
    *,
    steps: range | None = None,
    max_bytes: int = 2**30,
) -> Tensor:
    """Attention rollout (Abnar & Zuidema 2020): Ã_L ⋯ Ã_2 Ã_1 with Ã = (P̄ + I) / 2, P̄ the mean over heads.

    Row i says how much of every input token reaches token i above the last layer, if what a layer passes on
    is half its input and half what its heads attend. No product of matrices is formed: each chosen row is a
    vector that goes down through the layers, x ← Ãᵀ x, in memory linear in the tokens. Rows of P̄ that sum
    to less than 1 (sinks, padding) leave their Ã divided by its own sum, as the authors' code does.

    Args:
        source: a recording, calls of one, or the `AttentionWeights` of each layer, the first layer first; all
            `[B, Hq, N, N]` over the same tokens.
        queries: the rows wanted, as a slice, indices or bools: the last alone by default, `slice(None)` for
            all, in the order of the tokens.
        steps: the steps of one generation, where the recording holds more than one.
        max_bytes: the most that the answer may take.

    Returns:
        `[B, R, N]`, float32 (float64 of float64 weights); rows sum to 1.

    Raises:
        ArgumentError: layers of other shapes. TooLargeError: an answer over `max_bytes`.

    >>> rollout(recording).shape       # the last token's row, of three tokens
    torch.Size([1, 1, 3])
    """
    layers = layers_of(source, steps)
    for layer in layers:
        require_square(layer, "rollout")
        if layer.weights.shape[::2] != layers[0].weights.shape[::2]:
            raise ArgumentError(
                f"rollout needs layers over the same tokens, got {tuple(layers[0].weights.shape)} at "
                f"`{layers[0].name}` and {tuple(layer.weights.shape)} at `{layer.name}`"
            )
    first = layers[0].weights
    batch, n_tokens = first.shape[0], layers[0].n_keys
    rows = members(queries, n_tokens, "queries").nonzero().flatten().to(first.device)
    size = batch * len(rows) * n_tokens * first.dtype.itemsize
    if size > max_bytes:
        raise TooLargeError(
            f"{len(rows):,} rows of rollout take {size:,} bytes, more than `max_bytes` = {max_bytes:,}: "
            "choose fewer `queries`"
        )
    result = torch.empty((batch, len(rows), n_tokens), dtype=first.dtype, device=first.device)
    kept = [1 / (1 + _row_sums(layer)) for layer in layers]
    widest = max(layer.weights.shape[1] for layer in layers)
    together = max(1, _PIECE_NUMBERS // max(1, batch * widest * n_tokens))
    for start in range(0, len(rows), together):
        some = rows[start : start + together]
        x = torch.zeros((batch, 1, n_tokens, len(some)), dtype=first.dtype, device=first.device)
        x[:, :, some, torch.arange(len(some), device=first.device)] = 1
        for layer, share in zip(reversed(layers), reversed(kept), strict=True):
            x = x * share
            x = (layer.weights.mT @ x).mean(1, keepdim=True) + x
        result[:, start : start + together] = x[:, 0].mT
    return result


def _row_sums(layer: Layer) -> Tensor:
    """The sums of the rows of P̄, `[B, 1, N, 1]`: 1 but for empty rows, and where a sink takes its part."""
    weights = layer.weights
    if Parts.of(weights).problem.sink_logits is None:
        sums = (weights.max_weight() > 0).to(weights.dtype)
    else:
        sums = weights.mass(slice(None))
    return sums.mean(1, keepdim=True).unsqueeze(-1)
