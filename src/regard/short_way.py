"""The short way of an eager call that needs nothing but the output of plain tensors: straight into the core.

On a tiny problem everything around the kernel is what a call costs. So this way builds no problem, and checks
only that nothing is there which it would pass over; whatever is unusual, or wrong, goes the long way.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from regard.engines import native
from regard.masks import Mask
from regard.masks.runs import Run

_attend = native.attend

# Looked up once: each of them is asked in every call.
_threads = torch.get_num_threads
_differentiating = torch.is_grad_enabled
_autocasting = torch._C._is_any_autocast_enabled
_function_modes = torch._C._len_torch_function_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._are_functorch_transforms_active
_tracing = torch._C._get_tracing_state

_FAR = 2**40


def briefly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | Tensor | None,
    scale: float | None,
    query_start: int | Sequence[int] | Tensor | None,
    key_start: int | Sequence[int] | Tensor,
) -> Tensor | None:
    """The output, or None where the long way is to be gone, which alone says what is wrong with a call."""
    if (
        _attend is None
        or _function_modes()
        or _dispatch_modes()
        or _transforms()
        or _autocasting()
        or forward_ad._current_level >= 0
        or _tracing() is not None
    ):
        return None
    before = after = None
    if mask is not None:
        run = getattr(mask, "run", None)
        if type(run) is not Run:
            return None
        before, after = run
    if type(key_start) is not int or not -_FAR < key_start < _FAR:
        return None
    offset = None
    if query_start is not None:
        if type(query_start) is not int:
            return None
        offset = query_start - key_start
    try:
        if _differentiating() and (query.requires_grad or key.requires_grad or value.requires_grad):
            return None
    except AttributeError:  # not tensors
        return None
    # The core looks at the tensors' types, dtypes, devices and shapes itself.
    return _attend(query, key, value, before, after, offset, scale, _threads())
