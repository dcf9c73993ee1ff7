"""Does an output depend on a later input? Later inputs are changed, earlier outputs compared bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from regard.checks.changes import changed_inputs, from_position
from regard.checks.layers import LayerFinder
from regard.checks.subject import Subject, different
from regard.errors import ArgumentError, ArgumentTypeError

Cuts = Sequence[int] | Literal["all"] | None

# Without `cuts`, so many places are tried: all of them in a short input.
_MOST_CUTS = 32
# With cuts some way apart, the position of the later input is narrowed down for so many of the gaps.
_MOST_GAPS = 8
_MOST_SHOWN = 8
# Units in the last place.
_ROUNDING_UNITS = 16


@dataclass(frozen=True)
class Leak:
    """An output that depends on a later input, shown by two runs that differ in this input alone.

    `input_position` is the furthest input that was found to reach `output_position`. `layer` is the first
    module in execution order whose inputs before `input_position` were the same in both runs and whose
    outputs there were not; `call` counts its calls from 0, for modules that are called several times. `item`
    is the batch item, `change` how far the output moved at most, and `rounding` says that this is no more
    than rounding: layers that gather tokens into batches, as mixtures of experts do, round one token
    differently according to how many others there are.
    """

    layer: str
    call: int
    output_position: int
    input_position: int
    item: int
    change: float
    rounding: bool

    def __str__(self) -> str:
        call = f", call {self.call}," if self.call else ""
        item = f" of batch item {self.item}" if self.item else ""
        size = f"{self.change:.3g}" + (", no more than rounding" if self.rounding else "")
        return (
            f"output {self.output_position}{item} depends on input {self.input_position} through "
            f"{self.layer}{call} and moves by up to {size}"
        )


@torch.no_grad()
def find_leaks(fn: Callable[..., Any], inputs: Tensor, *, cuts: Cuts = None, **kwargs: Any) -> list[Leak]:
    """Every output position that was found to depend on a later input; an empty list if none was.

    The inputs from a position on (a "cut") are changed by large amounts, at the same shapes, and the outputs
    before it compared without tolerance. A dependence of output i on input j shows at the cuts c with
    i < c ≤ j, so that all cuts miss none, however small or short it is. Every cut takes two runs.

    Args:
        fn: a module or function, run without gradients. A module is run in the mode it is in, and left as it
            was: training mode, buffers and hooks.
        inputs: `[B, N, …]` numbers or `[B, N]` token ids, its first argument.
        cuts: positions in 1 to N − 1, or "all"; None takes all up to 33 positions, and beyond that 32 spread
            so that they fall into every part of chunks of any size.
        kwargs: go to `fn` with every run, as copies. Outputs where an `attention_mask` `[B, N]` is 0 are
            padding and not looked at.

    Returns:
        A leak for each output position, in order. Where cuts are some way apart, for those only whose later
        input is known to the position.

    Raises:
        ArgumentError, ArgumentTypeError: an argument does not fit; `fn` gives another output when it runs
            twice; its output does not depend on the inputs at all.

    >>> layer = regard.nn.MultiHeadAttention(16, 2, mask=masks.band(before=4, after=1))
    >>> print(find_leaks(layer, torch.randn(1, 6, 16))[0])  # doctest: +ELLIPSIS
    output 0 depends on input 1 through MultiHeadAttention and moves by up to ...
    """
    search = _Search(Subject(fn, inputs, kwargs))
    for cut in _chosen(cuts, search.subject.n_positions):
        search.try_cut(cut)
    search.narrow()
    return search.leaks()


def assert_causal(fn: Callable[..., Any], inputs: Tensor, *, cuts: Cuts = None, **kwargs: Any) -> None:
    """Raise AssertionError if an output depends on a later input; arguments as of `find_leaks`.

    >>> assert_causal(regard.nn.MultiHeadAttention(16, 2, mask=masks.causal()), torch.randn(1, 6, 16))
    """
    __tracebackhide__ = True
    leaks = find_leaks(fn, inputs, cuts=cuts, **kwargs)
    if leaks:
        shown = [f"  {leak}" for leak in leaks[:_MOST_SHOWN]]
        if len(leaks) > _MOST_SHOWN:
            shown.append(f"  and {len(leaks) - _MOST_SHOWN} more")
        outputs = "1 output depends" if len(leaks) == 1 else f"{len(leaks)} outputs depend"
        raise AssertionError("\n".join([f"not causal: {outputs} on later inputs", *shown]))


class _Search:
    """What the cuts tried so far have shown."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.base = subject.baseline()
        self.versions = changed_inputs(subject.inputs, self._stays_finite)
        if not any(different(subject.run(version), self.base).any() for version in self.versions):
            raise ArgumentError(
                "`fn` must compute its output from `inputs`, and gave the same one when all of them changed"
            )
        # For each cut, how far each output before it moved with each version of the inputs, [2, B, N].
        self.moved: dict[int, Tensor] = {}

    def _stays_finite(self, inputs: Tensor) -> bool:
        return bool((self.subject.run(inputs).isfinite() | ~self.base.isfinite()).all())

    def try_cut(self, cut: int) -> None:
        """Change the inputs from `cut` on, in both ways."""
        self.moved[cut] = torch.stack([self._distance(version, cut) for version in self.versions])

    def _distance(self, version: Tensor, cut: int) -> Tensor:
        """The largest change of each output before `cut`, `[B, N]`, 0 for no change of any bit."""
        output = self.subject.run(from_position(self.subject.inputs, version, cut))
        before = self.subject.live.clone()
        before[:, cut:] = False
        apart = different(output, self.base) & before.unsqueeze(-1)
        # A number that became NaN or infinite, or was, has moved without limit.
        gap = (output.double() - self.base.double()).abs().nan_to_num(nan=torch.inf)
        return torch.where(apart, gap, 0.0).amax(-1)

    def furthest(self) -> dict[int, tuple[int, int]]:
        """For each output that moved, the last cut that moved it and the next one, which did not."""
        found: dict[int, tuple[int, int]] = {}
        following = self.subject.n_positions
        for cut in sorted(self.moved, reverse=True):
            for position in self.moved[cut].amax((0, 1)).nonzero().flatten().tolist():
                found.setdefault(position, (cut, following))
            following = cut
        return dict(sorted(found.items()))

    def narrow(self) -> None:
        """Halve gaps between cuts until the later input is a single position."""
        gaps: dict[tuple[int, int], int] = {}
        for position, gap in self.furthest().items():
            gaps.setdefault(gap, position)
        for position in list(gaps.values())[:_MOST_GAPS]:
            cut, following = self.furthest()[position]
            while following - cut > 1:
                self.try_cut((cut + following) // 2)
                cut, following = self.furthest()[position]

    def leaks(self) -> list[Leak]:
        """What is known to the position: the cut that moved the output and the next differ in one input."""
        found = {
            position: cut for position, (cut, following) in self.furthest().items() if following == cut + 1
        }
        if not found:
            return []
        finder = LayerFinder(self.subject)
        layers: dict[tuple[int, int], tuple[str, int]] = {}
        leaks = []
        for position, cut in found.items():
            moved = self.moved[cut][..., position]
            which, item = moved.nonzero()[0].tolist()
            if (which, cut) not in layers:
                inputs = from_position(self.subject.inputs, self.versions[which], cut)
                layers[which, cut] = finder.first_changed(inputs, cut)
            change = float(moved[:, item].max())
            small = change <= self._rounding(item)
            leaks.append(Leak(*layers[which, cut], position, cut, item, change, small))
        return leaks

    def _rounding(self, item: int) -> float:
        """What rounding on the way may do to the outputs of one batch item."""
        if not self.base.is_floating_point():
            return 0.0
        largest = float(self.base[item].abs().nan_to_num(0, 0, 0).max())
        return _ROUNDING_UNITS * torch.finfo(self.base.dtype).eps * largest


def _chosen(cuts: Cuts, n_positions: int) -> list[int]:
    """The cuts to try, checked, in order."""
    every = range(1, n_positions)
    if cuts is None:
        return list(every) if len(every) <= _MOST_CUTS else _spread(n_positions)
    if cuts == "all":
        return list(every)
    if isinstance(cuts, str) or not isinstance(cuts, Sequence):
        raise ArgumentTypeError(f'`cuts` must be positions, "all" or None, got {cuts!r}')
    chosen = set()
    for cut in cuts:
        if isinstance(cut, bool) or not isinstance(cut, int):
            raise ArgumentTypeError(f"`cuts` must be ints, got {cut!r}")
        if cut not in every:
            raise ArgumentError(f"`cuts` must lie in 1 to {n_positions - 1}, got {cut}")
        chosen.add(cut)
    if not chosen:
        raise ArgumentError("`cuts` must name at least one position, got none")
    return sorted(chosen)


def _spread(n_positions: int) -> list[int]:
    """Both ends, and steps of the golden ratio between them, which keep time with no period."""
    golden = (5**0.5 - 1) / 2
    cuts = {1, 2, n_positions - 2, n_positions - 1}
    step = 0
    while len(cuts) < _MOST_CUTS:
        step += 1
        cuts.add(1 + int(step * golden % 1 * (n_positions - 1)))
    return sorted(cuts)
