"""One call for each attention of a model, over the whole text: the steps of a generation are put together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from regard.recording import Call
from regard.recording.joined import join


@dataclass(frozen=True, eq=False)
class OverText:
    """Calls to show together, and the first token that the model generated, if it generated any."""

    calls: list[Call]
    generated: int | None


def over_text(recording: Iterable[Call], steps: range | None = None) -> OverText:
    """The calls of a recording, or of some of its steps; those that continue one another are joined.

    Raises ArgumentError where calls of one module do not continue one another.
    """
    places: dict[tuple[str, int], list[Call]] = {}
    for call in recording:
        if steps is None or call.step in steps:
            places.setdefault((call.module, call.ordinal), []).append(call)
    calls, generated = [], None
    for same in places.values():
        first, *later = same
        if later:
            weights = join(same)
            if first.weights is not None:
                # The prompt's queries come first, and the last query is the last token.
                generated = weights.shape[-1] - weights.shape[-2] + first.weights.shape[-2]
            first = replace(first, weights=weights, statistics={}, keys=None)
        calls.append(first)
    return OverText(calls, generated)
