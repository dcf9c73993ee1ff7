"""The statistics that a watch computes of each call: checked before the model runs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from regard.errors import ArgumentError, ArgumentTypeError
from regard.weights import AttentionWeights, attention_weights

Statistics = Iterable[str] | Mapping[str, Any]

# Sets of keys or queries: what they may be depends on the call.
_OF_THE_CALL = ("mass", "received")


class Asked:
    """Names as `AttentionWeights.statistics` takes them, some with an argument."""

    def __init__(self, statistics: Statistics) -> None:
        if isinstance(statistics, str):
            statistics = (statistics,)
        if not isinstance(statistics, Iterable):
            raise ArgumentTypeError(
                f"`statistics` must be names, or a dict of name to argument, got {statistics!r}"
            )
        given = statistics if isinstance(statistics, Mapping) else dict.fromkeys(statistics)
        self._names = tuple(name for name, argument in given.items() if argument is None)
        self._arguments = {name: argument for name, argument in given.items() if argument is not None}
        takes = inspect.signature(AttentionWeights.statistics).parameters
        for name in self._arguments:
            if name not in takes or takes[name].kind is not inspect.Parameter.KEYWORD_ONLY:
                raise ArgumentError(f"`statistics` gives an argument to {name!r}, which takes none")
        trial = attention_weights(torch.zeros(1, 1), torch.zeros(1, 1))
        trial.statistics(*self._names, **{k: v for k, v in self._arguments.items() if k not in _OF_THE_CALL})

    def __call__(self, weights: AttentionWeights) -> dict[str, Any]:
        """The answers of one call, by name."""
        return weights.statistics(*self._names, **self._arguments) if self._names or self._arguments else {}
