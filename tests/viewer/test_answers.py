"""`regard look --ask`: the answers as tables and on the page, and a sentence where there is none."""

from __future__ import annotations

import json
import re
from math import nan
from pathlib import Path

import pytest
import torch

from regard.cli import main
from regard.cli.answering import print_answers
from regard.cli.questions import NAMES
from regard.errors import ArgumentError
from regard.viewer import Answered, build_view, write_page
from viewer.browser import opened
from viewer.live import served
from viewer.views import HOSTILE, call

TOKENS = ["The", "cat", "sat", "on", "the", "mat", "because", "the", "cat", "was", "tired."]
HEADS = Answered("kinds", "Kinds", "What <b>they</b> do.", heads=[[0.1, nan, 0.9], [0.2, 0.3, 0.0]])
WORDS = Answered("words", "Words", "Which they are.", tokens=[0.0, 0.5, nan, 2.5, *[0.125] * 7])


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    monkeypatch.setenv("COLUMNS", "80")


def view(*answers, tokens=TOKENS):
    calls = [call(heads=3, n_queries=len(tokens), module=f"layers.{layer}") for layer in range(2)]
    return build_view(calls, tokens, title="t", model="m", answers=answers)


def test_the_header_holds_the_answers_with_null_for_what_is_no_number() -> None:
    kinds, words = view(HEADS, WORDS).header["answers"]
    assert kinds == {
        "name": "kinds",
        "title": "Kinds",
        "note": "What <b>they</b> do.",
        "heads": [[0.1, None, 0.9], [0.2, 0.3, 0.0]],
        "tokens": None,
    }
    assert words["tokens"][:4] == [0.0, 0.5, None, 2.5]
    assert view().header["answers"] == []


@pytest.mark.parametrize(
    "answer", [Answered("a", "A", "", heads=[[0.1] * 3]), Answered("a", "A", "", tokens=[0.1] * 3)]
)
def test_an_answer_that_does_not_fit_the_view_is_refused(answer) -> None:
    with pytest.raises(ArgumentError, match=r"of the answer 'a' must have"):
        view(answer)


def test_the_tables_name_the_foremost_first(capsys) -> None:
    print_answers([HEADS, WORDS], TOKENS)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    kinds, words = out.split("Words")
    assert re.findall(r"^ *(\d\.\d) +(0\.\d+)", kinds, re.MULTILINE) == [
        ("0.2", "0.900"),
        ("1.1", "0.300"),
        ("1.0", "0.200"),
        ("0.0", "0.100"),
    ]
    found = re.findall(r"^ *(\d+ \w+) +(\d\.\d+)", words, re.MULTILINE)
    assert found[:2] == [("3 on", "2.500"), ("1 cat", "0.500")]


@pytest.mark.model
def test_every_question_is_answered_by_a_real_decoder(tmp_path: Path, capsys) -> None:
    path = tmp_path / "page.html"
    asked = [word for name in NAMES for word in ("--ask", name)]
    text = "The cat sat on the mat, because the cat was tired."
    assert main(["look", "--demo", "smollm2", text, "-o", str(path), *asked]) == 0
    header = json.loads(re.search(r'id="view">(.*?)</script>', path.read_text("utf-8"))[1])
    found = {answer["name"]: answer for answer in header["answers"]}
    assert tuple(found) == NAMES
    printed = capsys.readouterr().out
    for answer in found.values():
        assert answer["title"] in printed
        if answer["heads"] is not None:
            values = torch.tensor(answer["heads"])
            assert values.shape == (30, 9)
            assert 0.3 < values.max() <= 1.0001
        if answer["tokens"] is not None:
            assert len(answer["tokens"]) == len(header["tokens"])
            assert 0 < max(answer["tokens"]) <= 1.0001
    assert max(range(len(header["tokens"])), key=found["sinks"]["tokens"].__getitem__) == 0
    assert sum(found["heavy"]["tokens"]) == pytest.approx(1, abs=1e-3)
    assert sum(found["rollout"]["tokens"]) == pytest.approx(1, abs=1e-3)
    # The sink has most of the weight and a short vector.
    assert found["norms"]["tokens"][0] < found["heavy"]["tokens"][0]


@pytest.mark.model
@pytest.mark.parametrize("question", ["induction", "retrieval"])
def test_an_encoder_cannot_be_asked_what_only_decoders_do(question, tmp_path, capsys) -> None:
    path = tmp_path / "x.html"
    assert main(["look", "--demo", "minilm", "a cat", "--ask", question, "-o", str(path)]) == 2
    sentence = f"`--ask {question}` needs a decoder, which writes text; all-MiniLM-L6-v2 is none"
    assert sentence in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.browser
def test_the_page_shows_the_answers_and_chooses_what_is_clicked(browser, tmp_path) -> None:
    path = write_page(view(HEADS, WORDS), tmp_path / "page.html")
    with opened(browser, path) as page:
        page.get_by_role("button", name="2 answers").click()
        dialog = page.locator("#answers")
        assert dialog.locator("h3").all_inner_texts() == ["Kinds", "Words"]
        assert dialog.locator("p").first.inner_text() == "What <b>they</b> do."
        assert "greatest: 0 · 2 with 0.900" in dialog.locator("figcaption").inner_text()
        colours = [cell.evaluate("e => e.style.background") for cell in dialog.locator(".row button").all()]
        assert len(set(colours)) > 3
        assert [row.inner_text().split()[:2] for row in dialog.locator("tr").all()][:2] == [
            ["3", "on"],
            ["1", "cat"],
        ]
        dialog.get_by_role("button", name="Layer 0, head 2: 0.900").click()
        page.wait_for_selector("body[data-shown='0.2']")
        assert not dialog.is_visible()
        page.keyboard.press("a")
        dialog.locator("tr").first.click()
        assert "t=3" in page.evaluate("location.hash")


@pytest.mark.browser
def test_a_live_view_shows_the_answers_that_it_was_given(browser) -> None:
    calls = [call(heads=3, n_queries=len(TOKENS), module=f"layers.{layer}") for layer in range(2)]
    with served(calls, TOKENS, answers=[HEADS, WORDS]) as live, opened(browser, live.url) as page:
        page.get_by_role("button", name="2 answers").click()
        page.locator("#answers").get_by_role("button", name="Layer 1, head 1: 0.300").click()
        page.wait_for_selector("body[data-shown='1.1']")
    with served(calls, TOKENS) as live, opened(browser, live.url) as page:
        assert page.get_by_role("button", name="answer").count() == 0


@pytest.mark.browser
def test_a_page_without_answers_has_no_button_for_them(browser, tmp_path) -> None:
    path = write_page(view(tokens=HOSTILE), tmp_path / "page.html")
    with opened(browser, path) as page:
        assert page.get_by_role("button", name="answer").count() == 0
        page.keyboard.press("a")
        assert not page.locator("#answers").is_visible()


@pytest.mark.browser
def test_hostile_tokens_are_text_among_the_answers_too(browser, tmp_path) -> None:
    shares = [1 / (1 + at) for at in range(len(HOSTILE))]
    path = write_page(
        view(Answered("a", "<i>A</i>", "", tokens=shares), tokens=HOSTILE), tmp_path / "page.html"
    )
    with opened(browser, path) as page:
        page.keyboard.press("a")
        assert page.locator("#answers h3").inner_text() == "<i>A</i>"
        assert page.locator("#answers td.key img, #answers td.key script").count() == 0
        assert page.evaluate("window.harmed ?? null") is None
