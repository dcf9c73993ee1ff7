"""The live view in a real browser: from all heads to single weights, in tabs, and when the server goes."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from recordings import generation
from regard.recording import Call
from regard.viewer.server.microscope import Microscope
from regard.viewer.server.running import LiveView
from viewer.browser import opened, point_at, table, tip_value
from viewer.live import served
from viewer.views import HOSTILE, call, dense

pytestmark = pytest.mark.browser

LENGTH = 700
TOKENS = [f" w{i * i % 97}" for i in range(LENGTH)]


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    torch.manual_seed(5)
    return [call(heads=3, n_queries=LENGTH, module=f"layers.{layer}.attention") for layer in range(3)]


@pytest.fixture(scope="module")
def live(calls: list[Call]) -> Iterator[LiveView]:
    with served(calls, TOKENS, title="A long text") as view:
        yield view


def settled(page: Any) -> None:
    """Wait until the map shows what it is to show."""
    page.wait_for_selector(".stage canvas[data-loading='false']")


def zoom_in(page: Any, across: float, down: float) -> None:
    """Turn the wheel over a point of the map until a cell is one weight."""
    for _ in range(20):
        point_at(page, across, down)
        page.mouse.wheel(0, -400)
        page.wait_for_timeout(60)
        settled(page)
        if "Every cell is one weight" in page.locator(".note").inner_text():
            return
    raise AssertionError(page.locator(".note").inner_text())


def single(page: Any, across: float, down: float) -> tuple[int, int, float, str]:
    """Query, key, weight and the rest of the tip, where a cell is one weight."""
    point_at(page, across, down)
    page.locator(".tip .more", has_text="logit").wait_for()
    query, key, text = point_at(page, across, down)
    return query, key, tip_value(page), text


def test_every_head_is_looked_at_and_painted(browser, live) -> None:
    from playwright.sync_api import expect

    with opened(browser, live.url) as page:
        expect(page.locator("#grid button canvas[width='44']")).to_have_count(9)
        assert not page.locator("#grid .progress").is_visible()
        expect(page.get_by_role("button", name=re.compile("Layer 2, head 1: entropy"))).to_have_count(1)


def test_zooming_ends_at_a_single_weight_with_its_logit_and_rank(browser, live, calls) -> None:
    weights, logits = dense(calls[1])[2], calls[1].weights.logits(0, 2)
    with opened(browser, live.url, "#l=1&h=2") as page:
        settled(page)
        assert "Pooled: a cell is the mean of up to 2 × 2 weights" in page.locator(".note").inner_text()
        zoom_in(page, 0.4, 0.6)
        for spot in [(0.4, 0.6), (0.45, 0.55), (0.3, 0.7)]:
            query, key, weight, text = single(page, *spot)
            assert weight == pytest.approx(float(weights[query, key]), rel=1e-5, abs=1e-9)
            logit = float(logits[query, key])
            rank = int((logits[query] > logit).sum()) + 1
            assert f"logit {logit:.3f} · rank {rank} of {query + 1}".replace("-", "−") in text.replace(
                "\xa0", " "
            )
            assert TOKENS[key].strip() in text


def test_a_pooled_cell_is_the_mean_of_its_pairs(browser, live, calls) -> None:
    with opened(browser, live.url, "#l=0&h=1") as page:
        settled(page)
        query, key, text = point_at(page, 0.3, 0.7)
        row, column = query // 2 * 2, key // 2 * 2
        assert f"queries {row}–{row + 1} → keys {column}–{column + 1}" in text
        expected = dense(calls[0])[1, row : row + 2, column : column + 2].mean()
        assert tip_value(page) == pytest.approx(float(expected), rel=1e-4, abs=1e-8)
        assert "masked" in point_at(page, 0.7, 0.3)[2]


def test_a_token_shows_every_key_and_every_reader_exactly(browser, live, calls) -> None:
    weights = dense(calls[0])[1]
    with opened(browser, live.url, "#l=0&h=1&t=300") as page:
        page.wait_for_selector("#text[data-links='0.1 300 reads']")
        strongest = weights[300].sort(descending=True)
        assert [token for token, _ in table(page)] == strongest.indices[:8].tolist()
        assert [weight for _, weight in table(page)] == pytest.approx(strongest.values[:8].tolist(), rel=1e-4)
        assert "on 293 other keys" in page.locator("#text tfoot").inner_text()
        page.get_by_role("button", name="Read by").click()
        page.wait_for_selector("#text[data-links='0.1 300 readers']")
        readers = weights[:, 300].sort(descending=True)
        assert [token for token, _ in table(page)] == readers.indices[:8].tolist()
        page.get_by_role("button", name="Received").click()
        page.wait_for_selector("#text[data-links='0.1 300 received']")
        received = weights.sum(0).sort(descending=True)
        assert [token for token, _ in table(page)] == received.indices[:8].tolist()
        assert page.locator("#text svg path").count() == 0


def test_without_the_first_token_the_others_share_what_it_had(browser, live, calls) -> None:
    logits = calls[0].weights.logits(0, 0).double()
    logits[:, 0] = -torch.inf
    with opened(browser, live.url, "#l=0&h=0") as page:
        zoom_in(page, 0.2, 0.6)
        page.keyboard.press("f")
        settled(page)
        query, key, weight, _ = single(page, 0.3, 0.6)
        row = logits[query].softmax(-1)
        assert weight == pytest.approx(float(row[key]), rel=1e-4)
        page.mouse.down()
        page.mouse.up()
        page.wait_for_selector(f"#text[data-links='0.0 {query} reads']")
        said = page.locator("#text .facts dd").first.inner_text()
        assert float(said.split()[0]) == pytest.approx(float(torch.special.entr(row).sum()), abs=0.006)


def test_heads_are_sorted_by_induction_too(browser, live, calls) -> None:
    from playwright.sync_api import expect

    found = torch.stack([dense(one) for one in calls])
    masses = []
    for at in range(1, LENGTH):
        followers = [p + 1 for p in range(at - 1) if TOKENS[p] == TOKENS[at]]
        if followers:
            masses.append(found[:, :, at, followers].sum(-1))
    kept = [masses[i * len(masses) // 256] for i in range(256)]
    best = divmod(int(torch.stack(kept).mean(0).argmax()), 3)
    with opened(browser, live.url) as page:
        page.get_by_role("combobox").select_option("induction")
        expect(page.locator("#grid figcaption", has_text="%")).to_have_count(9)
        assert page.locator("#grid figcaption b").first.inner_text() == "{} · {}".format(*best)


def test_a_view_is_shared_by_its_address(browser, live) -> None:
    with opened(browser, live.url, "#l=1&h=1") as page:
        zoom_in(page, 0.4, 0.6)
        page.wait_for_timeout(400)  # the address follows when the hand rests
        address = page.evaluate("location.hash")
        seen = point_at(page, 0.5, 0.5)[:2]
    assert "z=" in address
    with opened(browser, live.url, address) as page:
        settled(page)
        assert point_at(page, 0.5, 0.5)[:2] == seen


@pytest.mark.parametrize(
    "address", ["#b=9.9&z=x", "#b=1.x&z=1_2", "#z=-5_9e99_0", "#z=0.9_0.9_0.5&m=keys&d=sideways"]
)
def test_a_wrong_address_opens_the_view_all_the_same(browser, live, address) -> None:
    with opened(browser, live.url, address) as page:
        settled(page)
        assert page.locator("#text tbody tr").count() > 0


def test_two_heads_stand_side_by_side_and_move_together(browser, live, calls) -> None:
    with opened(browser, live.url, "#l=0&h=0") as page:
        page.keyboard.press("b")
        page.get_by_role("button", name=re.compile("Layer 2, head 1")).click()
        page.wait_for_selector("body[data-shown='2.1']")
        assert page.locator(".beside .caption").inner_text().startswith("Layer 0, head 0")
        canvases = page.locator(".stage canvas")
        assert canvases.count() == 2
        for canvas, weights in zip(canvases.all(), (dense(calls[2])[1], dense(calls[0])[0]), strict=True):
            page.wait_for_selector(".beside canvas[data-loading='false']")
            box = canvas.bounding_box()
            page.mouse.move(box["x"] + 80, box["y"] + 46 + 120)  # the cells begin 46 pixels down
            tip = canvas.locator("xpath=../div")
            tip.wait_for(state="visible")
            query, key = map(int, tip.get_attribute("data-pair").split())
            said = re.search(r"queries (\d+)–(\d+) → keys (\d+)–(\d+)", tip.inner_text())
            assert said, tip.inner_text()
            top, bottom, left, right = map(int, said.groups())
            assert top <= query <= bottom
            assert left <= key <= right
            value = float(tip.locator("[data-value]").get_attribute("data-value"))
            expected = weights[top : bottom + 1, left : right + 1].mean()
            assert value == pytest.approx(float(expected), rel=1e-3, abs=1e-8)
        page.get_by_role("button", name="Take the second head away").click()
        assert page.locator(".beside").count() == 0


def saved(page: Any, kind: str) -> bytes:
    with page.expect_download() as download:
        page.get_by_role("button", name=f"Save what is seen as {kind}").click()
    assert download.value.suggested_filename == f"regard-layer1-head2.{kind.lower()}"
    return Path(download.value.path()).read_bytes()


def test_what_is_seen_is_saved_as_picture_drawing_and_table(browser, live, calls) -> None:
    weights = dense(calls[1])[2]
    with opened(browser, live.url, "#l=1&h=2") as page:
        zoom_in(page, 0.4, 0.6)
        assert saved(page, "PNG").startswith(b"\x89PNG\r\n\x1a\n")
        drawing = ElementTree.fromstring(saved(page, "SVG"))
        content = saved(page, "CSV").decode()
        cells = list(csv.DictReader(io.StringIO(content)))
        assert len(cells) > 30
        for cell in cells:
            query, key = int(cell["first_query"]), int(cell["first_key"])
            assert (cell["last_query"], cell["last_key"]) == (str(query), str(key))
            assert float(cell["mean_weight"]) == pytest.approx(float(weights[query, key]), rel=1e-5, abs=1e-9)
            assert (cell["query_token"], cell["key_token"]) == (TOKENS[query], TOKENS[key])
        names = [node.tag.rpartition("}")[2] for node in drawing.iter()]
        assert names.count("rect") == len(cells) + 2


def test_two_tabs_look_at_different_heads(browser, live) -> None:
    with opened(browser, live.url, "#l=0&h=0") as one, opened(browser, live.url, "#l=2&h=2") as two:
        for page, name in ((one, "Layer 0, head 0"), (two, "Layer 2, head 2")):
            settled(page)
            assert page.locator("#head h2").inner_text() == name
        one.keyboard.press("ArrowRight")
        one.wait_for_selector("body[data-shown='0.1']")
        settled(one)
        assert two.locator("#head h2").inner_text() == "Layer 2, head 2"


def test_it_says_when_the_server_has_gone_and_goes_on_when_it_is_back(browser, calls) -> None:
    def begin(port: int = 0, token: str | None = None) -> LiveView:
        return LiveView(Microscope(calls, TOKENS, title="t"), port, token).start()

    view = begin()
    token = view.url.split("/")[3]
    with opened(browser, view.url, "#l=0&h=0", expected="Failed to load resource") as page:
        settled(page)
        view.close()
        page.keyboard.press("ArrowRight")
        status = page.locator("#status")
        status.wait_for(state="visible", timeout=10_000)
        assert status.inner_text().startswith("The server has stopped answering")
        stranger = begin(view.port)
        page.wait_for_selector("#status:has-text('Another view is served')", timeout=10_000)
        stranger.close()
        again = begin(view.port, token)
        page.wait_for_selector("body[data-shown='0.1']", timeout=10_000)
        assert status.is_hidden()
        settled(page)
        again.close()


def test_a_text_of_ten_thousand_tokens(browser) -> None:
    torch.manual_seed(6)
    one = call(heads=1, n_queries=10_000)
    tokens = [f" w{i}" for i in range(10_000)]
    with served([one], tokens) as view, opened(browser, view.url) as page:
        settled(page)
        zoom_in(page, 0.3, 0.7)
        query, key, weight, _ = single(page, 0.3, 0.7)
        assert weight == pytest.approx(float(one.weights[0, 0, query, key]), rel=1e-5)
        page.keyboard.press("/")
        page.keyboard.type("w9999")
        assert page.locator("[aria-selected=true]").get_attribute("id") == "token-9999"
        page.wait_for_selector("#text[data-links='0.0 9999 reads']")
        assert table(page)[0][0] == int(one.weights[0, 0, 9999].argmax())


def test_hostile_tokens_do_nothing(browser) -> None:
    with (
        served([call(n_queries=len(HOSTILE))], HOSTILE, title="<img src=x>") as view,
        opened(browser, view.url) as page,
    ):
        settled(page)
        for at in range(len(HOSTILE)):
            page.locator(f"#token-{at}").click(force=True)
        point_at(page, 0.3, 0.5)
        for kind in ("SVG", "CSV"):
            with page.expect_download() as download:
                page.get_by_role("button", name=f"Save what is seen as {kind}").click()
            content = Path(download.value.path()).read_text("utf-8")
            if kind == "SVG":
                assert {node.tag.rpartition("}")[2] for node in ElementTree.fromstring(content).iter()} == {
                    "svg",
                    "title",
                    "rect",
                    "g",
                    "text",
                }
        assert page.evaluate("window.harmed") is None
        assert page.locator("img, #text script, #head script").count() == 0


def test_a_table_holds_no_formula(browser) -> None:
    tokens = ["=1+1", "+1", "-1", "@x", ' "q"', "\tx", "plain"]
    with served([call(heads=1, n_queries=7)], tokens) as view, opened(browser, view.url) as page:
        settled(page)
        with page.expect_download() as download:
            page.get_by_role("button", name="Save what is seen as CSV").click()
        cells = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text("utf-8"))))
    said = [cell["key_token"] for cell in cells if cell["first_query"] == "6"]
    assert said == ["'=1+1", "'+1", "'-1", "'@x", ' "q"', "'\tx", "plain"]


def test_generated_tokens_are_marked(browser) -> None:
    recording, _ = generation(steps=5, prompt=9)
    with served(list(recording), [f" t{i}" for i in range(14)]) as view, opened(browser, view.url) as page:
        settled(page)
        marked = [int(one.get_attribute("title")) for one in page.locator("#text .generated").all()]
        assert marked == list(range(9, 14))
        assert "14 tokens, 5 of them generated" in page.locator("#bar .facts").inner_text()


@pytest.mark.parametrize("size", [(1280, 800), (1920, 1080)])
def test_it_fits_the_screen(browser, live, size) -> None:
    width, height = size
    with opened(browser, live.url, "#l=0&h=0&b=1.1", viewport={"width": width, "height": height}) as page:
        settled(page)
        page.wait_for_selector(".beside canvas[data-loading='false']")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate("document.documentElement.scrollHeight") == height
        for selector in (
            ".stage canvas >> nth=0",
            ".beside canvas",
            ".legend",
            ".note",
            ".save",
            "#text table",
        ):
            box = page.locator(selector).bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
            assert box["y"] + box["height"] <= height
