"""What watches a computation from outside (`torch.compile`, transforms, modes), and how it is told apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from regard.errors import EngineError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def outside_graphs(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, at which a compiled graph ends and after which the next begins."""
    untraced: Callable[Arguments, Result] = torch.compiler.disable(function)
    return untraced


def transformed(tensor: Tensor) -> bool:
    """Whether a transform of torch.func (vmap, grad, jvp, ...) has wrapped the tensor."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def without_values(tensor: object) -> bool:
    """Whether nothing may be decided by what a tensor holds: it is being traced, or stands for several.

    What checks values does it later then, inside the operator, where they are known.
    """
    if torch.compiler.is_compiling():
        return True
    return isinstance(tensor, FakeTensor) or (isinstance(tensor, Tensor) and transformed(tensor))


def seen_from_outside(*tensors: Tensor, by_torch: bool) -> bool:
    """Whether a call's tensors are more than their numbers, so that it must be one operator of torch's.

    That is in transforms and dispatch modes, and with subclasses. What torch's own operations compute
    (`by_torch`) they all see as it is, unless there are no values to decide by.
    """
    if torch._C._get_tracing_state() is not None:
        raise EngineError("torch.jit.trace cannot record attention: use torch.compile or torch.export")
    if by_torch:
        return stand_for_others(*tensors)
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or any(isinstance(t, Tensor) and type(t) not in (Tensor, torch.nn.Parameter) for t in tensors)
    )


def refuse_tangents(tensors: Iterable[Tensor | None]) -> None:
    """Raise where a tensor carries a forward-mode derivative, which an engine's kernel would lose."""
    for tensor in tensors:
        if tensor is not None and _carries_tangent(tensor):
            raise EngineError(
                "this engine does not support forward-mode derivatives (torch.func.jvp): use "
                'engine="reference"'
            )


def stand_for_others(*tensors: Tensor) -> bool:
    """Whether tensors may have no values (they are fake), or those of several (inside vmap).

    In forward mode, vmap maps over tangents alone, which only what torch itself computes has anyway.
    """
    if torch._C._are_functorch_transforms_active():
        kind = torch._C._functorch.TransformType
        levels = [level.key() for level in torch._C._functorch.get_interpreter_stack() or []]
        if kind.Vmap in levels and kind.Jvp not in levels:
            return True
    return any(isinstance(tensor, FakeTensor) for tensor in tensors)


def _carries_tangent(tensor: Tensor) -> bool:
    functorch = torch._C._functorch
    while transformed(tensor):
        level = functorch.maybe_get_level(tensor)
        stack = functorch.get_interpreter_stack() or []
        if any(one.level() == level and one.key() == functorch.TransformType.Jvp for one in stack):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None
