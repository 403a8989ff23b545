"""Moves between log directories that a crash interrupts at any of their file operations."""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import suppress
from typing import Any

import pytest

from flowstone.config import BrokerConfig
from flowstone.errors import ApiError, StorageFault
from flowstone.log.manager import LogManager
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.ports.simulated_files import SimulatedFiles
from tests.support.managed_logs import FIRST, Broker, run

DIRECTORIES = ("/a", "/b")
LOG_START = 7
FLUSH_TURNS_MAX = 100
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
