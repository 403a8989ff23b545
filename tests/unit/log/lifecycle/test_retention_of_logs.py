"""Retention of the logs of a directory, and the clock by which it deletes."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
from typing import Any

import pytest

from flowstone.log.partition.partition_log import PartitionLog
from flowstone.ports.clock import SimulatedClock
from flowstone.types import TopicPartition
from flowstone.wire.end_markers import end_marker
from flowstone.wire.record_batch import Record, build_batch
from tests.support.managed_logs import CONFIG, FIRST, OTHER_ID, SECOND, Broker, broker, run

__all__ = ["broker"]


def test_old_segments_go_and_their_files_later(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        for _ in range(50):
            broker.append(log)
            broker.clock.advance(10)
        await broker.flush(log)
        log.configure(dataclasses.replace(CONFIG, retention_ms=100_000))
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert log.log_start_offset == log.segments[0].base_offset > 20
        assert [name for name in broker.files.names(log.path) if name.endswith(".deleted")]
        await broker.flush(log)
        broker.clock.advance(61)
        await broker.settle()
        assert not [name for name in broker.files.names(log.path) if name.endswith(".deleted")]
        broker.logs.close()

    run(body)


def test_a_full_disk_does_not_keep_itself_full(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        for _ in range(50):
            broker.append(log)
        await broker.flush(log)
        await broker.settle()
        log.configure(dataclasses.replace(CONFIG, retention_bytes=500))
        broker.files.fail_next("write", errno.ENOSPC)
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert log.segments[0].base_offset == log.log_start_offset > 20
        broker.logs.abort()
        broker.files.lose_power()
        broker.open()
        assert broker.log().log_end_offset == 50
        broker.logs.close()

    run(body)


@pytest.mark.parametrize("by", ["retention", "DeleteRecords"])
def test_a_start_that_moves_while_an_earlier_one_is_checkpointed_deletes_nothing_until_the_next(
    broker: Broker, by: str
) -> None:
    """A follower's log starts where its leader's does, whenever it learns of that."""

    async def body() -> None:
        broker.open()
        log = broker.log()
        for _ in range(50):
            broker.append(log)
        await broker.flush(log)
        housekeeping = broker.logs.directories[0].housekeeping
        await housekeeping.checkpoint()
        second, third = (segment.base_offset for segment in log.segments[1:3])
        if by == "retention":
            log.advance_log_start(second)
            dropping = asyncio.ensure_future(housekeeping.apply_retention())
        else:
            dropping = asyncio.ensure_future(broker.logs.delete_records_before(log, second))
        await asyncio.sleep(0)
        log.advance_log_start(third)
        await dropping
        broker.append(log)
        await broker.flush(log)  # also of the names of the deleted files
        broker.logs.abort()
        broker.files.lose_power()
        broker.open()
        assert FIRST not in broker.logs.offline
        assert broker.log().segments[0].base_offset == second
        broker.logs.close()

    run(body)


def test_records_deleted_from_a_topic_that_is_made_anew_meanwhile_leave_the_new_one_alone(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        old = broker.log()
        for _ in range(50):
            broker.append(old)
        await broker.flush(old)
        deleting = asyncio.ensure_future(broker.logs.delete_records_before(old, 50))
        await asyncio.sleep(0)
        broker.logs.delete(FIRST)
        await broker.logs.wait_forgotten()
        new = broker.log(topic_id=OTHER_ID)
        broker.append(new)
        await deleting
        assert "00000000000000000000.log" in broker.files.names(new.path)
        broker.logs.close()

    run(body)


def test_retention_of_a_topic_that_is_made_anew_meanwhile_leaves_the_new_one_alone(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        for _ in range(30):
            broker.append(broker.log(FIRST))
        broker.append(broker.log(SECOND), 3)
        broker.logs.close()
        broker.files.remove("/data/first-0/00000000000000000000.timeindex")  # what has to be made again takes a while
        broker.open()
        broker.clock.advance(CONFIG.retention_ms / 1000 + 1)
        retention = asyncio.ensure_future(broker.logs.directories[0].housekeeping.apply_retention())
        await asyncio.sleep(0)
        broker.logs.delete(SECOND)
        await broker.logs.wait_forgotten()
        new = broker.log(SECOND, OTHER_ID)
        broker.append(new)
        await retention
        assert [name for name in broker.files.names(new.path) if name.endswith(".log")] == ["00000000000000000000.log"]
        broker.logs.close()

    run(body)


def test_records_without_timestamps_are_as_old_as_their_segment(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        log.append(build_batch([Record(0, -1, b"k", b"v")]), leader_epoch=0)
        await broker.flush(log)
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert log.log_start_offset == 0
        broker.clock.advance(CONFIG.retention_ms / 1000 + 1)
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert log.log_start_offset == 1
        broker.logs.close()

    run(body)


def test_a_log_whose_records_are_all_too_old_continues_at_its_end(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        broker.append(log, 7)
        await broker.flush(log)
        broker.clock.advance(CONFIG.retention_ms / 1000 + 1)
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert (log.log_start_offset, log.size_bytes) == (7, 0)
        broker.logs.abort()
        broker.files.lose_power()
        broker.open()
        assert broker.append(broker.log()) == 7
        broker.logs.close()

    run(body)


def test_a_log_that_is_not_led_here_loses_nothing_by_age_or_size(broker: Broker) -> None:
    async def body() -> None:
        broker.open(decides_retention=lambda log: False)
        log = broker.log()
        for _ in range(50):
            broker.append(log)
        await broker.flush(log)
        log.configure(dataclasses.replace(CONFIG, retention_bytes=500))
        broker.clock.advance(CONFIG.retention_ms / 1000 + 1)
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert (log.log_start_offset, log.segments[0].base_offset) == (0, 0)
        broker.logs.close()

    run(body)


def test_a_log_that_is_not_led_here_drops_what_lies_below_its_leaders_start(broker: Broker) -> None:
    async def body() -> None:
        broker.open(decides_retention=lambda log: False)
        log = broker.log()
        for _ in range(50):
            broker.append(log)
        await broker.flush(log)
        log.advance_log_start(30)
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert 0 < log.segments[0].base_offset <= 30
        log.advance_log_start(50)
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert (log.segments[0].base_offset, log.size_bytes) == (50, 0)
        broker.logs.close()

    run(body)


def test_a_clock_that_jumps_ahead_for_a_moment_deletes_nothing(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        broker.append(log, 7)
        await broker.flush(log)
        jumped_ms = CONFIG.retention_ms + 1000
        with monkeypatch.context() as patch:
            patch.setattr(broker.clock, "_start_ms", broker.clock._start_ms + jumped_ms)
            broker.clock.advance(8)
            await broker.logs.directories[0].housekeeping.apply_retention()
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert log.log_start_offset == 0
        broker.logs.close()

    run(body)


class MachineClock:
    """A simulated clock that the broker does not know for one, and so does not believe without evidence."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)


