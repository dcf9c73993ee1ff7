"""A page in headless Chromium, and what it did wrong while it was open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


@contextmanager
def opened(
    browser: Any, path: Path | str, address: str = "", *, expected: str | None = None, **options: Any
) -> Iterator[Any]:
    """Open a page, from disk or by its URL; at the end it must have asked for nothing but what is its own.

    It must have logged nothing either, but for what holds the `expected` words.
    """
    url = path if isinstance(path, str) else path.as_uri()
    options = {"viewport": {"width": 1280, "height": 800}, **options}
    context = browser.new_context(**options)
    page = context.new_page()
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url.partition("#")[0]))
    page.goto(url + address)
    try:
        page.wait_for_selector("body[data-shown]", timeout=20_000)
        yield page
    finally:
        context.close()
        # Before any other failure: what the page itself complained of is the likelier cause.
        assert [one for one in complaints if expected is None or expected not in one] == []
    own = {url} if isinstance(path, Path) else {one for one in requests if one.startswith(url)}
    assert set(requests) == own


def point_at(page: Any, across: float, down: float) -> tuple[int, int, str]:
    """Rest the pointer on the map, at shares of the canvas; the pair and the tip's text."""
    box = page.locator(".stage canvas").bounding_box()
    page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
    tip = page.locator(".tip")
    tip.wait_for(state="visible")
    query, key = tip.get_attribute("data-pair").split()
    return int(query), int(key), tip.inner_text()


def tip_value(page: Any) -> float:
    return float(page.locator(".tip [data-value]").get_attribute("data-value"))


def table(page: Any) -> list[tuple[int, float]]:
    """The rows of the table of links: token and weight."""
    rows = page.locator("#text tbody tr").all()
    return [
        (
            int(row.locator("td.where").inner_text()),
            float(row.locator("[data-value]").get_attribute("data-value")),
        )
        for row in rows
    ]
