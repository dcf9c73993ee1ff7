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
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode, _push_mode

from regard.listening import Listeners, is_silent, silently
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

# The handler of an inner block stands around those of outer ones.
handlers: Listeners[Handler] = Listeners()
# Told of every softmax that no attention function computed.
softmax_listeners: Listeners[Callable[[], None]] = Listeners()


@contextmanager
def intercepting(handler: Handler) -> Iterator[None]:
    """Hand every call that this thread makes in the block to `handler`, which computes it or has it computed.

    >>> def on_regard(call, compute):
    ...     if call.multi_head:
    ...         return compute()
    ...     return regard.scaled_dot_product_attention(**call.arguments)
    >>> with intercepting(on_regard):
    ...     output = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    """
    _thread.blocks += 1
    try:
        with handlers.among(handler), mode(on=True):
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
        kwargs = {} if kwargs is None else kwargs
        signature = _SIGNATURES.get(func)
        if signature is None:
            if func in _SOFTMAX and not is_silent():
                for listener in softmax_listeners.now:
                    listener()
            return func(*args, **kwargs)
        if not heard_now():
            return func(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        call = FunctionCall(signature is _MULTI_HEAD, bound.arguments)

        def alone() -> Any:
            with silently():
                return func(*args, **kwargs)

        compute: Callable[[], Any] = alone
        for handler in handlers.now:
            compute = functools.partial(handler, call, compute)
        return compute()


class _Thread(threading.local):
    """Whether the mode is on in this thread, and who wants it to be."""

    blocks = 0  # of `intercepting`
    wanted = False
    on = False

    def settle(self) -> None:
        """Turn the mode on or off, as is wanted. Under somebody's own mode it stays where it is."""
        wanted = self.wanted or self.blocks > 0
        if wanted and not self.on:
            _push_mode(_MODE)
            self.on = True
        elif self.on and not wanted and _get_current_function_mode() is _MODE:
            _pop_mode()
            self.on = False


@contextmanager
def mode(*, on: bool) -> Iterator[None]:
    """The mode in this thread until the block ends: on, or off if nobody else wants it on."""
    before, _thread.wanted = _thread.wanted, on
    _thread.settle()
    try:
        yield
    finally:
        _thread.wanted = before
        _thread.settle()


def mode_is_on() -> bool:
    """Whether calls that this thread makes now are handed to the handlers."""
    return _thread.on


_MODE = _Mode()
_thread = _Thread()
