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


def _parts(view: ViewData) -> Iterator[str]:
    code, look = script(), style()
    policy = f"default-src 'none'; script-src {_digest(code)}; style-src {_digest(look)}; base-uri 'none'"
    head, tail = read_asset("page.html").split("<!-- data -->")
    fields = {"policy": html.escape(policy), "title": html.escape(view.header["title"]), "style": look}
    yield _filled(head, fields)
    # ASCII throughout: a lone surrogate (half a character, from a byte-level tokenizer) stays an escape.
    header = json.dumps(view.header, allow_nan=False).replace("<", "\\u003c")
    yield f'<script type="application/json" id="view">{header}</script>\n'
    for name, blob in view.blobs.items():
        encoded = base64.b64encode(blob).decode("ascii")
        yield f'<script type="application/octet-stream" id="blob/{html.escape(name)}">{encoded}</script>\n'
    yield _filled(tail, {"script": code})


def _filled(template: str, fields: dict[str, str]) -> str:
    pieces = template.split("{{")
    out = [pieces[0]]
    for piece in pieces[1:]:
        name, rest = piece.split("}}", 1)
        out += [fields[name], rest]
    return "".join(out)


def _digest(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") + "'"
