"""Many connections, idle ones, and ones whose client has gone: caps and deadlines hold, and others are unharmed."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

import pytest

from flowstone.wire.messages import ApiVersionsRequest
from tests.support.wire_client import Closed, fetch_request, frame

MIB = 1 << 20
IDLE_CONNECTIONS = 2000
IDLE_GROWTH_BYTES_MAX = 100 * MIB
ENDLESS_MS = 2**31 - 1
WAIT_S = 30.0
OTHER_FILES = 5  # the broker opens files of its own in the meantime
HELLO = frame(3, ApiVersionsRequest(client_software_name="a", client_software_version="1"))


def eventually(is_so, limit_s=WAIT_S):
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline, f"not so after {limit_s} s"
        time.sleep(0.02)


@pytest.mark.parametrize("setting", ["max_connections", "max_connections_per_ip"])
def test_connections_beyond_the_limit_are_closed_at_once_and_old_ones_go_on(start_broker, setting):
    broker = start_broker(**{setting: "20"})
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(broker.connect()) for _ in range(20)]
        for client in clients:
            client.send(HELLO)
            assert client.receive()
        for _ in range(200):
            with broker.connect() as refused:
                refused.closed_after_s()
        for client in clients:
            client.send(HELLO)
            assert client.receive()
        clients[0].close()
        eventually(lambda: is_let_in(broker))


def is_let_in(broker):
    with broker.connect() as client:
        try:
            client.send(HELLO)
            return bool(client.receive())
        except Closed:
            return False


def test_two_thousand_idle_connections_take_little_memory_and_a_flood_beyond_them_harms_nobody(start_broker, bystander):
    broker = start_broker(max_connections=str(IDLE_CONNECTIONS))
    before, files = broker.rss_bytes(), broker.open_files()
    with bystander(broker) as watched, contextlib.ExitStack() as stack:
        clients = []
        for _ in range(IDLE_CONNECTIONS - 2):
            client = stack.enter_context(broker.connect())
            client.send(HELLO)
            clients.append(client)
        for client in clients:
            assert client.receive()
        growth = broker.rss_bytes() - before
        for _ in range(500):
            with broker.connect():
                pass
        clients[-1].send(HELLO)
        assert clients[-1].receive()
    print(f"{IDLE_CONNECTIONS} idle connections: {growth / MIB:.1f} MiB; slowest {max(watched.round_trips_s):.3f} s")
    assert growth < IDLE_GROWTH_BYTES_MAX
    eventually(lambda: broker.open_files() <= files + OTHER_FILES)


def test_idle_connections_are_closed_and_busy_ones_are_not(start_broker, bystander):
    broker = start_broker(connections_max_idle_ms="300")
    with bystander(broker), broker.connect() as silent, broker.connect() as waiting:
        waiting.create_topic("t")
        waiting.send(frame(11, fetch_request("t", 0, max_wait_ms=1800)))
        silent.closed_after_s()
        assert waiting.receive()


@pytest.fixture
def impatient_broker(start_broker):
    broker = start_broker(connection_frame_timeout_ms="500")
    with broker.connect() as client:
        assert client.create_topic("t") == 0
    return broker


def leave_waiting(broker, count):
    """Clients that ask for what never comes."""
    for _ in range(count):
        client = broker.connect()
        client.send(frame(11, fetch_request("t", 0, max_wait_ms=ENDLESS_MS, min_bytes=ENDLESS_MS)))
        yield client


def test_clients_that_leave_while_their_fetch_waits_are_forgotten(impatient_broker):
    files = impatient_broker.open_files()
    for client in list(leave_waiting(impatient_broker, 50)):
        client.close()
    eventually(lambda: impatient_broker.open_files() <= files + OTHER_FILES)


def test_clients_that_break_off_while_their_fetch_waits_are_forgotten(impatient_broker):
    files = impatient_broker.open_files()
    for client in list(leave_waiting(impatient_broker, 50)):
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    eventually(lambda: impatient_broker.open_files() <= files + OTHER_FILES)


def test_a_client_that_closes_its_side_still_gets_its_answers(impatient_broker):
    with impatient_broker.connect() as client:
        client.send(frame(11, fetch_request("t", 0, max_wait_ms=200)) + HELLO)
        client.socket.shutdown(socket.SHUT_WR)
        assert client.receive()
        assert client.receive()
        client.closed_after_s()


def test_a_request_that_arrived_while_the_broker_itself_was_stopped_is_answered(start_broker):
    """The broker had no time to read the rest of the request: that is not the client's delay."""
    timeout_s = 0.5
    broker = start_broker(connection_frame_timeout_ms=str(int(timeout_s * 1000)))
    for _ in range(3):
        with broker.connect() as client, broker.connect() as other:
            client.send(HELLO[:-1])
            other.send(HELLO)
            assert other.receive()  # sent after the first part of the request, so that has been read
            broker.pause()
            client.send(HELLO[-1:])
            time.sleep(4 * timeout_s)
            broker.resume()
            assert client.receive()
