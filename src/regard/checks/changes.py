"""Large changes of the inputs from some position on: what a leak is found with."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from regard.errors import ArgumentError

# By how many times their own size numbers are changed: the first at which the function stays finite.
AMOUNTS = (1024.0, 32.0, 1.0)

_SEED = 0


def changed_inputs(inputs: Tensor, stays_finite: Callable[[Tensor], bool]) -> tuple[Tensor, Tensor]:
    """Two versions of the inputs in which every position is changed, always the same for the same inputs.

    Numbers move by a random vector and by its opposite: a softmax that lets go of a key because of one of
    them grasps it because of the other. The vector is as large as `stays_finite` allows, so that an overflow
    is not taken for a leak. Token ids are replaced by other ids of the inputs, which the function accepts.
    """
    generator = torch.Generator().manual_seed(_SEED)
    if not inputs.is_floating_point():
        return _other_ids(inputs, generator)
    for one, other in _shifted(inputs, generator):
        if stays_finite(one) and stays_finite(other):
            break
    return one, other


def _shifted(inputs: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    finite = inputs[inputs.isfinite()].double()
    size = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    # Between 1/2 and 3/2 with either sign: no number stays as it is.
    draws = torch.rand(2, *inputs.shape, generator=generator, dtype=torch.float64)
    direction = ((draws[0] + 0.5) * (2 * (draws[1] < 0.5) - 1)).to(inputs.device) * (size or 1.0)
    for amount in AMOUNTS:
        shift = (amount * direction).to(inputs.dtype)
        yield inputs + shift, inputs - shift


def _other_ids(inputs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    known, place = inputs.unique(return_inverse=True)
    if len(known) < 2:
        raise ArgumentError(
            f"`inputs` must hold at least 2 different token ids, which change places, got only {known.item()}"
        )
    steps = torch.randint(1, len(known), inputs.shape, generator=generator).to(inputs.device)
    return known[(place + 1) % len(known)], known[(place + steps) % len(known)]


def from_position(inputs: Tensor, changed: Tensor, cut: int) -> Tensor:
    """The inputs before position `cut`, and the changed ones from there on."""
    return torch.cat([inputs[:, :cut], changed[:, cut:]], 1)
