"""What `torch.compile` must run as it stands: code that decides by looking at values, as mask scans do."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def outside_graphs(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, at which a compiled graph ends and after which the next begins."""
    untraced: Callable[Arguments, Result] = torch.compiler.disable(function)
    return untraced
