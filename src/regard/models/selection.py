"""Which attention calls of a model a watch keeps: all, or those of some layers."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch import nn

from regard.errors import ArgumentError, ArgumentTypeError, NothingSeenError

Layers = int | str | Iterable[int | str] | None


def require_names(argument: str, patterns: Iterable[str], model: nn.Module) -> None:
    """Raise if a pattern matches none of the model's module names."""
    names = [name for name, _ in model.named_modules()]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ArgumentError(
                f"`{argument}` must match the model's module names, got {pattern!r}, which matches none"
            )


class Selection:
    """Layers chosen by index, in the order in which they are first seen, or by a pattern of the name."""

    def __init__(self, layers: Layers, model: nn.Module) -> None:
        self._all = layers is None
        chosen = [] if layers is None else [layers] if isinstance(layers, int | str) else list(layers)
        for choice in chosen:
            if isinstance(choice, bool) or not isinstance(choice, int | str):
                raise ArgumentTypeError(
                    f"`layers` must be indices or name patterns, got {choice!r}, a {type(choice).__name__}"
                )
            if isinstance(choice, int) and choice < 0:
                raise ArgumentError(
                    f"`layers` must be counted from 0, the first attention call, got {choice}"
                )
        self._indices = {choice for choice in chosen if isinstance(choice, int)}
        self._patterns = [choice for choice in chosen if isinstance(choice, str)]
        require_names("layers", self._patterns, model)
        self._unseen: set[int | str] = set(chosen)

    def __contains__(self, call: tuple[str, int]) -> bool:
        """Whether a call is chosen, given its module's name and its layer."""
        module, layer = call
        matched: set[int | str] = {pattern for pattern in self._patterns if fnmatchcase(module, pattern)}
        matched |= {layer} & self._indices
        self._unseen -= matched
        return self._all or bool(matched)

    def require_seen(self, n_layers: int) -> None:
        """Raise if a choice was never met among the `n_layers` layers that were seen."""
        if self._unseen:
            missing = ", ".join(repr(choice) for choice in sorted(self._unseen, key=str))
            raise NothingSeenError(
                f"`layers` names {missing}, which is none of the {n_layers} attention layers that were seen"
            )
