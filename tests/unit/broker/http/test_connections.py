"""Connections that ask nothing, ask slowly or do not listen: none of them keeps a health probe from its answer."""

from __future__ import annotations

import asyncio
import http.client
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from flowstone.broker.http import connections, routes
from flowstone.broker.http.access import HttpAccess
from flowstone.broker.http.listener import HttpListener
from flowstone.broker.http.page import Answer, PageRequest, Site
from flowstone.broker.http.pages.branch import BRANCH
from flowstone.broker.http.pages.groups import GROUPS
from flowstone.broker.http.pages.health import HEALTH, READY
from flowstone.broker.http.pages.metrics import METRICS
from tests.support.running_app import TIMEOUT_S, LoopThread, get

MANY = connections.CONNECTIONS_MAX + 50
LARGE_BYTES = 4 << 20
PROBE_S = 2.0  # a connection that is not accepted is tried again after 1, 3 and 7 s
LOOP_HELD_S = 0.05

HALF_A_HEAD = b"GET /health HTTP/1.1\r\nhost: local"
A_BODY_TO_COME = (
    b"POST /branch HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"
)
LARGE_PAGE = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
A_SLOW_PAGE = b"GET /groups HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Broker:
    """A broker whose page of groups is made when the test ends."""

    def __init__(self) -> None:
        self.is_ending = asyncio.Event()
        self.condition = self

    def failure(self) -> str | None:
        return None

    def is_serving(self) -> bool:
        return True


async def large_metrics(_: Broker, __: PageRequest) -> Answer:
    return Answer(bytes(LARGE_BYTES))


async def slow_groups(broker: Broker, _: PageRequest) -> Answer:
    await broker.is_ending.wait()
    return Answer(b"{}")


async def echo(_: Broker, request: PageRequest) -> Answer:
    return Answer(request.body)


PAGES = (
    HEALTH,
    READY,
    replace(METRICS, handler=large_metrics),
    replace(GROUPS, handler=slow_groups),
    replace(BRANCH, handler=echo),
)


@pytest.fixture
def listener() -> Iterator[HttpListener]:
    broker = Broker()
    with LoopThread() as loop:
        access = HttpAccess((), ())
        listener = loop.call(lambda: HttpListener("127.0.0.1", 0, lambda: Site(PAGES, broker), access))
        loop.call(listener.start)
        assert get(listener.address, "/health")[0] == 200  # from now on nothing is loaded any more
        yield listener
        loop.call(broker.is_ending.set)
        loop.run(listener.stop())


def connect(listener: HttpListener, receive_buffer_bytes: int | None = None) -> socket.socket:
    host, _, port = listener.address.partition(":")
    sock = socket.socket()
    if receive_buffer_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    sock.settimeout(TIMEOUT_S)
    sock.connect((host, int(port)))
    return sock


@contextmanager
def flood(listener: HttpListener, count: int, sent: bytes, **options: Any) -> Iterator[list[socket.socket]]:
    """So many connections that have sent this much and stay open."""
    with ExitStack() as stack:
        sockets = []
        for _ in range(count):
            sockets.append(stack.enter_context(connect(listener, **options)))
            with suppress(BrokenPipeError, ConnectionResetError):  # closed already, to let others in
                sockets[-1].sendall(sent)
        yield sockets


def received(connection: socket.socket) -> bytes:
    """Everything until the peer closes."""
    parts = []
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def ask_health(listener: HttpListener) -> tuple[int, float]:
    """The status, and how long it took."""
    started = time.monotonic()
    return get(listener.address, "/health")[0], time.monotonic() - started


@pytest.mark.measures_time
@pytest.mark.parametrize("sent", [b"", HALF_A_HEAD, A_BODY_TO_COME, LARGE_PAGE, A_SLOW_PAGE])
def test_health_is_answered_however_many_others_hold_connections(listener: HttpListener, sent: bytes) -> None:
    with flood(listener, MANY, sent, receive_buffer_bytes=4096):
        for path in ("/health", "/ready"):
            started = time.monotonic()
            assert get(listener.address, path)[0] == 200
            assert time.monotonic() - started < PROBE_S


