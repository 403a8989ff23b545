"""When tables are compacted beside the writes of a process."""

from __future__ import annotations

import logging
from threading import Event, Thread

import pytest

from flowstone.pipeline.model import TableSink
from flowstone.pipeline.tables.schedule import Schedule

TABLE = TableSink("delta", "orders", compact_every_s=10)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def ended(thread: Thread | None) -> bool:
    if thread is not None:
        thread.join(10)
        assert not thread.is_alive()
    return thread is not None


def test_a_table_is_compacted_once_in_each_interval() -> None:
    clock, compacted = Clock(), []
    schedule = Schedule(compacted.append, clock)
    assert not ended(schedule.written(TABLE))
    clock.now = 109
    assert not ended(schedule.written(TABLE))
    clock.now = 111
    assert ended(schedule.written(TABLE))
    assert not ended(schedule.written(TABLE))
    clock.now = 122
    assert ended(schedule.written(TABLE))
    assert compacted == [TABLE, TABLE]


def test_a_table_without_an_interval_is_never_compacted() -> None:
    clock = Clock()
    schedule = Schedule(lambda table: pytest.fail("compacted"), clock)
    for clock.now in (100, 10_000):
        assert not ended(schedule.written(TableSink("delta", "orders")))


def test_compactions_of_one_table_do_not_overlap_and_those_of_others_do() -> None:
    clock, go = Clock(), Event()
    schedule = Schedule(lambda table: go.wait(10), clock)
    other = TableSink("delta", "customers", compact_every_s=10)
    assert [schedule.written(each) for each in (TABLE, other)] == [None, None]
    clock.now = 111
    first, second = schedule.written(TABLE), schedule.written(other)
    clock.now = 130
    assert schedule.written(TABLE) is None
    go.set()
    assert ended(first)
    assert ended(second)
    assert ended(schedule.written(TABLE))


def test_a_failure_is_logged_and_the_next_compaction_comes(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()

    def fail(table: TableSink) -> None:
        raise OSError("the disk is full")

    schedule = Schedule(fail, clock)
    schedule.written(TABLE)
    with caplog.at_level(logging.WARNING):
        for clock.now in (111, 122):
            assert ended(schedule.written(TABLE))
    assert [each.getMessage() for each in caplog.records] == [
        "the compaction of orders failed and is tried again later"
    ] * 2
