"""Calls of torch's attention functions, from whatever code: planned, computed, and told to who listens.

A torch-function mode sees `F.scaled_dot_product_attention` however it was imported, and from code that nobody
changed. A mode belongs to one thread: `mode` turns it on in the thread of its block, and
`regard.models.running` in every thread that runs a module that somebody follows, while it does.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode, _push_mode

from regard.listening import Listeners, is_silent, silently
from regard.models.heard import FunctionCall, Plan
from regard.models.torch_functions import compute
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
# These run code of modules again, with the mode taken away until they return.
_BACKWARD = {torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad}
_SOFTMAX = {torch.softmax, torch.Tensor.softmax, functional.softmax, torch.special.softmax}
_KNOWN = {*_SIGNATURES, *_BACKWARD, *_SOFTMAX}

# Asked in the order of their blocks, each about the call as the one before it left it.
plans: Listeners[Plan] = Listeners()
# Told of every call, and of what was answered.
listeners: Listeners[Callable[[FunctionCall, Any], None]] = Listeners()
# Told of every softmax that no attention function computed.
softmax_listeners: Listeners[Callable[[], None]] = Listeners()


def repeats() -> bool:
    """Whether a backward pass is running, which only repeats calls that were made before."""
    return torch._C._current_graph_task_id() != -1


def heard_now() -> bool:
    """Whether a call made now is one by itself: neither repeated nor part of another, nor traced."""
    return not (_traced() or is_silent() or repeats())


def _traced() -> bool:
    """Whether a graph is being made, which holds no numbers yet, and would outlive the block."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


class _Mode(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = {} if kwargs is None else kwargs
        if func not in _KNOWN:
            return func(*args, **kwargs)
        if func in _BACKWARD:
            with _thread.away():
                return func(*args, **kwargs)
        if func in _SOFTMAX and not is_silent():
            for listener in softmax_listeners.now:
                listener()
        signature = _SIGNATURES.get(func)
        if signature is None or _traced() or is_silent():
            return func(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        call = FunctionCall(signature is _MULTI_HEAD, bound.arguments)
        for plan in plans.now:
            call = plan(call)
        heard = () if repeats() else listeners.now
        with silently():
            if call.engine is None:
                answer = func(*args, **kwargs)
            else:
                call, answer = compute(call, keep_normalizer=bool(heard))
        for tell in heard:
            tell(call, answer)
        return answer


class _Thread(threading.local):
    """Whether the mode is on in this thread, and who wants it to be."""

    firm = 0  # blocks in which it stays on
    wanted = False
    on = False

    def settle(self) -> None:
        """Turn the mode on or off, as is wanted. Under somebody's own mode it stays where it is."""
        wanted = self.wanted or self.firm > 0
        if wanted and not self.on:
            _push_mode(_MODE)
            self.on = True
        elif self.on and not wanted and _get_current_function_mode() is _MODE:
            _pop_mode()
            self.on = False

    @contextmanager
    def away(self) -> Iterator[None]:
        """Until the block ends, torch has the mode taken off, and nobody outside of the block wants it on."""
        before = self.wanted, self.firm, self.on
        self.wanted, self.firm, self.on = False, 0, False
        try:
            yield
        finally:
            self.wanted, self.firm, self.on = before


@contextmanager
def mode(*, on: bool, firmly: bool = False) -> Iterator[None]:
    """The mode in this thread until the block ends: on, or off if nobody around wants it `firmly` on."""
    before, _thread.wanted = _thread.wanted, on
    _thread.firm += firmly
    try:
        _thread.settle()
        yield
    finally:
        _thread.wanted = before
        _thread.firm -= firmly
        _thread.settle()


@contextmanager
def within_call() -> Iterator[None]:
    """In this thread, the mode is off: what is computed in the block is part of a call heard as a whole."""
    firm, _thread.firm = _thread.firm, 0
    try:
        with silently(), mode(on=False):
            yield
    finally:
        _thread.firm = firm
        _thread.settle()


def mode_is_wanted(firmly: bool) -> bool:
    """Whether the mode is on in this thread and stays on, `firmly` if that is asked, by itself."""
    return _thread.on and _thread.wanted and (not firmly or _thread.firm > 0)


def mode_is_on() -> bool:
    """Whether calls that this thread makes now are heard."""
    return _thread.on


_MODE = _Mode()
_thread = _Thread()