def test_a_connection_that_is_used_outlives_those_that_say_nothing(listener: HttpListener) -> None:
    used = http.client.HTTPConnection(listener.address, timeout=TIMEOUT_S)
    with flood(listener, connections.CONNECTIONS_MAX, b""):
        for _ in range(3):
            used.request("GET", "/ready")
            assert used.getresponse().read()
            with flood(listener, connections.CONNECTIONS_MAX // 2, HALF_A_HEAD):
                pass
    used.close()


def test_the_connection_that_has_said_nothing_for_longest_is_closed_first(
    listener: HttpListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 2)
    with connect(listener) as first, connect(listener) as second, connect(listener) as third:
        assert received(first) == b""
        for each in (second, third):
            each.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert received(each).startswith(b"HTTP/1.1 200")


def test_pages_beyond_the_limit_are_refused_and_health_is_not(listener: HttpListener) -> None:
    with flood(listener, routes.PAGES_MAX, A_SLOW_PAGE):
        with connect(listener) as one_more:
            one_more.sendall(A_SLOW_PAGE)
            assert one_more.recv(1 << 16).startswith(b"HTTP/1.1 503")
        assert ask_health(listener)[0] == 200


def test_answers_that_nobody_reads_hold_bounded_memory(listener: HttpListener) -> None:
    count = 4 * connections.UNSENT_BYTES_MAX // LARGE_BYTES
    with flood(listener, count, LARGE_PAGE, receive_buffer_bytes=4096):
        assert until_not_busy(listener, "/metrics") == (200, LARGE_BYTES)
        assert listener._server is not None
        unsent = [each.unsent_bytes for each in listener._server._state.open_connections()]
        assert 0 < sum(unsent) <= connections.UNSENT_BYTES_MAX


def until_not_busy(listener: HttpListener, path: str) -> tuple[int, int]:
    """The status and size of the page, asked for until it is made."""
    for _ in range(200):
        status, body = get(listener.address, path)
        if status != 503:
            return status, len(body)
    raise AssertionError("the page is busy for ever")


@pytest.mark.parametrize("sent", [b"", HALF_A_HEAD])
def test_a_request_that_is_not_finished_in_time_is_cut_off(
    listener: HttpListener, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.2)
    with connect(listener) as connection:
        connection.sendall(sent)
        assert received(connection) == b""


def test_a_body_that_does_not_come_is_cut_off(listener: HttpListener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ANSWER_TIMEOUT_S", 0.2)
    with connect(listener) as connection:
        connection.sendall(A_BODY_TO_COME)
        assert received(connection) == b""


def test_a_large_answer_is_not_cut_off_while_its_reader_makes_progress(
    listener: HttpListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "ANSWER_TIMEOUT_S", 0.3)
    monkeypatch.setattr(connections, "KEEP_ALIVE_S", 0.2)
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.2)
    with connect(listener, receive_buffer_bytes=64 << 10) as connection:
        started = time.monotonic()
        connection.sendall(LARGE_PAGE)
        read_bytes = 0
        while part := connection.recv(64 << 10):
            read_bytes += len(part)
            time.sleep(0.02)  # a slow reader
        assert read_bytes > LARGE_BYTES
        assert time.monotonic() - started > 3 * connections.ANSWER_TIMEOUT_S


def test_an_answer_that_its_reader_stops_taking_is_cut_off(
    listener: HttpListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "ANSWER_TIMEOUT_S", 0.2)
    monkeypatch.setattr(connections, "KEEP_ALIVE_S", 0.1)
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.1)
    with connect(listener, receive_buffer_bytes=4096) as connection:
        connection.sendall(LARGE_PAGE)
        assert connection.recv(1)
        assert listener._server is not None
        wait_until(lambda: not listener._server._state.open_connections())  # type: ignore[union-attr]


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_body_without_end_is_cut_off(listener: HttpListener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "KEEP_ALIVE_S", 0.2)
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.3)
    with connect(listener) as connection:
        connection.sendall(
            b"GET /health HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"
        )
        assert received(connection).startswith(b"HTTP/1.1 200")  # and then the end


def test_a_body_larger_than_the_limit_is_refused(listener: HttpListener) -> None:
    connection = http.client.HTTPConnection(listener.address, timeout=TIMEOUT_S)
    body = bytes(routes.BODY_BYTES_MAX + 1)
    connection.request("POST", "/branch", body, {"Content-Type": "application/json"})
    assert connection.getresponse().status == 413
    connection.close()


def test_a_body_that_comes_in_slices_is_whole(listener: HttpListener) -> None:
    body = b'"' + b"x" * (routes.BODY_BYTES_MAX - 2) + b'"'
    connection = http.client.HTTPConnection(listener.address, timeout=TIMEOUT_S)
    for _ in range(3):
        connection.request("POST", "/branch", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, body)
    connection.close()


def test_a_body_of_tiny_chunks_does_not_hold_the_loop(listener: HttpListener, slowest_turn: SlowestTurn) -> None:
    chunks = b"1\r\na\r\n" * 40_000
    head = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    with connect(listener) as connection:
        connection.sendall(head + chunks + b"0\r\n\r\n")
        assert received(connection).startswith(b"HTTP/1.1 200")
    assert slowest_turn(listener) < LOOP_HELD_S


SlowestTurn = Callable[[HttpListener], float]


@pytest.fixture
def slowest_turn(monkeypatch: pytest.MonkeyPatch) -> SlowestTurn:
    """Processor time that the longest call of a connection's parser took."""
    taken = [0.0]
    parse = connections.HttpConnection._parse

    def measured(self: connections.HttpConnection, data: bytes) -> None:
        started = time.thread_time()
        parse(self, data)
        taken[0] = max(taken[0], time.thread_time() - started)

    monkeypatch.setattr(connections.HttpConnection, "_parse", measured)
    return lambda _: taken[0]


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("/health", "GET", {"Host": "evil.example.com"}, 421),
        ("/nowhere", "GET", {"Host": "evil.example.com"}, 421),
        ("/branch", "POST", {"Host": "evil.example.com", "Content-Type": "application/json"}, 421),
        ("/branch", "POST", {"Origin": "http://evil.example.com", "Content-Type": "application/json"}, 403),
        ("/branch", "POST", {"Content-Type": "application/json"}, 200),
        ("/health", "GET", {"Host": "10.1.2.3:9080"}, 200),
    ],
)
def test_host_and_origin_are_checked_before_anything_else(
    listener: HttpListener, path: str, method: str, headers: dict[str, str], status: int
) -> None:
    connection = http.client.HTTPConnection(listener.address, timeout=TIMEOUT_S)
    connection.request(method, path, b"{}" if method == "POST" else None, headers)
    response = connection.getresponse()
    body = response.read()
    assert response.status == status
    assert (b"http.allowed.hosts" in body) == (status in (403, 421))
    connection.close()
