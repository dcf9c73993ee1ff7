"""The function under test: run again and again from the same state, its outputs read and compared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ArgumentError, ArgumentTypeError


class Subject:
    """A module or function with one input and one output for each position, and the arguments it goes with.

    Each call starts from the same state: inputs and keyword arguments are handed over as copies, so that a
    cache which the function fills is empty again the next time, and buffers that it changes are put back.
    """

    def __init__(self, fn: Callable[..., Any], inputs: Tensor, kwargs: Mapping[str, Any]) -> None:
        if not callable(fn):
            raise ArgumentTypeError(f"`fn` must be a module or a function, got a {type(fn).__name__}")
        if not isinstance(inputs, Tensor):
            raise ArgumentTypeError(f"`inputs` must be a torch.Tensor, got a {type(inputs).__name__}")
        if inputs.is_complex():
            raise ArgumentTypeError(f"`inputs` must be floating point or token ids, got {inputs.dtype}")
        if inputs.dim() < 2 or inputs.shape[1] < 2 or inputs.numel() == 0:
            raise ArgumentError(
                "`inputs` must have shape (batch, positions, …) with at least 2 positions, got "
                f"{tuple(inputs.shape)}"
            )
        self.fn, self.inputs, self.kwargs = fn, inputs.detach(), kwargs
        self.live = self._live()

    @property
    def batch_size(self) -> int:
        return self.inputs.shape[0]

    @property
    def n_positions(self) -> int:
        return self.inputs.shape[1]

    @property
    def root(self) -> nn.Module | None:
        """The module that `fn` is, or whose method it is."""
        owner = getattr(self.fn, "__self__", self.fn)
        return owner if isinstance(owner, nn.Module) else None

    def run(self, inputs: Tensor) -> Tensor:
        """The output for `inputs`, `[B, N, features]`, safe from later calls."""
        kwargs = {name: _fresh(name, value) for name, value in self.kwargs.items()}
        with _buffers_kept(self.root):
            output = _tensor_of(self.fn(inputs.clone(), **kwargs))
        expected = self.batch_size, self.n_positions
        if output is None or tuple(output.shape[:2]) != expected:
            came = "none" if output is None else str(tuple(output.shape))
            raise ArgumentError(
                "`fn` must return a tensor, itself or at `.logits` or `.last_hidden_state`, with one output "
                f"for each position, shape ({expected[0]}, {expected[1]}, …), got {came}"
            )
        return output.detach().reshape(*expected, -1).clone()

    def baseline(self) -> Tensor:
        """The output for the inputs as they are; raises unless a second run gives the same bits."""
        first, second = (self.run(self.inputs) for _ in range(2))
        differing = int(different(first, second).sum())
        if differing:
            training = " (it is in training mode)" if self.root is not None and self.root.training else ""
            raise ArgumentError(
                f"`fn` must give the same output when it runs twice on the same inputs, and {differing} of "
                f"{first.numel()} numbers differ{training}: use eval mode, turn dropout off, seed what is "
                "random inside it, use deterministic kernels, and pass a cache as a keyword argument"
            )
        return first

    def _live(self) -> Tensor:
        """Whose outputs mean something, bool `[B, N]`: those of padding do not."""
        mask = self.kwargs.get("attention_mask")
        sizes = self.batch_size, self.n_positions
        if isinstance(mask, Tensor) and mask.dim() == 2:
            # With a cache, the mask begins with the positions that the cache holds.
            last = mask[:, -self.n_positions :]
            if tuple(last.shape) == sizes:
                return (last != 0).to(self.inputs.device)
        return torch.ones(sizes, dtype=torch.bool, device=self.inputs.device)


def different(one: Tensor, other: Tensor) -> Tensor:
    """Where two tensors differ, element by element; NaN equals NaN."""
    return (one != other) & ~((one != one) & (other != other))


def _tensor_of(output: Any) -> Tensor | None:
    for name in ("logits", "last_hidden_state"):
        found = getattr(output, name, None)
        if isinstance(found, Tensor):
            return found
    if isinstance(output, tuple | list) and output:
        output = output[0]
    return output if isinstance(output, Tensor) else None


def _fresh(name: str, value: Any) -> Any:
    """A copy of an argument, except of what is code."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, nn.Module) or callable(value):
        return value
    try:
        return copy.deepcopy(value)
    except (RuntimeError, TypeError) as error:
        # torch copies no tensor that is a result inside a graph.
        raise ArgumentError(
            f"`{name}` goes to every run as a copy and must be copyable, which this "
            f"{type(value).__name__} is not (make it under torch.no_grad()): {error}"
        ) from error


@contextmanager
def _buffers_kept(root: nn.Module | None) -> Iterator[None]:
    """Puts back the buffers (running means, streaming states) that change in the block."""
    modules = () if root is None else root.modules()
    held = [
        (module, name, buffer, buffer.clone())
        for module in modules
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        for module, name, buffer, before in held:
            # By value: torch's batch norm moves its running means without counting a change.
            if not torch.equal(buffer, before):
                buffer.copy_(before)
            if getattr(module, name, None) is not buffer:
                setattr(module, name, buffer)
