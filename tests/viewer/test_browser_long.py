"""Long texts in a real browser: sampled queries, binned profiles, and what the page says of them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.recording import Call
from regard.viewer import ViewData, build_view, write_page
from viewer.browser import opened, table, tip_value
from viewer.views import call, dense, edges

pytestmark = pytest.mark.browser

LENGTH = 150
TOKENS = [f" w{i}" for i in range(LENGTH)]


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    torch.manual_seed(7)
    return [call(heads=2, n_queries=LENGTH)]


@pytest.fixture(scope="module")
def view(calls: list[Call]) -> ViewData:
    """A text whose length no number of bins divides: the edges are rounded down."""
    made = build_view(calls, TOKENS, title="Long", max_bytes=6000)
    for bins in ("sampled_queries", "sampled_keys"):
        assert 1 < made.header[bins] < LENGTH
        assert LENGTH % made.header[bins] != 0
    return made


@pytest.fixture(scope="module")
def path(view: ViewData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(view, tmp_path_factory.mktemp("page") / "long.html")


def bin_mean(values: Tensor, place: int, bins: int) -> tuple[float, int]:
    """The mean over the bin that holds a place, and the last place of that bin, from the edges alone."""
    steps = edges(LENGTH, bins)
    start, end = next((a, b) for a, b in itertools.pairwise(steps) if a <= place < b)
    return float(values[start:end].mean()), end - 1


def misjudged(bins: int) -> list[int]:
    """Places that floor(place · bins / length) puts in a bin too low."""
    steps = edges(LENGTH, bins)
    return [at for at in range(LENGTH) if steps[at * bins // LENGTH + 1] <= at]


def fact(page: Any, name: str) -> float:
    place = page.locator("#text .facts div").filter(has_text=name).locator("dd")
    return float(place.inner_text().split()[0])


def test_every_number_is_of_the_bin_that_holds_the_token(browser, path, view, calls) -> None:
    weights = dense(calls[0])[1]
    entropy = torch.special.entr(weights).sum(-1)
    far = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).abs()
    queries, keys = view.header["sampled_queries"], view.header["sampled_keys"]
    chosen = [*misjudged(queries)[:4], *misjudged(keys)[:4], 0, LENGTH - 1]
    assert len(set(chosen)) > 4
    with opened(browser, path, "#l=0&h=1") as page:
        for token in chosen:
            page.locator(f"#token-{token}").click()
            mean, kept = bin_mean(entropy, token, queries)
            assert fact(page, "Entropy ≈") == pytest.approx(mean, abs=0.006)
            distance = bin_mean((weights * far).sum(-1), token, queries)[0]
            assert fact(page, "Distance ≈") == pytest.approx(distance, abs=0.06)
            received = bin_mean(weights.sum(0), token, keys)[0]
            assert fact(page, "Received ≈") == pytest.approx(received, abs=0.006)
            strongest = weights[kept].sort(descending=True)
            shown = table(page)
            assert [key for key, _ in shown] == strongest.indices[: len(shown)].tolist()
            assert [weight for _, weight in shown] == pytest.approx(
                strongest.values[: len(shown)].tolist(), abs=1.6e-5
            )


def test_keys_of_another_query_are_named_as_such(browser, path, view) -> None:
    steps = edges(LENGTH, view.header["sampled_queries"])
    kept = steps[5] - 1
    missing = next(at for at in range(steps[4], steps[5]) if at != kept)
    with opened(browser, path, f"#l=0&h=1&t={missing}") as page:
        note = page.locator("p.stand-in")
        assert note.inner_text() == f"keys not kept; showing query {kept} ·w{kept}"
        assert page.locator("#text thead .key").inner_text() == f"{kept} ·w{kept} attends to"
        assert page.locator("span.stand-in").get_attribute("id") == f"token-{kept}"
        assert page.locator("#text .facts").get_by_text("Max weight").count() == 0
        page.keyboard.press("r")
        assert not note.is_visible()
        assert page.locator("span.stand-in").count() == 0
        page.keyboard.press("r")
        page.keyboard.press("r")
        page.locator(f"#token-{kept}").click()
        assert not note.is_visible()
        assert page.locator("#text thead .key").inner_text() == "It attends to"
        assert page.locator("#text .facts").get_by_text("Max weight").count() == 1


def test_the_note_gives_both_numbers(browser, path, view) -> None:
    with opened(browser, path) as page:
        note = page.locator(".note").inner_text()
    assert f"strongest keys kept for {view.header['sampled_queries']} of {LENGTH} queries" in note
    assert f"received mass for {view.header['sampled_keys']} bins of {LENGTH} keys" in note
    assert "≈ marks the mean of a bin" in note


def test_the_profiles_say_their_numbers(browser, path, view, calls) -> None:
    received = dense(calls[0])[1].sum(0)
    with opened(browser, path, "#l=0&h=1") as page:
        box = page.locator(".stage canvas").bounding_box()
        # The cells begin 46 pixels down, whatever the size of the canvas; the profile lies above.
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 46 - 10)
        page.locator(".tip").wait_for(state="visible")
        token = int(page.locator(".tip").inner_text().splitlines()[0].split()[-1])
        expected = bin_mean(received, token, view.header["sampled_keys"])[0]
        assert tip_value(page) == pytest.approx(expected, abs=2e-3)
        assert "received ≈" in page.locator(".tip").inner_text()
