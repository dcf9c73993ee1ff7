"""`use`: models that compute their attention with regard for a while, with edges or heads knocked out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from regard import masks
from regard.attention import attention
from regard.errors import ArgumentError, ArgumentTypeError, NothingSeenError
from regard.masks import Mask
from regard.models import huggingface
from regard.models.flash_mask import combined
from regard.models.heard import HeardCall
from regard.models.huggingface import Plan
from regard.models.selection import require_names

# Every way in which calls come to be known: a block in which a plan is asked about each of them.
SOURCES: tuple[Callable[[Plan], AbstractContextManager[None]], ...] = (huggingface.computing,)


@contextmanager
def use(
    model: nn.Module | None = None,
    *,
    engine: str = "auto",
    mask: Mapping[str, Mask | Tensor] | None = None,
) -> Iterator[None]:
    """Have attention computed with regard in the block, in whatever thread, whatever a model is set to.

    What a call carries (masks, windows, packing, softcap, sinks, biases, dropout) means what it means to the
    model's own implementation, or is refused with a sentence. An attention function of a model's own file is
    also run at a module's first call, and must agree. Gradients flow; run the backward pass inside of the
    block as well, where it computes parts of the model again. Nested blocks add up: masks all apply, and the
    innermost engine computes. `watch` works inside and around it, and sees the weights that are computed.

    Args:
        model: a Hugging Face transformers model, or any module that holds some; None means every model.
        engine: as in `regard.attention`.
        mask: further masks, by pattern of module names of `model` (`"model.layers.7.*"`): a call of a module
            that matches lets a query attend what the call itself and every such mask allow. Edges go with any
            mask, keys with `~masks.sinks(1)` and its like, a head with `masks.per_head`: one that may attend
            nothing gives 0. Position 0 is the first key of a call, of a sliding cache the first it holds.

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
        yield
    user.require_used()


class _User:
    """What one `use` wants of each call."""

    def __init__(
        self, model: nn.Module | None, engine: str, mask: Mapping[str, Mask | Tensor] | None
    ) -> None:
        if model is not None and not isinstance(model, nn.Module):
            raise ArgumentTypeError(f"`model` must be a torch.nn.Module, got a {type(model).__name__}")
        # A wrong engine says so before a model runs.
        attention(*torch.zeros(3, 1, 1), engine=engine)
        self._engine = engine
        self._masks = _checked(mask)
        if self._masks and model is None:
            raise ArgumentError(
                "`mask` names modules by pattern, and needs the model that has them: use(model, mask=…)"
            )
        self._names = None if model is None else {module: name for name, module in model.named_modules()}
        if model is not None:
            require_names("mask", self._masks, model)
        self._unmatched = set(self._masks)
        self._used = False

    def plan(self, call: HeardCall) -> HeardCall:
        """The call, to be computed with regard if a module of the model made it."""
        name = None if self._names is None else self._names.get(call.module)
        if self._names is not None and name is None:
            return call
        self._used = True
        besides = [call.besides]
        for pattern, mask in self._masks.items():
            if name is not None and fnmatchcase(name, pattern):
                besides.append(mask)
                self._unmatched.discard(pattern)
        return replace(call, engine=self._engine, besides=combined(*besides))

    def require_used(self) -> None:
        """Raise if no call was made, or none that a pattern names."""
        if not self._used:
            raise NothingSeenError(
                "no attention call was made in the block through transformers' AttentionInterface: was the "
                "model called, and is it neither compiled nor traced?"
            )
        if self._unmatched:
            missing = ", ".join(map(repr, sorted(self._unmatched)))
            raise NothingSeenError(f"`mask` names {missing}, which made no attention call in the block")


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
