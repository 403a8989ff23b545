"""The routes of the HTTP listener, made from the declarations of its pages. Its connections are in `connections`.

Importing this module costs 0.1 s and 4 MB: see `listener`. Only uvicorn's protocol and settings are used, not its
server, which would take over signals and wake up ten times a second.

Probes are always answered. Of the other pages a few are made at once, and a further request for one is refused with
status 503. Streams have limits of their own (`event_streams`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from flowstone.broker.http.callers import LISTENER_NAME, NOBODY, Caller
from flowstone.broker.http.connections import KEEP_ALIVE_S, REQUEST_HEAD_BYTES_MAX, HttpConnection, State
from flowstone.broker.http.event_streams import STREAMS_MAX, EventStreams
from flowstone.broker.http.page import ACCEPTED, GET, JSON_TYPE, OK, Answer, Page, PageRequest, Site
from flowstone.broker.http.pages.json_documents import BAD_REQUEST, PAGE_ERRORS, error_answer
from flowstone.broker.loop.time_slices import yield_to_loop
from flowstone.broker.requests.audit import LOGIN_FAILED
from flowstone.broker.requests.session import ANONYMOUS
from flowstone.ports.network import Acceptor, Socket

if TYPE_CHECKING:
    from flowstone.broker.http.access import HttpAccess
    from flowstone.broker.http.tokens import HttpTokens
    from flowstone.ports.tls_contexts import FollowedContext

BODY_BYTES_MAX = 16 * 1024
# Requests for pages other than health and readiness that are answered at the same time. Only PAGES_AT_ONCE of them run;
# the others wait, so that a probe waits for the next step of a few pages at most.
PAGES_MAX = 32
PAGES_AT_ONCE_MAX = 8
# The time that a stop leaves for answers under way.
FINISH_TIMEOUT_S = 0.5

# The key of a request's ASGI scope under which a login puts its `Principal`.
PRINCIPAL = "flowstone.principal"
UNAUTHORIZED, TOO_LARGE, UNSUPPORTED_TYPE, UNAVAILABLE = 401, 413, 415, 503
HANDSHAKE_TIMEOUT_S = 5.0
# Connections in a TLS handshake. Beyond it one is dropped for each new one, which may be a health probe.
HANDSHAKES_MAX = 512


class HttpServer:
    def __init__(
        self,
        site: Site,
        access: HttpAccess,
        tokens: HttpTokens | None = None,
        context: FollowedContext | None = None,
    ) -> None:
        """Create the server; with `tokens` pages need one, and with `context` connections are encrypted."""
        self._state, self._context = State(), context
        probes = frozenset(page.path for page in site.pages if page.is_probe)
        self._streams = EventStreams()
        self._config = uvicorn.Config(
            _AccessCheck(
                _Routes(site, PageLimits(self._state), self._streams).app(), access, tokens, probes, site.audit
            ),
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
        # Connections whose TLS handshake is not complete, in order, with the address of each.
        self._opening: dict[asyncio.Task[Any], str] = {}

    def open(self, sock: Socket) -> None:
        """Accept connections on a bound socket, those included that are already waiting."""
        self._acceptor = Acceptor(asyncio.get_running_loop(), sock, self._accepted)
        self._acceptor.start()

    async def finish(self) -> None:
        """Accept no more connections, and let answers under way be completed, for a short time."""
        self._close()
        for connection in self._state.open_connections():
            connection.shutdown()
        self._streams.stop("the broker stops")
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

    def _accepted(self, sock: Socket, peer: str) -> None:
        sock.setblocking(False)
        if len(self._opening) >= HANDSHAKES_MAX:
            self._drop_handshake()
        connection = partial(HttpConnection, self._config, self._state, {})
        context = None
        if self._context is not None:
            self._context.refresh()
            context = self._context.current
        timeout_s = HANDSHAKE_TIMEOUT_S if context is not None else None
        accepting = asyncio.get_running_loop().connect_accepted_socket(
            connection, sock, ssl=context, ssl_handshake_timeout=timeout_s
        )
        opening = asyncio.ensure_future(accepting)
        self._opening[opening] = peer.rpartition(":")[0]
        opening.add_done_callback(partial(self._opened, sock))

    def _drop_handshake(self) -> None:
        """Close the oldest connection in a handshake, of the address with the most."""
        counts = Counter(self._opening.values())
        dropped = max(self._opening, key=lambda each: counts[self._opening[each]])
        del self._opening[dropped]
        dropped.cancel()

    def _opened(self, sock: Socket, opening: asyncio.Task[Any]) -> None:
        self._opening.pop(opening, None)
        if opening.cancelled():
            sock.close()
        else:
            opening.exception()  # reset by the peer before its connection was made


class _AccessCheck:
    """Middleware that refuses requests that `HttpAccess` does not allow, or without a token, before they are routed."""

    def __init__(
        self,
        app: ASGIApp,
        access: HttpAccess,
        tokens: HttpTokens | None,
        open_paths: Collection[str],
        audit: Callable[..., None] | None = None,
    ) -> None:
        self._app, self._access, self._tokens, self._open_paths = app, access, tokens, open_paths
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._access.refusal(scope["method"], scope["headers"])
        app = self._app if refusal is None else _state(refusal.status, "refused", reason=refusal.reason)
        if refusal is None and self._tokens is not None and scope["path"] not in self._open_paths:
            principal = self._tokens.principal(scope["headers"])
            if principal is None:
                self._note_refused(scope)
                reason = "this page needs a token: send Authorization: Bearer TOKEN, with one of http.tokens.file"
                response = _state(UNAUTHORIZED, "refused", reason=reason)
                response.headers["www-authenticate"] = "Bearer"
                app = response
            else:
                scope[PRINCIPAL] = principal
        await app(scope, receive, send)

    def _note_refused(self, scope: Scope) -> None:
        if self._audit is not None:
            host = scope["client"][0] if scope.get("client") else ""
            has_token = any(name == b"authorization" for name, _ in scope["headers"])
            fields = {"host": host, "listener": LISTENER_NAME, "mechanism": "token", "page": scope["path"]}
            self._audit(LOGIN_FAILED, **fields, reason="the token is wrong" if has_token else "there is no token")


class PageLimits:
    """Limits on the pages that are made at once, and on their unsent bytes."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._under_way = 0
        self._slots = asyncio.Semaphore(PAGES_AT_ONCE_MAX)

    async def respond(self, page: Page, make: Callable[[], Awaitable[Answer]]) -> Response:
        """Return the answer that `make` makes, or a response with status 503 if too many are made or unsent."""
        if self._under_way >= PAGES_MAX:
            return _busy(f"{PAGES_MAX} requests for pages are being answered")
        self._under_way += 1
        try:
            async with self._slots:
                response = _response(page, await make())
                await yield_to_loop()
        finally:
            self._under_way -= 1
        if not self._state.reserve(len(response.body)):
            return _busy("too many answers wait to be read")
        return response


