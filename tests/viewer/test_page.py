"""The page: one file, inert whatever the tokens, written whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest

from regard.viewer import ViewData, build_view, bundle, render_page, write_page
from regard.viewer import page as page_module
from viewer.views import HOSTILE, call


class Elements(HTMLParser):
    """Every element of a page with its text, as an HTML parser sees it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))
        self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            tag, attributes, text = self.found[-1]
            self.found[-1] = (tag, attributes, text + data)


@pytest.fixture
def view() -> ViewData:
    return build_view([call(n_queries=len(HOSTILE))], HOSTILE, title="<b>&</b>", model="</style>")


def test_hostile_tokens_add_no_element(view: ViewData) -> None:
    hostile = Elements(render_page(view)).found
    plain = build_view([call(n_queries=len(HOSTILE))], ["x"] * len(HOSTILE), title="t")
    assert [(tag, sorted(a)) for tag, a, _ in hostile] == [
        (t, sorted(a)) for t, a, _ in Elements(render_page(plain)).found
    ]
    header = next(text for _, attributes, text in hostile if attributes.get("id") == "view")
    assert json.loads(header)["tokens"] == HOSTILE
    assert "<title>&lt;b&gt;&amp;&lt;/b&gt;</title>" in render_page(view)


def test_the_policy_allows_this_script_and_style_and_nothing_else(view: ViewData) -> None:
    elements = Elements(render_page(view)).found
    policy = next(a["content"] for _, a, _ in elements if a.get("http-equiv") == "Content-Security-Policy")
    code = next(text for tag, a, text in elements if tag == "script" and a["type"] == "module")
    look = next(text for tag, _, text in elements if tag == "style")
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (code, look)]
    expected = "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'".format(
        *digests
    )
    assert html.unescape(policy or "") == expected


def test_the_page_names_no_address(view: ViewData) -> None:
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"')]*", render_page(view)))
    assert addresses == {"http://www.w3.org/2000/svg"}


def test_every_script_and_style_is_part_of_the_page() -> None:
    assets = resources.files("regard.viewer") / "assets"
    code = bundle.script()
    for file in (assets / "js").iterdir():
        assert f'modules["{file.name}"] = ' in code
    look = bundle.style()
    for file in (assets / "css").iterdir():
        assert file.read_text("utf-8") in look


def test_no_script_writes_markup() -> None:
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", bundle.script()
    )


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (
            {"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'},
            "a.js -> b.js -> a.js",
        ),
        ({"a.js": 'import b from "./b.js";\n'}, "not of the form"),
    ],
)
def test_modules_that_cannot_be_bundled_are_refused(files, sentence, monkeypatch) -> None:
    monkeypatch.setattr(bundle, "read_asset", lambda name: files[name.removeprefix("js/")])
    with pytest.raises(ValueError, match=sentence):
        bundle.script.__wrapped__("a.js")


def test_a_failure_leaves_the_page_that_was_there(view: ViewData, tmp_path: Path, monkeypatch) -> None:
    target = tmp_path / "page.html"
    write_page(view, target)
    before = target.read_bytes()

    def interrupted(_: ViewData):
        yield "<half"
        raise KeyboardInterrupt

    monkeypatch.setattr(page_module, "_parts", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_page(view, target)
    assert target.read_bytes() == before
    assert list(tmp_path.iterdir()) == [target]


def test_the_same_view_is_the_same_page(view: ViewData, tmp_path: Path) -> None:
    assert write_page(view, tmp_path / "a.html").read_text("utf-8") == render_page(view)
    assert render_page(view) == render_page(view)
