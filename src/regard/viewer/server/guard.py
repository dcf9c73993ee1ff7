"""Who may ask: only somebody who knows the address that was printed, from this machine.

The server listens on loopback, but every web page that is open on the machine can send requests there, and a
page may point a name of its own at 127.0.0.1 (DNS rebinding). So the address holds a random token, the `Host`
must be a loopback name, and an `Origin` this server's own.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

NAMES = ("127.0.0.1", "localhost")
_HEADERS = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """An ASGI application around another, which sees only the part of the path after the token."""

    def __init__(self, inner: ASGIApp, token: str, port: int) -> None:
        self._inner, self._token = inner, token
        self._hosts = {f"{name}:{port}" for name in NAMES} | (set(NAMES) if port == 80 else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        rest = scope["path"].split("/", 2)[2]
        await self._inner({**scope, "path": f"/{rest}", "raw_path": None}, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        given: dict[str, list[str]] = {"host": [], "origin": []}
        for name, value in scope["headers"]:
            if (plain := name.decode("latin-1").lower()) in given:
                given[plain].append(value.decode("latin-1"))
        if len(given["host"]) != 1 or given["host"][0] not in self._hosts:
            return _refused(421, "This server answers to 127.0.0.1 and localhost only.")
        if any(origin != f"http://{given['host'][0]}" for origin in given["origin"]):
            return _refused(403, "This server answers to its own page only.")
        first, slash, _ = scope["path"].removeprefix("/").partition("/")
        if not slash or not secrets.compare_digest(first.encode(), self._token.encode()):
            return _refused(404, "There is nothing here: open the address that regard printed.")
        return None


def _refused(status: int, sentence: str) -> Response:
    return PlainTextResponse(f"{sentence}\n", status, _HEADERS)
