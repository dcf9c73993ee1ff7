"""Recordings made by hand, and the dense float64 matrices that they hold."""

from __future__ import annotations

import torch
from torch import Tensor

from recordings import one_call
from regard import masks
from regard.recording import Call, Recording
from regard.recording.keys import GrowingKeys
from regard.weights import attention_weights

LAYERS, HEADS, KEY_HEADS, WIDTH = 3, 4, 2, 8


def recorded(n_tokens: int = 17, batch: int = 2, mask: object = None, **options: object) -> Recording:
    """Three layers of self-attention over the same tokens, sharp enough that no two rows look alike."""
    calls = []
    for layer in range(LAYERS):
        query = 3 * torch.randn(batch, HEADS, n_tokens, WIDTH)
        key, value = torch.randn(2, batch, KEY_HEADS, n_tokens, WIDTH).unbind()
        span = GrowingKeys(key, value).add(key, 0, value)
        weights = attention_weights(query, span.tensor(), masks.causal() if mask is None else mask, **options)
        calls.append(one_call(weights, module=f"layers.{layer}", layer=layer, keys=span))
    return Recording(calls)


def generated(prompt: int = 6, steps: int = 4) -> tuple[Recording, list[Tensor], list[Tensor]]:
    """A generation of three layers, and each layer's whole matrix and values as one pass would give them."""
    calls: list[Call] = []
    whole, all_values = [], []
    for layer in range(LAYERS):
        length = prompt + steps
        query = 3 * torch.randn(1, HEADS, length, WIDTH)
        key, value = torch.randn(2, 1, KEY_HEADS, length, WIDTH).unbind()
        growing = GrowingKeys(key[:, :, :prompt], value[:, :, :prompt])
        for step in range(steps + 1):
            stop = prompt + step
            rows = slice(stop - 1 if step else 0, stop)
            seen, seen_values = key[:, :, :stop], value[:, :, :stop]
            start = growing.continued_by(seen, rows.stop - rows.start, seen_values) if step else 0
            span = growing.add(seen, start, seen_values)
            weights = attention_weights(query[:, :, rows].clone(), span.tensor(), masks.causal())
            calls.append(one_call(weights, module=f"layers.{layer}", layer=layer, step=step, keys=span))
        whole.append(attention_weights(query, key, masks.causal()).to_dense().double())
        all_values.append(value)
    return Recording(sorted(calls, key=lambda call: call.step)), whole, all_values


def dense(recording: Recording) -> list[Tensor]:
    """`[B, Hq, N, M]` of each call, float64."""
    return [call.weights.to_dense().double() for call in recording]


def close(ours: Tensor, theirs: Tensor, tolerance: float = 2e-6) -> bool:
    return torch.allclose(ours.double(), theirs.double(), atol=tolerance, rtol=1e-5)
