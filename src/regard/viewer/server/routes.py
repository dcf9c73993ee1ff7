"""The addresses of a live view: which question each asks, and what is answered to one that makes no sense."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from regard.errors import RegardError
from regard.viewer.page import live_page
from regard.viewer.server.microscope import Microscope
from regard.viewer.server.tiles import Grid

T = TypeVar("T")

_LARGEST_CELL = 1 << 40


def application(microscope: Microscope) -> Starlette:
    """The application. Nothing in a request is more than a number, and none is a path."""
    page, policy = live_page(microscope.title)
    # ASCII throughout: a lone surrogate (half a character, from a byte-level tokenizer) stays an escape.
    header = json.dumps(microscope.header(), allow_nan=False).encode("ascii")

    async def show(request: Request) -> Response:
        return Response(page, headers={"content-security-policy": policy}, media_type="text/html")

    async def tell_header(request: Request) -> Response:
        return Response(header, media_type="application/json")

    async def tell_pulse(request: Request) -> Response:
        return Response(status_code=204)

    async def tell_mask(request: Request) -> Response:
        blob = microscope.mask(request.path_params["mask"])
        return _binary(blob) if blob is not None else _nothing("mask", "number of a mask")

    async def tell_summary(request: Request) -> Response:
        layer, chosen = _layer(request, microscope), _switched(request, "chosen")
        found = await _while_wanted(request, microscope.summary(layer, chosen))
        return Response(json.dumps(found, allow_nan=False), media_type="application/json")

    async def tell_thumbnails(request: Request) -> Response:
        layer, chosen = _layer(request, microscope), _switched(request, "chosen")
        return _binary(await _while_wanted(request, microscope.thumbnails(layer, chosen)))

    async def tell_profiles(request: Request) -> Response:
        return _binary(await _while_wanted(request, microscope.profiles(*_head(request, microscope))))

    async def tell_row(request: Request) -> Response:
        query = _number(request, "query", microscope.n_queries)
        asked = microscope.row(*_head(request, microscope), query, _switched(request, "aside"))
        return _binary(await _while_wanted(request, asked))

    async def tell_column(request: Request) -> Response:
        key = _number(request, "key", microscope.n_keys)
        asked = microscope.column(*_head(request, microscope), key, _switched(request, "aside"))
        return _binary(await _while_wanted(request, asked))

    async def tell_lesson(request: Request) -> Response:
        query = _number(request, "query", microscope.n_queries)
        found = await _while_wanted(request, microscope.lesson(*_head(request, microscope), query))
        return Response(found, media_type="application/json")

    async def tell_tile(request: Request) -> Response:
        which = _head(request, microscope)
        height, width = (_cell(request, name) for name in ("height", "width"))
        grid = Grid(microscope.n_queries, microscope.n_keys, height, width)
        place = grid.tile(request.path_params["row"], request.path_params["column"])
        if place is None:
            return _nothing("tile", "place on the map")
        asked = microscope.tile(*which, grid, *place, _switched(request, "aside"))
        cells = await _while_wanted(request, asked)
        return Response(status_code=204) if cells is None else _binary(cells)

    routes: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/": show,
        "/header": tell_header,
        "/pulse": tell_pulse,
        "/mask/{mask:int}": tell_mask,
        "/summary/{layer:int}": tell_summary,
        "/thumbnails/{layer:int}": tell_thumbnails,
        "/profiles/{layer:int}/{head:int}": tell_profiles,
        "/row/{layer:int}/{head:int}/{query:int}": tell_row,
        "/column/{layer:int}/{head:int}/{key:int}": tell_column,
        "/lesson/{layer:int}/{head:int}/{query:int}": tell_lesson,
        "/tile/{layer:int}/{head:int}/{height:int}/{width:int}/{row:int}/{column:int}": tell_tile,
    }
    return Starlette(
        routes=[Route(path, answer) for path, answer in routes.items()],
        exception_handlers={HTTPException: _said, RegardError: _failed},
    )


async def _while_wanted(request: Request, asked: Awaitable[T]) -> T:
    """The answer; given up when the page has gone or has moved on, which closes its request."""
    answer = asyncio.ensure_future(asked)
    gone = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise HTTPException(499, "Nobody waits for the answer any more.")
        return answer.result()
    finally:
        for task in (answer, gone):
            task.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _layer(request: Request, microscope: Microscope) -> int:
    return _number(request, "layer", len(microscope.calls))


def _head(request: Request, microscope: Microscope) -> tuple[int, int]:
    layer = _layer(request, microscope)
    return layer, _number(request, "head", microscope.calls[layer].heads)


def _number(request: Request, name: str, count: int) -> int:
    number: int = request.path_params[name]
    if number >= count:
        raise HTTPException(404, f"There is no {name} {number}: there are {count}, counted from 0.")
    return number


def _cell(request: Request, name: str) -> int:
    size: int = request.path_params[name]
    if size < 1 or size > _LARGEST_CELL or size & (size - 1):
        raise HTTPException(400, f"The {name} of a cell must be a power of two, got {size}.")
    return size


def _switched(request: Request, name: str) -> bool:
    return request.query_params.get(name) == "1"


def _binary(content: bytes) -> Response:
    return Response(content, media_type="application/octet-stream")


def _nothing(what: str, asked: str) -> Response:
    return PlainTextResponse(f"There is no {what} here: the {asked} is out of range.\n", 404)


def _said(request: Request, error: Any) -> Response:
    return PlainTextResponse(f"{error.detail}\n", error.status_code)


def _failed(request: Request, error: Any) -> Response:
    return PlainTextResponse(f"{error}\n", 500)
