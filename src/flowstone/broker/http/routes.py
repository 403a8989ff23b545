"""The pages of the HTTP listener, on starlette's routes; the connections are `http_connections`'.

Importing this costs 0.1 s and 4 MB: see `http`. Of uvicorn only the protocol and its settings are used, not its
server, which would take over signals and wake up ten times a second.

`/health` and `/ready` are always answered. Of the other pages a few are made at once, and a further request for one is
refused with status 503.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from flowstone.broker.http.connections import KEEP_ALIVE_S, REQUEST_HEAD_BYTES_MAX, HttpConnection, State
from flowstone.broker.loop.time_slices import others_turn
from flowstone.broker.metrics.exposition import CONTENT_TYPE
from flowstone.ports.network import Acceptor, Socket

if TYPE_CHECKING:
    from flowstone.broker.http.access import HttpAccess
    from flowstone.broker.http.listener import Pages

BODY_BYTES_MAX = 16 * 1024
# Requests for pages other than health and readiness that are being answered; so many of those pages are made at once,
# and the others wait: a probe waits for the next step of a few pages at most, and not of all.
PAGES_MAX = 32
PAGES_AT_ONCE_MAX = 8
# What a stop grants to answers under way.
FINISH_TIMEOUT_S = 0.5

OK, BAD_REQUEST, TOO_LARGE, UNSUPPORTED_TYPE, UNAVAILABLE = 200, 400, 413, 415, 503
JSON_TYPE = "application/json"

Page = Callable[[Request], Coroutine[Any, Any, Response]]


class HttpServer:
    def __init__(self, pages: Pages, access: HttpAccess) -> None:
        self._state = State()
        self._config = uvicorn.Config(
            _AccessCheck(_build_app(pages, PageLimits(self._state)), access),
            http=HttpConnection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            h11_max_incomplete_event_size=REQUEST_HEAD_BYTES_MAX,
        )
        self._acceptor: Acceptor | None = None
        self._opening: set[asyncio.Task[Any]] = set()

    def open(self, sock: Socket) -> None:
        """Accepts connections, those included that wait already."""
        self._acceptor = Acceptor(asyncio.get_running_loop(), sock, self._accepted)
        self._acceptor.start()

    async def finish(self) -> None:
        """Accepts nothing more and lets answers under way be completed, for a moment at most."""
        self._close()
        for connection in self._state.open_connections():
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=FINISH_TIMEOUT_S)

    def kill(self) -> None:
        self._close()
        for connection in tuple(self._state.connections):
            connection.transport.abort()

    def _close(self) -> None:
        self._state.is_closed = True
        if self._acceptor is not None:
            self._acceptor.close()

    def _accepted(self, sock: Socket, _peer: str) -> None:
        sock.setblocking(False)
        connection = partial(HttpConnection, self._config, self._state, {})
        opening = asyncio.ensure_future(asyncio.get_running_loop().connect_accepted_socket(connection, sock))
        self._opening.add(opening)
        opening.add_done_callback(self._opened)

    def _opened(self, opening: asyncio.Task[Any]) -> None:
        self._opening.discard(opening)
        if not opening.cancelled():
            opening.exception()  # reset by the peer before its connection was made


class _AccessCheck:
    """Refuses requests that `HttpAccess` does not let in, before anything else is done with them."""

    def __init__(self, app: ASGIApp, access: HttpAccess) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._access.refusal(scope["method"], scope["headers"])
        app = self._app if refusal is None else _state(refusal.status, "refused", reason=refusal.reason)
        await app(scope, receive, send)


class PageLimits:
    """How many pages are made at once, and how many bytes of them are unsent."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._under_way = 0
        self._turns = asyncio.Semaphore(PAGES_AT_ONCE_MAX)

    async def respond(self, make: Callable[[], Awaitable[Response]]) -> Response:
        """Return what `make` makes, or a response with status 503 if too many are made or unsent."""
        if self._under_way >= PAGES_MAX:
            return _busy(f"{PAGES_MAX} requests for pages are being answered")
        self._under_way += 1
        try:
            async with self._turns:
                response = await make()
                await others_turn()
        finally:
            self._under_way -= 1
        if not self._state.make_room(len(response.body)):
            return _busy("too many answers wait to be read")
        return response


def _busy(reason: str) -> Response:
    return _state(UNAVAILABLE, "busy", reason=f"{reason}; ask again later")


def _build_app(pages: Pages, limits: PageLimits) -> Starlette:
    async def health(_: Request) -> Response:
        failure = pages.failure()
        if failure is None:
            return _state(OK, "ok")
        return _state(UNAVAILABLE, "failed", reason=failure)

    async def ready(_: Request) -> Response:
        return _state(OK, "ready") if pages.is_serving() else _state(UNAVAILABLE, "not ready")

    async def metrics(_: Request) -> Response:
        return Response(await pages.metrics(), media_type=CONTENT_TYPE)

    async def groups(request: Request) -> Response:
        return Response(await pages.groups(request.query_params.get("group")), media_type=JSON_TYPE)

    async def disks(request: Request) -> Response:
        return Response(await pages.disks(request.query_params.get("topic")), media_type=JSON_TYPE)

    async def explain(request: Request) -> Response:
        status, document = await pages.explain(request.query_params)
        return Response(document, status, media_type=JSON_TYPE)

    posting = {"/branch": pages.branch, "/restore": pages.restore}
    reading = {"/metrics": metrics, "/groups": groups, "/disks": disks, "/explain": explain}
    return Starlette(
        routes=[
            Route("/health", health),
            Route("/ready", ready),
            *(Route(path, _limited(page, limits)) for path, page in reading.items()),
            *(Route(path, _posted(page, limits), methods=["POST"]) for path, page in posting.items()),
        ]
    )


def _limited(page: Page, limits: PageLimits) -> Page:
    """A page of which only so many are made at once."""

    async def answer(request: Request) -> Response:
        return await limits.respond(partial(page, request))

    return answer


def _posted(page: Callable[[bytes], Awaitable[tuple[int, bytes]]], limits: PageLimits) -> Page:
    """A page that is given JSON and answers with it."""

    async def make(body: bytes) -> Response:
        status, document = await page(body)
        return Response(document, status, media_type=JSON_TYPE)

    async def answer(request: Request) -> Response:
        # Other sites' pages may have a browser post forms and text here, but not JSON.
        if request.headers.get("content-type", "").partition(";")[0].strip() != JSON_TYPE:
            return _state(UNSUPPORTED_TYPE, "refused", reason=f"the body must be {JSON_TYPE}")
        try:
            body = await _read_body(request)
        except ClientDisconnect:  # nobody is left to hear the answer
            return Response(status_code=BAD_REQUEST)
        if body is None:
            return _state(TOO_LARGE, "refused", reason=f"the body has more than {BODY_BYTES_MAX} bytes")
        return await limits.respond(partial(make, body))

    return answer


async def _read_body(request: Request) -> bytes | None:
    """None if it is too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            return None
    return body


def _state(code: int, status: str, **more: str) -> Response:
    return JSONResponse({"status": status, **more}, code)
