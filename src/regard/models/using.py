"""`use`: attention computed with regard for a while, with edges or heads knocked out."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from regard import masks
from regard.attention import attention
from regard.errors import ArgumentTypeError, NothingSeenError
from regard.masks import Mask
from regard.models import functional, huggingface, running
from regard.models.flash_mask import combined
from regard.models.heard import AnyCall, Call, HeardCall, Plan
from regard.models.running import running_modules
from regard.models.selection import require_names

# Every way in which calls come to be known: a block in which a plan is asked about each of them.
SOURCES: tuple[Callable[[Plan], AbstractContextManager[None]], ...] = (
    huggingface.computing,
    functional.plans.among,
)
_MOST_NAMED = 4


@contextmanager
def use(
    model: nn.Module | None = None,
    *,
    engine: str = "auto",
    mask: Mapping[str, Mask | Tensor] | None = None,
) -> Iterator[None]:
    """Have attention computed with regard in the block, whatever code calls it.

    That is Hugging Face transformers, whatever a model is set to, `F.scaled_dot_product_attention` in any
    code, `nn.MultiheadAttention` and torch's encoders and decoders. What a call carries (masks, windows,
    packing, softcap, sinks, biases, dropout) means what it means to the function that is called, or is
    refused with a sentence. An attention function of a transformers model's own file is also run at a
    module's first call, and must agree. Gradients flow; run the backward pass inside of the block as well,
    where it computes parts of the model again. Nested blocks add up: masks all apply, and the innermost
    engine computes. `watch` works inside and around it, and sees the weights that are computed. Compiled
    modules run as they were written.

    Args:
        model: a module: the calls that its modules make, in whatever thread, are computed. None means every
            module in whatever thread, and calls outside of modules in the thread of the block.
        engine: as in `regard.attention`.
        mask: further masks, by pattern of module names (`"layers.7.*"`), as `model` has them, or without one
            the outermost module that runs: a call of a module that matches lets a query attend what the call
            itself and every such mask allow. Edges go with any mask, keys with `~masks.sinks(1)` and its
            like, a head with `masks.per_head`: one that may attend nothing gives 0. Position 0 is the first
            key of a call, of a sliding cache the first it holds.

    Raises:
        NothingSeenError: no attention call was made in the block, or none that a pattern of `mask` matches.
        ModelError: a call carries something that cannot be computed exactly.

    >>> everything, nothing = ~masks.sinks(0), masks.sinks(0)
    >>> head_3 = masks.per_head([everything] * 3 + [nothing] + [everything] * 5)
    >>> with regard.use(model, mask={"model.layers.7.self_attn": head_3}):
    ...     output = model(**inputs)
    """
    user = _User(model, engine, mask)
    with ExitStack() as stack:
        for source in SOURCES:
            stack.enter_context(source(user.plan))
        stack.enter_context(running.followers.among(user))
        if model is None:
            stack.enter_context(functional.mode(on=True, firmly=True))
        yield
    user.require_used()


class _Every:
    """All modules there are."""

    def __contains__(self, module: object) -> bool:
        return True


class _User:
    """What one `use` wants of each call; a `running.Follower`."""

    computes = True

    def __init__(
        self, model: nn.Module | None, engine: str, mask: Mapping[str, Mask | Tensor] | None
    ) -> None:
        if model is not None and not isinstance(model, nn.Module):
            raise ArgumentTypeError(f"`model` must be a torch.nn.Module, got a {type(model).__name__}")
        # A wrong engine says so before a model runs.
        attention(*torch.zeros(3, 1, 1), engine=engine)
        self._engine = engine
        self._masks = _checked(mask)
        if model is not None:
            require_names("mask", self._masks, model)
        self._model = model
        self.modules: Container[nn.Module] = _Every() if model is None else frozenset(model.modules())
        self._names: dict[nn.Module, dict[nn.Module, str]] = {}
        self._unmatched = set(self._masks)
        # The modules whose calls were computed, and None for those outside of any, by the name they had last.
        self._used: dict[nn.Module | None, str | None] = {}

    def entered(self, module: nn.Module) -> None:
        """See `running.Follower`."""

    def left(self, module: nn.Module) -> None:
        """See `running.Follower`."""

    def plan(self, call: AnyCall) -> AnyCall:
        """The call, to be computed with regard if it is one of the model's."""
        module, name = self._caller(call)
        if name is None and self._model is not None:
            return call
        self._used[module] = name
        besides = [call.besides]
        for pattern, mask in self._masks.items():
            if name is not None and fnmatchcase(name, pattern):
                besides.append(mask)
                self._unmatched.discard(pattern)
        return replace(call, engine=self._engine, besides=combined(*besides), name=name)

    def _caller(self, call: Call) -> tuple[nn.Module | None, str | None]:
        """The innermost module that makes a call, of those that have a name here, and its name."""
        modules = running_modules()
        if isinstance(call, HeardCall):
            modules.append(call.module)
        names: Mapping[Any, str | None] = {}
        if self._model is not None:
            names = self._names_in(self._model)
        elif functional.repeats():
            # Only a part of the model runs again, whose names are those that it had in the whole.
            names = self._used
        elif modules:
            names = self._names_in(modules[0])
        module = next((module for module in reversed(modules) if module in names), None)
        return module, None if module is None else names[module]

    def _names_in(self, model: nn.Module) -> dict[nn.Module, str]:
        if model not in self._names:
            self._names[model] = {module: name for name, module in model.named_modules()}
        return self._names[model]

    def require_used(self) -> None:
        """Raise if no call was made, or none that a pattern names."""
        if not self._used:
            whose = "" if self._model is None else f" by a module of the {type(self._model).__name__}"
            raise NothingSeenError(
                f"no attention call was made in the block{whose} through `F.scaled_dot_product_attention`, "
                "`nn.MultiheadAttention` or transformers' AttentionInterface: was the model called, and is "
                "it neither traced nor one that computes a softmax by itself?"
            )
        if self._unmatched:
            missing = ", ".join(map(repr, sorted(self._unmatched)))
            made = [repr(name) for name in self._used.values() if name is not None]
            others = ", ".join(made[:_MOST_NAMED]) + (", …" if len(made) > _MOST_NAMED else "")
            raise NothingSeenError(
                f"`mask` names {missing}, which made no attention call in the block; calls were made by "
                f"{others or 'no module'}"
            )


def _checked(mask: Mapping[str, Mask | Tensor] | None) -> dict[str, Mask]:
    if mask is None:
        return {}
    if not isinstance(mask, Mapping):
        raise ArgumentTypeError(
            f"`mask` must be a dict of module name pattern to mask, got a {type(mask).__name__}"
        )
    for pattern, one in mask.items():
        if not isinstance(pattern, str) or not isinstance(one, Mask | Tensor):
            raise ArgumentTypeError(
                "`mask` must be a dict of module name pattern to mask, got a "
                f"{type(one).__name__} for {pattern!r}"
            )
    return {name: masks.dense(one) if isinstance(one, Tensor) else one for name, one in mask.items()}
