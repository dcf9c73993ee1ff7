"""Masks paired with predicates in plain Python, from the definitions, sharing none of the masks' code."""

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

import torch
from hypothesis import strategies as st

from regard import masks

BATCH, HEADS = 2, 2


class Pair(NamedTuple):
    """One entry of the matrix: where the query and the key stand, and which row and column that is."""

    batch: int
    head: int
    p: int
    j: int
    row: int
    column: int
    n_keys: int


class Case(NamedTuple):
    """A mask, and when it lets a query see a key."""

    mask: masks.Mask
    sees: Callable[[Pair], bool]


class Geometry(NamedTuple):
    """A call's sizes and the positions it starts at."""

    n_queries: int
    n_keys: int
    query_start: int | None = None
    key_start: int = 0

    @property
    def first_position(self) -> int:
        if self.query_start is None:
            return self.key_start + self.n_keys - self.n_queries
        return self.query_start

    @property
    def end(self) -> int:
        """One past the last position of the call."""
        return max(self.first_position + self.n_queries, self.key_start + self.n_keys)

    def compile(self, mask: masks.Mask) -> torch.Tensor:
        return mask.to_dense(
            self.n_queries, self.n_keys, query_start=self.query_start, key_start=self.key_start
        )


def tabulate(
    sees: Callable[[Pair], bool], at: Geometry, batch: int = BATCH, heads: int = HEADS
) -> torch.Tensor:
    """The bool matrix `[batch, heads, N, M]` by asking the predicate about every entry."""
    table = torch.zeros(batch, heads, at.n_queries, at.n_keys, dtype=torch.bool)
    for b in range(batch):
        for h in range(heads):
            for row in range(at.n_queries):
                for column in range(at.n_keys):
                    p, j = at.first_position + row, at.key_start + column
                    table[b, h, row, column] = sees(Pair(b, h, p, j, row, column, at.n_keys))
    return table


def document_of(lengths: list[int]) -> Callable[[int], int]:
    """Which document a position lies in, by counting the ends at or before it."""
    ends = list(accumulate(lengths))
    return lambda position: bisect_right(ends, position)


def causal() -> Case:
    return Case(masks.causal(), lambda at: at.j <= at.p)


def window(size: int) -> Case:
    return Case(masks.sliding_window(size), lambda at: at.p - size < at.j <= at.p)


def window_per_head(sizes: list[int]) -> Case:
    return Case(masks.sliding_window(torch.tensor(sizes)), lambda at: at.p - sizes[at.head] < at.j <= at.p)


def band(before: int | None, after: int | None) -> Case:
    def sees(at: Pair) -> bool:
        return (before is None or at.j >= at.p - before) and (after is None or at.j <= at.p + after)

    return Case(masks.band(before, after), sees)


def band_per_head(before: list[int], after: list[int]) -> Case:
    return Case(
        masks.band(torch.tensor(before), torch.tensor(after)),
        lambda at: at.p - before[at.head] <= at.j <= at.p + after[at.head],
    )


def padding(lengths: list[int], side: str = "right") -> Case:
    def sees(at: Pair) -> bool:
        length = lengths[at.batch % len(lengths)]
        return at.column < length if side == "right" else at.column >= at.n_keys - length

    return Case(masks.padding(lengths, side=side), sees)


def documents(lengths: list[int]) -> Case:
    which = document_of(lengths)
    return Case(masks.documents(lengths=lengths), lambda at: which(at.j) == which(at.p))


def documents_by_id(ids: list[int]) -> Case:
    return Case(masks.documents(ids=torch.tensor(ids)), lambda at: ids[at.j] == ids[at.p])


def documents_by_boundary(lengths: list[int]) -> Case:
    which = document_of(lengths)
    boundaries = torch.tensor([0, *accumulate(lengths)])
    return Case(masks.documents(cu_seqlens=boundaries), lambda at: which(at.j) == which(at.p))


def documents_per_batch(ids: list[list[int]]) -> Case:
    return Case(masks.documents(ids=torch.tensor(ids)), lambda at: ids[at.batch][at.j] == ids[at.batch][at.p])


def prefix(lengths: list[int]) -> Case:
    return Case(masks.prefix(lengths), lambda at: at.j < lengths[at.batch % len(lengths)] or at.j <= at.p)


def sinks(count: int) -> Case:
    return Case(masks.sinks(count), lambda at: at.j < count)


def sinks_per_head(counts: list[int]) -> Case:
    return Case(masks.sinks(torch.tensor(counts)), lambda at: at.j < counts[at.head])


def streaming(first: int, size: int) -> Case:
    return Case(
        masks.streaming(first, size),
        lambda at: (at.j < first or at.p - size < at.j) and at.j <= at.p,
    )


