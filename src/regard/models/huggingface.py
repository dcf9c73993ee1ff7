"""Hugging Face transformers: hears every attention call, of any model, while somebody listens.

Every modern model asks `AttentionInterface` which function computes its attention, and calls that. While
there are listeners, the function it is given is wrapped: the original runs unchanged and its output goes
to the model; then the listeners are told what it was called with. Which implementation the model uses,
its own eager function included, makes no difference, and nothing about the model is touched.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import MissingExtraError
from regard.listening import silently


@dataclass(frozen=True, eq=False)
class HeardCall:
    """One attention call as the model made it, and what its own function answered."""

    module: nn.Module
    implementation: str
    query: Tensor
    key: Tensor
    value: Tensor
    attention_mask: Any
    options: dict[str, Any]
    output: Tensor


Listener = Callable[[HeardCall], None]

_lock = threading.Lock()
_listeners: tuple[Listener, ...] = ()
_restore: Callable[[], None] | None = None


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell `listener` of every attention call, in whatever thread, until the block ends."""
    global _listeners, _restore
    with _lock:
        if _restore is None:
            _restore = _install()
        _listeners = (*_listeners, listener)
    try:
        yield
    finally:
        with _lock:
            _listeners = tuple(other for other in _listeners if other is not listener)
            if not _listeners and _restore is not None:
                _restore()
                _restore = None


def _install() -> Callable[[], None]:
    """Wrap what `AttentionInterface` hands out; the returned function undoes it."""
    try:
        from transformers.modeling_utils import AttentionInterface
    except ImportError:
        raise MissingExtraError(
            "watching a model needs Hugging Face transformers: `pip install regard[hf]`"
        ) from None
    if not hasattr(AttentionInterface, "get_interface"):
        raise MissingExtraError(
            "watching a model needs transformers 5 or later: `pip install --upgrade regard[hf]`"
        )
    look_up, get_item = AttentionInterface.get_interface, AttentionInterface.__getitem__

    def get_interface(self: Any, attn_implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
        return _observed(look_up(self, attn_implementation, default), attn_implementation or "eager")

    def getitem(self: Any, key: str) -> Callable[..., Any]:
        return _observed(get_item(self, key), key)

    AttentionInterface.get_interface = get_interface
    AttentionInterface.__getitem__ = getitem

    def restore() -> None:
        AttentionInterface.get_interface = look_up
        # It was inherited: what belongs to the parent class is found again once ours is gone.
        del AttentionInterface.__getitem__

    return restore


def _observed(function: Callable[..., Any], implementation: str) -> Callable[..., Any]:
    if hasattr(function, "_regard_observed"):
        return function

    @functools.wraps(function)
    def observed(*args: Any, **kwargs: Any) -> Any:
        with silently():
            answer = function(*args, **kwargs)
        # A graph being traced holds no numbers yet, and a backward pass only repeats calls that were heard.
        if _listeners and not torch.compiler.is_compiling() and torch._C._current_graph_task_id() == -1:
            call = _heard(function, implementation, args, kwargs, answer[0])
            for listener in _listeners:
                listener(call)
        return answer

    observed._regard_observed = True  # type: ignore[attr-defined]
    return observed


def _heard(
    function: Callable[..., Any],
    implementation: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    output: Tensor,
) -> HeardCall:
    """The call with its arguments by name. The first five stand in one order everywhere, the rest do not."""
    leading = ("module", "query", "key", "value", "attention_mask")
    named = dict(zip(leading, args, strict=False))
    if len(args) > len(leading):
        further = list(inspect.signature(function).parameters)[len(leading) : len(args)]
        kwargs = {**dict(zip(further, args[len(leading) :], strict=True)), **kwargs}
    options = dict(kwargs)
    for name in leading[len(args) :]:
        named[name] = options.pop(name, None)
    return HeardCall(implementation=implementation, options=options, output=output, **named)
