"""Any masks, lengths, ways to cut and to bring together: drawn, and compared with one process."""

from __future__ import annotations

from collections.abc import Callable

import output_checks as checks
from hypothesis import given, settings
from hypothesis import strategies as st
from world import World

from regard import masks

SIZE = 3
lengths = st.lists(st.integers(0, 40), min_size=SIZE, max_size=SIZE)
plain = st.one_of(
    st.just(masks.causal()),
    st.builds(masks.sliding_window, st.integers(1, 50)),
    st.builds(masks.band, st.none() | st.integers(0, 30), st.none() | st.integers(0, 30)),
    st.builds(masks.sinks, st.integers(0, 9)),
    st.builds(masks.streaming, st.integers(0, 5), st.integers(1, 30)),
    st.builds(masks.prefix, st.integers(0, 60)),
    # Documents and padded items as long as the longest sequence.
    st.builds(
        lambda cuts: masks.documents(lengths=[*cuts, 80 * SIZE]), st.lists(st.integers(0, 40), max_size=4)
    ),
)
any_mask = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=4,
)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    mask=st.none() | any_mask,
    queries=lengths,
    more_keys=st.just([0] * SIZE) | lengths,
    method=st.sampled_from(["gather", "ring"]),
    sharding=st.sampled_from(["contiguous", "balanced"]),
    sinks=st.booleans(),
    dropout_p=st.sampled_from([0.0, 0.4]),
)
def test_any_call(world: Callable[[int], World], **drawn: object) -> None:
    world(SIZE).run(checks.any_call, drawn)
