"""Calls of torch's attention functions, from whatever code: each is handed to handlers, who may replace it.

A torch-function mode sees `F.scaled_dot_product_attention` however it was imported, and from code that nobody
changed. A mode belongs to one thread: `intercepting` turns it on in the thread of its block, and
`regard.models.running` in every thread that runs a module of a watched model, while it does.
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
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from regard.listening import is_silent, silently
from regard.torch_drop_in import scaled_dot_product_attention

_DOT_PRODUCT = inspect.signature(scaled_dot_product_attention)
_MULTI_HEAD = inspect.signature(functional.multi_head_attention_forward)
_operator = torch.ops.aten.scaled_dot_product_attention
_SIGNATURES: dict[Any, inspect.Signature] = {
    functional.scaled_dot_product_attention: _DOT_PRODUCT,
    _operator: _DOT_PRODUCT,  # programs that torch.export made call it by this name
    _operator.default: _DOT_PRODUCT,
    functional.multi_head_attention_forward: _MULTI_HEAD,
}
_SOFTMAX = {torch.softmax, torch.Tensor.softmax, functional.softmax, torch.special.softmax}


@dataclass(frozen=True, eq=False)
class FunctionCall:
    """A call of one of torch's attention functions, its arguments by name, defaults included.

    Arguments are those of `F.multi_head_attention_forward` if `multi_head`, else those of
    `F.scaled_dot_product_attention`.
    """

    multi_head: bool
    arguments: dict[str, Any]


# Gets a call, and what computes it as it would have been; gives what the caller is to get.
Handler = Callable[[FunctionCall, Callable[[], Any]], Any]

_lock = threading.Lock()
_handlers: tuple[Handler, ...] = ()
_softmax_listeners: tuple[Callable[[], None], ...] = ()


@contextmanager
def handling(handler: Handler, softmax: Callable[[], None] | None = None) -> Iterator[None]:
    """Hand every call to `handler`, in threads where the mode is on, until the block ends.

    The handler of an inner block stands around those of outer ones. `softmax` is told of every softmax that
    no attention function computed.
    """
    global _handlers, _softmax_listeners
    with _lock:
        _handlers = (*_handlers, handler)
        _softmax_listeners = (*_softmax_listeners, *([softmax] if softmax else []))
    try:
        yield
    finally:
        with _lock:
            _handlers = tuple(other for other in _handlers if other is not handler)
            _softmax_listeners = tuple(other for other in _softmax_listeners if other is not softmax)


@contextmanager
def intercepting(handler: Handler) -> Iterator[None]:
    """Hand every call that this thread makes in the block to `handler`, which computes it or has it computed.

    >>> def on_regard(call, compute):
    ...     if call.multi_head:
    ...         return compute()
    ...     return regard.scaled_dot_product_attention(**call.arguments)
    >>> with intercepting(on_regard):
    ...     model(inputs)
    """
    _thread.blocks += 1
    _thread.settle()
    try:
        with handling(handler):
            yield
    finally:
        _thread.blocks -= 1
        _thread.settle()


def heard_now() -> bool:
    """Whether a call made now is one by itself.

    A graph being traced holds no numbers yet, and a backward pass only repeats calls that were heard.
    """
    return not (torch.compiler.is_compiling() or is_silent() or torch._C._current_graph_task_id() != -1)


class _Mode(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        compute = functools.partial(func, *args, **(kwargs or {}))
        signature = _SIGNATURES.get(func)
        if signature is None:
            if func in _SOFTMAX and not is_silent():
                for listener in _softmax_listeners:
                    listener()
            return compute()
        if not heard_now():
            return compute()
        bound = signature.bind(*args, **(kwargs or {}))
        bound.apply_defaults()
        call = FunctionCall(signature is _MULTI_HEAD, bound.arguments)

        def silent() -> Any:
            with silently():
                return func(*args, **(kwargs or {}))

        compute = silent
        for handler in _handlers:
            compute = functools.partial(handler, call, compute)
        return compute()


class _Thread(threading.local):
    """Whether the mode is on in this thread, and who wants it to be."""

    blocks = 0
    running = False
    on = False

    def settle(self) -> None:
        """Turn the mode on or off, as is wanted. Under somebody's own mode it stays where it is."""
        wanted = self.running or self.blocks > 0
        if wanted and not self.on:
            _MODE.__enter__()
            self.on = True
        elif self.on and not wanted and _innermost_mode() is _MODE:
            _MODE.__exit__(None, None, None)
            self.on = False


def _innermost_mode() -> Any:
    depth = torch._C._len_torch_function_stack()
    return torch._C._get_function_stack_at(depth - 1) if depth else None


def while_running(running: bool) -> None:
    """Turn the mode on in this thread, or off unless a block of `intercepting` wants it."""
    _thread.running = running
    _thread.settle()


_MODE = _Mode()
_thread = _Thread()
