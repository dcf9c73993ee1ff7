"""How finely a view can be drawn within a number of bytes: the longer the text, the coarser."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

# Whatever else has to give way, the stored keys of a query stop at this many and then queries are sampled.
_FEWEST_KEYS = 4
_SMALLEST_MAP, _LARGEST_MAP = 16, 192
# The shares of the bytes that the strongest keys of the queries, and the profile over keys, may take; the
# maps live on what they leave.
_SHARE_OF_QUERIES, _SHARE_OF_KEYS = 0.75, 0.05
# Of the bytes, the most that scores may take; and bytes of a score: 16 bits, and whether it is masked.
_SHARE_OF_LESSONS, _LESSON_BYTES = 0.2, 3
# A page's bytes for one byte of a view: base64 adds a third, deflate takes off about as much and more
# (measured: 0.85 for text in a language model, 1.1 for random queries and keys without a mask).
_PAGE_PER_VIEW_BYTE = 1.1


@dataclass(frozen=True)
class Plan:
    """What a view holds of every head.

    `map_rows` x `map_columns` is the pooled map, `sampled_queries` the number of queries whose `kept_keys`
    strongest keys are kept, `sampled_keys` the number of entries of the profile over keys, `lesson_queries`
    the number of queries whose scores with every key are kept, 0 for a long text.
    """

    map_rows: int
    map_columns: int
    sampled_queries: int
    sampled_keys: int
    kept_keys: int
    lesson_queries: int


def plan_view(
    heads: int,
    n_queries: int,
    n_keys: int,
    top_keys: int,
    index_width: int,
    max_bytes: int,
    value_heads: int = 0,
) -> Plan:
    """The finest plan for `heads` maps of `n_queries` x `n_keys` whose page stays near `max_bytes`.

    `heads` and `value_heads` are those of all calls together, the latter of kept values alone.
    """
    raw = int(max_bytes / _PAGE_PER_VIEW_BYTE)
    kept = min(top_keys, n_keys)

    def row_bytes(keys: int) -> int:
        return keys * (2 + index_width) + 4  # a weight and an index a key; entropy and distance

    allowance = int(raw * _SHARE_OF_QUERIES)
    if heads * n_queries * row_bytes(kept) > allowance:
        kept = min(kept, _FEWEST_KEYS)
    queries = max(1, min(n_queries, allowance // (heads * row_bytes(kept))))
    keys = max(1, min(n_keys, int(raw * _SHARE_OF_KEYS) // (2 * heads)))
    left = max(0, raw - heads * (queries * row_bytes(kept) + 2 * keys))
    side = min(_LARGEST_MAP, max(_SMALLEST_MAP, isqrt(left // (2 * heads))))
    rows, columns = _cells(n_queries, side), _cells(n_keys, side)
    # Scores live on what maps leave, since their cells rarely come out as small as they might.
    spare = min(int(raw * _SHARE_OF_LESSONS), left - 2 * heads * rows * columns) - value_heads * (
        2 * n_keys + 8
    )
    lessons = max(0, min(n_queries, spare // (heads * (_LESSON_BYTES * n_keys + 8))))
    return Plan(rows, columns, queries, keys, kept, lessons)


def _cells(tokens: int, most: int) -> int:
    """At most `most` cells for this many tokens, all of one size if a size near the smallest divides."""
    if tokens <= most:
        return tokens
    smallest = -(-tokens // most)
    for size in range(smallest, smallest + smallest // 7 + 1):
        if tokens % size == 0:
            return tokens // size
    return -(-tokens // smallest)
