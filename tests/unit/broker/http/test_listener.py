from __future__ import annotations

import http.client
import json
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flowstone.broker.http import connections, routes
from flowstone.broker.http.access import HttpAccess
from flowstone.broker.http.listener import HttpListener, parse_address
from flowstone.broker.http.page import Answer, PageRequest, Site
from flowstone.broker.http.pages.health import HEALTH, READY
from flowstone.broker.http.pages.metrics import METRICS
from flowstone.config import BROKER_SETTINGS
from flowstone.errors import ConfigError, StartupError
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.wire.messages import DescribeConfigsRequest, DescribeConfigsRequestResource
from tests.support.running_app import TIMEOUT_S, LoopThread, RunningApp, get
from tests.support.wire_client import batch_of

ANY_PORT = "127.0.0.1:0"
BROKER_RESOURCE = 4
ACCESS = HttpAccess((), ())


class Broker:
    """The broker as probes see it, in whatever state a test wants."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.serving = True
        self.condition = self

    def failure(self) -> str | None:
        return self.reason

    def is_serving(self) -> bool:
        return self.serving


async def answer_metrics(_: Broker, __: PageRequest) -> Answer:
    return Answer(b"up 1\n")


PAGES = (HEALTH, READY, replace(METRICS, handler=answer_metrics))


def new_site() -> Site:
    return Site(PAGES, Broker())


class Listening:
    def __init__(self, loop: LoopThread, listener: HttpListener, pages: Broker) -> None:
        self.loop, self.listener, self.pages = loop, listener, pages
        self.address = listener.address

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        return get(self.address, path, method)

    def connect(self) -> socket.socket:
        host, _, port = self.address.partition(":")
        return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)


@pytest.fixture
def listening() -> Iterator[Listening]:
    pages = Broker()
    with LoopThread() as loop:
        listener = loop.call(lambda: HttpListener("127.0.0.1", 0, lambda: Site(PAGES, pages), ACCESS))
        loop.call(listener.start)
        yield Listening(loop, listener, pages)
        loop.run(listener.stop())


def received(connection: socket.socket) -> bytes:
    """Everything until the peer closes."""
    parts = []
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


# The pages


def test_a_broker_in_good_health_says_so(listening: Listening) -> None:
    status, body = listening.get("/health")
    assert (status, json.loads(body)) == (200, {"status": "ok"})


def test_a_broker_that_has_failed_says_why(listening: Listening) -> None:
    listening.pages.reason = "the disk is gone"
    status, body = listening.get("/health")
    assert (status, json.loads(body)) == (503, {"status": "failed", "reason": "the disk is gone"})


def test_a_broker_that_serves_is_ready(listening: Listening) -> None:
    status, body = listening.get("/ready")
    assert (status, json.loads(body)) == (200, {"status": "ready"})


def test_a_broker_that_does_not_serve_is_not_ready(listening: Listening) -> None:
    listening.pages.serving = False
    assert listening.get("/ready")[0] == 503


def test_metrics_have_prometheus_content_type(listening: Listening) -> None:
    connection = http.client.HTTPConnection(listening.address, timeout=TIMEOUT_S)
    connection.request("GET", "/metrics")
    response = connection.getresponse()
    assert response.read() == b"up 1\n"
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    connection.close()


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("POST", "/health", 405)])
def test_what_is_not_served_is_refused(listening: Listening, method: str, path: str, status: int) -> None:
    assert listening.get(path, method)[0] == status


# Limits


def test_a_request_head_without_end_is_cut_off(listening: Listening) -> None:
    with listening.connect() as connection:
        connection.sendall(
            b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * connections.REQUEST_HEAD_BYTES_MAX * 2
        )
        assert received(connection).startswith(b"HTTP/1.1 400")


def test_what_is_not_http_is_refused_and_told_once_for_many(
    listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        with listening.connect() as connection:
            connection.sendall(b"\x00\x00\x00\x10 not HTTP at all\r\n\r\n")
            assert b" 400 " in received(connection)
    assert [record.getMessage() for record in caplog.records] == ["Invalid HTTP request received."]


def test_a_later_warning_tells_how_many_were_kept_back() -> None:
    sparing = connections.SparingFilter()
    records = [logging.LogRecord("http", logging.WARNING, "", 0, "Invalid", None, None) for _ in range(4)]
    for at, record in enumerate(records):
        record.created = float(at)
    records[-1].created = connections.WARNING_INTERVAL_S
    assert [sparing.filter(record) for record in records] == [True, False, False, True]
    assert records[-1].getMessage() == "Invalid (2 more like this since the last line)"
    assert sparing.filter(logging.LogRecord("http", logging.ERROR, "", 0, "a mistake of ours", None, None))


def test_one_connection_serves_many_requests(listening: Listening) -> None:
    connection = http.client.HTTPConnection(listening.address, timeout=TIMEOUT_S)
    for path in ("/health", "/ready", "/metrics"):
        connection.request("GET", path)
        response = connection.getresponse()
        assert response.status == 200
        response.read()
    connection.close()


# Its life


def test_who_connects_before_the_libraries_are_loaded_is_answered(listening: Listening) -> None:
    assert listening.get("/health")[0] == 200


def test_stopping_does_not_wait_for_connections_that_say_nothing(listening: Listening) -> None:
    assert listening.get("/health")[0] == 200
    with listening.connect() as silent, listening.connect() as unfinished:
        unfinished.sendall(b"GET /health HTTP/1.1\r\n")
        started = time.monotonic()
        listening.loop.run(listening.listener.stop())
        assert time.monotonic() - started < routes.FINISH_TIMEOUT_S + 1
        assert received(silent) == received(unfinished) == b""


def test_a_stopped_listener_gives_its_address_back(listening: Listening) -> None:
    assert listening.get("/health")[0] == 200
    listening.loop.run(listening.listener.stop())
    host, _, port = listening.address.partition(":")
    with socket.create_server((host, int(port))):
        pass


def test_it_can_be_stopped_before_it_serves() -> None:
    with LoopThread() as loop:
        listener = loop.call(lambda: HttpListener("127.0.0.1", 0, new_site, ACCESS))
        loop.call(listener.start)
        loop.run(listener.stop())
        with pytest.raises(ConnectionRefusedError):
            get(listener.address, "/health")


def test_an_address_in_use_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=rf"cannot serve HTTP on 127\.0\.0\.1:{port}: .*in use.*--http"):
            HttpListener("127.0.0.1", port, new_site, ACCESS)


@pytest.mark.parametrize("text", ["", "off", "OFF"])
def test_nothing_and_off_are_no_address(text: str) -> None:
    assert parse_address(text) is None


def test_an_address_is_a_host_and_a_port() -> None:
    assert parse_address("127.0.0.1:9080") == ("127.0.0.1", 9080)
    assert parse_address("[::1]:0") == ("::1", 0)


@pytest.mark.parametrize("text", ["9080", ":9080", "host:", "host:http", "host:65536", "on"])
def test_anything_else_is_a_mistake(text: str) -> None:
    with pytest.raises(ConfigError, match=r"http\.listener"):
        parse_address(text)


# In a broker


def test_it_is_off_unless_asked_for() -> None:
    program = (
        "import sys, flowstone\n"
        "with flowstone.Broker(): pass\n"
        "assert not {'uvicorn', 'starlette', 'anyio'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=TIMEOUT_S)
    assert BROKER_SETTINGS["http.listener"].default == ""


def test_a_broker_tells_the_address_it_got(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path), http_listener=ANY_PORT) as broker, broker.client() as client:
        resource = DescribeConfigsRequestResource(
            resource_type=BROKER_RESOURCE, resource_name="1", configuration_keys=["http.listener"]
        )
        (config,) = client.ask(4, DescribeConfigsRequest(resources=[resource])).results[0].configs
        assert get(config.value, "/ready")[0] == 200
        assert config.read_only


def test_a_broker_whose_disk_fails_is_neither_healthy_nor_ready(tmp_path: Path) -> None:
    files = SimulatedFiles()
    with RunningApp(str(tmp_path), files=files, http_listener=ANY_PORT) as broker, broker.client() as client:
        assert broker.get("/health")[0] == 200
        assert client.create_topic("events") == 0
        files.fail_next("sync")
        assert client.produce("events", batch_of(b"lost")).error_code != 0
        status, body = broker.get("/health")
        assert status == 503
        assert "simulated sync failure" in json.loads(body)["reason"]
        assert broker.get("/ready")[0] == 503
        failed = f'\nflowstone_log_directory_failed{{directory="{tmp_path}"}} 1\n'
        assert failed in broker.get("/metrics")[1]


def test_a_taken_default_address_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            caplog.at_level(logging.WARNING),
            RunningApp(str(tmp_path), default_http=address) as broker,
            broker.client() as client,
        ):
            assert broker.app.http_address is None
            assert client.create_topic("events") == 0
    assert f"cannot serve HTTP on {address}" in caplog.text


def test_a_taken_chosen_address_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StartupError, match=address), RunningApp(str(tmp_path), http_listener=address):
            pass


def test_the_settings_word_beats_the_default(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path), default_http=ANY_PORT, http_listener="off") as broker:
        assert broker.app.http_address is None


def test_signals_stay_the_brokers_own(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with RunningApp(str(tmp_path), http_listener=ANY_PORT) as broker:
        assert broker.get("/health")[0] == 200
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
