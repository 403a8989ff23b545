"""Responses that stream: server-sent events, with a heartbeat and limits on streams and buffered bytes.

A stream writes its next chunk once the client has read the last one. Events that are published meanwhile are buffered.
If the buffer is full, it is replaced by one event `reset`: events were lost, and the client has to read the state
again. A stream ends when the client goes away, when the broker stops (with an event `end`), or when the connection is
closed because the client stalls (`connections`).

Invariant: while a stream's response is under way, and only then, the stream counts towards `STREAMS_MAX` and is
subscribed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from starlette.types import Receive, Scope, Send

from flowstone.broker.http.page import EVENT_STREAM_TYPE, OK, Publish, encode_event

# Streams of one broker; further ones are refused with status 503.
STREAMS_MAX = 64
# Encoded events of one stream that the client has not read yet.
BUFFERED_BYTES_MAX = 256 * 1024
# Well below the time after which `connections`, or a proxy, closes a silent connection.
HEARTBEAT_S = 10.0
HEARTBEAT = b": heartbeat\n\n"
RESET, END = "reset", "end"


class EventBuffer:
    """The events of one stream that wait to be written."""

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._buffered_bytes = 0
        self._is_ended = False
        self._has_something = asyncio.Event()

    def publish(self, encoded: bytes) -> None:
        """Append an event. If the buffer is full, replace its contents by one event `reset`."""
        if self._is_ended:
            return
        if self._buffered_bytes + len(encoded) > BUFFERED_BYTES_MAX:
            self._clear()
            encoded = encode_event(RESET, {"reason": "events were lost because the client is too slow"})
        self._append(encoded)

    def end(self, reason: str) -> None:
        """Append a last event `end`; nothing can be published afterwards."""
        if not self._is_ended:
            self._append(encode_event(END, {"reason": reason}))
            self._is_ended = True

    async def take(self) -> bytes | None:
        """Return all buffered events, a heartbeat if there were none for `HEARTBEAT_S`, or None after the last one."""
        if self._is_ended and not self._events:
            return None
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARTBEAT_S):
                await self._has_something.wait()
        taken = b"".join(self._events) or HEARTBEAT
        self._clear()
        return taken

    def _append(self, encoded: bytes) -> None:
        self._events.append(encoded)
        self._buffered_bytes += len(encoded)
        self._has_something.set()

    def _clear(self) -> None:
        self._events.clear()
        self._buffered_bytes = 0
        self._has_something.clear()


class EventStreams:
    """All streams of one broker."""

    def __init__(self) -> None:
        self._open: set[EventBuffer] = set()
        self._is_stopping = False

    @property
    def count(self) -> int:
        return len(self._open)

    def open(self, subscribe: Callable[[Publish], AbstractContextManager[None]]) -> EventResponse | None:
        """Return a response that streams the published events, or None if there are too many streams."""
        if len(self._open) >= STREAMS_MAX or self._is_stopping:
            return None
        buffer = EventBuffer()
        self._open.add(buffer)
        return EventResponse(buffer, subscribe, lambda: self._open.discard(buffer))

    def stop(self, reason: str) -> None:
        """End every stream, and refuse new ones."""
        self._is_stopping = True
        for buffer in self._open:
            buffer.end(reason)


class EventResponse:
    """The response of one stream, as an ASGI application; to be called once."""

    def __init__(
        self,
        buffer: EventBuffer,
        subscribe: Callable[[Publish], AbstractContextManager[None]],
        on_end: Callable[[], None],
    ) -> None:
        self._buffer, self._subscribe, self._on_end = buffer, subscribe, on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.ensure_future(self._write(send))
        leaving = asyncio.ensure_future(_until_disconnected(receive))
        try:
            with self._subscribe(self._buffer.publish):
                await asyncio.wait((writing, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._on_end()
            leaving.cancel()
            writing.cancel()
            await asyncio.wait((writing, leaving))
        if not writing.cancelled():
            writing.result()

    async def _write(self, send: Send) -> None:
        headers = [(b"content-type", EVENT_STREAM_TYPE.encode()), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": OK, "headers": headers})
        while (chunk := await self._buffer.take()) is not None:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
