"""Which modules are running, in each thread: while somebody follows a model, hooks keep a stack of them.

The hooks are torch's global ones: a hook on a module itself would send `nn.TransformerEncoderLayer` and
`nn.MultiheadAttention` off their fast paths. A function mode would, too: while one of these is innermost, the
mode of `regard.models.functional` is off, and what the module computed is told by its arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from regard.models import functional


class Follower(Protocol):
    """Who follows a model."""

    modules: frozenset[nn.Module]

    def entered(self, module: nn.Module) -> None:
        """A module of the model begins its forward pass."""

    def left(self, module: nn.Module, call: ModuleCall | None) -> None:
        """It ended; `call` is None if by an exception. It still is the last of `running_modules()`."""


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """What a module was called with, what it answered, and whether it called any module inside."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    called_others: bool


class _Thread(threading.local):
    def __init__(self) -> None:
        self.stack: list[nn.Module] = []
        self.entered = 0
        self.counts: list[int] = []

    def begin(self, module: nn.Module) -> None:
        if not self.stack:
            _inside.add(threading.current_thread())
        self.entered += 1
        self.stack.append(module)
        self.counts.append(self.entered)

    def cut(self, length: int) -> None:
        del self.stack[length:], self.counts[length:]
        if not self.stack:
            _inside.discard(threading.current_thread())

    def settle(self) -> None:
        functional.while_running(bool(self.stack) and not has_fast_path(type(self.stack[-1])))


# The threads that run a followed model: the hooks outlast their followers until none does.
_inside: set[threading.Thread] = set()
_lock = threading.Lock()
_followers: tuple[Follower, ...] = ()
_handles: list[Any] = []
_stance: Any = None
_thread = _Thread()


def running_modules() -> list[nn.Module]:
    """The modules that this thread is running, outermost first."""
    return _thread.stack


def has_fast_path(kind: type[nn.Module]) -> bool:
    """Whether modules of a type are those of torch that leave their fast path when observed inside."""
    own = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
    base = next((one for one in own if issubclass(kind, one)), None)
    return base is not None and all(
        getattr(kind, name, None) is getattr(base, name, None) for name in ("forward", "_sa_block")
    )


@contextmanager
def following(follower: Follower) -> Iterator[None]:
    """Tell `follower` of its modules' passes, in whatever thread, until the block ends.

    Meanwhile what was compiled runs as it was written, which is what its code says module by module.
    """
    global _followers, _stance
    with _lock:
        if not _followers:
            _stance = torch.compiler.set_stance("force_eager")
        if not _handles:
            _handles.append(register_module_forward_pre_hook(_begin))
            _handles.append(register_module_forward_hook(_end, with_kwargs=True, always_call=True))
        _followers = (*_followers, follower)
    try:
        yield
    finally:
        with _lock:
            _followers = tuple(other for other in _followers if other is not follower)
            if not _followers:
                _stance.__exit__(None, None, None)
                # What an exception that no hook is told of (an interrupt) left behind.
                _thread.cut(0)
                _thread.settle()
                _remove_hooks()


def _remove_hooks() -> None:
    if not _followers and not any(thread.is_alive() for thread in _inside):
        _inside.clear()
        for handle in _handles:
            handle.remove()
        _handles.clear()


def _begin(module: nn.Module, args: tuple[Any, ...]) -> None:
    if torch.compiler.is_compiling():
        return
    concerned = [follower for follower in _followers if module in follower.modules]
    thread = _thread
    if not thread.stack and not concerned:
        return
    thread.begin(module)
    for follower in concerned:
        follower.entered(module)
    thread.settle()


def _end(module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
    thread = _thread
    if torch.compiler.is_compiling() or module not in thread.stack:
        return
    # Above it may stand modules that an interrupt ended.
    place = len(thread.stack) - 1 - thread.stack[::-1].index(module)
    thread.cut(place + 1)
    # After an exception, torch gives the hook no keyword arguments.
    call = ModuleCall(args, *rest, thread.entered > thread.counts[place]) if len(rest) == 2 else None
    try:
        for follower in _followers:
            if module in follower.modules:
                follower.left(module, call)
    finally:
        thread.cut(place)
        thread.settle()
        if not thread.stack and not _followers:
            with _lock:
                _remove_hooks()
