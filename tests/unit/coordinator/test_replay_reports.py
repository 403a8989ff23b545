"""A cause that fails many shards again and again is one line of the log."""

from __future__ import annotations

import pytest

from flowstone.coordinator.replay_reports import REPEAT_S, ReplayReports
from flowstone.ports.clock import SimulatedClock

CAUSE = "the broker cannot reach its cluster, and its lease has expired"


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def reports(clock: SimulatedClock) -> ReplayReports:
    return ReplayReports(clock.monotonic)


def errors(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.levelname == "ERROR" for record in caplog.records)


def fail_all(reports: ReplayReports, clock: SimulatedClock) -> None:
    for _ in range(28):
        for number in range(50):
            reports.failed(f"__consumer_offsets-{number}", CAUSE)
        clock.advance(1)


def test_a_cause_is_reported_once(
    reports: ReplayReports, clock: SimulatedClock, caplog: pytest.LogCaptureFixture
) -> None:
    fail_all(reports, clock)
    assert errors(caplog) == 1


def test_another_cause_is_reported_too(reports: ReplayReports, caplog: pytest.LogCaptureFixture) -> None:
    reports.failed("__consumer_offsets-1", CAUSE)
    reports.failed("__consumer_offsets-1", "No space left on device")
    assert errors(caplog) == 2


def test_a_cause_that_was_over_is_reported_again(
    reports: ReplayReports, clock: SimulatedClock, caplog: pytest.LogCaptureFixture
) -> None:
    fail_all(reports, clock)
    for number in range(50):
        reports.appended(f"__consumer_offsets-{number}")
    fail_all(reports, clock)
    assert errors(caplog) == 2


def test_a_cause_that_is_over_for_some_shards_only_is_not_reported_again(
    reports: ReplayReports, clock: SimulatedClock, caplog: pytest.LogCaptureFixture
) -> None:
    fail_all(reports, clock)
    reports.appended("__consumer_offsets-3")
    fail_all(reports, clock)
    assert errors(caplog) == 1


def test_a_cause_that_lasts_is_reported_again(
    reports: ReplayReports, clock: SimulatedClock, caplog: pytest.LogCaptureFixture
) -> None:
    reports.failed("__consumer_offsets-1", CAUSE)
    clock.advance(REPEAT_S)
    reports.failed("__consumer_offsets-1", CAUSE)
    assert errors(caplog) == 2


def test_a_shard_that_moved_away_does_not_keep_a_cause_open(
    reports: ReplayReports, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2):
        reports.failed(f"__consumer_offsets-{number}", CAUSE)
    reports.closed("__consumer_offsets-1")
    reports.appended("__consumer_offsets-2")
    reports.failed("__consumer_offsets-2", CAUSE)
    assert errors(caplog) == 2
