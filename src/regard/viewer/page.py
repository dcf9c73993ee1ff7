"""A view as ONE self-contained HTML page that works offline, and its safe way to disk."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from regard.viewer.bundle import read_asset, script, style
from regard.viewer.data import ViewData


def render_page(view: ViewData) -> str:
    """The page's HTML. Everything is inside: a content security policy forbids it any request.

    Tokens travel as JSON in which `<` is escaped, so none can end the element that holds it, and the page
    writes them as text only.
    """
    return "".join(_parts(view))


def write_page(view: ViewData, path: str | os.PathLike[str]) -> Path:
    """Write the page to `path`, whole or not at all: an interruption leaves what was there before."""
    target = Path(path).resolve()  # through a link, what it points to is written
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with draft.open("w", encoding="utf-8", errors="xmlcharrefreplace", newline="\n") as file:
            file.writelines(_parts(view))
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return Path(path)


def live_page(title: str) -> tuple[str, str]:
    """The page of a live view, without data, and its policy: it may ask the server that it came from."""
    policy = _policy("connect-src 'self'")
    head, tail = _frame(title, policy)
    # Who may show the page inside another: a notebook on this machine.
    framed = "frame-ancestors 'self' http://127.0.0.1:* http://localhost:*"
    return f"{head}{tail}", f"{policy}; {framed}"


def _parts(view: ViewData) -> Iterator[str]:
    head, tail = _frame(view.header["title"], _policy())
    yield head
    # ASCII throughout: a lone surrogate (half a character, from a byte-level tokenizer) stays an escape.
    header = json.dumps(view.header, allow_nan=False).replace("<", "\\u003c")
    yield f'<script type="application/json" id="view">{header}</script>\n'
    for name, blob in view.blobs.items():
        encoded = base64.b64encode(blob).decode("ascii")
        yield f'<script type="application/octet-stream" id="blob/{html.escape(name)}">{encoded}</script>\n'
    yield tail


def _frame(title: str, policy: str) -> tuple[str, str]:
    """What stands before a view's data, and what after it."""
    head, tail = read_asset("page.html").split("<!-- data -->")
    fields = {"policy": html.escape(policy), "title": html.escape(title), "style": style()}
    return _filled(head, fields), _filled(tail, {"script": script()})


def _policy(*more: str) -> str:
    own = f"default-src 'none'; script-src {_digest(script())}; style-src {_digest(style())}; base-uri 'none'"
    return "; ".join((own, *more))


def _filled(template: str, fields: dict[str, str]) -> str:
    pieces = template.split("{{")
    out = [pieces[0]]
    for piece in pieces[1:]:
        name, rest = piece.split("}}", 1)
        out += [fields[name], rest]
    return "".join(out)


def _digest(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") + "'"
