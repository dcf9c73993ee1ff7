"""The page in a real browser: opened from disk, looked at, clicked through."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from regard import masks
from regard.recording import Call
from regard.viewer import build_view, write_page
from viewer.browser import opened, point_at, table, tip_value
from viewer.views import HOSTILE, call, dense

pytestmark = pytest.mark.browser

TOKENS = re.findall(" ?[a-zA-Z.]+", "The cat sat on the mat because the cat was tired. It slept.")
SPOTS = [(0.25, 0.5), (0.3, 0.3), (0.4, 0.7), (0.5, 0.8), (0.2, 0.2)]


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    torch.manual_seed(3)
    return [call(heads=3, n_queries=len(TOKENS), module=f"layers.{layer}.attention") for layer in range(4)]


@pytest.fixture(scope="module")
def page_path(calls: list[Call], tmp_path_factory: pytest.TempPathFactory) -> Path:
    view = build_view(calls, TOKENS, title="A tired cat", model="A small model")
    return write_page(view, tmp_path_factory.mktemp("page") / "page.html")


@pytest.fixture(scope="module")
def long_calls() -> list[Call]:
    torch.manual_seed(4)
    return [call(heads=2, n_queries=240)]


@pytest.fixture(scope="module")
def long_path(long_calls: list[Call], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text that does not fit: a pooled map, four keys, and not of every query."""
    view = build_view(long_calls, [f" w{i}" for i in range(240)], title="Long", max_bytes=9000)
    assert view.header["sampled_queries"] < 240
    return write_page(view, tmp_path_factory.mktemp("page") / "long.html")


def heading(page: Any) -> str:
    return page.locator("#head h2").inner_text()


def test_a_head_is_chosen_by_a_click_and_the_address_names_it(browser, page_path) -> None:
    with opened(browser, page_path) as page:
        page.get_by_role("button", name="Layer 2, head 1").click()
        page.wait_for_selector("body[data-shown='2.1']")
        assert heading(page) == "Layer 2, head 1"
        page.keyboard.press("r")
        address = page.evaluate("location.hash")
    with opened(browser, page_path, address) as page:
        assert heading(page) == "Layer 2, head 1"
        assert page.get_by_role("button", name="Read by").get_attribute("aria-pressed") == "true"


def test_every_thumbnail_is_painted(browser, page_path) -> None:
    from playwright.sync_api import expect

    with opened(browser, page_path) as page:
        # Painted canvases have a map's size; each is waited for by itself, since the policy forbids `eval`.
        expect(page.locator(f"#grid canvas[width='{len(TOKENS)}']")).to_have_count(12)


def test_hover_says_the_true_weight(browser, page_path, calls) -> None:
    with opened(browser, page_path, "#l=1&h=2") as page:
        for spot in SPOTS:
            query, key, text = point_at(page, *spot)
            if key > query:
                assert "masked" in text
            else:
                assert tip_value(page) == pytest.approx(float(dense(calls[1])[2, query, key]), abs=1.6e-5)
                assert "± 0.00002" in text
        assert "masked" in point_at(page, 0.7, 0.25)[2]


def test_a_token_shows_its_strongest_keys_and_its_readers(browser, page_path, calls) -> None:
    weights = dense(calls[0])[1]
    with opened(browser, page_path, "#l=0&h=1") as page:
        page.locator("#token-9").click()
        strongest = weights[9].sort(descending=True)
        assert [token for token, _ in table(page)] == strongest.indices[:8].tolist()
        assert [weight for _, weight in table(page)] == pytest.approx(
            strongest.values[:8].tolist(), abs=1.6e-5
        )
        assert page.locator("#text svg path").count() == 8 - (9 in strongest.indices[:8].tolist())
        page.get_by_role("button", name="Read by").click()
        kept = weights.sort(-1, descending=True).indices[:, :8]
        readers = {q: float(weights[q, 9]) for q in range(9, len(TOKENS)) if 9 in kept[q].tolist()}
        assert dict(table(page)) == pytest.approx(readers, abs=1.6e-5)
        page.locator("#text tbody tr").first.click()
        assert (
            page.locator("[aria-selected=true]").get_attribute("id")
            == f"token-{max(readers, key=readers.get)}"
        )


