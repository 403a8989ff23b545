"""Log lines about failed logins: however many fail, the log has few lines and the number of failures."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from flowstone.broker.authentication import failed_logins
from flowstone.broker.authentication.failed_logins import COUNTED_MAX, PERIOD_S, FailedLogins
from flowstone.ports.clock import SimulatedClock
from flowstone.wire.messages import MetadataRequest
from tests.support.running_app import RunningApp
from tests.support.security.secured import authenticate, handshake, secured_app
from tests.support.wire_client import frame

FAILED = "login from %s failed"


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == failed_logins.__name__]


def fail(failed: FailedLogins, peer: str, kind: str = "logins") -> None:
    failed.note(peer, kind, logging.WARNING, FAILED, peer)


def test_of_many_failures_of_an_address_one_is_logged_and_the_others_are_counted(
    clock: SimulatedClock, caplog: pytest.LogCaptureFixture
) -> None:
    failed = FailedLogins(clock)
    for port in range(500):
        fail(failed, f"10.0.0.1:{port}")
    fail(failed, "10.0.0.2:1")
    assert lines(caplog) == ["login from 10.0.0.1:0 failed", "login from 10.0.0.2:1 failed"]
    clock.advance(PERIOD_S)
    assert lines(caplog)[2:] == ["499 more logins from 10.0.0.1 failed within 60 s"]
    fail(failed, "10.0.0.1:7")
    assert lines(caplog)[3:] == ["login from 10.0.0.1:7 failed"]


def test_failures_of_another_kind_are_logged_for_themselves(
    clock: SimulatedClock, caplog: pytest.LogCaptureFixture
) -> None:
    failed = FailedLogins(clock)
    for kind in ("logins", "handshakes", "logins"):
        fail(failed, "10.0.0.1:1", kind)
    assert len(lines(caplog)) == 2


def test_more_addresses_than_are_counted_share_a_line(clock: SimulatedClock, caplog: pytest.LogCaptureFixture) -> None:
    failed = FailedLogins(clock)
    for number in range(COUNTED_MAX + 50):
        fail(failed, f"host{number}:1")
    assert len(lines(caplog)) == COUNTED_MAX + 1
    clock.advance(PERIOD_S)
    assert lines(caplog)[COUNTED_MAX + 1 :] == ["49 more logins and handshakes from other addresses failed within 60 s"]


def test_failed_logins_and_requests_before_a_login_leave_a_line_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"connection.failed.authentication.delay.ms": "0"}
    with secured_app(tmp_path, "SASL_PLAINTEXT://127.0.0.1:0", **settings) as broker:
        for _ in range(10):
            with broker.client("SASL_PLAINTEXT") as client:
                handshake(client, "PLAIN")
                assert authenticate(client, b"\0mallory\0wrong").error_code != 0
            with broker.client("SASL_PLAINTEXT") as client:
                client.send(frame(9, MetadataRequest(topics=None), 1))
                client.closed_after_s()
    told = [record.getMessage() for record in caplog.records if "127.0.0.1" in record.getMessage()]
    assert ["login from" in line for line in told] == [True, False]
    assert "closed: API 3 was requested before the login" in told[1]


def test_refused_connections_leave_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RunningApp(str(tmp_path), max_connections_per_ip="1") as broker, broker.client():
        for _ in range(20):
            with broker.client() as refused:
                refused.closed_after_s()
    told = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(told) == 1
    assert told[0].endswith("refused: max.connections.per.ip is reached")
