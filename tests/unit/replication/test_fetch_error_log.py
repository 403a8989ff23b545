"""A leader that refuses many partitions, again and again, is one line of the log."""

from __future__ import annotations

import pytest

from flowstone.errors import ErrorCode
from flowstone.replication.fetch_error_log import REFUSALS_QUIET_S, FetchErrorLog
from flowstone.types import TopicPartition
from tests.unit.replication.fetch_interpreter import FetchInterpreter


@pytest.fixture(autouse=True)
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO")
    return caplog


def refuse(
    refusals: FetchErrorLog, now_s: float, code: ErrorCode = ErrorCode.FENCED_LEADER_EPOCH, count: int = 100
) -> None:
    for number in range(count):
        refusals.add(code, TopicPartition("t", number))
    refusals.report(now_s)


def test_many_refused_partitions_are_one_line(lines: pytest.LogCaptureFixture) -> None:
    refuse(FetchErrorLog(), 0.0)
    (record,) = lines.records
    assert "t-0, t-1, t-2 and 97 more: FENCED_LEADER_EPOCH" in record.message


def test_what_is_refused_again_is_not_reported(lines: pytest.LogCaptureFixture) -> None:
    refusals = FetchErrorLog()
    for tenth in range(300):
        refuse(refusals, tenth / 10)
    assert len(lines.records) == 1


def test_another_error_is_reported(lines: pytest.LogCaptureFixture) -> None:
    refusals = FetchErrorLog()
    refuse(refusals, 0.0)
    refuse(refusals, 0.1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert len(lines.records) == 2


def test_after_a_while_without_refusals_the_next_one_is_reported(lines: pytest.LogCaptureFixture) -> None:
    refusals = FetchErrorLog()
    refuse(refusals, 0.0)
    refuse(refusals, REFUSALS_QUIET_S)
    assert len(lines.records) == 2


def test_a_follower_reports_what_its_leader_refuses_once(lines: pytest.LogCaptureFixture) -> None:
    follower = FetchInterpreter()
    follower.run("follow a b c")
    for _ in range(20):
        follower.run("ask")
        follower.run("answer 7 a=-74 b=-74 c=-74")
        follower.run("wait 1")
    assert sum("FENCED_LEADER_EPOCH" in record.message for record in lines.records) == 1
