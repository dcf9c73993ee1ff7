"""Autocast chooses the dtype of the inputs, as for torch's own attention, and stops at an engine's border.

Inside, sums stay in the dtype that the conventions promise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from regard.problem import Problem

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def as_autocast_has_it(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The inputs in autocast's lower precision, if it is on for the query's device.

    Attention is on torch's list of what computes in lower precision.
    """
    return lowered(query, query), lowered(key, query), lowered(value, query)


def lowered(tensor: Tensor, query: Tensor) -> Tensor:
    """One of a call's tensors in autocast's precision, if it is on where the query lies; float64 stays."""
    if not isinstance(query, Tensor) or not isinstance(tensor, Tensor):
        return tensor
    device = query.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):  # asking for meta raises
        return tensor
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))


def without_autocast(
    function: Callable[Concatenate[Problem, Arguments], Result],
) -> Callable[Concatenate[Problem, Arguments], Result]:
    """The function, computing in the dtypes it names whatever autocast is set to."""

    @wraps(function)
    def computing(problem: Problem, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with torch.autocast(problem.device.type, enabled=False):
            return function(problem, *args, **kwargs)

    return computing
