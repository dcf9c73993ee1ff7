"""A recording to look into: every answer is computed when it is asked for, and kept while there is room."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

from torch import Tensor

from regard.recording import Call
from regard.viewer.asked import Answered
from regard.viewer.codes import index_width, raw
from regard.viewer.data import FORMAT, VERSION, entry
from regard.viewer.induction import Repeats
from regard.viewer.lesson import lesson_data
from regard.viewer.reach import Reaches
from regard.viewer.seen import require_alike
from regard.viewer.server import tiles
from regard.viewer.server.cache import Cache
from regard.viewer.server.head import Head
from regard.viewer.server.overview import Overview, overview
from regard.viewer.server.tiles import Grid
from regard.viewer.server.worker import Job, Worker
from regard.viewer.summary import columns, summarise

T = TypeVar("T")

CACHE_BYTES = 512_000_000


class Urgency(IntEnum):
    """What is done first: the lower the number, the earlier."""

    DETAIL = 0  # under the pointer, or in sight
    CHOSEN = 1  # the first look at the chosen layer
    OTHER = 2  # the other layers, for the thumbnails


@dataclass
class _Waited:
    job: Job
    waiting: int = 0


class Microscope:
    """The calls of a recording over one text, of batch item 0, and what can be asked of them.

    Its coroutines are called from one event loop. Layers, heads and so on are numbers that exist.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        tokens: Sequence[str],
        *,
        title: str,
        model: str = "",
        generated: int | None = None,
        answers: Sequence[Answered] = (),
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.calls = require_alike(calls, tokens)
        self.n_queries, self.n_keys = self.calls[0].n_queries, self.calls[0].n_keys
        self.title, self.model, self.tokens, self.generated = title, model, list(tokens), generated
        self._answers = [answer.entry([call.heads for call in self.calls], self.n_keys) for answer in answers]
        self._repeats = Repeats.of(tokens, self.n_queries)
        reaches = Reaches(self.n_keys)
        self._mask_numbers = [reaches.of(call.weights) for call in self.calls]
        self._masks, self._mask_header = reaches.blobs(), reaches.header()
        self._cache = Cache(cache_bytes)
        self._worker = Worker()
        self._waited: dict[Hashable, _Waited] = {}

    def close(self) -> None:
        """Stop computing."""
        self._worker.close()

    def header(self) -> dict[str, Any]:
        """What docs/view-format.md calls the header of a live view, ready for JSON."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "live": True,
            "title": self.title,
            "model": self.model,
            "tokens": self.tokens,
            "generated": self.generated,
            "queries": self.n_queries,
            "keys": self.n_keys,
            "tile": tiles.TILE,
            "index_width": index_width(self.n_keys),
            "masks": self._mask_header,
            "calls": [entry(*both, None) for both in zip(self.calls, self._mask_numbers, strict=True)],
            "answers": self._answers,
        }

    def mask(self, number: int) -> bytes | None:
        """The blob of a mask, as in a view that is stored."""
        return self._masks.get(f"mask/{number}")

    async def summary(self, layer: int, chosen: bool) -> dict[str, Any]:
        """The numbers of every head of a call."""
        found: dict[str, Any] = (await self._looked_over(layer, chosen))["summary"]
        return found

    async def thumbnails(self, layer: int, chosen: bool) -> bytes:
        """Small maps `[H, rows, columns]`."""
        found: bytes = (await self._looked_over(layer, chosen))["thumbnails"]
        return found

    async def profiles(self, layer: int, head: int) -> bytes:
        """Entropy `[N]` and distance `[N]` of every query, and what every key receives `[M]`."""
        found: bytes = (await self._looked_over(layer, True))["profiles"][head]
        return found

    async def tile(
        self, layer: int, head: int, grid: Grid, rows: slice, columns: slice, without_first: bool
    ) -> bytes | None:
        """Cells of a grid; None where nothing in them may attend."""
        queries, keys = grid.pairs(rows, columns)
        if not Head.of(self.calls[layer].weights, head).reaches(queries, keys):
            return None
        fine = self._kept_grid()
        kept = grid.height >= fine.height and grid.width >= fine.width and not grid.exact
        # Before anything else is computed of a head, its whole map is: everything coarser comes from there.
        whole = await self._whole_map(layer, head, without_first) if kept else None

        def steps() -> Iterator[bytes]:
            if whole is not None:
                yield raw(tiles.coarser(whole, fine, grid, rows, columns))
                return
            looked_at = self._head(layer, head, without_first)
            if grid.exact:
                yield raw(tiles.exact(looked_at, queries, keys))
            else:
                yield raw(tiles.means(looked_at, grid, rows, columns))

        name = "tile", layer, head, grid, rows.start, columns.start, without_first
        return await self._told(name, Urgency.DETAIL, steps)

    async def row(self, layer: int, head: int, query: int, without_first: bool) -> bytes:
        """The weights `[M]` and the logits `[M]` of a query, `MASKED` and −∞ where it may not attend."""

        def steps() -> Iterator[bytes]:
            weights = self._head(layer, head, without_first).weights
            logits = weights.logits(0, 0, query)
            row = weights[0, 0, query].masked_fill(logits == -float("inf"), tiles.MASKED)
            yield raw(row.float()) + raw(logits.float())

        return await self._told(("row", layer, head, query, without_first), Urgency.DETAIL, steps)

    async def column(self, layer: int, head: int, key: int, without_first: bool) -> bytes:
        """The weights `[N]` of a key, from every query."""

        def steps() -> Iterator[bytes]:
            looked_at = self._head(layer, head, without_first)
            yield raw(tiles.exact(looked_at, slice(0, self.n_queries), slice(key, key + 1)))

        return await self._told(("column", layer, head, key, without_first), Urgency.DETAIL, steps)

    async def lesson(self, layer: int, head: int, query: int) -> bytes:
        """What the steps of a query are computed from, as JSON."""

        def steps() -> Iterator[bytes]:
            yield json.dumps(lesson_data(self.calls[layer], head, query), allow_nan=False).encode("ascii")

        return await self._told(("lesson", layer, head, query), Urgency.DETAIL, steps)

    def _kept_grid(self) -> Grid:
        return Grid.kept(self.n_queries, self.n_keys)

    def _head(self, layer: int, head: int, without_first: bool) -> Head:
        """A head; without its first key it takes a pass of its own, so it is kept. On the worker's thread."""
        whole = Head.of(self.calls[layer].weights, head)
        if not without_first:
            return whole
        name = "head", layer, head
        found = self._cache.get(name)
        if found is None:
            found = whole.without_first_key()
            self._cache.put(name, found, 64 * self.n_queries)
        assert isinstance(found, Head)
        return found

    async def _whole_map(self, layer: int, head: int, without_first: bool) -> Tensor:
        name = "map", layer, head, without_first
        if not without_first and self._cache.get(name) is None:
            await self._looked_over(layer, True)

        def steps() -> Iterator[Tensor | None]:
            yield from tiles.whole_map(self._head(layer, head, without_first), self._kept_grid())

        return await self._told(name, Urgency.DETAIL, steps)

    async def _looked_over(self, layer: int, chosen: bool) -> dict[str, Any]:
        """Everything that the one pass over a call tells."""

        def steps() -> Iterator[dict[str, Any] | None]:
            for found in overview(self.calls[layer].weights, self._repeats, self._kept_grid()):
                yield None if found is None else self._keep(layer, found)

        urgency = Urgency.CHOSEN if chosen else Urgency.OTHER
        return await self._told(("overview", layer), urgency, steps)

    def _keep(self, layer: int, found: Overview) -> dict[str, Any]:
        answers, grid = found.answers, found.grid
        for head, cells in enumerate(answers.pooled):
            self._cache.put(("map", layer, head, False), cells.clone(), cells.nbytes)
        small = Grid.coarse(grid.n_queries, grid.n_keys, tiles.THUMBNAIL_CELLS)
        everything = slice(0, small.rows), slice(0, small.columns)
        profiles = zip(answers.entropy, answers.distance, answers.received, strict=True)
        return {
            "summary": columns(summarise(layer, self.calls[layer].module, answers)),
            "thumbnails": raw(tiles.coarser(answers.pooled, grid, small, *everything)),
            "profiles": [b"".join(map(raw, three)) for three in profiles],
        }

    async def _told(self, name: Hashable, urgency: Urgency, steps: Callable[[], Iterator[T | None]]) -> T:
        """The answer of this name: kept, being computed for somebody else, or computed now.

        Who is cancelled waits no longer; when nobody waits, it is not computed any further.
        """
        kept: T | None = self._cache.get(name)
        if kept is not None:
            return kept
        waited = self._waited.get(name)
        if waited is None:
            waited = self._waited[name] = _Waited(self._worker.submit(steps(), urgency))
        waited.job.urgency = min(waited.job.urgency, urgency)
        waited.waiting += 1
        try:
            found: T = await asyncio.shield(asyncio.wrap_future(waited.job.result))
        finally:
            waited.waiting -= 1
            if waited.waiting == 0:
                del self._waited[name]
                if not waited.job.result.done():
                    self._worker.withdraw(waited.job)
        self._cache.put(name, found, _size(found))
        return found


def _size(found: Any) -> int:
    """The bytes of an answer."""
    if isinstance(found, dict):
        return sum(map(_size, found.values()))
    if isinstance(found, list):
        return sum(map(_size, found))
    return found.nbytes if isinstance(found, Tensor) else len(found) if isinstance(found, bytes) else 64
