"""Which keys a query may attend at all: the masks of a view, each distinct one stored once as intervals."""

from __future__ import annotations

from typing import Any

from regard.intervals import Intervals
from regard.recording.parts import Parts
from regard.scanning import scan
from regard.viewer.codes import index_width, pack
from regard.weights import AttentionWeights

# A mask whose rows have more runs than this is drawn as the stretch from each row's first key to its last.
_MOST_RUNS = 32


class Reaches:
    """Collects the masks of the calls; every head names one of them by number."""

    def __init__(self, n_keys: int) -> None:
        self._width = index_width(n_keys)
        self._numbers: dict[tuple[bool, bytes], int] = {}
        self._slots: list[int] = []

    def of(self, weights: AttentionWeights) -> list[int]:
        """The number of the mask of every head of batch item 0."""
        intervals, exact = _intervals(weights)
        numbers = [self._number(intervals, head, exact) for head in range(intervals.num_heads)]
        return numbers if len(numbers) > 1 else numbers * weights.shape[1]

    def header(self) -> list[dict[str, Any]]:
        """For each mask: how many intervals a row has, and whether they are the mask or only its extent."""
        return [{"intervals": self._slots[n], "exact": exact} for (exact, _), n in self._numbers.items()]

    def blobs(self) -> dict[str, bytes]:
        return {f"mask/{number}": blob for (_, blob), number in self._numbers.items()}

    def _number(self, intervals: Intervals, head: int, exact: bool) -> int:
        starts, ends = (side[0, head] for side in (intervals.starts, intervals.ends))
        blob = pack((starts, self._width), (ends, self._width))
        number = self._numbers.setdefault((exact, blob), len(self._numbers))
        if number == len(self._slots):
            self._slots.append(starts.shape[-1])
        return number


def _intervals(weights: AttentionWeights) -> tuple[Intervals, bool]:
    """The intervals `[1, H or 1, N, K]` of batch item 0, and whether they are the whole truth."""
    sets = Parts.of(weights).problem.sets.select(batch=slice(0, 1))
    if sets.dense is None:
        return sets.intervals, True
    scanned = scan(sets.to_dense(), _MOST_RUNS)
    return (sets.intervals, False) if scanned is None else (scanned, True)
