"""Log lines about failed logins: however many fail, the log has few lines and the number of failures."""

from __future__ import annotations

import logging

import pytest

from flowstone.broker.authentication import failed_logins
from flowstone.broker.authentication.failed_logins import COUNTED_MAX, PERIOD_S, FailedLogins
from flowstone.ports.clock import SimulatedClock

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
    assert lines(caplog)[COUNTED_MAX + 1 :] == [
        "49 more logins and TLS handshakes from other addresses failed within 60 s"
    ]
