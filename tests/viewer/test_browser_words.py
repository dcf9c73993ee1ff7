"""Words on the page in a real browser: search, signs, directions of writing, and what a reader chooses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard import masks
from regard.recording import Call
from regard.viewer import build_view, write_page
from viewer.browser import opened
from viewer.views import call, dense

pytestmark = pytest.mark.browser

PIECES = ["[CLS]", "the", "mal", "##t", ",", "house", "that", "jack", "built", "高", "兴", "[SEP]"]
BYTES = [" In", " the", " House\n", "that", " Jack", " 很", "", "", "高", "", "\\xf0\\x9f", "兴", "", " İx"]


def made(tokens: list[str], folder: Path, layers: int = 1) -> tuple[Path, list[Call]]:
    torch.manual_seed(5)
    calls = [call(heads=3, n_queries=len(tokens)) for _ in range(layers)]
    return write_page(build_view(calls, tokens, title="שלום"), folder / "page.html"), calls


def found(page: Any, phrase: str) -> list[int]:
    page.locator("input[type=search]").fill(phrase)
    return [int(span.get_attribute("id").removeprefix("token-")) for span in page.locator(".found").all()]


@pytest.mark.parametrize(
    ("tokens", "phrase", "places"),
    [
        (PIECES, "malt", [2, 3]),
        (PIECES, "The Malt, house", [1, 2, 3, 4, 5]),
        (PIECES, "house that Jack", [5, 6, 7]),
        (PIECES, "housethat", []),
        (PIECES, "高兴", [9, 10]),
        (PIECES, "##t", []),
        (BYTES, "house  that jack", [2, 3, 4]),
        (BYTES, "很高", [5, 6, 7, 8, 9]),
        (BYTES, "İX", [13]),
        (list("abcde"), "bcd", [1, 2, 3]),
    ],
)
def test_a_phrase_is_found_in_the_text_that_the_tokens_make(
    browser, tmp_path, tokens: list[str], phrase: str, places: list[int]
) -> None:
    with opened(browser, made(tokens, tmp_path)[0]) as page:
        assert found(page, phrase) == places


def test_tokens_without_text_and_stray_bytes_have_signs(browser, tmp_path) -> None:
    with opened(browser, made(BYTES, tmp_path)[0], "#t=7") as page:
        assert page.locator("#token-6").inner_text() == "⋯"
        assert page.locator("#text h2 .token").inner_text() == "很⋯"
        stray = page.locator("#token-10 .bytes")
        assert stray.inner_text() == "\\xf0\\x9f"
        assert stray.evaluate("(e) => getComputedStyle(e).whiteSpace") == "nowrap"
        assert "pieces" not in page.locator("#text .tokens").get_attribute("class")
        page.keyboard.press("?")
        signs = page.locator("dialog dl.signs kbd").all_inner_texts()
    assert {"·", "↵", "⋯", "≈"} <= set(signs)


def test_a_link_between_hebrew_tokens_reads_from_left_to_right(browser, tmp_path) -> None:
    with opened(browser, made([" שלום", " עולם"] * 6, tmp_path)[0]) as page:
        link = page.locator("button.link")
        query, key = link.locator(".token").all()
        arrow = link.locator("span").filter(has_text="→").bounding_box()
        assert query.bounding_box()["x"] < arrow["x"] < key.bounding_box()["x"]
        for container in (link, page.locator("#text h2"), page.locator("#bar h1"), page.locator(".tip")):
            assert container.get_attribute("dir") == "ltr"
        assert query.evaluate("(e) => getComputedStyle(e).unicodeBidi") == "isolate"


def test_the_sharpest_link_says_where_and_chooses_its_query(browser, tmp_path) -> None:
    path, calls = made([f" w{i}" for i in range(12)], tmp_path)
    weights = dense(calls[0])[2].clone()
    weights[:, 0] = 0
    weights.fill_diagonal_(0)
    query, key = divmod(int(weights.argmax()), 12)
    with opened(browser, path, "#l=0&h=2&t=0&d=readers") as page:
        link = page.locator("button.link")
        assert link.locator("small").inner_text() == f"{query} → {key}"
        link.click()
        assert page.locator("[aria-selected=true]").get_attribute("id") == f"token-{query}"
        assert page.get_by_role("button", name="Reads").get_attribute("aria-pressed") == "true"


def test_links_lie_behind_the_words_and_inside_the_panel(browser, tmp_path) -> None:
    tokens = [f" w{i}" for i in range(12)]
    with opened(browser, made(tokens, tmp_path)[0], "#l=0&h=0&t=5") as page:
        at = page.locator("#token-5").bounding_box()
        spot = f"{at['x'] + at['width'] / 2}, {at['y'] + at['height'] / 2}"
        assert page.evaluate(f"document.elementFromPoint({spot}).closest('span').id") == "token-5"
        layers = "(e) => Number(getComputedStyle(e).zIndex) || 0"
        assert page.locator("#text .tokens").evaluate(layers) > page.locator("#text svg").evaluate(layers)
        panel = page.locator("#text .reading").bounding_box()
        for arc in page.locator("#text svg path").all():
            assert arc.bounding_box()["y"] >= panel["y"]


def test_far_reach_is_the_measure_of_the_table(browser, tmp_path) -> None:
    tokens = [f" w{i}" for i in range(12)]
    torch.manual_seed(6)
    view = build_view([call(heads=3) for _ in range(4)], tokens, title="t")
    order = sorted(view.summaries, key=lambda line: -line.reach)
    with opened(browser, write_page(view, tmp_path / "page.html")) as page:
        page.get_by_role("combobox").select_option(label="Far reach")
        shown = page.locator("#grid figcaption").all_inner_texts()
    names = [f"{line.layer} · {line.head}" for line in order]
    assert [caption.splitlines()[0] for caption in shown] == names
    assert shown[0].endswith(f"{order[0].reach:.1f} tok")


def test_sorting_shows_the_foremost_and_gives_the_keys_back(browser, tmp_path) -> None:
    tokens = [f" w{i}" for i in range(12)]
    with opened(browser, made(tokens, tmp_path, layers=60)[0], "#l=59&h=2") as page:
        heads = page.locator("#grid .heads")
        assert heads.evaluate("(e) => e.scrollTop") > 0
        page.get_by_role("combobox").select_option("first")
        assert heads.evaluate("(e) => e.scrollTop") == 0
        assert page.evaluate("document.activeElement.tagName") == "BODY"
        # Walking on through the ranking never leaves the chosen head half out of sight.
        panel = heads.bounding_box()
        for _ in range(60):
            page.keyboard.press("ArrowRight")
            chosen = page.locator("#grid figure:has([aria-pressed=true])").bounding_box()
            assert panel["y"] <= chosen["y"]
            assert chosen["y"] + chosen["height"] <= panel["y"] + panel["height"]


def test_one_token_has_no_link_and_no_shares_of_others(browser, tmp_path) -> None:
    path, _ = made([" alone"], tmp_path)
    with opened(browser, path) as page:
        assert page.locator("button.link").count() == 0
        assert page.locator("dl.facts dd").all_inner_texts()[1:3] == ["–", "–"]


def test_what_remains_is_never_nothing(browser, tmp_path) -> None:
    tokens = [f" w{i}" for i in range(40)]
    query = torch.zeros(1, 1, 40, 16)
    key = torch.zeros(1, 1, 40, 16)
    query[..., 0], key[0, 0, 0, 0] = 40.0, 40.0  # all but nothing goes to the first token
    _, weights = regard.attention(query, key, key, masks.causal(), return_weights=True)
    view = build_view([Call("m", 0, 0, 0, weights)], tokens, title="t")
    with opened(browser, write_page(view, tmp_path / "page.html"), "#l=0&h=0&t=30") as page:
        assert page.locator("#text tfoot").inner_text().startswith("< 0.0001 on 23 other keys")
        assert page.locator("#text thead").inner_text().rstrip().endswith("Weight, ± 0.00002")


def test_the_chosen_theme_is_remembered(browser, tmp_path) -> None:
    with opened(browser, made(PIECES, tmp_path)[0], color_scheme="light") as page:
        page.keyboard.press("t")
        page.reload()
        page.wait_for_selector("body[data-shown]")
        assert page.locator("html").get_attribute("data-theme") == "dark"


def test_a_refused_storage_is_no_failure(browser, tmp_path) -> None:
    with opened(browser, made(PIECES, tmp_path)[0], color_scheme="light") as page:
        page.add_init_script(
            "Object.defineProperty(window, 'localStorage', { get() { throw new Error('refused'); } });"
        )
        page.reload()
        page.wait_for_selector("body[data-shown]")
        page.keyboard.press("t")
        assert page.locator("html").get_attribute("data-theme") == "dark"
