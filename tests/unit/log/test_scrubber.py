"""Damage in old segments is found before a reader meets it: by a real process on real files, and on simulated ones."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowstone.config import BrokerConfig, TopicConfig
from flowstone.log.manager import LogManager
from flowstone.log.scrubbing.check import SegmentToCheck
from flowstone.log.scrubbing.scrubber import LOOK_INTERVAL_S, CheckerProcess
from flowstone.log.scrubbing.worker import PassingFile, answer
from flowstone.log.workers.throttle import Throttle
from flowstone.ports.clock import SimulatedClock
from flowstone.ports.system_files import SystemFiles
from flowstone.types import TopicPartition
from flowstone.wire.compression import Codec
from flowstone.wire.record_batch import Record, build_batch, encode_header, parse_header
from tests.support.broken_disks import BrokenDisks
from tests.support.transactional_log import TransactionWriter

NAME = TopicPartition("orders", 0)
TOPIC_ID = b"1" * 16
CONFIG = TopicConfig(segment_bytes=1000, index_interval_bytes=100, file_delete_delay_ms=0)
DAY_S = 86400.0


class Broker:
    def __init__(self, files: Any, path: str, **settings: Any) -> None:
        self.files, self.clock = files, SimulatedClock()
        self.config = BrokerConfig(log_dirs=path, **settings)
        self._flushed = asyncio.Event()
        self.logs = LogManager(
            self.files,
            self.clock,
            self.config,
            on_flushed=lambda log: self._flushed.set(),
            on_fault=lambda fault: None,
            high_watermark_of=lambda log: log.recovery_point,
        )
        self.log = self.logs.get_or_create(NAME, TOPIC_ID, CONFIG)
        self.scrubber = self.logs.scrubber

    async def fill(self, count: int = 60) -> None:
        for number in range(count):
            batch = build_batch([Record(0, self.clock.time_ms(), None, b"value %d " % number * 5)])
            self.log.append(batch, leader_epoch=0)
        self.logs.directories[0].flusher.request(self.log)
        while self.log.recovery_point < self.log.log_end_offset:
            self._flushed.clear()
            await asyncio.wait_for(self._flushed.wait(), 10)

    def damage(self, segment: int, position: int = 100) -> str:
        path = self.log.segments[segment].log.path
        file = self.files.open(path)
        file.write(position, [bytes([file.read(position, 1)[0] ^ 1])])
        return path


def scenario(body: Callable[[Broker], Awaitable[None]]) -> Callable[[], None]:
    @functools.wraps(body)
    def test() -> None:
        async def run() -> None:
            broker = Broker(BrokenDisks(), "/data")
            try:
                await broker.fill()
                await body(broker)
            finally:
                broker.logs.abort()

        asyncio.run(run())

    del test.__wrapped__  # type: ignore[attr-defined]
    return test


@scenario
async def test_good_segments_are_read_and_nothing_is_said(broker: Broker) -> None:
    await broker.scrubber.scrub_all()
    assert broker.scrubber.checked_bytes == sum(each.size_bytes for each in broker.log.segments[:-1]) > 0
    assert not broker.scrubber.damaged


@scenario
async def test_a_flipped_bit_is_found_and_the_partition_stays_online(broker: Broker) -> None:
    path = broker.damage(1)
    await broker.scrubber.scrub_all()
    (damaged,) = broker.scrubber.damaged
    assert (damaged.topic_partition, damaged.path) == (NAME, path)
    assert "the checksum does not match" in damaged.reason
    assert broker.logs.directories[0].fault is None
    assert broker.logs.logs[NAME] is broker.log


@pytest.mark.parametrize("position", [3, 9, 16, 23, 60, 70])
def test_a_flip_anywhere_in_a_batch_is_found(position: int) -> None:
    @scenario
    async def body(broker: Broker) -> None:
        broker.damage(0, position)
        await broker.scrubber.scrub_all()
        assert len(broker.scrubber.damaged) == 1

    body()


@scenario
async def test_a_batch_that_no_consumer_can_read_is_found(broker: Broker) -> None:
    header = parse_header(build_batch([Record(0, broker.clock.time_ms(), None, b"v")]))._replace(attributes=Codec.GZIP)
    broker.log.config = replace(CONFIG, flowstone_validation="header")
    broker.log.append(encode_header(header, b"notgzip") + b"notgzip", leader_epoch=0)
    await broker.fill()
    await broker.scrubber.scrub_all()
    (damaged,) = broker.scrubber.damaged
    assert "no consumer can read the batch: gzip" in damaged.reason


@scenario
async def test_a_file_that_was_cut_short_is_found(broker: Broker) -> None:
    segment = broker.log.segments[0]
    broker.files.open(segment.log.path).truncate(segment.size_bytes - 1)
    await broker.scrubber.scrub_all()
    assert "bytes and should have" in broker.scrubber.damaged[0].reason


async def begin_transactions(broker: Broker) -> str:
    """Write aborted transactions, and return the path of an index that has some of them."""
    writer = TransactionWriter(broker.log, 1)
    for _ in range(20):
        writer.write(1, is_transactional=True)
        writer.end(1, is_commit=False)
    await broker.fill(1)
    segment = next(each for each in broker.log.segments if each.transactions.size_bytes)
    assert not segment.transactions.is_active
    await broker.scrubber.scrub_all()
    assert not broker.scrubber.damaged
    broker.clock.advance(7 * DAY_S)
    return segment.transactions.handle.path


@scenario
async def test_a_wrong_transaction_index_is_found(broker: Broker) -> None:
    path = await begin_transactions(broker)
    file = broker.files.open(path)
    file.write(9, [bytes([file.read(9, 1)[0] ^ 1])])
    await broker.scrubber.scrub_all()
    (damaged,) = broker.scrubber.damaged
    assert f"its transaction index {path} does not match the log" in damaged.reason


@scenario
async def test_a_missing_transaction_index_is_found(broker: Broker) -> None:
    path = await begin_transactions(broker)
    broker.files.remove(path)
    await broker.scrubber.scrub_all()
    (damaged,) = broker.scrubber.damaged
    assert f"its transaction index {path} is missing" in damaged.reason


@scenario
async def test_a_missing_file_is_found(broker: Broker) -> None:
    broker.files.remove(broker.log.segments[0].log.path)
    told_to_the_disk: list[OSError] = []
    broker.scrubber._on_error = lambda log, error: told_to_the_disk.append(error)
    await broker.scrubber.scrub_all()
    assert "it cannot be read" in broker.scrubber.damaged[0].reason
    assert not told_to_the_disk  # which is not to blame for a missing name


@scenario
async def test_a_disk_that_cannot_be_read_is_found_and_checked(broker: Broker) -> None:
    broker.files.break_disk(broker.log.path)
    await broker.scrubber.scrub_all()
    assert len(broker.scrubber.damaged) == len(broker.log.segments) - 1
    await broker.logs.directories[0].housekeeping.in_thread(lambda: None)
    assert broker.logs.directories[0].fault is None  # the rest of the disk is well


@contextlib.contextmanager
def logged() -> Iterator[list[logging.LogRecord]]:
    """What the scrubber logs."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("flowstone.log.scrubbing.scrubber")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield records
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@scenario
async def test_each_round_tells_how_much_it_read_and_found_damaged(broker: Broker) -> None:
    with logged() as told:
        await broker.scrubber.scrub_all()
        broker.damage(0)
        broker.clock.advance(8 * DAY_S)
        await broker.scrubber.scrub_all()
        await broker.scrubber.scrub_all()  # nothing is due
    sealed = broker.log.segments[:-1]
    read = f"scrubbed {len(sealed)} segments, {sum(each.size_bytes for each in sealed)} bytes"
    rounds = [each.getMessage() for each in told if each.levelno == logging.INFO]
    assert rounds == [f"{read}: none damaged", f"{read}: 1 damaged"]