def test_a_click_on_the_map_chooses_the_query(browser, page_path) -> None:
    with opened(browser, page_path) as page:
        query, _, _ = point_at(page, 0.3, 0.6)
        page.mouse.down()
        page.mouse.up()
        assert page.locator("[aria-selected=true]").get_attribute("id") == f"token-{query}"


def test_keys_walk_through_heads_layers_and_tokens(browser, page_path) -> None:
    with opened(browser, page_path, "#l=1&h=1&t=5") as page:
        for key, shown in [
            ("ArrowRight", "1.2"),
            ("ArrowRight", "2.0"),
            ("ArrowUp", "1.0"),
            ("ArrowDown", "2.0"),
        ]:
            page.keyboard.press(key)
            page.wait_for_selector(f"body[data-shown='{shown}']")
        page.keyboard.press("k")
        assert page.locator("[aria-selected=true]").get_attribute("id") == "token-6"
        page.keyboard.press("s")
        assert page.get_by_role("button", name="Root").get_attribute("aria-pressed") == "true"
        page.keyboard.press("f")
        assert page.get_by_label("Without first token").is_checked()
        page.keyboard.press("?")
        assert page.get_by_role("dialog").is_visible()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Escape")
        assert not page.get_by_role("dialog").is_visible()
        assert heading(page) == "Layer 2, head 0"


def test_search_finds_a_phrase_across_tokens(browser, page_path) -> None:
    with opened(browser, page_path) as page:
        page.keyboard.press("/")
        page.keyboard.type("THE CAT")
        selected = page.locator("[aria-selected=true]")
        assert page.locator("output").inner_text() == "1 of 2"
        assert selected.get_attribute("id") == "token-1"
        page.keyboard.press("Enter")
        assert selected.get_attribute("id") == "token-8"
        assert page.locator(".found").count() == 4
        page.keyboard.type("?")
        assert page.locator("output").inner_text() == "not found"
        assert not page.get_by_role("dialog").is_visible()


def test_heads_are_sorted_by_what_they_do(browser, page_path, calls) -> None:
    with opened(browser, page_path) as page:
        page.get_by_role("combobox").select_option("previous")
        first = page.locator("#grid figcaption b").first.inner_text()
        previous = torch.stack([dense(one).diagonal(-1, 1, 2).sum(-1) for one in calls])
        assert first == "{} · {}".format(*divmod(int(previous.argmax()), 3))


def test_a_zoomed_map_still_says_the_true_weight(browser, page_path, calls) -> None:
    with opened(browser, page_path, "#l=3&h=0") as page:
        before = point_at(page, 0.25, 0.75)[:2]
        point_at(page, 0.35, 0.6)
        page.mouse.wheel(0, -200)
        query, key, _ = point_at(page, 0.25, 0.75)
        assert (query, key) != before
        assert tip_value(page) == pytest.approx(float(dense(calls[3])[0, query, key]), abs=1.6e-5)
        page.keyboard.press("0")
        point_at(page, 0.35, 0.6)
        assert point_at(page, 0.25, 0.75)[:2] == before


