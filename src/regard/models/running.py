"""Which modules are running, in each thread: while somebody follows a model, a stack of them is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from typing import Any, Protocol

import torch
from torch import nn

from regard.listening import Listeners
from regard.models import functional


class Follower(Protocol):
    """Who follows modules; `computes` if torch's own are to leave their fast paths, which compute unseen."""

    computes: bool

    @property
    def modules(self) -> Container[nn.Module]:
        """Those that are followed."""

    def entered(self, module: nn.Module) -> None:
        """One of the modules begins its forward pass."""

    def left(self, module: nn.Module) -> None:
        """It ended, perhaps by an exception."""


class _Thread(threading.local):
    def __init__(self) -> None:
        self.stack: list[nn.Module] = []
        self.calls = 0


_thread = _Thread()


def running_modules() -> list[nn.Module]:
    """The modules that this thread is running, outermost first; the first is one that somebody follows."""
    return list(_thread.stack)


def calls_so_far() -> int:
    """How many modules this thread has begun to run, counted while it runs any."""
    return _thread.calls


def _install() -> Callable[[], None]:
    """Follow every call of a module; what was compiled runs as it was written, module by module.

    A hook on the modules would do but for `nn.TransformerEncoderLayer`, which leaves its fast path when there
    is one, and torch.compile, which warns of global ones. torch.fx follows calls in this way too.
    """
    original = nn.Module.__call__
    stance = torch.compiler.set_stance("force_eager")

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        concerned = [follower for follower in followers.now if self in follower.modules]
        if (not concerned and not _thread.stack) or torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        _thread.stack.append(self)
        _thread.calls += 1
        try:
            for follower in concerned:
                follower.entered(self)
            firmly = any(follower.computes for follower in concerned)
            if functional.mode_is_wanted(firmly):  # as inside of a module that is followed it mostly is
                return original(self, *args, **kwargs)
            with functional.mode(on=True, firmly=firmly):
                return original(self, *args, **kwargs)
        finally:
            _thread.stack.pop()
            for follower in concerned:
                follower.left(self)

    nn.Module.__call__ = call  # type: ignore[method-assign]

    def restore() -> None:
        nn.Module.__call__ = original  # type: ignore[method-assign]
        stance.__exit__(None, None, None)

    return restore


followers: Listeners[Follower] = Listeners(_install)
