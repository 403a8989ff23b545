"""From a request's bytes to its handler, and from the handler's response to bytes.

The only catch-all: a malformed request closes its connection (`ProtocolError`); any other failure is logged with its
traceback and answered with UNKNOWN_SERVER_ERROR, for the request or for each part of it.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from types import CoroutineType
from typing import Any, NamedTuple, cast

from flowstone.broker.authorization.guards import guarded
from flowstone.broker.authorization.table import guard_of
from flowstone.broker.dispatch.deferred import Answer, Deferred, Outcome
from flowstone.broker.dispatch.large_requests import LARGE_REQUEST_BYTES, LargeAnswer, UnderWay
from flowstone.broker.dispatch.registry import ENDPOINTS
from flowstone.broker.dispatch.request_quotas import count_request, count_time
from flowstone.broker.dispatch.throttle_times import has_throttle_time, with_throttle_time
from flowstone.broker.loop.loop_time import Stretches, start_measured
from flowstone.broker.loop.time_slices import TimeSlices, run_in_slices
from flowstone.broker.requests.broker_metrics import RequestMetrics
from flowstone.broker.requests.chunks import Chunk
from flowstone.broker.requests.context import Handler, RequestContext, Services
from flowstone.broker.requests.encoded_response import EncodedResponse
from flowstone.broker.requests.error_responses import error_response, error_response_in_slices
from flowstone.broker.requests.long_responses import encode_in_slices
from flowstone.broker.requests.session import ClientSession
from flowstone.errors import ApiError, ErrorCode, ProtocolError, StorageFault
from flowstone.promise import Promise
from flowstone.wire.apis import API_VERSIONS_KEY, APIS
from flowstone.wire.codec import (
    Decoder,
    request_decoder,
    response_encoder,
    sliced_request_decoder,
)
from flowstone.wire.frames import parse_request_header
from flowstone.wire.message import Message

logger = logging.getLogger(__name__)

# What stands before a response: its size and the correlation id, in a flexible version with no tags.
_HEAD = struct.Struct(">ii")
_FLEXIBLE_HEAD = struct.Struct(">iix")
_SIZE_BYTES = 4
PRODUCE_KEY, JOIN_GROUP_KEY, SYNC_GROUP_KEY = 0, 11, 14
# A body may have megabytes, and a view of it keeps the whole receive buffer in memory. Of these requests only the kind
# is kept while they are parked: their handlers report errors themselves, so that only a bug would need their parts.
_EMPTY_REQUESTS = {key: APIS[key].request() for key in (PRODUCE_KEY, JOIN_GROUP_KEY, SYNC_GROUP_KEY)}
# The longest request but for Produce, whose records make it longer.
REQUEST_BYTES_MAX_BUT_PRODUCE = 8 << 20


class Route(NamedTuple):
    """One version of one API: its handlers, codec and metrics."""

    name: str
    handler: Handler
    decode: Decoder
    encode: Callable[[Message], list[Chunk]]
    response: type[Message]
    head: struct.Struct
    metrics: RequestMetrics
    # Handles requests above LARGE_REQUEST_BYTES.
    large_handler: Handler
    has_throttle_time: bool
    # Whether large requests and their responses are decoded and encoded in slices. Not ApiVersions: its versions that
    # are not served have no codecs, and its response, a short one, does not begin with the throttle time.
    can_slice: bool


class Dispatcher:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._monotonic: Callable[[], float] = services.clock.monotonic
        self._slow_request_s = services.config.slow_request_ms / 1000
        self._routes: dict[tuple[int, int], Route] = {}
        self._under_way = UnderWay()
        self._quotas = services.quotas

    def answer(self, frame: memoryview, session: ClientSession) -> Answer:
        """Handle one request of the session's connection. Raises ProtocolError if the connection must be closed."""
        key, version, correlation_id, session.client_id, body = parse_request_header(frame, 0)
        route = self._routes.get((key, version)) or self._find_route(key, version)
        frame_bytes = len(frame)
        # The same as its constructor, which takes three times as long.
        context = tuple.__new__(RequestContext, (key, version, correlation_id, session, None))
        if frame_bytes > LARGE_REQUEST_BYTES and key != PRODUCE_KEY:
            return self._answer_large(route, context, frame, body)
        request = route.decode(frame, body)
        metrics = route.metrics
        metrics.received += 1
        metrics.request_bytes += frame_bytes
        started = self._monotonic()
        try:
            response = route.handler(self._services, context, request)
        except ProtocolError:
            raise
        except Exception as error:
            return self._encode(route, context, started, self._failure(route, context, request, error))
        took_s = self._monotonic() - started
        metrics.loop_seconds += took_s
        if took_s > self._slow_request_s:
            metrics.slow += 1
            self._log_slow(route, context, took_s)
        if self._quotas.is_active:
            count_request(self._quotas, key, request, session, frame_bytes, took_s, started + took_s)
        if response is None:
            return None
        if isinstance(response, Message):
            return self._encode(route, context, started, response)
        if type(response) is CoroutineType:
            stretches = Stretches(self._monotonic)
            encode = partial(self._encode_measured, route, context, request, started, stretches)
            return Deferred(start_measured(response, stretches), encode)
        if isinstance(response, Promise):
            encode = partial(self._encode_later, route, context, _EMPTY_REQUESTS.get(key, request), started)
            return encode(response) if response.is_done else Deferred(response, encode)
        future = asyncio.ensure_future(response)
        encode = partial(self._encode_later, route, context, request, started)
        return encode(future) if future.done() else Deferred(future, encode)

    # Large requests

    def _answer_large(self, route: Route, context: RequestContext, frame: memoryview, body: int) -> Deferred:
        """Return the answer to a large request, which is decoded, handled and encoded in several time slices."""
        frame_bytes = len(frame)
        if frame_bytes > REQUEST_BYTES_MAX_BUT_PRODUCE:
            raise ProtocolError(f"{route.name} of {frame_bytes} bytes; the limit is {REQUEST_BYTES_MAX_BUT_PRODUCE}")
        route.metrics.received += 1
        route.metrics.request_bytes += frame_bytes
        answer, stretches = LargeAnswer(frame), Stretches(self._monotonic)
        serving = start_measured(self._serve_large(route, context, answer, body), stretches)
        serving.add_done_callback(partial(self._served_large, route, context, answer, stretches))
        return Deferred(answer, lambda outcome: cast(list[Chunk], outcome.result()))

    async def _serve_large(self, route: Route, context: RequestContext, answer: LargeAnswer, body: int) -> list[Chunk]:
        started, size_bytes = self._monotonic(), len(answer.frame)
        await self._under_way.enter(size_bytes)
        try:
            if answer.done():  # the connection is gone
                return []
            slices = TimeSlices(self._monotonic)
            if route.can_slice:
                decode = sliced_request_decoder(context.api_key, context.api_version)
                request = await run_in_slices(decode(answer.frame, body), slices)
            else:
                request = route.decode(answer.frame, body)
            answer.decoded()
            try:
                response = route.large_handler(self._services, context, request)
                if isinstance(response, Coroutine):
                    response = await response
                if isinstance(response, Promise):
                    if answer.done():  # the connection was closed while the coroutine ran
                        response.cancel()
                        return []
                    request = _EMPTY_REQUESTS.get(context.api_key, request)
                    self._under_way.leave(size_bytes)
                    size_bytes = 0
                    answer.park(response)
                if isinstance(response, Awaitable):
                    response = await response
            except ProtocolError:
                raise
            except Exception as error:
                code, told = self._told(route, context, error)
                making = error_response_in_slices(route.name, context.api_version, request, code, told)
                response = self._with_field(route, await run_in_slices(making, slices), error)
            if response is None:
                return []
            if route.can_slice and not isinstance(response, EncodedResponse):
                response = await encode_in_slices(context, route.metrics, response, slices)
            return self._encode(route, context, started, response)
        finally:
            answer.decoded()
            self._under_way.leave(size_bytes)

    def _served_large(
        self,
        route: Route,
        context: RequestContext,
        answer: LargeAnswer,
        stretches: Stretches,
        serving: asyncio.Task[list[Chunk]],
    ) -> None:
        self._count_stretches(route, context, stretches)
        if answer.done():  # the connection is gone
            if not serving.cancelled():
                serving.exception()
        elif serving.cancelled():
            answer.cancel()
        elif (error := serving.exception()) is None:
            answer.set_result(serving.result())
        elif isinstance(error, ProtocolError):
            answer.set_exception(error)
        else:
            logger.error("no response to %s %d can be encoded", route.name, context.api_version, exc_info=error)
            answer.set_exception(ProtocolError(f"the response to {route.name} cannot be encoded"))

    # Decoding, and what follows a request

    def _encode_measured(
        self,
        route: Route,
        context: RequestContext,
        request: Message,
        started: float,
        stretches: Stretches,
        outcome: Outcome,
    ) -> list[Chunk]:
        self._count_stretches(route, context, stretches)
        return self._encode_later(route, context, request, started, outcome)

    def _count_stretches(self, route: Route, context: RequestContext, stretches: Stretches) -> None:
        route.metrics.loop_seconds += stretches.total_s
        if stretches.longest_s > self._slow_request_s:
            route.metrics.slow += 1
            self._log_slow(route, context, stretches.longest_s)
        if self._quotas.is_active:
            count_time(self._quotas, context.api_key, context.session, stretches.total_s, self._monotonic())

    def _find_route(self, key: int, version: int) -> Route:
        endpoint = ENDPOINTS.get(key)
        if endpoint is None:
            raise ProtocolError(f"API {key} is not served")
        api = APIS[key]
        metrics = self._services.metrics.request(api.name)
        intercept = self._services.intercept
        handler, large_handler = endpoint.handler, endpoint.large_handler
        if self._services.access is not None:
            guard = guard_of(key, endpoint.permissions)
            handler, large_handler = guarded(guard, handler), guarded(guard, large_handler, is_large=True)
        if intercept is not None:
            handler, large_handler = intercept(api.name, handler), intercept(api.name, large_handler)
        if not endpoint.min_version <= version <= endpoint.max_version:
            if key != API_VERSIONS_KEY:
                raise ProtocolError(f"version {version} of {api.name} is not served")
            # ApiVersions in an unknown version is answered in version 0, with the versions that are served. The body of
            # an unknown version is not decoded.
            return Route(
                api.name,
                handler,
                lambda _frame, _position: api.request(),
                _encoder(key, 0),
                api.response,
                _HEAD,
                metrics,
                large_handler,
                has_throttle_time(api.name, 0),
                can_slice=False,
            )
        route = Route(
            api.name,
            handler,
            request_decoder(key, version),
            _encoder(key, version),
            api.response,
            _FLEXIBLE_HEAD if api.has_flexible_response_header(version) else _HEAD,
            metrics,
            large_handler,
            has_throttle_time(api.name, version),
            can_slice=key != API_VERSIONS_KEY,
        )
        self._routes[key, version] = route
        return route

    def _encode(self, route: Route, context: RequestContext, started: float, response: Message) -> list[Chunk]:
        chunks: list[Chunk]
        try:
            if context.session.muted_until_s and route.has_throttle_time:
                response = self._throttled(route, context, response)
            chunks = [*response.chunks] if isinstance(response, EncodedResponse) else route.encode(response)
        except Exception as error:
            logger.exception("the response to %s %d cannot be encoded", route.name, context.api_version)
            raise ProtocolError(f"the response to {route.name} cannot be encoded") from error
        head = route.head
        size_bytes = head.size - _SIZE_BYTES + sum(map(len, chunks))
        packed: Any = head.pack(size_bytes, context.correlation_id)
        chunks[:1] = [packed + chunks[0] if chunks else packed]
        route.metrics.answered(response, size_bytes, self._monotonic() - started)
        return chunks

    def _throttled(self, route: Route, context: RequestContext, response: Message) -> Message:
        """Return the response with the time for which the session is still muted."""
        throttle_ms = context.session.throttle_ms(self._monotonic())
        return with_throttle_time(response, route.name, context.api_version, throttle_ms) if throttle_ms else response

    def _encode_later(
        self, route: Route, context: RequestContext, request: Message, started: float, outcome: Outcome
    ) -> list[Chunk]:
        error = outcome.error if isinstance(outcome, Promise) else outcome.exception()
        if error is None:
            response = outcome.result()
            return [] if response is None else self._encode(route, context, started, response)
        if isinstance(error, ProtocolError | asyncio.CancelledError):
            raise error
        return self._encode(route, context, started, self._failure(route, context, request, error))

    def _failure(self, route: Route, context: RequestContext, request: Message, error: BaseException) -> Message:
        """Return the response to a request that failed. Raises ProtocolError if it has no field for an error."""
        code, message = self._told(route, context, error)
        return self._with_field(route, error_response(route.name, context.api_version, request, code, message), error)

    def _with_field(self, route: Route, response: Message | None, error: BaseException) -> Message:
        if response is None:
            raise ProtocolError(f"{route.name} failed: {error}")
        return response

    def _told(self, route: Route, context: RequestContext, error: BaseException) -> tuple[ErrorCode, str]:
        """Return the error code and message for the client, and log an unexpected error."""
        code, session = ErrorCode.UNKNOWN_SERVER_ERROR, context.session
        if isinstance(error, ApiError):
            code = error.code
        elif isinstance(error, StorageFault):
            code = ErrorCode.KAFKA_STORAGE_ERROR
            logger.error("%s from %s (%s) failed: %s", route.name, session.peer, session.client_id, error)
        else:
            logger.error(
                "%s %d from %s (%s) failed",
                route.name,
                context.api_version,
                session.peer,
                session.client_id,
                exc_info=error,
            )
        return code, error.message or "" if isinstance(error, ApiError) else ""

    def _log_slow(self, route: Route, context: RequestContext, took_s: float) -> None:
        logger.warning(
            "slow request: %s %d from %s (%s) occupied the event loop for %.0f ms",
            route.name,
            context.api_version,
            context.session.peer,
            context.session.client_id,
            took_s * 1000,
        )


def _encoder(key: int, version: int) -> Callable[[Message], list[Chunk]]:
    """Return the codec's encoder, typed for responses: values included by reference are sendable chunks."""
    return cast(Callable[[Message], list[Chunk]], response_encoder(key, version))
