"""A live view to ask over real sockets."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from regard.recording import Call, Recording
from regard.viewer.server.running import LiveView, live_view


@contextmanager
def served(calls: list[Call], tokens: list[str] | None, **options: Any) -> Iterator[LiveView]:
    """A recording, served while the block lasts."""
    view = live_view(Recording(calls, model="A small model", tokens=tokens), **options).start()
    try:
        yield view
    finally:
        view.close()


def ask(
    view: LiveView, path: str = "", method: str = "GET", whole: str | None = None, **headers: str
) -> tuple[int, bytes]:
    """Status and body of one request; `whole` in place of the path with its token, sent as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", view.port, timeout=30)
    target = whole if whole is not None else f"/{view.url.split('/')[3]}/{path}"
    connection.putrequest(method, target, skip_host="host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def header_of(view: LiveView) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(view, "header")[1])
    return found
