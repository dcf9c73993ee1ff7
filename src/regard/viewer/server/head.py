"""One head of one call, and any rectangle cut out of it: still exact, and no larger than what is asked."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor
from torch.nn.functional import pad

from regard.biases import Bias, Dense
from regard.engines import choose
from regard.intervals import Intervals
from regard.masks.compiled import KeySets
from regard.online_softmax import Normalizer
from regard.problem import Layout, Problem
from regard.recording.parts import Parts
from regard.weights import AttentionWeights


@dataclass(frozen=True, eq=False)
class Head:
    """A problem of one batch item and one head, and the normalizer of its rows, `[1, 1, N]`.

    A part of it keeps the normalizer of the whole rows: its weights are those of the whole matrix.
    """

    problem: Problem
    normalizer: Normalizer

    @classmethod
    def of(cls, weights: AttentionWeights, head: int) -> Head:
        """One head of batch item 0, as views."""
        parts = Parts.of(weights)
        item, one = slice(0, 1), slice(head, head + 1)
        key_head = head // parts.problem.group_size
        problem = parts.problem.select(item, slice(key_head, key_head + 1), one)
        return cls(problem, parts.normalizer.select(item, one))

    @property
    def weights(self) -> AttentionWeights:
        """Everything that can be asked of it, `[1, 1, N, M]`."""
        return Parts(self.problem, self.normalizer, Layout((1,), True)).assemble()

    def without_first_key(self) -> Head:
        """The same head as if nobody could attend the first key: each row is normalised over the others."""
        sets = self.problem.sets
        intervals = Intervals.from_slots(
            sets.intervals.starts.clamp(min=1), sets.intervals.ends.clamp(min=1), self.problem.n_keys
        )
        problem = replace(self.problem, sets=KeySets(intervals, sets.dense))
        return Head(problem, choose("auto", problem).forward(problem)[2])

    def reaches(self, rows: slice, columns: slice) -> bool:
        """Whether any of these queries may attend any of these keys, as far as the mask's intervals tell."""
        intervals = self.problem.sets.intervals.select(rows=rows)
        return bool(((intervals.starts < columns.stop) & (intervals.ends > columns.start)).any())

    def part(self, rows: slice, columns: slice) -> Head:
        """Some rows and columns. Those past the end are empty: no query there attends, no key is attended."""
        problem = self.problem
        inside = slice(rows.start, min(rows.stop, problem.n_queries))
        keys = slice(columns.start, min(columns.stop, problem.n_keys))
        more = rows.stop - inside.stop, columns.stop - keys.stop
        n_rows, n_columns = rows.stop - rows.start, columns.stop - columns.start
        frame = replace(
            problem.frame,
            n_queries=n_rows,
            n_keys=n_columns,
            query_start=problem.frame.query_start + rows.start,
            key_start=problem.frame.key_start + columns.start,
        )
        kept = (
            pad(side[..., inside], (0, more[0]))
            for side in (self.normalizer.maximum, self.normalizer.shift, self.normalizer.denominator)
        )
        part = replace(
            problem,
            query=pad(problem.query[:, :, inside], (0, 0, 0, more[0])),
            key=pad(problem.key[:, :, keys], (0, 0, 0, more[1])),
            sets=_cut_sets(problem.sets, inside, keys, more, n_columns),
            frame=frame,
            bias=_cut_bias(problem.bias, inside, keys, more),
        )
        return Head(part, Normalizer(*kept))


def _cut_sets(sets: KeySets, rows: slice, keys: slice, more: tuple[int, int], n_columns: int) -> KeySets:
    intervals = sets.intervals.select(rows=rows)
    # What ends at the last key that there is must not reach into those that are made up.
    starts, ends = (
        pad((side - keys.start).clamp(0, keys.stop - keys.start), (0, 0, 0, more[0]))
        for side in (intervals.starts, intervals.ends)
    )
    dense = None if sets.dense is None else _cut(sets.dense, rows, keys, more)
    return KeySets(Intervals.from_slots(starts, ends, n_columns), dense)


def _cut_bias(bias: Bias | None, rows: slice, keys: slice, more: tuple[int, int]) -> Bias | None:
    """A dense bias is of rows and columns; the others speak of positions, which the frame moves."""
    if not isinstance(bias, Dense):
        return bias
    return replace(bias, parameter=_cut(bias.parameter, rows, keys, more))


def _cut(matrix: Tensor, rows: slice, keys: slice, more: tuple[int, int]) -> Tensor:
    return pad(matrix[:, :, rows, keys], (0, more[1], 0, more[0]))
