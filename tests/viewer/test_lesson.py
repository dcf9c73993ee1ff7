"""The lesson of the page: its numbers are those of the steps, in the format and in the browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard import biases, masks
from regard.recording import Call
from regard.recording.keys import GrowingKeys, KeySpan
from regard.steps import Steps, attention_steps, row_scores
from regard.viewer import build_view, write_page
from regard.viewer.bundle import script, style
from regard.viewer.lesson import lesson_data
from regard.viewer.plan import plan_view
from regard.viewer.seen import require_alike
from viewer.browser import opened
from viewer.live import served
from viewer.views import HOSTILE, Reader, call

TOKENS = re.findall(" ?[a-zA-Z.]+", "The cat sat on the mat because the cat was tired. It slept.")
QUERY, HEAD = 8, 3


def with_values(n: int = len(TOKENS), **extras: Any) -> Call:
    """A call of four heads on two key heads that has kept its values."""
    query, key, value = torch.randn(1, 4, n, 16) * 2, torch.randn(1, 2, n, 16), torch.randn(1, 2, n, 6)
    _, weights = regard.attention(query, key, value, masks.causal(), return_weights=True, **extras)
    return Call("attention", 0, 0, 0, weights, keys=KeySpan(GrowingKeys(key, value), 0, n))


def everything() -> Call:
    return with_values(bias=biases.alibi(4), softcap=9.0, sink_logits=torch.linspace(-1, 1, 4))


def steps_of(one: Call, query: int = QUERY, head: int = HEAD, **switches: Any) -> Steps:
    assert one.weights is not None
    assert one.values is not None
    return attention_steps(one.weights, one.values, query, head=head, **switches)


# In the format.


def read_rows(reader: Reader, *shape: int) -> torch.Tensor:
    rows = shape[:-1]
    low, step = (reader.integers(*rows, width=4).to(torch.int32).view(torch.float32) for _ in range(2))
    return low.unsqueeze(-1).double() + step.unsqueeze(-1).double() * reader.integers(*shape)


@pytest.mark.parametrize("one", [with_values, everything], ids=["plain", "everything"])
def test_the_blob_holds_the_scores(one: Any) -> None:
    seen = one()
    view = build_view([seen], TOKENS, title="t")
    n, kept = len(TOKENS), view.header["lesson_queries"]
    said = view.header["calls"][0]["lesson"]
    assert kept == n
    assert said["dim"] == 16
    assert said["value_heads"] == 2
    reader, true = Reader(view.blobs["lesson/0"]), row_scores(seen.weights, range(n))
    scores = read_rows(reader, 4, n, n)
    ranges = true.scores.amax(-1, keepdim=True) - true.scores.amin(-1, keepdim=True)
    assert ((scores - true.scores).abs() <= ranges / 65535).all()
    assert (reader.integers(4, n, n, width=1) != 0).equal(true.allowed)
    if said["bias"]:
        assert (read_rows(reader, 4, n, n) - true.bias).abs().max() < 1e-4
    assert (read_rows(reader, 2, n) - seen.values[0].norm(dim=-1)).abs().max() < 1e-4
    if said["sinks"]:
        bits = reader.integers(4, width=4).to(torch.int32)
        assert bits.view(torch.float32).tolist() == torch.linspace(-1, 1, 4).tolist()
    assert reader.rest == b""


def test_scores_that_are_not_finite_are_nan_throughout() -> None:
    query, key = torch.randn(1, 1, 4, 8), torch.randn(1, 1, 4, 8)
    query[0, 0, 2, 0] = torch.nan
    _, weights = regard.attention(query, key, key, return_weights=True)
    view = build_view([Call("a", 0, 0, 0, weights)], list("abcd"), title="t")
    scores = read_rows(Reader(view.blobs["lesson/0"]), 1, 4, 4)
    assert scores[0].isnan().all(-1).tolist() == [False, False, True, False]


def test_a_long_text_keeps_fewer_scores_and_then_none() -> None:
    kept = [plan_view(30 * 9, n, n, 8, 2, 15_000_000, 90).lesson_queries for n in (20, 129, 400, 8000)]
    assert kept[0] == 20
    assert kept[1] >= 16
    assert kept[1] > kept[2] > kept[3] == 0


# In the browser.


@pytest.fixture(scope="module")
def one() -> Call:
    torch.manual_seed(5)
    return everything()


@pytest.fixture(scope="module")
def alone(one: Call, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with nothing but a lesson."""
    (seen,) = require_alike([one], TOKENS)
    data = json.dumps({"tokens": TOKENS, **lesson_data(seen, HEAD, QUERY)}, allow_nan=False)
    path = tmp_path_factory.mktemp("lesson") / "lesson.html"
    path.write_text(
        f'<!doctype html><meta charset="utf-8"><title>t</title><style>{style()}</style>'
        f'<main id="here"></main><script type="module">{script("lesson.js")}\nmodules["lesson.js"].lesson('
        f'document.getElementById("here"), {data});\ndocument.body.dataset.shown = "";</script>',
        "utf-8",
    )
    return path


@pytest.fixture(scope="module")
def page_path(one: Call, tmp_path_factory: pytest.TempPathFactory) -> Path:
    view = build_view([one, one], TOKENS, title="A tired cat", model="A small model")
    return write_page(view, tmp_path_factory.mktemp("page") / "page.html")


