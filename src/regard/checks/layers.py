"""Which layer lets later inputs through: modules' inputs and outputs of two runs, compared by fingerprint."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from regard.checks.subject import Subject

# Each tensor as one fingerprint for each way its axes can be read as [items, positions].
Prints = list[list[Tensor]]

_FEATURES = 4096


@dataclass(frozen=True, eq=False)
class _Step:
    """One call of a module: which call of it, and the fingerprints of what it got and gave."""

    module: nn.Module
    call: int
    received: Prints
    gave: Prints


class LayerFinder:
    """Runs the subject with a hook on every module, which names itself in the order of execution."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        steps = self._trace(subject.inputs)
        self.names = _names(subject, steps)
        self.base = {(step.module, step.call): step for step in steps}

    def first_changed(self, inputs: Tensor, cut: int) -> tuple[str, int]:
        """The first module, and which call of it, that had the same inputs before `cut` and other outputs.

        Inside it, calls of its own parts come first; parts after the leak have other inputs already, and
        what contains it comes later. Outside all modules it is the function itself.
        """
        before = self.subject.live.clone()
        before[:, cut:] = False
        for step in self._trace(inputs):
            base = self.base.get((step.module, step.call))
            if (
                base is not None
                and _changed(base.gave, step.gave, before)
                and not _changed(base.received, step.received, before)
            ):
                return self.names[step.module], step.call
        return _name_of_function(self.subject), 0

    def _trace(self, inputs: Tensor) -> list[_Step]:
        steps: list[_Step] = []
        with _every_module(steps, self.subject):
            self.subject.run(inputs)
        return steps


@contextmanager
def _every_module(steps: list[_Step], subject: Subject) -> Iterator[None]:
    """Note down every module call that ends in this thread.

    The hook is torch's global one: it finds modules inside functions, and does not turn off the fast paths
    that torch's own modules leave when one of theirs is hooked.
    """
    thread, calls = threading.get_ident(), Counter[nn.Module]()

    def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if threading.get_ident() == thread:
            received, gave = _prints((args, kwargs), subject), _prints(output, subject)
            steps.append(_Step(module, calls[module], received, gave))
            calls[module] += 1

    handle = torch_modules.register_module_forward_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
        # torch leaves this note behind, and then takes modules for hooked ever after.
        torch_modules._global_forward_hooks_with_kwargs.pop(handle.id, None)


def _prints(value: Any, subject: Subject) -> Prints:
    sizes = subject.batch_size, subject.n_positions
    return [[_fingerprint(reading) for reading in _readings(t, *sizes)] for t in _tensors(value)]


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and mappings (as the outputs of transformers are)."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for part in value:
            yield from _tensors(part)


def _readings(tensor: Tensor, batch_size: int, n_positions: int) -> Iterator[Tensor]:
    """Every way to read a tensor as `[items, positions, features]`: any axis of the right size may be it.

    Heads may come before positions, positions before items, and both may be flattened into one axis. Where
    more than one axis fits, a change counts only if each reading shows it.
    """
    if tensor.dim() and batch_size > 1 and tensor.shape[0] == batch_size * n_positions:
        yield tensor.reshape(batch_size, n_positions, -1)
    for axis, size in enumerate(tensor.shape):
        if size == n_positions:
            if axis and tensor.shape[0] == batch_size:
                yield tensor.movedim(axis, 1).reshape(batch_size, n_positions, -1)
            else:
                yield tensor.movedim(axis, 0).reshape(1, n_positions, -1)


def _fingerprint(reading: Tensor) -> Tensor:
    """int64 `[items, positions]` from `[items, positions, features]`: equal numbers, equal prints.

    Kept in place of what modules compute, which may be large. Sums of the numbers' bits times random odd
    factors, modulo 2⁶⁴: that two different vectors have the same has a chance of about 10⁻¹⁹.
    """
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**62), 2**62, (_FEATURES,), generator=generator) * 2 + 1
    factors = factors.to(reading.device)
    total = torch.zeros(reading.shape[:2], dtype=torch.int64, device=reading.device)
    for part in reading.split(_FEATURES, -1):
        bits = _bits(part)
        total = total * 6364136223846793005 + (bits * factors[: bits.shape[-1]]).sum(-1)
    return total


def _bits(part: Tensor) -> Tensor:
    if part.is_complex():
        part = torch.view_as_real(part).flatten(-2)
    if not part.is_floating_point():
        return part.to(torch.int64)
    bits = (part.double() + 0.0).view(torch.int64)  # + 0.0 makes −0 and 0 the same number
    # The bits in which short formats differ are the high ones: multiplied alone they would leave the modulus.
    return bits ^ (bits >> 32)


def _changed(one: Prints, other: Prints, before: Tensor) -> bool:
    """Whether some tensor differs at the positions `before`, bool `[B, N]`, by each of its readings."""
    return any(
        readings and all(_reading_changed(*pair, before) for pair in zip(readings, others, strict=True))
        for readings, others in zip(one, other, strict=False)
        if len(readings) == len(others)
    )


def _reading_changed(one: Tensor, other: Tensor, before: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    where = before if len(one) == len(before) else before.all(0, keepdim=True)
    return bool(((one != other) & where).any())


def _names(subject: Subject, steps: Sequence[_Step]) -> dict[nn.Module, str]:
    """The name of every module that was called, as its outermost module knows it.

    A function may call several outermost modules: then each name begins with the class of its own.
    """
    names: dict[nn.Module, tuple[nn.Module, str]] = {}
    roots = [] if subject.root is None else [subject.root]
    # What ends last is not inside anything else.
    roots += [step.module for step in reversed(steps)]
    outermost = []
    for root in roots:
        if root not in names:
            outermost.append(root)
            for name, module in root.named_modules():
                names.setdefault(module, (root, name))
    several = len(outermost) > 1

    def shown(root: nn.Module, name: str) -> str:
        kind = type(root).__name__
        return kind if not name else f"{kind}.{name}" if several else name

    return {module: shown(*known) for module, known in names.items()}


def _name_of_function(subject: Subject) -> str:
    kind = type(subject.fn).__name__
    name: str = getattr(subject.fn, "__name__", kind)
    return name