@scenario
async def test_damage_is_reported_once(broker: Broker) -> None:
    with logged() as told:
        broker.damage(0)
        for _ in range(3):
            await broker.scrubber.scrub_all()
            broker.clock.advance(8 * DAY_S)
    (error,) = [each.getMessage() for each in told if each.levelno == logging.ERROR]
    assert "00000000000000000000.log is damaged" in error
    assert "flowstone log verify" in error


@scenario
async def test_a_segment_is_read_again_only_after_the_interval(broker: Broker) -> None:
    await broker.scrubber.scrub_all()
    once = broker.scrubber.checked_bytes
    broker.clock.advance(6 * DAY_S)
    await broker.scrubber.scrub_all()
    assert broker.scrubber.checked_bytes == once
    broker.clock.advance(2 * DAY_S)
    await broker.scrubber.scrub_all()
    assert broker.scrubber.checked_bytes == 2 * once


@scenario
async def test_a_segment_is_read_again_in_the_second_of_the_interval(broker: Broker) -> None:
    await broker.scrubber.scrub_all()
    once = broker.scrubber.checked_bytes
    broker.clock.advance(broker.config.log_scrub_interval_ms / 1000)
    await broker.scrubber.scrub_all()
    assert broker.scrubber.checked_bytes == 2 * once


