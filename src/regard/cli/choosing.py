"""Which query and which head somebody means: an index or a word, "12.3" or nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from regard.errors import ArgumentError
from regard.recording import Recording


def chosen_query(given: str | None, tokens: Sequence[str] | None, n_queries: int) -> int:
    """The query that `--query` names: the last one unless said, an index, or the last place of a word.

    `tokens` are the texts of the queries, where they have any. A word of several tokens is its last one,
    which has read all of it.
    """
    if given is None:
        return n_queries - 1
    if re.fullmatch(r"-?\d{1,9}", given) and -n_queries <= int(given) < n_queries:
        return int(given) % n_queries
    words = [token.strip().removeprefix("##") for token in tokens or ()]
    wanted = given.strip()
    for last in range(len(words) - 1, -1, -1):
        joined = ""
        for first in range(last, -1, -1):
            joined = words[first] + joined
            if joined == wanted and wanted:
                return last
            if len(joined) >= len(wanted):
                break
    what = f"an index from 0 to {n_queries - 1}" + (" or a word of the text" if tokens else "")
    raise ArgumentError(f"`--query` must be {what}, got {given!r}")


def chosen_head(given: str | None, recording: Recording, query: int) -> tuple[int, int]:
    """Layer and head that `--head` names, or those of this query's sharpest link to another token.

    The first token does not count as one: many heads rest there.
    """
    if given is None:
        return _sharpest(recording, query)
    named = re.fullmatch(r"(\d{1,6})\.(\d{1,6})", given)
    layers = len(recording)
    if named is None:
        raise ArgumentError(f"`--head` must be a layer and a head, such as 12.3, got {given!r}")
    layer, head = int(named[1]), int(named[2])
    if layer >= layers:
        raise ArgumentError(f"`--head` must name a layer from 0 to {layers - 1}, got {given}")
    weights = recording[layer].weights
    heads = 0 if weights is None else weights.shape[1]
    if head >= heads:
        raise ArgumentError(f"`--head` must name a head from 0 to {heads - 1} of layer {layer}, got {given}")
    return layer, head


def _sharpest(recording: Recording, query: int) -> tuple[int, int]:
    best, chosen = 0.0, (0, 0)
    for layer, call in enumerate(recording):
        if call.weights is None:
            continue
        row = call.weights[0, :, query].clone()
        row[:, [0, query]] = 0
        strongest, head = row.amax(-1).max(0)
        if float(strongest) > best:
            best, chosen = float(strongest), (layer, int(head))
    return chosen
