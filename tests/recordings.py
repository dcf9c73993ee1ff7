"""Recordings made by hand, for the tests of recordings."""

import torch

from regard import masks
from regard.recording import Call, Recording
from regard.recording.keys import GrowingKeys
from regard.weights import attention_weights

QUERIES, HEADS, KEY_HEADS, WIDTH = 21, 4, 2, 8


def tensors(n_queries=QUERIES, n_keys=QUERIES, batch=2):
    return torch.randn(batch, HEADS, n_queries, WIDTH), torch.randn(batch, KEY_HEADS, n_keys, WIDTH)


def one_call(weights, **changes):
    fields = {"module": "layers.0", "ordinal": 0, "step": 0, "layer": 0, "weights": weights}
    return Call(**(fields | changes))


def generation(steps=4, prompt=7):
    """A prompt and further steps over growing keys, as a watch records them; and the same in one pass."""
    query, key = tensors(prompt + steps, prompt + steps, batch=1)
    calls, growing = [], GrowingKeys(key[..., :prompt, :])
    for step in range(steps + 1):
        stop = prompt + step
        rows = slice(0 if step == 0 else stop - 1, stop)
        start = growing.continued_by(key[..., :stop, :], rows.stop - rows.start) if step else 0
        span = growing.add(key[..., :stop, :], start)
        weights = attention_weights(query[..., rows, :].clone(), span.tensor(), masks.causal())
        calls.append(one_call(weights, step=step, keys=span))
    return Recording(calls), attention_weights(query, key, masks.causal())