def shown(page: Any, column: int) -> dict[int, float]:
    """The numbers of a column by key; −Infinity where masked."""
    rows = page.locator(".lesson tbody tr").all()
    values = {
        int(row.get_attribute("data-key")): row.locator("td.step span")
        .nth(column)
        .get_attribute("data-value")
        for row in rows
    }
    return {key: float(value.replace("Infinity", "inf")) for key, value in values.items()}


def effect(page: Any, name: str) -> float:
    return float(page.locator(f".lesson b[data-effect='{name}']").inner_text().removeprefix("< "))


def assert_shows(page: Any, steps: Steps, tolerance: float = 1e-5) -> None:
    logits = steps.steps[-3].numbers
    columns = (steps["scores"], logits, steps["masked"], steps.weights)
    for column, numbers in enumerate(columns):
        found = shown(page, column)
        assert found == pytest.approx({key: float(numbers[key]) for key in found}, rel=1e-3, abs=tolerance)
    lengths = steps.weights * steps.value.norm(dim=-1)
    found = shown(page, 4)
    assert found == pytest.approx({key: float(lengths[key]) for key in found}, rel=1e-3, abs=tolerance)
    assert effect(page, "Entropy") == pytest.approx(steps.entropy, abs=0.006)
    assert effect(page, "Largest weight") == pytest.approx(steps.max_weight, abs=0.001)
    assert effect(page, "Gradient left") == pytest.approx(steps.gradient, abs=0.001)


@pytest.mark.browser
def test_a_lesson_alone_shows_the_steps_and_obeys_its_switches(browser, alone, one) -> None:
    with opened(browser, alone) as page:
        assert len(shown(page, 0)) == len(TOKENS)
        assert_shows(page, steps_of(one))
        page.locator("[data-switch=scale]").click()
        assert_shows(page, steps_of(one, scaled=False))
        page.locator("[data-switch=mask]").click()
        assert_shows(page, steps_of(one, scaled=False, masked=False))
        assert page.locator(".lesson td.masked").count() == 0
        page.get_by_role("slider").fill("1")
        assert_shows(page, steps_of(one, scaled=False, masked=False, temperature=2.0))
        assert page.locator(".formula .part.off").count() == 2
        page.get_by_role("button", name="As it is").click()
        assert_shows(page, steps_of(one))
        assert page.locator(".formula .part.off").count() == 0


@pytest.mark.browser
def test_the_key_l_opens_the_lesson_of_the_chosen_token(browser, page_path, one) -> None:
    with opened(browser, page_path, f"#l=1&h={HEAD}&t={QUERY}") as page:
        page.keyboard.press("l")
        dialog = page.locator("#lesson[open]")
        dialog.wait_for()
        assert f"layer 1, head {HEAD}, query {QUERY}" in dialog.locator("h2").inner_text()
        assert_shows(page, steps_of(one), tolerance=0.005)
        page.keyboard.press("Escape")
        page.locator("#token-5").click()
        page.get_by_role("button", name="Step by step").click()
        dialog.wait_for()
        assert_shows(page, steps_of(one, query=5), tolerance=0.005)


@pytest.mark.browser
def test_a_live_view_has_the_exact_steps_of_every_query(browser, one) -> None:
    calls = [call(heads=4, n_queries=len(TOKENS)), one]
    with served(calls, TOKENS) as live, opened(browser, live.url, f"#l=1&h={HEAD}&t={QUERY}") as page:
        page.keyboard.press("l")
        page.locator("#lesson[open]").wait_for()
        assert_shows(page, steps_of(one))
        page.keyboard.press("Escape")
        page.locator("#token-5").click()
        page.get_by_role("button", name="Step by step").click()
        page.locator("#lesson[open]").wait_for()
        assert_shows(page, steps_of(one, query=5))


@pytest.mark.browser
def test_a_long_text_says_whose_scores_it_shows_or_that_it_has_none(browser, tmp_path) -> None:
    long = call(heads=2, n_queries=240)
    words = [f" w{i}" for i in range(240)]
    some = write_page(build_view([long], words, title="t", max_bytes=400_000), tmp_path / "some.html")
    with opened(browser, some, "#l=0&h=0&t=100") as page:
        page.keyboard.press("l")
        page.locator("#lesson[open] tbody tr").first.wait_for()
        query = int(re.search(r"query (\d+)", page.locator("#lesson h2").inner_text())[1])
        assert query != 100
        assert "nearest" in page.locator("#lesson p").first.inner_text()
        weights = shown(page, 3)
        assert weights == pytest.approx({k: float(long.weights[0, 0, query, k]) for k in weights}, abs=1e-3)
        assert "other key" in page.locator("#lesson tfoot").inner_text()
    none = write_page(build_view([long], words, title="t", max_bytes=9000), tmp_path / "none.html")
    with opened(browser, none) as page:
        page.keyboard.press("l")
        page.locator("#lesson[open]").wait_for()
        assert "regard explain" in page.locator("#lesson").inner_text()


@pytest.mark.browser
def test_hostile_tokens_stay_text(browser, tmp_path) -> None:
    view = build_view([with_values(len(HOSTILE))], HOSTILE, title="t")
    with opened(browser, write_page(view, tmp_path / "page.html"), f"#t={len(HOSTILE) - 1}") as page:
        page.keyboard.press("l")
        page.locator("#lesson[open] tbody tr").first.wait_for()
        assert page.evaluate("() => typeof window.harmed") == "undefined"
        assert page.locator("#lesson img").count() == 0
