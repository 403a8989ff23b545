"""Bytes that are no requests: the connection is closed within a second, before anything is allocated for them."""

from __future__ import annotations

import contextlib
import itertools
import random
import struct
import time

import pytest

from flowstone.errors import ErrorCode
from flowstone.wire.codec import response_decoder
from flowstone.wire.messages import ApiVersionsRequest, MetadataRequest
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import Closed, frame, framed

MIB = 1 << 20
CUT_OFF_MAX_S = 6.0  # the timeout of half a second, the broker looks once a second, and the rest is for a busy machine
TLS_CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(32)) + bytes(160)
HTTP = b"GET /secret-path?password=hunter2 HTTP/1.1\r\nHost: broker\r\n\r\n"

NOT_FRAMES = {
    "a length of 0": struct.pack(">i", 0),
    "a length of -1": struct.pack(">i", -1),
    "the least length there is": struct.pack(">i", -(2**31)),
    "the largest length there is": struct.pack(">i", 2**31 - 1) + bytes(100),
    "one byte above socket.request.max.bytes": struct.pack(">i", 100 * MIB + 1),
    "HTTP": HTTP,
    "TLS": TLS_CLIENT_HELLO,
    "an empty header": framed(b"\0"),
    "half a header": framed(bytes(7)),
    "a client id longer than the frame": framed(struct.pack(">hhih", 3, 1, 1, 300)),
    "a client id of negative length": framed(struct.pack(">hhih", 3, 1, 1, -2)),
    "a client id that is not UTF-8": framed(struct.pack(">hhih", 3, 1, 1, 2) + b"\xff\xfe"),
    "an API that does not exist": framed(struct.pack(">hhih", 999, 0, 1, -1)),
    "a negative API": framed(struct.pack(">hhih", -1, 0, 1, -1)),
    "an API between brokers": framed(struct.pack(">hhih", 56, 0, 1, -1)),
    "a version of the future": framed(struct.pack(">hhih", 3, 99, 1, -1) + b"\0"),
    "a version of the past": framed(struct.pack(">hhih", 0, 2, 1, -1)),
    "a negative version": framed(struct.pack(">hhih", 3, -1, 1, -1)),
    "a body cut short": framed(frame(9, MetadataRequest(topics=[]))[4:-2]),
    "a million tagged fields in the header": framed(
        struct.pack(">hhih", 3, 9, 1, -1) + b"\xc0\x84\x3d" + bytes(2 * MIB)
    ),
    "a tag beyond the frame": framed(struct.pack(">hhih", 3, 9, 1, -1) + b"\x01\x05\x7f"),
    "an array of two billion": framed(struct.pack(">hhihi", 3, 1, 1, -1, 2**31 - 1)),
    "a compact array of four billion": framed(struct.pack(">hhih", 3, 9, 1, -1) + b"\0" + b"\xff\xff\xff\xff\x0f"),
    "an array of a million with no bytes left": framed(struct.pack(">hhihi", 3, 1, 1, -1, 1_000_000)),
    "a varint without an end": framed(struct.pack(">hhih", 3, 9, 1, -1) + b"\0" + b"\x80" * 100),
}


@pytest.mark.parametrize("data", NOT_FRAMES.values(), ids=NOT_FRAMES)
def test_bytes_that_are_no_request_close_the_connection_at_once_and_leave_one_log_line(broker, data):
    lines, rss_bytes = len(broker.lines), broker.rss_bytes()
    with broker.connect() as client:
        host, port = client.socket.getsockname()
        try:
            client.send(data)
            client.closed_after_s()
        except Closed:
            pass
    logged = broker.lines_about(f"{host}:{port}", since=lines)
    assert len(logged) == 1
    assert "hunter2" not in logged[0]
    assert broker.rss_bytes() - rss_bytes < 8 * MIB


@pytest.mark.parametrize("version", [5, 6, 99, 32767, -1, -32768])
def test_an_unknown_version_of_api_versions_is_told_which_ones_are_known(broker, version):
    header = struct.pack(">hhih", 18, version, 77, -1) + (b"\0" if version > 0 else b"")
    with broker.connect() as client:
        client.send(framed(header + b"a body of the future"))
        response = memoryview(client.receive())
        assert struct.unpack_from(">i", response) == (77,)
        answer = response_decoder(18, 0)(response, 4)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert {0, 1, 3, 18} <= {api.api_key for api in answer.api_keys}
        assert client.ask(3, ApiVersionsRequest(client_software_name="a", client_software_version="1")).error_code == 0


def test_random_bytes_behind_a_true_length_never_harm_others(broker, bystander):
    chance = random.Random(20)
    with bystander(broker):
        for _ in range(300):
            with broker.connect() as client:
                try:
                    client.send(framed(chance.randbytes(chance.randrange(1, 400))))
                    client.closed_after_s(1.0)
                except (Closed, AssertionError):
                    pass  # a few are requests by chance


@pytest.fixture(scope="module")
def impatient_broker(tmp_path_factory):
    settings = {"connection.frame.timeout.ms": "500"}
    with BrokerProcess(tmp_path_factory.mktemp("impatient") / "data", settings=settings) as broker:
        yield broker
        assert broker.faults() == []


def test_requests_that_are_begun_and_not_finished_are_cut_off_in_time(impatient_broker, bystander):
    parts = (b"\0", b"\0\0\0", struct.pack(">i", 100), struct.pack(">i", 50 * MIB) + bytes(1000))
    with bystander(impatient_broker), contextlib.ExitStack() as stack:
        clients = [stack.enter_context(impatient_broker.connect()) for _ in parts]
        for client, part in zip(clients, parts, strict=True):
            client.send(part)
        started = time.monotonic()
        for client in clients:
            client.closed_after_s(CUT_OFF_MAX_S)
        assert time.monotonic() - started < CUT_OFF_MAX_S


def test_one_that_sends_a_byte_at_a_time_is_cut_off_in_time(impatient_broker, bystander):
    with bystander(impatient_broker), impatient_broker.connect() as client:
        started = time.monotonic()
        client.send(struct.pack(">i", 1000))
        with contextlib.suppress(Closed):
            while time.monotonic() - started < CUT_OFF_MAX_S:
                client.send(b"\0")
                time.sleep(0.02)
        assert time.monotonic() - started < CUT_OFF_MAX_S


def test_a_request_that_came_in_pieces_does_not_count_as_unfinished_later(impatient_broker):
    request = frame(3, ApiVersionsRequest(client_software_name="a", client_software_version="1"))
    with contextlib.ExitStack() as stack:
        clients = []
        for pieces in ((1, 3), (2, 20), (4, 5)):
            client = stack.enter_context(impatient_broker.connect())
            clients.append(client)
            for begin, end in itertools.pairwise((0, *pieces, len(request))):
                client.send(request[begin:end])
                time.sleep(0.02)  # so that the pieces arrive as such
            assert client.receive()
        time.sleep(1.7)  # nothing must happen: there is no event to wait for
        for client in clients:
            client.send(request)
            assert client.receive()
