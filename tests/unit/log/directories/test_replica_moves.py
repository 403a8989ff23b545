"""Moves between log directories: crashes at any file operation, and other requests while a move ends."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from flowstone.config import BrokerConfig
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.directories import future_replica
from flowstone.log.directories.log_set import DirectoryLogs
from flowstone.log.manager import LogManager
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.ports.simulated_files import SimulatedFiles
from tests.support.managed_logs import FIRST, Broker, run

DIRECTORIES = ("/a", "/b")
LOG_START = 7
FLUSH_TURNS_MAX = 100
TURNS_MAX = 20_000
# Every operation with FLOWSTONE_MOVES=all, otherwise some of them.
EVERY = 1 if os.environ.get("FLOWSTONE_MOVES") == "all" else 7


class CuttingFiles(SimulatedFiles):
    """Files of a machine that stops at one of the operations: none from there on is done."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None
        self.count = 0

    def check(self, operation: str) -> None:
        self.count += 1
        if self.left is not None:
            if self.left <= 0:
                raise OSError(errno.EIO, "the machine has stopped")
            self.left -= 1
        super().check(operation)


class FailingFlushes(SimulatedFiles):
    """Files whose next flush of a log waits, and then fails."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False
        self.is_flushing, self.may_go_on = threading.Event(), threading.Event()

    def check(self, operation: str) -> None:
        if self.fails and operation == "sync" and threading.current_thread().name.startswith("flush"):
            self.is_flushing.set()
            assert self.may_go_on.wait(10)
            raise OSError(errno.EIO, "the disk has failed")
        super().check(operation)


def two_directories() -> Broker:
    broker = Broker()
    broker.files = CuttingFiles()
    broker.config = BrokerConfig(log_dirs=",".join(DIRECTORIES))
    return broker


def content(broker: Broker, log: PartitionLog) -> bytes:
    files: Any = broker.files
    return b"".join(files.open(each.log.path).read(0, each.size_bytes) for each in log.segments)


def home(logs: LogManager) -> list[str]:
    return [each.path for each in logs.directories if FIRST in each.logs]


async def fill(broker: Broker) -> PartitionLog:
    log = broker.log()
    for _ in range(20):
        broker.append(log)
    await flush(broker, log)
    await broker.logs.delete_records_before(log, LOG_START)
    return log


async def flush(broker: Broker, log: PartitionLog) -> None:
    broker.logs.directory_of(log).flusher.request(log)
    for _ in range(FLUSH_TURNS_MAX):
        if log.recovery_point == log.log_end_offset or broker.faults:
            return
        await asyncio.sleep(0.0002)


async def move(broker: Broker, log: PartitionLog) -> None:
    """Move a log to the other directory, and append to it as soon as it has moved."""
    logs, place = broker.logs, log.path
    source = logs.directory_of(log)
    target = next(each for each in logs.directories if each is not source)
    logs.moves.start(log, source, target, lambda flusher: None)
    task, has_appended = logs.moves.all()[0].task, False
    assert task is not None
    while not task.done():
        broker.clock.advance(0.001)
        await asyncio.sleep(0)
        if log.path != place and not log.is_held and not has_appended:
            has_appended = True
            with suppress(ApiError, StorageFault):
                broker.append(log)
                target.flusher.request(log)
    if has_appended:
        await flush(broker, log)


async def crashed_at(operation: int, *, power: bool) -> int:
    """Move a log, and stop at an operation; check what the next start finds. Return how many operations were done."""
    broker = two_directories()
    broker.open()
    log = await fill(broker)
    before = content(broker, log)
    broker.files.left, begun = operation, broker.files.count
    await move(broker, log)
    done, acknowledged_end = broker.files.count - begun, log.recovery_point
    broker.logs.abort()
    broker.files.left = None
    if power:
        broker.files.lose_power()
    logs = broker.open()
    assert not logs.offline, [each.fault for each in logs.offline.values()]
    assert len(home(logs)) == 1
    found = logs.logs[FIRST]
    assert found.log_start_offset == LOG_START
    assert found.recovery_point >= acknowledged_end
    after = content(broker, found)
    assert after.startswith(before)
    await move(broker, found)
    assert content(broker, found).startswith(after)
    assert found.log_end_offset > acknowledged_end
    logs.close()
    assert home(broker.open()) == [found.path.rpartition("/")[0]]
    broker.logs.abort()
    return done


@pytest.mark.parametrize("power", [False, True])
def test_no_record_is_lost_and_no_copy_is_left_wherever_a_move_is_interrupted(power: bool) -> None:
    async def body() -> None:
        total = await crashed_at(10**9, power=power)
        assert total > 50
        for operation in range(int(power), total, EVERY):
            try:
                await crashed_at(operation, power=power)
            except AssertionError as error:
                raise AssertionError(f"stopped at operation {operation} of {total}") from error

    run(body)


class HeldSyncs(SimulatedFiles):
    """Files that count what is synced while a log takes no records."""

    log: PartitionLog | None = None
    count = 0

    def check(self, operation: str) -> None:
        if operation == "sync" and self.log is not None and self.log.is_held:
            self.count += 1
        super().check(operation)


def test_the_last_step_of_a_move_takes_as_long_with_many_segments_as_with_few() -> None:
    async def body() -> None:
        broker = two_directories()
        broker.files = HeldSyncs()
        broker.open()
        log = broker.log()
        for _ in range(400):
            broker.append(log)
        await flush(broker, log)
        assert len(log.segments) > 40
        before, broker.files.log = content(broker, log), log
        await move(broker, log)
        assert log.path.startswith("/b")
        assert content(broker, log).startswith(before)
        assert broker.files.count < 30
        broker.logs.abort()
        broker.files.lose_power()
        assert not broker.open().offline
        assert content(broker, broker.logs.logs[FIRST]).startswith(before)
        broker.logs.abort()

    run(body)


def test_a_segment_that_is_compacted_after_its_indexes_were_copied_is_copied_again() -> None:
    files = SimulatedFiles()
    for folder in ("/a", "/b", "/a/t-0", "/b/future"):
        files.make_directory(folder)
    for suffix in ("log", "index", "timeindex"):
        files.open(f"/a/t-0/{0:020d}.{suffix}", create=True).write(0, [b"12345678"])
    future_replica.copy_part(files, "/a/t-0", "/b/future", 0, 0, 8)
    assert len(future_replica.copy_indexes(files, "/a/t-0", "/b/future", 0)) == 2
    future_replica.remove_segment(files, "/b/future", 0)
    assert files.names("/b/future") == []


async def until(broker: Broker, condition: Callable[[], bool]) -> None:
    for _ in range(TURNS_MAX):
        if condition():
            return
        broker.clock.advance(0.001)
        await asyncio.sleep(0.0001)
    raise AssertionError("not within the limit")


async def in_last_step(directories: str = "/a,/b,/c") -> tuple[Broker, PartitionLog, list[DirectoryLogs]]:
    """Return a log whose move to another directory has come to its last step, and the directories, its own first."""
    broker = Broker()
    broker.config = BrokerConfig(log_dirs=directories)
    logs = broker.open()
    log = broker.log()
    for _ in range(20):
        broker.append(log)
    source = logs.directory_of(log)
    others = [each for each in logs.directories if each is not source]
    logs.moves.start(log, source, others[0], lambda flusher: None)
    await until(broker, lambda: log.is_held)
    return broker, log, [source, *others]


@pytest.mark.parametrize("wanted", [0, 2])
def test_a_move_requested_during_the_last_step_of_another_one_follows_it(wanted: int) -> None:
    async def body() -> None:
        broker, log, directories = await in_last_step()
        target, moves = directories[wanted], broker.logs.moves
        moves.start(log, directories[0], target, lambda flusher: None)
        assert moves.ending(FIRST) is not None
        await until(broker, lambda: not moves.all())
        assert home(broker.logs) == [target.path]
        broker.append(log)
        target.flusher.request(log)
        await until(broker, lambda: log.recovery_point == log.log_end_offset)
        broker.logs.close()
        assert home(broker.open()) == [target.path]
        broker.logs.abort()

    run(body)


def test_a_move_that_waits_for_another_one_can_be_cancelled_and_the_name_is_free_after_that_one() -> None:
    async def body() -> None:
        broker, log, directories = await in_last_step()
        moves = broker.logs.moves
        moves.start(log, directories[0], directories[2], lambda flusher: None)
        broker.logs.delete(FIRST)
        ending = moves.ending(FIRST)
        assert ending is not None
        await until(broker, ending.done)
        assert not moves.all()
        await until(broker, lambda: broker.logs.is_free(FIRST))
        assert not log.is_held
        broker.logs.abort()

    run(body)


def test_a_truncation_that_waits_for_a_move_lowers_the_recovery_point_where_the_log_is_then() -> None:
    async def body() -> None:
        broker, log, _ = await in_last_step()
        cutting = asyncio.ensure_future(broker.logs.truncate_to(log, LOG_START))
        await until(broker, cutting.done)
        await cutting
        assert log.log_end_offset == LOG_START
        broker.logs.abort()
        assert not broker.open().offline
        broker.logs.abort()

    run(body)


def test_records_are_not_deleted_during_the_last_step_whose_checkpoints_may_miss_the_new_start() -> None:
    async def body() -> None:
        broker, log, _ = await in_last_step()
        with pytest.raises(ApiError) as refused:
            await broker.logs.delete_records_before(log, LOG_START)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await until(broker, lambda: not broker.logs.moves.all())
        await broker.logs.delete_records_before(log, LOG_START)
        broker.logs.abort()
        assert broker.open().logs[FIRST].log_start_offset == LOG_START
        broker.logs.abort()

    run(body)


@pytest.mark.parametrize("is_held", [True, False])
def test_a_move_ends_when_the_flush_fails_that_its_last_step_or_what_comes_before_waits_for(
    is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        broker = two_directories()
        broker.files = files = FailingFlushes()
        logs = broker.open()
        log = await fill(broker)
        source = logs.directory_of(log)
        target = next(each for each in logs.directories if each is not source)
        broker.append(log)
        files.fails = True
        if is_held:  # another flush than the one before the last step
            monkeypatch.setattr(source.flusher, "flushed_once", lambda _: asyncio.sleep(0))
        source.flusher.request(log)
        await until(broker, files.is_flushing.is_set)
        logs.moves.start(log, source, target, lambda flusher: None)
        await until(broker, lambda: log.is_held if is_held else logs.moves.all()[0].is_flushed)
        files.may_go_on.set()
        await until(broker, lambda: not logs.moves.all())
        assert broker.faults
        assert not log.is_held
        logs.abort()

    run(body)
