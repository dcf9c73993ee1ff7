"""The live view's server: what it answers, whom it refuses, and that a request is never more than numbers."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from recordings import generation
from regard.errors import ArgumentError
from regard.recording import Recording
from regard.viewer.server.cache import Cache
from regard.viewer.server.running import LiveView, live_view
from viewer.live import ask, header_of, served
from viewer.views import HOSTILE, call, dense

TOKENS = [f" w{i}" for i in range(12)]


@pytest.fixture(scope="module")
def view() -> Iterator[LiveView]:
    with served([call(heads=3), call(heads=2, module="model.1.attention")], TOKENS) as view:
        yield view


def test_it_answers_with_the_page_and_with_exact_numbers() -> None:
    one = call(heads=2)
    with served([one], TOKENS) as view:
        status, page = ask(view)
        assert status == 200
        assert page.startswith(b"<!doctype html>")
        assert header_of(view)["tokens"] == TOKENS
        status, tile = ask(view, "tile/0/1/1/1/0/0")
        assert status == 200
        cells = torch.frombuffer(bytearray(tile), dtype=torch.float32).view(12, 12)
        assert (cells.clamp(min=0) - dense(one)[1]).abs().max() < 1e-6
        assert (cells[0, 1:] == -1).all()


def test_it_listens_on_loopback_alone(view: LiveView) -> None:
    assert view._socket.getsockname()[0] == "127.0.0.1"
    outside = socket.socket()
    outside.bind(("127.0.0.2", 0))  # another address of this machine: nobody listens there
    with pytest.raises(OSError, match="refused"):
        outside.connect(("127.0.0.2", view.port))
    outside.close()


def test_every_view_has_a_token_of_its_own(view: LiveView) -> None:
    with served([call()], TOKENS) as other:
        tokens = [one.url.split("/")[3] for one in (view, other)]
    assert tokens[0] != tokens[1]
    assert all(len(token) >= 24 for token in tokens)


@pytest.mark.parametrize(
    "path", ["/", "/header", "//header", "/wrong/header", "/%2e%2e/header", "/{token}", "/{token}x/", "*"]
)
def test_without_the_token_there_is_nothing(view: LiveView, path: str) -> None:
    status, said = ask(view, whole=path.replace("{token}", view.url.split("/")[3]))
    assert status in (400, 404)
    assert b"w3" not in said


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}", ""],
)
def test_a_name_that_was_pointed_here_is_refused(view: LiveView, host: str) -> None:
    status, said = ask(view, "header", host=host.format(port=view.port))
    assert status in (400, 421)
    assert b"tokens" not in said


def test_localhost_is_this_machine_too(view: LiveView) -> None:
    assert ask(view, "header", host=f"localhost:{view.port}")[0] == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "https://127.0.0.1:{port}",
        "http://localhost:{port}",
        "http://127.0.0.1:1",
    ],
)
def test_another_origin_is_refused(view: LiveView, origin: str) -> None:
    status, said = ask(view, "header", origin=origin.format(port=view.port))
    assert status == 403
    assert b"tokens" not in said
    assert ask(view, "header", origin=f"http://127.0.0.1:{view.port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_nothing_can_be_written(view: LiveView, method: str) -> None:
    assert ask(view, "header", method=method)[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd",
        "%2e%2e/%2e%2e/etc/passwd",
        "mask/../header/..",
        "mask/0/../../../etc/passwd",
        "page.html",
        "assets/page.html",
        "js/main.js",
        "mask/0%00",
        "mask/-1",
        "mask/zero",
        "mask/99",
        "summary/2",
        "summary/99999999999999999999",
        "profiles/0/3",
        "tile/0/0/3/1/0/0",
        "tile/0/0/0/1/0/0",
        "tile/0/0/1/1/9/0",
        "tile/0/0/1/99999999999999999999/0/0",
        "tile/0/0/1/1/99999999999999999999/0",
        "row/0/0/12",
        "column/0/0/12",
        "row/0/0/1.5",
        "lesson/0/0/12",
        "lesson/0/3/0",
        "nothing",
    ],
)
def test_what_does_not_exist_is_said_in_a_sentence(view: LiveView, path: str) -> None:
    status, said = ask(view, path)
    assert status in (400, 404)
    assert len(said) < 120
    assert b"Traceback" not in said
    assert b"root:" not in said


def test_answers_may_not_be_kept_framed_or_sniffed(view: LiveView) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", view.port)
    connection.request("GET", f"/{view.url.split('/')[3]}/")
    headers = connection.getresponse().headers
    connection.close()
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'self' http://127.0.0.1:* http://localhost:*" in policy
    assert "server" not in headers


def test_hostile_tokens_and_names_stay_text() -> None:
    title = "</title><script>window.harmed = 1</script>"
    with served([call(n_queries=len(HOSTILE))], HOSTILE, title=title) as view:
        page, header = ask(view)[1], ask(view, "header")[1]
        assert b"<script>window" not in page
        assert header_of(view)["tokens"] == HOSTILE
        assert header.isascii()
        assert "<script>" not in view._repr_html_()


def test_several_pages_may_ask_at_once(view: LiveView) -> None:
    found: list[bytes] = []
    paths = ["summary/0", "tile/0/1/1/1/0/0", "thumbnails/1"] * 8
    threads = [threading.Thread(target=lambda path=path: found.append(ask(view, path)[1])) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 3


def test_a_generation_is_one_text_whose_new_tokens_are_marked() -> None:
    recording, together = generation(steps=4, prompt=7)
    with served(list(recording), None) as view:
        header = header_of(view)
        assert (header["generated"], header["queries"], header["keys"], len(header["calls"])) == (
            7,
            11,
            11,
            1,
        )
        row = torch.frombuffer(bytearray(ask(view, "row/0/2/9")[1]), dtype=torch.float32)[:11]
    assert (row.clamp(min=0) - together[0, 2, 9]).abs().max() < 1e-6
    again = [replace(one, step=one.step + 5) for one in recording]
    with pytest.raises(ArgumentError, match="do not continue one another"):
        live_view(Recording([*recording, *again]))
    with served([*recording, *again], None, steps=range(5)) as view:
        assert header_of(view)["keys"] == 11


def test_a_port_that_is_taken_is_said_in_a_sentence(view: LiveView) -> None:
    with pytest.raises(
        ArgumentError, match=f"`port` {view.port} cannot be listened on: Address already in use"
    ):
        live_view(Recording([call()], tokens=TOKENS), port=view.port)


def test_a_recording_shows_itself_in_a_notebook() -> None:
    view = Recording([call()], tokens=TOKENS).view(title="Look & see")
    assert f'<iframe src="{view.url}"' in view._repr_html_()
    assert "Look &amp; see" in view._repr_html_()
    assert ask(view, "pulse")[0] == 204
    view.close()
    with pytest.raises(OSError, match="refused"):
        ask(view, "pulse")


def test_the_cache_stays_within_its_bytes() -> None:
    cache = Cache(100)
    for name in "abc":
        cache.put(name, name, 40)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (None, "b", "c")
    cache.get("b")
    cache.put("d", "d", 40)
    assert (cache.get("b"), cache.get("c")) == ("b", None)
    cache.put("huge", "huge", 101)
    assert cache.get("huge") is None
    assert cache.n_bytes == 80
