"""Runs a live view on this machine's loopback address: in the foreground, or on a thread of its own."""

from __future__ import annotations

import html
import secrets
import socket
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress

from regard.errors import ArgumentError, MissingExtraError
from regard.recording import Recording
from regard.viewer.asked import Answered
from regard.viewer.sequence import over_text

try:
    import uvicorn

    from regard.viewer.server.guard import Guard
    from regard.viewer.server.microscope import Microscope
    from regard.viewer.server.routes import application
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
        raise
    raise MissingExtraError("a live view needs starlette and uvicorn: `pip install regard[serve]`") from None

_ADDRESS = "127.0.0.1"


class LiveView:
    """A recording on a local address, `url`, from `start` to `close`.

    The address holds a random token; the server listens on loopback, and answers to its own page only. In a
    notebook on the same machine, the object shows the page itself.

    >>> view = recording.view()
    >>> view.url
    'http://127.0.0.1:...'
    >>> view.close()
    """

    def __init__(self, microscope: Microscope, port: int = 0, token: str | None = None) -> None:
        inner = application(microscope)
        self._microscope = microscope
        self._token = token or secrets.token_urlsafe(18)
        self._socket = _listening(port)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{_ADDRESS}:{self.port}/{self._token}/"
        guard = Guard(inner, self._token, self.port)
        config = uvicorn.Config(
            guard,
            log_level="critical",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Serve until Ctrl-C, which ends it in good order."""
        try:
            with suppress(KeyboardInterrupt):
                self._server.run(sockets=[self._socket])
        finally:
            self.close()

    def start(self) -> LiveView:
        """Serve on a thread of its own, until `close`."""
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="regard-server", daemon=True
        )
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop serving and computing."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=10)
        self._socket.close()
        self._microscope.close()

    def __repr__(self) -> str:
        return f"<LiveView of {self._microscope.title!r} at {self.url}>"

    def _repr_html_(self) -> str:
        url, title = html.escape(self.url), html.escape(self._microscope.title)
        return (
            f'<p><a href="{url}" target="_blank" rel="noreferrer">{title}</a></p>'
            f'<iframe src="{url}" width="100%" height="760" style="border:0" title="regard"></iframe>'
        )


def live_view(
    recording: Recording,
    *,
    title: str | None = None,
    steps: range | None = None,
    port: int = 0,
    answers: Sequence[Answered] = (),
) -> LiveView:
    """A recording as a live view, which is not serving yet.

    Args:
        recording: what to look at; the steps of a generation become one text, its tokens marked.
        title: shown at the top; by default the recording's model.
        steps: which steps of a recording that holds several generations.
        port: where to listen on 127.0.0.1; 0 for one that is free.
        answers: what was asked of the recording besides, to be shown with it.

    Raises:
        ArgumentError: the recording cannot be shown as one text, an answer does not fit it, or the port is
            taken.
        MissingExtraError: the packages of `regard[serve]` are not there.
    """
    text = over_text(recording, steps)
    keys = text.calls[0].weights.shape[-1] if text.calls and text.calls[0].weights is not None else 0
    tokens = recording.tokens if recording.tokens is not None else _positions(range(keys))
    model = recording.model or ""
    microscope = Microscope(
        text.calls,
        tokens,
        title=title or model or "A recording",
        model=model,
        generated=text.generated,
        answers=answers,
    )
    try:
        return LiveView(microscope, port)
    except ArgumentError:
        microscope.close()
        raise


def _positions(places: Iterable[int]) -> list[str]:
    """Names for tokens that nobody named."""
    return [f" {place}" for place in places]


def _listening(port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ArgumentError(f"`port` must be between 0 and 65535, got {port}")
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((_ADDRESS, port))
        found.listen(128)
    except OSError as error:
        found.close()
        raise ArgumentError(f"`port` {port} cannot be listened on: {error.strerror}") from None
    return found
