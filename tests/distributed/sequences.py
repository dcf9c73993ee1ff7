"""One attention call over a whole sequence, and the same call on this rank's shards, side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import regard
import regard.distributed
from regard import biases, masks
from regard.distributed.placement import Placement
from regard.testing import Inputs, make_inputs

# Uneven shards, an empty one among them, and lengths on both sides of a tile's 256. None has so few rows that
# a kernel of their own computes them: see `few_rows`.
LENGTHS = {1: [290], 2: [17, 273], 3: [131, 0, 159], 4: [60, 127, 93, 10]}
LENGTH = 290

MASKS: dict[str, Any] = {
    "none": lambda: None,
    "causal": masks.causal,
    "window": lambda: masks.sliding_window(70),
    "window per head": lambda: masks.sliding_window([5, 260, 70, 600]),
    "band": lambda: masks.band(40, 90),
    "padding": lambda: masks.padding([LENGTH, 170]),
    "left padding": lambda: masks.padding([240, 0], side="left") & masks.causal(),
    "documents": lambda: masks.documents(lengths=[50, 0, 87, 153]) & masks.causal(),
    "documents per item": lambda: masks.documents(lengths=[[150, 140], [1, 289]]),
    "ids": lambda: masks.documents(ids=[i // 7 % 5 for i in range(LENGTH)]),
    "prefix": lambda: masks.prefix([160, 5]),
    "sinks": lambda: masks.sinks(3) | masks.band(0, 0),
    "streaming": lambda: masks.streaming(4, 50),
    "not": lambda: ~masks.sliding_window(150),
    "per batch": lambda: masks.per_batch([masks.causal(), masks.sliding_window(9)]),
    "nothing": lambda: masks.causal() & ~masks.causal(),
}


def said(where: str) -> Callable[[str], str]:
    """What a failed comparison says, with the place before it."""
    return lambda text: f"{where}: {text}"


@dataclass
class Call:
    """A call over a whole sequence: inputs, mask and options, drawn alike on every rank."""

    mask: Any = None
    lengths: list[int] | None = None
    key_lengths: list[int] | None = None
    sharding: str = "contiguous"
    method: str = "gather"
    dtype: torch.dtype = torch.float32
    options: dict[str, Any] = field(default_factory=dict)
    dense_mask: Tensor | None = None
    dense_bias: Tensor | None = None
    seed: int = 0

    def inputs(self, dtype: torch.dtype | None = None) -> Inputs:
        """Query, key and value of the whole sequence, rounded to the call's dtype first."""
        n, m = sum(self.lengths or [0]), sum(self.key_lengths or self.lengths or [0])
        drawn = make_inputs(n, m, head_dim=24, value_dim=16, seed=self.seed, dtype=self.dtype)
        return Inputs(*(tensor.to(dtype or self.dtype) for tensor in drawn))


class Both:
    """The call in one process and on this rank, with gradients of the same random weighting of the output."""

    def __init__(
        self,
        rank: int,
        size: int,
        call: Call,
        backward: bool = True,
        weights: bool = False,
        group: Any = None,
    ) -> None:
        call.lengths = call.lengths or LENGTHS[size]
        self.call = call
        self.rows = Placement.of(call.lengths, call.sharding).indices(rank)
        self.columns = Placement.of(call.key_lengths or call.lengths, call.sharding).indices(rank)
        whole = call.inputs()
        self.whole = [tensor.clone().requires_grad_(backward) for tensor in whole]
        index = (self.rows, self.columns, self.columns)
        self.local = [t[:, :, i].clone().requires_grad_(backward) for t, i in zip(whole, index, strict=True)]
        mask, local_mask = call.mask, call.mask
        if call.dense_mask is not None:
            mask = masks.dense(call.dense_mask) if mask is None else masks.dense(call.dense_mask) & mask
            mine = masks.dense(call.dense_mask[..., self.rows, :])
            local_mask = mine if local_mask is None else mine & local_mask
        self.parameters, self.local_parameters = self._parameters(), self._parameters()
        if call.dense_bias is not None:
            self.parameters["bias"] = call.dense_bias.clone().requires_grad_()
            self.local_parameters["bias"] = call.dense_bias[..., self.rows, :].clone().requires_grad_()
        self.expected, self.expected_weights = regard.attention(
            *self.whole, mask, return_weights=True, **self._options(self.parameters)
        )
        result = regard.distributed.attention(
            *self.local,
            local_mask,
            group=group,
            return_weights=weights,
            method=call.method,
            sharding=call.sharding,
            **self._options(self.local_parameters),
        )
        self.output, self.weights = result if weights else (result, None)
        if backward:
            generator = torch.Generator().manual_seed(9)
            weighting = torch.randn(self.expected.shape, generator=generator).to(call.dtype)
            (self.expected * weighting).sum().backward()
            (self.output * weighting[:, :, self.rows]).sum().backward()

    def gradients(self) -> list[tuple[str, Tensor, Tensor]]:
        """Name, this rank's gradient, and its part of one process's, where there is one."""
        places = (("query", self.rows), ("key", self.columns), ("value", self.columns))
        return [
            (name, mine.grad, theirs.grad[:, :, index])
            for (name, index), mine, theirs in zip(places, self.local, self.whole, strict=True)
            if theirs.grad is not None
        ]

    def _options(self, parameters: dict[str, Tensor]) -> dict[str, Any]:
        options = {k: v for k, v in self.call.options.items() if k not in ("alibi", "relative", "sinks")}
        if "alibi" in parameters:
            options["bias"] = biases.alibi(parameters["alibi"])
        if "relative" in parameters:
            options["bias"] = biases.relative(parameters["relative"])
        if "bias" in parameters:
            options["bias"] = parameters["bias"]
        if "sinks" in parameters:
            options["sink_logits"] = parameters["sinks"]
        return options

    def _parameters(self) -> dict[str, Tensor]:
        """Fresh leaves of the parameters that all ranks hold."""
        held = {k: v for k, v in self.call.options.items() if k in ("alibi", "relative", "sinks")}
        return {name: tensor.clone().requires_grad_() for name, tensor in held.items()}