def test_a_long_text_labels_what_is_pooled_and_what_is_exact(browser, long_path, long_calls) -> None:
    weights = dense(long_calls[0])[1]
    with opened(browser, long_path, "#l=0&h=1&t=239") as page:
        assert "Pooled: a cell is the mean of" in page.locator(".note").inner_text()
        assert "Coarser for length" in page.locator(".note").inner_text()
        query, key, text = point_at(page, 0.25, 0.6)
        assert "mean of" in text
        view = build_view(long_calls, ["x"] * 240, title="", max_bytes=9000)
        rows, columns = view.header["map"]
        row = max(r for r in range(rows) if r * 240 // rows <= query)
        column = max(c for c in range(columns) if c * 240 // columns <= key)
        block = weights[
            row * 240 // rows : (row + 1) * 240 // rows,
            column * 240 // columns : (column + 1) * 240 // columns,
        ]
        assert tip_value(page) == pytest.approx(float(block.mean()), abs=1.6e-5)
        assert [token for token, _ in table(page)] == weights[239].sort(descending=True).indices[:4].tolist()
        page.keyboard.press("m")
        assert "the 4 strongest keys of each query kept" in page.locator(".note").inner_text()
        _, _, text = point_at(page, 0.25, 0.6)
        assert any(words in text for words in ("± 0.00002", "not sampled", "not among"))


def test_hostile_tokens_do_nothing(browser, tmp_path) -> None:
    view = build_view([call(n_queries=len(HOSTILE))], HOSTILE, title="<img src=x>", model="</style><b>")
    path = write_page(view, tmp_path / "hostile.html")
    with opened(browser, path) as page:
        for at in range(len(HOSTILE)):
            page.locator(f"#token-{at}").click(force=True)
            page.keyboard.press("r")
        point_at(page, 0.3, 0.3)
        assert page.evaluate("window.harmed") is None
        assert page.locator("img, #text script, #head script, body b b").count() == 0
        assert page.locator("#token-0").inner_text() == HOSTILE[0]


@pytest.mark.parametrize(
    "address", ["#l=99&h=-1&t=x", "#l=1&h=7&t=1.5&s=constructor&o=__proto__&d=1", "#%%%", "#l=&h=&t="]
)
def test_a_wrong_address_opens_the_page_all_the_same(browser, page_path, address) -> None:
    with opened(browser, page_path, address) as page:
        assert page.locator("#text tbody tr").count() > 0


def test_views_of_every_shape_open(browser, tmp_path) -> None:
    shapes = {
        "cache": ([call(n_queries=3, n_keys=9)], 9),
        "one": ([call(heads=1, n_queries=1)], 1),
        "uneven": ([call(heads=1, n_queries=5), call(heads=4, n_queries=5)], 5),
        "empty rows": ([call(n_queries=6, mask=masks.causal() & masks.padding([0]))], 6),
        "many heads": ([call(heads=40, n_queries=4)], 4),
    }
    for name, (some, length) in shapes.items():
        path = write_page(
            build_view(some, [f" {i}" for i in range(length)], title=name), tmp_path / f"{name}.html"
        )
        with opened(browser, path) as page:
            for key in ("ArrowRight", "ArrowDown", "j", "j", "k", "r", "m", "f", "+", "0"):
                page.keyboard.press(key)
            page.locator("#token-0").click()


def test_the_theme_follows_the_system_until_it_is_chosen(browser, page_path) -> None:
    for scheme, other in (("light", "dark"), ("dark", "light")):
        with opened(browser, page_path, color_scheme=scheme) as page:
            theme = page.locator("html")
            assert theme.get_attribute("data-theme") == scheme
            page.get_by_role("button", name="Light or dark").click()
            assert theme.get_attribute("data-theme") == other


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_and_the_ramp_climbs(browser, page_path, scheme) -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour.strip()[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    with opened(browser, page_path, color_scheme=scheme) as page:
        names = ("--ink", "--soft", "--accent", "--paper", "--panel", "--ramp")
        style = "getComputedStyle(document.documentElement)"
        ink, soft, accent, paper, panel, ramp = (
            page.evaluate(f"{style}.getPropertyValue('{n}')") for n in names
        )
    for text in (ink, soft, accent):
        for ground in (paper, panel):
            low, high = sorted((luminance(text), luminance(ground)))
            assert (high + 0.05) / (low + 0.05) >= 4.5
    steps = [luminance(stop) for stop in ramp.split(",")]
    assert steps == sorted(steps, reverse=scheme == "light")


def test_it_fits_a_small_screen_without_scrolling(browser, page_path, long_path) -> None:
    for path in (page_path, long_path):
        with opened(browser, path) as page:
            page.evaluate("document.querySelector('#bar h1').textContent = 'a long title '.repeat(20)")
            assert page.evaluate("document.documentElement.scrollWidth") == 1280
            assert page.evaluate("document.documentElement.scrollHeight") == 800
            for selector in (".stage canvas", ".legend", ".note", "#text table"):
                box = page.locator(selector).bounding_box()
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= 1280
                assert box["y"] + box["height"] <= 800
            controls = "[...document.querySelectorAll('button, input, select')]"
            nameless = f"{controls}.filter((e) => !(e.ariaLabel || e.textContent || e.labels?.length))"
            assert page.evaluate(f"{nameless}.length") == 0