def append_from_another_machine(broker: Broker, log: PartitionLog) -> None:
    """Append seven records with timestamps an hour and a half behind this machine's clock."""
    ahead_ms = CONFIG.retention_ms + 30 * 60_000
    records = [Record(at, broker.clock.time_ms() - ahead_ms, b"k", b"v" * 50) for at in range(7)]
    log.append(build_batch(records), leader_epoch=0)


def test_records_with_the_brokers_own_timestamps_do_not_confirm_its_clock(broker: Broker) -> None:
    async def body() -> None:
        own = TopicPartition("own", 0)
        broker.broker_clock = MachineClock(broker.clock)
        manager = broker.open(stamps_records=lambda log: log.topic_partition == own)
        append_from_another_machine(broker, broker.log())
        broker.append(broker.log(own, bytes(15) + b"7"))
        await broker.flush(broker.log())
        await manager.directories[0].housekeeping.apply_retention()
        assert broker.log().log_start_offset == 0
        assert manager.steady_clock.is_in_doubt
        manager.close()

    run(body)


@pytest.mark.parametrize("markers", [1, 200])
def test_end_markers_with_the_brokers_own_timestamps_do_not_confirm_its_clock(broker: Broker, markers: int) -> None:
    async def body() -> None:
        broker.broker_clock = MachineClock(broker.clock)
        manager = broker.open()
        append_from_another_machine(broker, broker.log())
        for _ in range(markers):
            marker = end_marker(1, 0, 0, True, broker.clock.time_ms())
            broker.log().append(marker, leader_epoch=0, is_own=True)
        await broker.flush(broker.log())
        await manager.directories[0].housekeeping.apply_retention()
        assert broker.log().log_start_offset == 0
        assert manager.steady_clock.is_in_doubt
        manager.close()

    run(body)


def test_a_start_does_not_confirm_the_clock_of_the_next_start(broker: Broker) -> None:
    async def body() -> None:
        broker.broker_clock = MachineClock(broker.clock)
        broker.open().close()
        manager = broker.open()
        append_from_another_machine(broker, broker.log())
        await broker.flush(broker.log())
        await manager.directories[0].housekeeping.apply_retention()
        assert broker.log().log_start_offset == 0
        manager.close()

    run(body)


def test_retention_comes_by_itself(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        broker.append(log, 7)
        await broker.flush(log)
        broker.clock.advance(CONFIG.retention_ms / 1000 + 600)
        assert broker.logs.directories[0].housekeeping.retention is not None
        await broker.logs.directories[0].housekeeping.retention
        assert log.log_start_offset == 7
        broker.logs.close()

    run(body)


def test_retention_is_applied_every_interval(broker: Broker) -> None:
    async def body() -> None:
        broker.config = dataclasses.replace(broker.config, log_retention_check_interval_ms=300_000)
        broker.open()
        housekeeping = broker.logs.directories[0].housekeeping
        for _ in range(2):
            before = housekeeping.retention
            broker.clock.advance(299.875)
            assert housekeeping.retention is before
            broker.clock.advance(0.125)
            assert housekeeping.retention is not before
            assert housekeeping.retention is not None
            await housekeeping.retention
        broker.logs.close()

    run(body)


def test_retention_on_a_full_disk_leaves_a_log_that_a_start_believes(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        while len(log.segments) < 4:
            broker.append(log)
            broker.clock.advance(10)
        await broker.flush(log)
        await broker.settle()
        log.configure(dataclasses.replace(CONFIG, retention_ms=15_000))
        broker.files.fail_next("rename", errno.ENOSPC)
        await broker.logs.directories[0].housekeeping.apply_retention()
        begin = log.log_start_offset
        assert log.segments[0].base_offset == begin > 0
        broker.files.sync_directory("/data/first-0")
        broker.logs.abort()
        broker.files.lose_power()
        broker.open()
        assert not broker.logs.offline
        assert broker.logs.logs[FIRST].log_start_offset == begin
        broker.logs.close()

    run(body)


def test_retention_keeps_segments_while_nothing_durable_can_say_that_they_went(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        while len(log.segments) < 4:
            broker.append(log)
            broker.clock.advance(10)
        await broker.flush(log)
        await broker.settle()
        log.configure(dataclasses.replace(CONFIG, retention_ms=15_000))
        broker.files.fail_next("write", errno.ENOSPC, times=3)
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert log.segments[0].base_offset == 0
        broker.files.fail_nothing()
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert log.segments[0].base_offset == log.log_start_offset > 0
        broker.logs.close()

    run(body)