def _busy(reason: str) -> Response:
    return _state(UNAVAILABLE, "busy", reason=f"{reason}; ask again later")


class _Routes:
    """The endpoints of a site's pages: each checks a request against the page's declaration and calls its handler."""

    def __init__(self, site: Site, limits: PageLimits, streams: EventStreams) -> None:
        self._context, self._access, self._limits, self._streams = site.context, site.access, limits, streams
        self._by_path: dict[str, dict[str, Page]] = {}
        for page in site.pages:
            self._by_path.setdefault(page.path, {})[page.method] = page

    def app(self) -> Starlette:
        return Starlette(
            routes=[Route(path, self._endpoint(pages), methods=list(pages)) for path, pages in self._by_path.items()],
            exception_handlers={HTTPException: _refuse},
        )

    def _endpoint(self, pages: Mapping[str, Page]) -> Callable[[Request], Awaitable[ASGIApp]]:
        async def answer(request: Request) -> ASGIApp:
            # HEAD is answered as GET, without the body.
            page = pages[GET if request.method == "HEAD" else request.method]
            try:
                return await self._answer(page, request)
            except PAGE_ERRORS as error:
                return _response(page, error_answer(error))

        return answer

    async def _answer(self, page: Page, request: Request) -> ASGIApp:
        caller = self._caller(request)
        parameters = page.parse(request.query_params)
        caller.require_all(page.permissions, parameters, checks_names=page.checks_names)
        if page.subscribe is not None:
            return self._stream(page, request, PageRequest(parameters, caller=caller))
        if page.method == GET:
            return await self._make(page, PageRequest(parameters, caller=caller))
        # A page of another site can make a browser post forms and text here, but not JSON.
        if request.headers.get("content-type", "").partition(";")[0].strip() != JSON_TYPE:
            return _state(UNSUPPORTED_TYPE, "refused", reason=f"the body must be {JSON_TYPE}")
        try:
            body = await _read_body(request)
        except ClientDisconnect:  # the client is gone, so no answer is needed
            return Response(status_code=BAD_REQUEST)
        if body is None:
            return _state(TOO_LARGE, "refused", reason=f"the body has more than {BODY_BYTES_MAX} bytes")
        return await self._make(page, PageRequest(parameters, body, caller))

    def _caller(self, request: Request) -> Caller:
        if self._access is None:
            return NOBODY
        return Caller(
            self._access, request.client.host if request.client else "", request.scope.get(PRINCIPAL, ANONYMOUS)
        )

    async def _make(self, page: Page, asked: PageRequest) -> Response:
        assert page.handler is not None
        make = partial(page.handler, self._context, asked)
        if page.is_probe:
            return _response(page, await make())
        return await self._limits.respond(page, make)

    def _stream(self, page: Page, request: Request, asked: PageRequest) -> ASGIApp:
        assert page.subscribe is not None
        if request.method == "HEAD":
            return Response(media_type=page.content_type)
        response = self._streams.open(partial(page.subscribe, self._context, asked))
        return response or _busy(f"{STREAMS_MAX} streams are open")


async def _refuse(request: Request, error: Exception) -> Response:
    """Return the response to an unknown page or method, or to another request that the library refuses."""
    assert isinstance(error, HTTPException)
    reason = f"there is no page {request.method} {request.url.path}"
    return _state(error.status_code, "refused", headers=error.headers, reason=reason)


def _response(page: Page, answer: Answer) -> Response:
    media_type = page.content_type if answer.status in (OK, ACCEPTED) else JSON_TYPE
    return Response(answer.body, answer.status, media_type=media_type)


async def _read_body(request: Request) -> bytes | None:
    """Return the body of the request, or None if it is larger than `BODY_BYTES_MAX`."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            return None
    return body


def _state(code: int, status: str, *, headers: Mapping[str, str] | None = None, **more: str) -> Response:
    return JSONResponse({"status": status, **more}, code, headers)