@scenario
async def test_damage_that_is_repaired_is_forgotten_and_reported_again_when_it_comes_back(broker: Broker) -> None:
    with logged() as told:
        for _ in range(4):  # damaged, whole, damaged, whole
            broker.damage(0)
            await broker.scrubber.scrub_all()
            broker.clock.advance(8 * DAY_S)
        assert broker.scrubber.damaged == []
    assert len([each for each in told if each.levelno == logging.ERROR]) == 2


@scenario
async def test_the_active_segment_is_not_read(broker: Broker) -> None:
    broker.damage(-1)
    await broker.scrubber.scrub_all()
    assert not broker.scrubber.damaged


@scenario
async def test_what_is_deleted_is_no_longer_damaged(broker: Broker) -> None:
    broker.damage(0)
    await broker.scrubber.scrub_all()
    assert broker.scrubber.damaged
    await broker.logs.delete_records_before(broker.log, broker.log.segments[1].base_offset)
    await broker.scrubber.scrub_all()
    assert not broker.scrubber.damaged
    broker.damage(0)
    broker.logs.delete(NAME)
    await broker.scrubber.scrub_all()
    assert not broker.scrubber.damaged


@scenario
async def test_a_segment_that_is_removed_while_it_is_read_is_not_damaged(broker: Broker) -> None:
    check = broker.scrubber._checker.check

    async def drop_first(segment: SegmentToCheck) -> str | None:
        if segment.base_offset == 0:
            await broker.logs.delete_records_before(broker.log, segment.end_offset)
            return "it was another file"
        return await check(segment)

    broker.scrubber._checker.check = drop_first  # type: ignore[method-assign]
    await broker.scrubber.scrub_all()
    assert not broker.scrubber.damaged


@scenario
async def test_it_begins_by_itself(broker: Broker) -> None:
    broker.clock.advance(LOOK_INTERVAL_S + 1)
    assert broker.scrubber.task is not None
    await broker.scrubber.task
    assert broker.scrubber.checked_bytes


def test_it_can_be_turned_off() -> None:
    async def run() -> None:
        broker = Broker(BrokenDisks(), "/data", log_scrub_bytes_per_second=0)
        await broker.fill()
        broker.clock.advance(LOOK_INTERVAL_S + 1)
        assert broker.scrubber.task is None
        broker.logs.abort()

    asyncio.run(run())


# By a process


def test_a_process_finds_damage_in_real_files_and_ends_when_it_is_done(tmp_path: Path) -> None:
    async def run() -> None:
        broker = Broker(SystemFiles(), str(tmp_path), log_scrub_bytes_per_second=1 << 30)
        await broker.fill()
        path = broker.damage(2)
        checker = broker.scrubber._checker
        assert isinstance(checker, CheckerProcess)
        await broker.scrubber.scrub_all()
        assert [each.path for each in broker.scrubber.damaged] == [path]
        assert checker._process.pid is None
        broker.logs.abort()

    asyncio.run(run())


def test_a_process_that_was_killed_is_started_again_later(tmp_path: Path) -> None:
    async def run() -> None:
        broker = Broker(SystemFiles(), str(tmp_path))
        await broker.fill()
        checker = broker.scrubber._checker
        assert isinstance(checker, CheckerProcess)
        segment = broker.log.segments[0]
        to_check = SegmentToCheck(segment.log.path, 0, broker.log.segments[1].base_offset, segment.size_bytes)
        assert await checker.check(to_check) is None
        pid = checker._process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await broker.scrubber.scrub_all()
        assert not broker.scrubber.damaged
        await broker.scrubber.scrub_all()
        assert broker.scrubber.checked_bytes == sum(each.size_bytes for each in broker.log.segments[:-1])
        broker.logs.abort()

    asyncio.run(run())


def test_reading_is_throttled(tmp_path: Path) -> None:
    waits: list[float] = []
    (tmp_path / "file").write_bytes(bytes(1000))
    throttle = Throttle(100, monotonic=lambda: 0.0, wait=waits.append)
    PassingFile(SystemFiles().open(str(tmp_path / "file")), throttle).read(0, 1000)
    assert waits == [10.0]


def test_what_was_not_in_the_page_cache_is_not_left_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    file = SystemFiles().open(str(path))
    if file.is_cached(0, 1 << 20):
        pytest.skip("this file system keeps what it is told to drop")
    PassingFile(file, Throttle(1e12)).read(0, 1 << 20)
    assert not file.is_cached(0, 1 << 20)
    file.read(0, 1 << 20)
    PassingFile(file, Throttle(1e12)).read(0, 1 << 20)
    assert file.is_cached(0, 1 << 20)


def test_an_error_of_the_disk_is_an_answer() -> None:
    asked = {"segment": ["/nowhere/0.log", 0, 1, 1], "bytes_per_s": 1}
    assert answer(asked)["errno"] == errno.ENOENT
