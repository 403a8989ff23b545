"""Logs are compacted behind the broker's back: by a real process on real files, and on files that fail."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from flowstone.config import BrokerConfig, TopicConfig
from flowstone.errors import StorageFault
from flowstone.kernel.compaction_contract import SLOT_BYTES
from flowstone.log.compaction.cleaner_process import CompactorProcess
from flowstone.log.compaction.one_log import MAP_KEYS_MIN
from flowstone.log.manager import LogManager
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.cached_reads import wait_for
from flowstone.ports.clock import SimulatedClock
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.ports.system_files import SystemFiles
from flowstone.types import TopicPartition
from flowstone.wire.compression import Codec
from flowstone.wire.record_batch import Record, build_batch, decode_records, encode_header, parse_header

NAME = TopicPartition("table", 0)
TOPIC_ID = b"1" * 16
CONFIG = TopicConfig(cleanup_policy=("compact",), segment_bytes=2000, index_interval_bytes=200, file_delete_delay_ms=0)
KEYS = 10


class Broker:
    def __init__(self, files: Any, path: str) -> None:
        self.files, self.clock = files, SimulatedClock()
        self.config = BrokerConfig(log_dirs=path)
        self.faults: list[StorageFault] = []

    def open(self) -> PartitionLog:
        self.flushed = asyncio.Event()
        self.logs = LogManager(
            self.files,
            self.clock,
            self.config,
            on_flushed=lambda log: self.flushed.set(),
            on_fault=self.faults.append,
            high_watermark_of=lambda log: log.recovery_point,
            topic_config=lambda topic: CONFIG,
        )
        return self.logs.get_or_create(NAME, TOPIC_ID, CONFIG)

    def append(self, log: PartitionLog, number: int, codec: Codec = Codec.NONE) -> None:
        records = [Record(0, self.clock.time_ms(), b"key %d" % (number % KEYS), b"value %d " % number * 5)]
        log.append(build_batch(records, codec=codec), leader_epoch=0)

    async def flush(self, log: PartitionLog) -> None:
        self.logs.directories[0].flusher.request(log)
        while log.recovery_point < log.log_end_offset:
            self.flushed.clear()
            await asyncio.wait_for(self.flushed.wait(), 10)

    async def fill(self, log: PartitionLog, count: int = 200) -> None:
        codecs = list(Codec)
        for number in range(log.log_end_offset, log.log_end_offset + count):
            self.append(log, number, codecs[number % len(codecs)])
        await self.flush(log)

    def names(self, suffix: str) -> list[str]:
        return [name for name in self.files.names(f"{self.config.log_dirs}/{NAME}") if name.endswith(suffix)]


def table(log: PartitionLog) -> dict[bytes | None, tuple[int, bytes | None]]:
    """What a consumer would make of the log: the last offset and value of every key."""
    return {record.key: (record.offset, record.value) for record in records(log)}


def records(log: PartitionLog) -> list[Record]:
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        at = offset
        batch = wait_for(lambda: log.read(at, 1, log.end, at_least_one=True))  # noqa: B023
        assert batch is not None
        found += decode_records(batch.read())
        offset = parse_header(batch.read()).next_offset
    return found


def sealed_bytes(log: PartitionLog) -> int:
    return sum(segment.size_bytes for segment in log.segments[:-1])


@pytest.fixture
def broker() -> Broker:
    return Broker(SimulatedFiles(), "/data")


@pytest.fixture
def real_broker(tmp_path: Path) -> Broker:
    return Broker(SystemFiles(), str(tmp_path))


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(body())  # type: ignore[arg-type]


def process_of(broker: Broker) -> Any:
    compactor = broker.logs.directories[0].cleaner._compactor
    assert isinstance(compactor, CompactorProcess)
    return compactor._process


def test_a_process_compacts_a_log_and_a_restart_finds_it_so(real_broker: Broker) -> None:
    async def body() -> None:
        log = real_broker.open()
        await real_broker.fill(log)
        before = table(log)
        await real_broker.logs.directories[0].cleaner.clean_all()
        assert table(log) == before
        assert len(records(log)) < 3 * KEYS
        assert log.first_dirty_offset == log.segments.active.base_offset
        assert os.getpriority(os.PRIO_PROCESS, process_of(real_broker).pid) > os.getpriority(os.PRIO_PROCESS, 0)
        left = records(log)
        real_broker.logs.close()
        log = real_broker.open()
        assert records(log) == left
        assert log.first_dirty_offset == log.segments.active.base_offset
        real_broker.logs.close()

    run(body)


def test_segments_that_have_become_small_are_merged(broker: Broker) -> None:
    async def body() -> None:
        log = broker.open()
        await broker.fill(log)
        await broker.logs.directories[0].cleaner.clean_all()
        segment_count = len(log.segments)
        await broker.fill(log, 20)
        await broker.logs.directories[0].cleaner.clean_all()
        assert segment_count > 10
        assert len(log.segments) <= 4
        assert len(records(log)) < 3 * KEYS
        broker.logs.close()

    run(body)


def test_a_broker_compacts_by_itself_from_time_to_time(broker: Broker) -> None:
    async def body() -> None:
        log = broker.open()
        await broker.fill(log)
        broker.clock.advance(broker.config.log_cleaner_backoff_ms / 1000)
        assert broker.logs.directories[0].cleaner.task is not None
        await broker.logs.directories[0].cleaner.task
        assert len(records(log)) < 3 * KEYS
        broker.logs.close()

    run(body)


def test_compaction_can_be_switched_off(broker: Broker) -> None:
    async def body() -> None:
        broker.config = dataclasses.replace(broker.config, log_cleaner_enable=False)
        log = broker.open()
        await broker.fill(log)
        broker.clock.advance(broker.config.log_cleaner_backoff_ms / 1000)
        assert broker.logs.directories[0].cleaner.task is None
        broker.logs.close()

    run(body)


def test_the_active_segment_is_rolled_when_its_records_have_waited_too_long(broker: Broker) -> None:
    async def body() -> None:
        log = broker.open()
        log.configure(dataclasses.replace(CONFIG, max_compaction_lag_ms=60_000))
        for _ in range(3):
            broker.append(log, 1)
        await broker.flush(log)
        await broker.logs.directories[0].cleaner.clean_all()
        assert len(records(log)) == 3
        broker.clock.advance(61)
        await broker.logs.directories[0].cleaner.clean_all()
        assert [record.offset for record in records(log)] == [2]
        broker.logs.close()

    run(body)


def test_what_is_not_committed_is_left_alone(broker: Broker) -> None:
    async def body() -> None:
        log = broker.open()
        await broker.fill(log)
        cleaner = broker.logs.directories[0].cleaner
        cleaner._high_watermark_of = lambda log: log.segments[1].base_offset
        await cleaner.clean_all()
        assert log.first_dirty_offset == log.segments[1].base_offset
        broker.logs.close()

    run(body)


def test_sealed_segments_that_are_not_on_disk_yet_are_flushed_and_compacted_the_next_time(broker: Broker) -> None:
    async def body() -> None:
        log = broker.open()
        for number in range(200):
            broker.append(log, number)
        await broker.logs.directories[0].cleaner.clean_all()
        assert log.first_dirty_offset == 0
        await asyncio.wait_for(broker.flushed.wait(), 10)
        await broker.logs.directories[0].cleaner.clean_all()
        assert log.first_dirty_offset == log.segments.active.base_offset
        broker.logs.close()

    run(body)


def test_a_reader_in_mid_segment_is_not_disturbed(real_broker: Broker) -> None:
    async def body() -> None:
        log = real_broker.open()
        await real_broker.fill(log)
        old = log.read(5, 1_000_000, log.end, at_least_one=True)
        assert old is not None
        before = old.read()
        await real_broker.logs.directories[0].cleaner.clean_all()
        await real_broker.logs.directories[0].housekeeping.in_thread(lambda: None)
        assert old.read() == before
        again = wait_for(lambda: log.read(5, 1, log.end, at_least_one=True))
        assert again is not None
        assert parse_header(again.read()).last_offset >= 5
        real_broker.logs.close()

    run(body)


def test_a_log_that_is_compacted_and_expires_loses_old_segments_too(broker: Broker) -> None:
    async def body() -> None:
        log = broker.open()
        config = dataclasses.replace(CONFIG, cleanup_policy=("compact", "delete"), retention_ms=1000, segment_ms=500)
        log.configure(config)
        await broker.fill(log)
        await broker.logs.directories[0].cleaner.clean_all()
        broker.clock.advance(5)
        broker.append(log, 7)
        await broker.flush(log)
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert [record.key for record in records(log)] == [b"key 7"]
        broker.logs.close()

    run(body)


def test_records_below_a_log_start_inside_a_hole_are_not_read(broker: Broker) -> None:
    async def body() -> None:
        log = broker.open()
        await broker.fill(log)
        await broker.logs.directories[0].cleaner.clean_all()
        await broker.logs.delete_records_before(log, 20)
        first = wait_for(lambda: log.read(20, 1, log.end, at_least_one=True))
        assert first is not None
        assert parse_header(first.read()).last_offset > 20
        broker.logs.close()

    run(body)


@pytest.mark.parametrize("fields", [{"attributes": Codec.GZIP}, {"record_count": 9, "last_offset_delta": 8}])
def test_a_log_with_an_unreadable_batch_is_left_as_it_is(
    broker: Broker, caplog: pytest.LogCaptureFixture, fields: dict[str, int]
) -> None:
    """The log is still served, and other logs are still compacted."""

    async def body() -> None:
        log = broker.open()
        await broker.fill(log, 50)
        good = build_batch([Record(0, broker.clock.time_ms(), b"key", b"value")])
        header = parse_header(good)._replace(**fields)
        log.append(encode_header(header, good[61:]) + good[61:], leader_epoch=0, is_own=True)
        await broker.fill(log, 50)
        before = sealed_bytes(log)
        await broker.logs.directories[0].cleaner.clean_all()
        assert sealed_bytes(log) == before
        assert f"{NAME} cannot be compacted and is left as it is: " in caplog.text
        assert "offset 50" in caplog.text
        assert broker.faults == []

    run(body)


def test_a_damaged_log_is_left_as_it_is_and_others_are_compacted(real_broker: Broker, caplog: Any) -> None:
    async def body() -> None:
        log = real_broker.open()
        await real_broker.fill(log)
        other = real_broker.logs.get_or_create(TopicPartition("other", 0), TOPIC_ID, CONFIG)
        await real_broker.fill(other)
        path = Path(log.segments[1].log.path)
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
        bases = [segment.base_offset for segment in log.segments]
        await real_broker.logs.directories[0].cleaner.clean_all()
        assert [segment.base_offset for segment in log.segments] == bases
        assert "bad checksum" in real_broker.logs.directories[0].cleaner.unfit[log]
        assert "table-0 cannot be compacted" in caplog.text
        assert real_broker.names(".cleaned") == []
        assert len(records(other)) < 3 * KEYS
        assert not real_broker.faults
        real_broker.logs.close()

    run(body)


def test_what_it_does_is_counted(broker: Broker) -> None:
    async def body() -> None:
        log = broker.open()
        await broker.fill(log)
        cleaner, before_bytes = broker.logs.directories[0].cleaner, sealed_bytes(log)
        await cleaner.clean_all()
        stats = cleaner.stats
        assert sum(stats.run_seconds.counts) == 1
        assert stats.read_bytes == 2 * before_bytes
        assert stats.written_bytes == sealed_bytes(log)
        assert (stats.failed_runs, stats.last_error_ms) == (0, 0)
        assert (stats.dirty_ratio_max, stats.last_look_ms) == (0.0, broker.clock.time_ms())
        broker.logs.close()

    run(body)


def test_the_dirty_ratio_is_reported_though_no_log_is_due(broker: Broker) -> None:
    async def body() -> None:
        log = broker.open()
        await broker.fill(log)
        log.configure(dataclasses.replace(CONFIG, min_cleanable_dirty_ratio=1.0))
        cleaner = broker.logs.directories[0].cleaner
        await cleaner.clean_all()
        assert cleaner.stats.dirty_ratio_max == 1.0
        assert not sum(cleaner.stats.run_seconds.counts)
        broker.logs.close()

    run(body)


def test_a_full_disk_puts_it_off(broker: Broker) -> None:
    async def body() -> None:
        log = broker.open()
        await broker.fill(log)
        before = records(log)
        await broker.logs.directories[0].housekeeping.in_thread(lambda: None)
        broker.files.fail_next("write", errno.ENOSPC, after=4)
        await broker.logs.directories[0].cleaner.clean_all()
        broker.files.fail_nothing()
        stats = broker.logs.directories[0].cleaner.stats
        assert (stats.failed_runs, stats.last_error_ms) == (1, broker.clock.time_ms())
        assert records(log) == before
        assert broker.names(".cleaned") == []
        await broker.logs.directories[0].cleaner.clean_all()
        assert len(records(log)) < 3 * KEYS
        broker.logs.close()

    run(body)


@pytest.mark.parametrize("operation", ["read", "sync", "write", "truncate"])
def test_a_disk_that_fails_while_it_is_compacted_leaves_the_log_as_it_is(broker: Broker, operation: str) -> None:
    async def body() -> None:
        log = broker.open()
        await broker.fill(log)
        before = records(log)
        cleaner = broker.logs.directories[0].cleaner
        await broker.logs.directories[0].housekeeping.checkpoint()
        begin = cleaner._compactor.begin

        async def fail(job: Any) -> int:
            broker.files.fail_next(operation, errno.EIO)
            return await begin(job)

        cleaner._compactor.begin = fail  # type: ignore[method-assign]
        await cleaner.clean_all()
        assert cleaner.unfit[log]
        assert records(log) == before
        assert broker.names(".cleaned") == broker.names(".swap") == []
        broker.logs.close()

    run(body)


def test_names_that_cannot_be_made_durable_fail_the_log_directory(broker: Broker) -> None:
    async def body() -> None:
        log = broker.open()
        await broker.fill(log)
        clean = broker.logs.directories[0].cleaner._compactor.clean

        async def fail(number: int) -> Any:
            cleaned = await clean(number)
            broker.files.fail_next("sync_directory", errno.EIO)
            return cleaned

        broker.logs.directories[0].cleaner._compactor.clean = fail  # type: ignore[method-assign]
        await broker.logs.directories[0].cleaner.clean_all()
        assert "durable" in str(broker.faults[0])
        broker.logs.abort()

    run(body)


def test_a_topic_deleted_meanwhile_is_no_error(broker: Broker, caplog: Any) -> None:
    async def body() -> None:
        log = broker.open()
        await broker.fill(log)
        clean = broker.logs.directories[0].cleaner._compactor.clean

        async def delete_first(number: int) -> Any:
            cleaned = await clean(number)
            broker.logs.delete(NAME)
            return cleaned

        broker.logs.directories[0].cleaner._compactor.clean = delete_first  # type: ignore[method-assign]
        await broker.logs.directories[0].cleaner.clean_all()
        assert not broker.logs.directories[0].cleaner.unfit
        assert not broker.faults
        assert "cannot be compacted" not in caplog.text
        broker.logs.close()

    run(body)


@pytest.mark.parametrize("when", ["before the swap", "in the swap"])
def test_segments_that_retention_takes_meanwhile_are_not_brought_back(broker: Broker, when: str) -> None:
    async def body() -> None:
        log = broker.open()
        await broker.fill(log)
        housekeeping, start = broker.logs.directories[0].housekeeping, log.segments[1].base_offset
        clean, in_thread = broker.logs.directories[0].cleaner._compactor.clean, housekeeping.in_thread

        def drop() -> None:
            log.advance_log_start(log.segments[1].base_offset)
            housekeeping.drop_segments(log, log.log_start_offset)

        async def drop_first(number: int) -> Any:
            cleaned = await clean(number)
            drop()
            return cleaned

        async def drop_between(action: Callable[[], None]) -> None:
            await in_thread(action)
            if log.log_start_offset < start:
                drop()

        if when == "before the swap":
            broker.logs.directories[0].cleaner._compactor.clean = drop_first  # type: ignore[method-assign]
        else:
            housekeeping.in_thread = drop_between  # type: ignore[method-assign]
        await broker.logs.directories[0].cleaner.clean_all()
        assert log.segments[0].base_offset == log.log_start_offset == start
        assert broker.names(".swap") == broker.names(".cleaned") == []
        assert records(log)[0].offset >= start
        broker.logs.close()

    run(body)


def test_a_killed_worker_is_replaced_by_another(real_broker: Broker) -> None:
    async def body() -> None:
        log = real_broker.open()
        await real_broker.fill(log)
        compactor = real_broker.logs.directories[0].cleaner._compactor
        clean = compactor.clean

        async def kill(number: int) -> Any:
            compactor.clean = clean  # type: ignore[method-assign]
            os.kill(process_of(real_broker).pid, signal.SIGKILL)
            return await clean(number)

        compactor.clean = kill  # type: ignore[method-assign]
        before = records(log)
        await real_broker.logs.directories[0].cleaner.clean_all()
        assert records(log) == before
        assert not real_broker.logs.directories[0].cleaner.unfit
        await real_broker.logs.directories[0].cleaner.clean_all()
        assert len(records(log)) < 3 * KEYS
        real_broker.logs.close()

    run(body)


def test_the_worker_ends_with_the_broker(real_broker: Broker) -> None:
    async def body() -> None:
        log = real_broker.open()
        await real_broker.fill(log)
        await real_broker.logs.directories[0].cleaner.clean_all()
        pid = process_of(real_broker).pid
        real_broker.logs.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    run(body)


def test_a_log_with_more_keys_than_the_map_takes_is_compacted_part_by_part_at_once(broker: Broker) -> None:
    async def body() -> None:
        broker.config = dataclasses.replace(broker.config, log_cleaner_dedupe_buffer_size=SLOT_BYTES * 8)
        log = broker.open()
        for number in range(200):
            record = Record(0, broker.clock.time_ms(), b"key %d" % number, bytes(50))
            log.append(build_batch([record]), leader_epoch=0)
        await broker.flush(log)
        await broker.logs.directories[0].cleaner.clean_all()
        assert log.first_dirty_offset > 3 * 2 * MAP_KEYS_MIN
        broker.logs.close()

    run(body)


def test_logs_that_are_not_compacted_are_passed_over(broker: Broker) -> None:
    async def body() -> None:
        log = broker.open()
        deleting = dataclasses.replace(CONFIG, cleanup_policy=("delete",))
        other = broker.logs.get_or_create(TopicPartition("another", 0), b"2" * 16, deleting)
        broker.append(other, 1)
        broker.logs.get_or_create(TopicPartition("empty", 0), b"3" * 16, CONFIG)
        await broker.fill(log)
        await broker.logs.directories[0].cleaner.clean_all()
        assert len(records(log)) < 50
        broker.logs.close()

    run(body)
