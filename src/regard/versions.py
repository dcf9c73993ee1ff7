"""Knowing whether a tensor changed in place since it was last looked at."""

from __future__ import annotations

from torch import Tensor


def version_of(tensor: Tensor) -> int | None:
    """The tensor's version counter; None for inference tensors, which do not count their changes."""
    return None if tensor.is_inference() else tensor._version
