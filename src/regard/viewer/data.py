"""A recording as the data of a view: what docs/view-format.md describes, apart from any front end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.errors import ArgumentError
from regard.recording import Call
from regard.viewer.answers import ask
from regard.viewer.asked import Answered
from regard.viewer.codes import codes, index_width, pack
from regard.viewer.induction import Repeats
from regard.viewer.lesson import lesson_blob, lesson_entry
from regard.viewer.plan import plan_view
from regard.viewer.reach import Reaches
from regard.viewer.seen import Seen, require_alike
from regard.viewer.summary import HeadSummary, columns, summarise

FORMAT, VERSION = "regard-view", 1
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ViewData:
    """A view: its `header` (ready for JSON), its `blobs` (name to zlib stream), and its `summaries`."""

    header: dict[str, Any]
    blobs: dict[str, bytes]
    summaries: list[HeadSummary] = field(repr=False)


def build_view(
    recording: Iterable[Call],
    tokens: Sequence[str],
    *,
    title: str,
    model: str = "",
    top_keys: int = 8,
    max_bytes: int = 15_000_000,
    answers: Iterable[Answered] = (),
    progress: Progress | None = None,
) -> ViewData:
    """The view of a recording's calls, of their batch item 0.

    Args:
        recording: calls in order, each with weights `[B, H, N, M]`; all with the same N and M. H may differ.
        tokens: the M tokens that are the keys; the queries are the last N of them. Any text, shown verbatim.
        title, model: shown at the top of the page.
        top_keys: how many strongest keys of every query are kept, at least 1.
        max_bytes: about how large the page may become. Below it everything is as fine as can be; when a text
            needs more, maps, then keys of a query, then the number of queries become coarser.
        answers: what was asked of the recording besides, to be shown with it.
        progress: called as `progress(calls done, calls in all)`.

    Raises:
        ArgumentError: there is no call, a call without weights, or one whose shape does not fit the tokens;
            or an answer that does not fit them.

    Example:
        >>> with regard.watch(model) as recording:
        ...     model(**inputs)
        >>> view = build_view(recording, tokens, title="A sentence")
        >>> write_page(view, "page.html")
    """
    if top_keys < 1:
        raise ArgumentError(f"`top_keys` must be at least 1, got {top_keys}")
    calls = require_alike(recording, tokens)
    n_queries, n_keys, width = calls[0].n_queries, calls[0].n_keys, index_width(len(tokens))
    heads, value_heads = sum(call.heads for call in calls), sum(call.value_heads for call in calls)
    plan = plan_view(heads, n_queries, n_keys, top_keys, width, max_bytes, value_heads)
    reaches, repeats = Reaches(n_keys), Repeats.of(tokens, n_queries)
    blobs: dict[str, bytes] = {}
    entries, summaries = [], []
    for layer, call in enumerate(calls):
        seen = ask(call.weights, plan, top_keys, repeats)
        lines = summarise(layer, call.module, seen)
        blobs[f"map/{layer}"] = pack((codes(seen.pooled, 1.0), 2))
        blobs[f"keys/{layer}"] = seen.packed_keys(plan)
        if plan.lesson_queries:
            blobs[f"lesson/{layer}"] = lesson_blob(call, plan.lesson_queries)
        entries.append(entry(call, reaches.of(call.weights), lines))
        summaries += lines
        if progress is not None:
            progress(layer + 1, len(calls))
    header = {
        "format": FORMAT,
        "version": VERSION,
        "title": title,
        "model": model,
        "tokens": list(tokens),
        "queries": n_queries,
        "keys": n_keys,
        "map": [plan.map_rows, plan.map_columns],
        "kept_keys": plan.kept_keys,
        "sampled_queries": plan.sampled_queries,
        "sampled_keys": plan.sampled_keys,
        "lesson_queries": plan.lesson_queries,
        "index_width": width,
        "masks": reaches.header(),
        "calls": entries,
        "answers": [answer.entry([call.heads for call in calls], len(tokens)) for answer in answers],
    }
    return ViewData(header, {**reaches.blobs(), **blobs}, summaries)


def entry(call: Seen, masks: list[int], lines: list[HeadSummary] | None) -> dict[str, Any]:
    """What the header says of one call; no summary where nobody has looked yet."""
    return {
        "module": call.module,
        "ordinal": call.ordinal,
        "heads": call.heads,
        "masks": masks,
        "lesson": lesson_entry(call),
        "summary": None if lines is None else columns(lines),
    }
