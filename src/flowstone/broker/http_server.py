"""The pages and the connections of the HTTP listener, on uvicorn's protocol and starlette's routes.

Importing this costs 0.1 s and 4 MB: see `http`. Of uvicorn only the protocol and its settings are used, not its
server, which would take over signals and wake up ten times a second.

Every connection has a deadline for its next answer to be complete, which bounds slow headers, endless bodies and idle
peers alike. Timers are the event loop's own and not the clock port's: moving a virtual clock is no reason to hang up.
What peers send that is not HTTP is told once a while, however many they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from flowstone.broker.exposition import CONTENT_TYPE

if TYPE_CHECKING:
    from flowstone.broker.http import Pages
    from flowstone.ports.network import Socket

CONNECTIONS_MAX = 64
REQUEST_HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 16 * 1024
# From a connection's beginning, or its last answer, to the end of the next answer.
ANSWER_TIMEOUT_S = 30.0
KEEP_ALIVE_S = 20
# What a stop grants to answers under way.
FINISH_TIMEOUT_S = 0.5

# Warnings are about peers, who may be many; the first is told, then how many more there were.
WARNING_INTERVAL_S = 60.0

OK, TOO_LARGE, UNSUPPORTED_TYPE, UNAVAILABLE = 200, 413, 415, 503
JSON_TYPE = "application/json"


class HttpServer:
    def __init__(self, pages: Pages) -> None:
        self._config = uvicorn.Config(
            _build_app(pages),
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
        self._state = State()
        self._server: asyncio.Server | None = None

    async def open(self, sock: Socket) -> None:
        """Accepts connections, those included that wait already."""
        connection = partial(HttpConnection, self._config, self._state, {})
        self._server = await asyncio.get_running_loop().create_server(connection, sock=sock)

    async def finish(self) -> None:
        """Accepts nothing more and lets answers under way be completed, for a moment at most."""
        self._close()
        for connection in tuple(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=FINISH_TIMEOUT_S)

    def kill(self) -> None:
        self._close()
        for connection in tuple(self._state.connections):
            connection.transport.abort()

    def _close(self) -> None:
        self._state.is_closed = True
        if self._server is not None:
            self._server.close()


class SparingFilter(logging.Filter):
    """Lets one warning through per interval; errors are ours and always pass."""

    def __init__(self) -> None:
        super().__init__()
        self._quiet_until = 0.0
        self._kept_back = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        if record.created < self._quiet_until:
            self._kept_back += 1
            return False
        if self._kept_back:
            record.msg = f"{record.msg} ({self._kept_back} more like this since the last line)"
        self._quiet_until, self._kept_back = record.created + WARNING_INTERVAL_S, 0
        return True


class State(ServerState):
    """What the connections share."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False  # one accepted just before may be made known only after it
        self.logger = logging.getLogger(__name__).getChild("connections")
        self.logger.filters[:] = [SparingFilter()]


class HttpConnection(H11Protocol):
    """uvicorn's connection with the limits it lacks."""

    def __init__(self, config: uvicorn.Config, state: State, app_state: dict[str, Any]) -> None:
        super().__init__(config, state, app_state)
        self._state = state
        self.logger = state.logger
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        is_refused = self._state.is_closed or len(self.connections) >= CONNECTIONS_MAX
        super().connection_made(transport)
        if is_refused:
            transport.abort()
        else:
            self._expect_answer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()

    def on_response_complete(self) -> None:
        self._expect_answer()
        super().on_response_complete()

    def _expect_answer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(ANSWER_TIMEOUT_S, self.transport.abort)


def _build_app(pages: Pages) -> Starlette:
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

    routes = {
        "/health": health,
        "/ready": ready,
        "/metrics": metrics,
        "/groups": groups,
        "/disks": disks,
        "/explain": explain,
    }
    reading = [Route(path, page) for path, page in routes.items()]
    return Starlette(
        routes=[*reading, *(Route(path, _posted(page), methods=["POST"]) for path, page in posting.items())]
    )


def _posted(page: Callable[[bytes], Awaitable[tuple[int, bytes]]]) -> Callable[[Request], Awaitable[Response]]:
    """A page that is given JSON and answers with it."""

    async def answer(request: Request) -> Response:
        # Other sites' pages may have a browser post forms and text here, but not JSON.
        if request.headers.get("content-type", "").partition(";")[0].strip() != JSON_TYPE:
            return _state(UNSUPPORTED_TYPE, "refused", reason=f"the body must be {JSON_TYPE}")
        body = await _read_body(request)
        if body is None:
            return _state(TOO_LARGE, "refused", reason=f"the body has more than {BODY_BYTES_MAX} bytes")
        status, document = await page(body)
        return Response(document, status, media_type=JSON_TYPE)

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
