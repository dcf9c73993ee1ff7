"""Hugging Face transformers: every attention call, of any model, is heard, and computed where that is wanted.

Every modern model asks `AttentionInterface` which function computes its attention, and calls that. While
there are listeners or plans, the function it is given is wrapped. Plans say which calls regard computes; of
any other, the original runs unchanged and its output goes to the model. Then the listeners are told. Which
implementation the model uses, its own eager function included, makes no difference, and nothing about the
model is touched.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch

from regard.errors import MissingExtraError
from regard.models.computing import compute, verify
from regard.models.functional import within_call
from regard.models.heard import HeardCall, Plan

Listener = Callable[[HeardCall], None]
One = TypeVar("One")

_lock = threading.Lock()
_listeners: list[Listener] = []
_plans: list[Plan] = []
_restore: Callable[[], None] | None = None


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell `listener` of every attention call, in whatever thread, until the block ends."""
    with _among(_listeners, listener, "watching a model"):
        yield


@contextmanager
def computing(plan: Plan) -> Iterator[None]:
    """Ask `plan` how to compute every attention call, in whatever thread, until the block ends.

    Plans are asked in the order of their blocks, each about the call as the one before it left it.
    """
    with _among(_plans, plan, "computing in a model"):
        yield


def attention_interface(purpose: str) -> Any:
    """transformers' `AttentionInterface`, or a sentence that says what `purpose` needs."""
    try:
        from transformers.modeling_utils import AttentionInterface
    except ImportError:
        raise MissingExtraError(
            f"{purpose} needs Hugging Face transformers: `pip install regard[hf]`"
        ) from None
    if not hasattr(AttentionInterface, "get_interface"):
        raise MissingExtraError(
            f"{purpose} needs transformers 5 or later: `pip install --upgrade regard[hf]`"
        )
    return AttentionInterface


@contextmanager
def _among(others: list[One], one: One, purpose: str) -> Iterator[None]:
    """Wrap attention functions, with `one` among `others`, until the block ends.

    Where transformers has not been imported there is no model of it, and nothing to do.
    """
    global _restore
    if "transformers.modeling_utils" not in sys.modules:
        yield
        return
    with _lock:
        if _restore is None:
            _restore = _install(attention_interface(purpose))
        others.append(one)
    try:
        yield
    finally:
        with _lock:
            others[:] = [other for other in others if other is not one]
            if not _listeners and not _plans and _restore is not None:
                _restore()
                _restore = None


def _install(interface: Any) -> Callable[[], None]:
    """Wrap what `AttentionInterface` hands out; the returned function undoes it."""
    look_up, get_item = interface.get_interface, interface.__getitem__

    def get_interface(self: Any, attn_implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
        return _observed(look_up(self, attn_implementation, default), attn_implementation or "eager")

    def getitem(self: Any, key: str) -> Callable[..., Any]:
        return _observed(get_item(self, key), key)

    interface.get_interface = get_interface
    interface.__getitem__ = getitem

    def restore() -> None:
        interface.get_interface = look_up
        # It was inherited: what belongs to the parent class is found again once ours is gone.
        del interface.__getitem__

    return restore


def _observed(function: Callable[..., Any], implementation: str) -> Callable[..., Any]:
    if hasattr(function, "_regard_observed"):
        return function

    @functools.wraps(function)
    def observed(*args: Any, **kwargs: Any) -> Any:
        # A graph being traced holds no numbers yet, and would outlive the block.
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        call = _heard(function, implementation, args, kwargs)
        for plan in tuple(_plans):
            call = plan(call)
        # A backward pass only repeats calls that were heard.
        listeners = tuple(_listeners) if torch._C._current_graph_task_id() == -1 else ()
        with within_call():
            if call.engine is None:
                answer = function(*args, **kwargs)
                call = replace(call, output=answer[0])
            else:
                verify(call, function)
                call, weights = compute(call, keep_normalizer=bool(listeners))
                answer = call.output, weights
        for listener in listeners:
            listener(call)
        return answer

    observed._regard_observed = True  # type: ignore[attr-defined]
    return observed


def _heard(
    function: Callable[..., Any], implementation: str, args: tuple[Any, ...], kwargs: dict[str, Any]
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
    engine = getattr(function, "_regard_engine", None)
    return HeardCall(implementation=implementation, options=options, engine=engine, **named)
