"""Autocast stops at an engine's border: inside, sums stay in the dtype that the conventions promise."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch

from regard.problem import Problem

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def without_autocast(
    function: Callable[Concatenate[Problem, Arguments], Result],
) -> Callable[Concatenate[Problem, Arguments], Result]:
    """The function, computing in the dtypes it names whatever autocast is set to."""

    @wraps(function)
    def computing(problem: Problem, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with torch.autocast(problem.device.type, enabled=False):
            return function(problem, *args, **kwargs)

    return computing
