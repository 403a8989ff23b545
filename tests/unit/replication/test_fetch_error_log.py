"""A leader that refuses many partitions, again and again, is one line of the log."""

from __future__ import annotations

import pytest

from flowstone.errors import ErrorCode
from flowstone.replication.fetch_error_log import REFUSALS_QUIET_S, REFUSED_NAMED_MAX, FetchErrorLog
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


@pytest.mark.parametrize("count", [1, REFUSED_NAMED_MAX, REFUSED_NAMED_MAX + 1])
def test_as_many_partitions_are_named_as_the_limit(lines: pytest.LogCaptureFixture, count: int) -> None:
    refuse(FetchErrorLog(), 0.0, count=count)
    (record,) = lines.records
    named = ", ".join(f"t-{number}" for number in range(min(count, REFUSED_NAMED_MAX)))
    more = " and 1 more" if count > REFUSED_NAMED_MAX else ""
    assert f"for now: {named}{more}: FENCED_LEADER_EPOCH" in record.message


def test_an_error_is_quiet_until_the_leader_has_not_answered_it_for_a_while(lines: pytest.LogCaptureFixture) -> None:
    refusals = FetchErrorLog()
    refuse(refusals, 0.0)
    refuse(refusals, REFUSALS_QUIET_S - 0.1)
    refuse(refusals, 2 * REFUSALS_QUIET_S - 0.2)
    assert len(lines.records) == 1
    refuse(refusals, 3 * REFUSALS_QUIET_S)
    assert len(lines.records) == 2


def test_nothing_is_reported_twice_or_without_a_refusal(lines: pytest.LogCaptureFixture) -> None:
    refusals = FetchErrorLog()
    refusals.report(0.0)
    refuse(refusals, 1.0)
    refusals.report(100.0)
    assert len(lines.records) == 1


def test_an_error_that_has_no_name_is_told_by_its_number(lines: pytest.LogCaptureFixture) -> None:
    refusals = FetchErrorLog()
    refusals.add(9999, TopicPartition("t", 0))
    refusals.report(0.0)
    assert "t-0: error 9999" in lines.records[0].message