def dense(table: torch.Tensor) -> Case:
    """`table` is `[N, M]` or `[B or 1, H or 1, N, M]`."""
    full = table if table.dim() == 4 else table[None, None]
    entries = full.expand(BATCH, HEADS, *full.shape[-2:]).tolist()
    return Case(masks.dense(table), lambda at: entries[at.batch][at.head][at.row][at.column])


def both(one: Case, other: Case) -> Case:
    return Case(one.mask & other.mask, lambda at: one.sees(at) and other.sees(at))


def either(one: Case, other: Case) -> Case:
    return Case(one.mask | other.mask, lambda at: one.sees(at) or other.sees(at))


def neither(one: Case) -> Case:
    return Case(~one.mask, lambda at: not one.sees(at))


def per_batch(cases: list[Case]) -> Case:
    return Case(masks.per_batch([case.mask for case in cases]), lambda at: cases[at.batch].sees(at))


def per_head(cases: list[Case]) -> Case:
    return Case(masks.per_head([case.mask for case in cases]), lambda at: cases[at.head].sees(at))


def _document_lengths(at: Geometry) -> st.SearchStrategy[list[int]]:
    """Lengths, zeros among them, that cover every position of the call."""
    drawn = st.lists(st.integers(0, 7), max_size=4)
    return drawn.map(lambda lengths: [*lengths, max(at.end - sum(lengths), 0)])


def _ids(at: Geometry) -> st.SearchStrategy[list[int]]:
    def spell(lengths: list[int]) -> list[int]:
        return [7 - document for document, length in enumerate(lengths) for _ in range(length)][: at.end]

    return _document_lengths(at).map(spell)


def _table(*shape: int) -> st.SearchStrategy[torch.Tensor]:
    def draw(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(*shape, generator=generator) < generator.initial_seed() % 5 / 4

    return st.integers(0, 10_000).map(draw)


def _pairs(values: st.SearchStrategy[int]) -> st.SearchStrategy[list[int]]:
    return st.lists(values, min_size=2, max_size=2)


def _uniform(at: Geometry) -> st.SearchStrategy[Case]:
    """Masks that are the same for every batch item and head."""
    few, some = st.integers(0, 6), st.integers(1, 8)
    side = st.none() | st.integers(0, 5)
    choices = [
        st.builds(causal),
        st.builds(window, some),
        st.builds(band, side, side),
        st.builds(lambda length: prefix([length]), few),
        st.builds(sinks, few),
        st.builds(streaming, few, some),
        _table(at.n_queries, at.n_keys).map(dense),
    ]
    if at.key_start == 0:
        lengths = st.integers(0, at.n_keys).map(lambda length: [length])
        choices += [st.builds(padding, lengths, st.sampled_from(["left", "right"]))]
    if at.first_position >= 0:
        lengths = _document_lengths(at)
        choices += [lengths.map(documents), lengths.map(documents_by_boundary), _ids(at).map(documents_by_id)]
    return st.one_of(choices)


def _varied(at: Geometry) -> st.SearchStrategy[Case]:
    """Masks that differ between batch items, between heads, or both."""
    few, some = st.integers(0, 6), st.integers(1, 8)
    choices = [
        _pairs(some).map(window_per_head),
        _pairs(few).map(sinks_per_head),
        st.builds(band_per_head, _pairs(few), _pairs(few)),
        _pairs(few).map(prefix),
        st.lists(_uniform(at), min_size=BATCH, max_size=BATCH).map(per_batch),
        st.lists(_uniform(at), min_size=HEADS, max_size=HEADS).map(per_head),
        _table(BATCH, 1, at.n_queries, at.n_keys).map(dense),
        _table(1, HEADS, at.n_queries, at.n_keys).map(dense),
        _table(BATCH, HEADS, at.n_queries, at.n_keys).map(dense),
    ]
    if at.key_start == 0:
        choices += [st.builds(padding, _pairs(st.integers(0, at.n_keys)), st.sampled_from(["left", "right"]))]
    if at.first_position >= 0 and at.end:
        choices += [st.lists(_ids(at), min_size=BATCH, max_size=BATCH).map(documents_per_batch)]
    return st.one_of(choices)


geometries = st.builds(
    Geometry,
    st.integers(0, 12),
    st.integers(0, 12),
    st.none() | st.integers(-3, 15),
    st.integers(0, 4),
)


def cases_at(at: Geometry) -> st.SearchStrategy[Case]:
    """Any mask, and any small combination of masks, for this geometry."""
    return st.recursive(
        _uniform(at) | _varied(at),
        lambda inner: st.one_of(
            st.builds(both, inner, inner), st.builds(either, inner, inner), st.builds(neither, inner)
        ),
        max_leaves=4,
    )


@st.composite
def placed_cases(draw: st.DrawFn) -> tuple[Case, Geometry]:
    """A case, and a geometry that it fits."""
    at = draw(geometries)
    return draw(cases_at(at)), at
