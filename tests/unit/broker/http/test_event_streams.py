"""Streams of events over real connections: heartbeat, limits, ends, and clients that are slow, stalled or gone."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flowstone.broker.http import connections, event_streams
from flowstone.broker.http.access import HttpAccess
from flowstone.broker.http.event_streams import BUFFERED_BYTES_MAX, HEARTBEAT, EventBuffer
from flowstone.broker.http.listener import HttpListener
from flowstone.broker.http.page import EVENT_STREAM_TYPE, GET, Page, PageRequest, Publish, Site, encode_event
from tests.support.running_app import TIMEOUT_S, LoopThread, get
from tests.unit.broker.http.event_reader import reading_events


class Feed:
    """Publishes what a test says to all streams."""

    def __init__(self) -> None:
        self.subscribers: list[Publish] = []

    @contextmanager
    def subscribe(self, _: PageRequest, publish: Publish) -> Iterator[None]:
        self.subscribers.append(publish)
        publish(encode_event("state", {}))
        try:
            yield
        finally:
            self.subscribers.remove(publish)

    def publish(self, text: str) -> None:
        for each in self.subscribers:
            each(encode_event("told", {"text": text}))

    async def wait_unsubscribed(self) -> None:
        while self.subscribers:
            await asyncio.sleep(0.01)


EVENTS = Page(GET, "/events", "", (), subscribe=Feed.subscribe, content_type=EVENT_STREAM_TYPE)


class Streaming:
    def __init__(self, loop: LoopThread, listener: HttpListener, feed: Feed) -> None:
        self.loop, self.listener, self.feed, self.address = loop, listener, feed, listener.address

    def publish(self, text: str) -> None:
        self.loop.call(lambda: self.feed.publish(text))


@pytest.fixture
def streaming() -> Iterator[Streaming]:
    feed = Feed()
    with LoopThread() as loop:
        listener = loop.call(lambda: HttpListener("127.0.0.1", 0, lambda: Site([EVENTS], feed), HttpAccess((), ())))
        loop.call(listener.start)
        yield Streaming(loop, listener, feed)
        loop.run(listener.stop())


def test_an_event_arrives_when_it_is_published(streaming: Streaming) -> None:
    with reading_events(streaming.address) as events:
        assert events.response.headers["content-type"] == EVENT_STREAM_TYPE
        assert events.next() == ("state", {})
        for text in ("one", "two"):
            streaming.publish(text)
            assert events.next() == ("told", {"text": text})


def test_a_quiet_stream_has_heartbeats(streaming: Streaming, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "HEARTBEAT_S", 0.05)
    with reading_events(streaming.address) as events:
        events.next()
        assert [events.line() for _ in range(5)] == [b"\n", *2 * [HEARTBEAT[:-1], b"\n"]]


def test_a_stream_outlives_the_time_limit_of_answers(streaming: Streaming, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ANSWER_TIMEOUT_S", 0.1)
    with reading_events(streaming.address) as events:
        events.next()
        time.sleep(0.5)  # five time limits
        streaming.publish("still here")
        assert events.next() == ("told", {"text": "still here"})


def test_stopping_ends_streams_with_a_last_event(streaming: Streaming) -> None:
    with reading_events(streaming.address) as events:
        events.next()
        streaming.loop.run(streaming.listener.stop())
        assert events.next() == ("end", {"reason": "the broker stops"})
        assert events.response.read() == b"\n"  # the response is complete: a read error would be raised otherwise


def test_a_client_that_goes_away_ends_its_stream(streaming: Streaming) -> None:
    with reading_events(streaming.address) as events:
        events.next()
    streaming.loop.run(streaming.feed.wait_unsubscribed())
    assert streaming.listener._server is not None
    assert streaming.listener._server._streams.count == 0


def test_streams_beyond_the_limit_are_refused(streaming: Streaming, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "STREAMS_MAX", 1)
    with reading_events(streaming.address) as events:
        events.next()
        status, body = get(streaming.address, "/events")
        assert status == 503
        assert json.loads(body)["status"] == "busy"


def test_head_of_a_stream_has_no_body(streaming: Streaming) -> None:
    assert get(streaming.address, "/events", "HEAD") == (200, "")


def connect_without_reading(streaming: Streaming) -> socket.socket:
    host, _, port = streaming.address.partition(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(TIMEOUT_S)
    sock.connect((host, int(port)))
    sock.sendall(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n")
    sock.recv(1)
    return sock


def test_a_client_that_stops_reading_holds_bounded_memory_and_is_told(streaming: Streaming) -> None:
    with connect_without_reading(streaming) as sock:
        for _ in range(100):
            streaming.publish("x" * 10_000)
        assert streaming.listener._server is not None
        (connection,) = streaming.listener._server._state.open_connections()
        assert connection.unsent_bytes <= 2 * BUFFERED_BYTES_MAX
        received = b""
        while b"event: reset" not in received:
            received += sock.recv(1 << 16)


def test_a_stalled_client_of_a_stream_is_closed(streaming: Streaming, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ANSWER_TIMEOUT_S", 0.2)
    with connect_without_reading(streaming):
        for _ in range(50):
            streaming.publish("x" * 10_000)
        streaming.loop.run(streaming.feed.wait_unsubscribed())


# The buffer


def taken(buffer: EventBuffer) -> bytes | None:
    return asyncio.run(buffer.take())


def test_a_full_buffer_is_replaced_by_a_reset() -> None:
    buffer = EventBuffer()
    for _ in range(3):
        buffer.publish(b"x" * (BUFFERED_BYTES_MAX // 2))
    assert (taken(buffer) or b"").startswith(b"event: reset\n")


def test_nothing_follows_the_last_event() -> None:
    buffer = EventBuffer()
    buffer.end("it is over")
    buffer.publish(encode_event("told", {}))
    assert taken(buffer) == b'event: end\ndata: {"reason": "it is over"}\n\n'
    assert taken(buffer) is None


def test_a_connection_is_used_again_after_another_page(streaming: Streaming) -> None:
    connection = http.client.HTTPConnection(streaming.address, timeout=TIMEOUT_S)
    for _ in range(2):
        connection.request("HEAD", "/events")
        assert connection.getresponse().read() == b""
    connection.close()
