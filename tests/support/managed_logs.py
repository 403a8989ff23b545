"""A log directory for tests: opened, used, stopped, killed and opened again, on simulated files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowstone.config import BrokerConfig, TopicConfig
from flowstone.errors import StorageFault
from flowstone.log.manager import LogManager
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.ports.clock import SimulatedClock
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import Record, build_batch

FIRST, SECOND = TopicPartition("first", 0), TopicPartition("second", 1)
TOPIC_ID, OTHER_ID = b"1" * 16, b"2" * 16
CONFIG = TopicConfig(segment_bytes=1000, index_interval_bytes=100, file_delete_delay_ms=60_000)


class Broker:
    """A log directory that is opened, used, stopped, killed and opened again."""

    def __init__(self, path: str = "/data") -> None:
        self.files: Any = SimulatedFiles()
        self.clock = SimulatedClock()
        self.broker_clock: Any = self.clock
        self.config = BrokerConfig(log_dirs=path)
        self.faults: list[StorageFault] = []

    def open(self, **more: Any) -> LogManager:
        self.flushed = asyncio.Event()
        self.failed = asyncio.Event()
        self.logs = LogManager(
            self.files,
            self.broker_clock,
            self.config,
            on_flushed=lambda log: self.flushed.set(),
            on_fault=self.fail,
            high_watermark_of=lambda log: log.recovery_point,
            **more,
        )
        return self.logs

    def fail(self, fault: StorageFault) -> None:
        self.faults.append(fault)
        self.failed.set()

    def log(self, topic_partition: TopicPartition = FIRST, topic_id: bytes = TOPIC_ID) -> PartitionLog:
        return self.logs.get_or_create(topic_partition, topic_id, CONFIG)

    def append(self, log: PartitionLog, count: int = 1) -> int:
        records = [Record(at, self.clock.time_ms(), b"k", b"v" * 50) for at in range(count)]
        return log.append(build_batch(records), leader_epoch=0).base_offset

    async def flush(self, log: PartitionLog) -> None:
        self.flushed.clear()
        self.logs.directories[0].flusher.request(log)
        while log.recovery_point < log.log_end_offset:
            self.flushed.clear()
            await asyncio.wait_for(self.flushed.wait(), 10)

    async def settle(self) -> None:
        """Until the worker thread has done what it was given."""
        await asyncio.wrap_future(self.logs.directories[0].housekeeping._worker.submit(int))

    def names(self) -> list[str]:
        return [name for name in self.files.names(self.config.log_dirs) if name[0] != "."]


@pytest.fixture
def broker() -> Broker:
    return Broker()


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(body())  # type: ignore[arg-type]
