"""The size of a page is bounded, and what gives way for it is what was promised."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import masks
from regard.viewer import build_view, render_page
from regard.viewer.codes import codes, index_width, indices, pack
from regard.viewer.plan import plan_view
from viewer.views import call

PAGE = 15_000_000


def test_the_promised_text_keeps_every_query_and_eight_keys() -> None:
    plan = plan_view(30 * 9, 1024, 1024, 8, 2, PAGE)
    assert (plan.map_rows, plan.map_columns) == (64, 64)
    assert (plan.sampled_queries, plan.sampled_keys, plan.kept_keys) == (1024, 1024, 8)


@pytest.mark.slow
@pytest.mark.parametrize("mask", [masks.causal(), masks.band(1024, 1024)], ids=["causal", "dense"])
def test_the_promised_text_stays_under_fifteen_megabytes(mask: masks.Mask) -> None:
    # One of thirty equal layers, with a thirtieth of the bytes: the plan is linear in both.
    one = call(heads=9, n_queries=1024, mask=mask)
    view = build_view([one], ["token"] * 1024, title="t", max_bytes=PAGE // 30)
    assert view.header["map"] == [64, 64]
    assert view.header["kept_keys"] == 8
    assert view.header["sampled_queries"] == 1024
    layer = sum(len(blob) for name, blob in view.blobs.items() if not name.startswith("mask"))
    around = len(render_page(view)) - 4 / 3 * sum(map(len, view.blobs.values()))
    assert 30 * layer * 4 / 3 + around < PAGE


@given(
    heads=st.integers(1, 5000),
    length=st.integers(1, 200_000),
    cached=st.integers(0, 1000),
    top_keys=st.integers(1, 32),
)
def test_any_text_has_a_plan_and_it_is_bounded(heads: int, length: int, cached: int, top_keys: int) -> None:
    n_keys = length + cached
    width = index_width(n_keys)
    plan = plan_view(heads, length, n_keys, top_keys, width, PAGE)
    assert 1 <= plan.map_rows <= length
    assert 1 <= plan.map_columns <= n_keys
    assert 1 <= plan.sampled_queries <= length
    assert 1 <= plan.sampled_keys <= n_keys
    assert 1 <= plan.kept_keys <= top_keys
    raw = 2 * plan.map_rows * plan.map_columns
    raw += plan.sampled_queries * (plan.kept_keys * (2 + width) + 4) + 2 * plan.sampled_keys
    raw += plan.lesson_queries * (3 * n_keys + 8)
    # Where even the coarsest outgrows the bytes, thousands of heads, the maps are at their smallest.
    assert heads * raw <= PAGE or max(plan.map_rows, plan.map_columns) <= 16


@given(st.lists(st.floats(0, 1), min_size=1), st.floats(1e-3, 1e6))
def test_codes_are_as_close_as_the_format_says(shares: list[float], top: float) -> None:
    values = torch.tensor(shares, dtype=torch.float64) * top
    decoded = top * (codes(values, top).double() / 65535) ** 2
    assert ((decoded - values).abs() <= 1.6e-5 * (values * top).sqrt() + 1e-10 * top).all()


def test_no_key_is_all_ones_in_any_width() -> None:
    keys = torch.tensor([-1, 0, 65534])
    assert indices(keys, 2).tolist() == [65535, 0, 65534]
    assert indices(keys, 4).tolist() == [2**32 - 1, 0, 65534]
    assert (index_width(65534), index_width(65535)) == (2, 4)


def test_planes_hold_every_byte() -> None:
    import zlib

    numbers = torch.tensor([0x01020304, 0x0A0B0C0D])
    assert zlib.decompress(pack((numbers, 4))) == bytes([4, 13, 3, 12, 2, 11, 1, 10])
