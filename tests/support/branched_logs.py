"""A log directory whose logs are branched, on files whose power can be cut, for tests of branches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from flowstone.config import BrokerConfig, TopicConfig
from flowstone.errors import StorageFault
from flowstone.log.manager import LogManager
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.cached_reads import wait_for
from flowstone.ports.clock import SimulatedClock
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.types import TopicPartition
from flowstone.wire.compression import Codec
from flowstone.wire.record_batch import Record, build_batch, decode_records, parse_header

SOURCE, BRANCH = TopicPartition("orders", 0), TopicPartition("orders-dev", 0)
SOURCE_ID, BRANCH_ID = b"1" * 16, b"2" * 16
CONFIG = TopicConfig(segment_bytes=1000, index_interval_bytes=100, file_delete_delay_ms=0, retention_ms=-1)
START_MS = 1_000_000


class Directory:
    """A log directory with one topic, which is opened, branched, killed and opened again."""

    def __init__(self, files: SimulatedFiles | None = None) -> None:
        self.files: Any = files or SimulatedFiles()
        self.clock = SimulatedClock()
        self.faults: list[StorageFault] = []

    def open(self) -> LogManager:
        self.flushed = asyncio.Event()
        self.logs = LogManager(
            self.files,
            self.clock,
            BrokerConfig(log_dirs="/data"),
            on_flushed=lambda log: self.flushed.set(),
            on_fault=self.faults.append,
            high_watermark_of=lambda log: log.recovery_point,
            topic_config=lambda topic: CONFIG,
        )
        return self.logs

    @property
    def source(self) -> PartitionLog:
        return self.logs.get_or_create(SOURCE, SOURCE_ID, CONFIG)

    @property
    def branch_log(self) -> PartitionLog:
        return self.logs.get_or_create(BRANCH, BRANCH_ID, CONFIG)

    async def branch(self, end_offset: int | None = None) -> PartitionLog:
        """At an offset, or at the end."""
        if end_offset is None:
            self.source.roll()
            end_offset = self.source.log_end_offset
        staged = await self.logs.branches.stage([(self.source, end_offset)], BRANCH.topic, BRANCH_ID)
        await self.logs.branches.install(staged)
        return self.branch_log

    async def flush(self, log: PartitionLog) -> None:
        """As a broker does: by the flusher, whatever it has under way."""
        while log.exists and log.recovery_point < log.log_end_offset:
            self.flushed.clear()
            self.logs.directory_of(log).flusher.request(log)
            await self.flushed.wait()

    def restart(self, *, lose_power: bool = False) -> None:
        self.logs.abort()
        if lose_power:
            self.files.lose_power()
        self.open()

    async def settle(self) -> None:
        """Until the worker thread has done what it was given."""
        await self.logs.directory_of(self.source).housekeeping.in_thread(lambda: None)

    def names(self) -> list[str]:
        return [name for name in self.files.names("/data") if name[0] != "."]


def append(
    log: PartitionLog, values: list[bytes], *, codec: Codec = Codec.NONE, keys: int = 1, **producer: int
) -> None:
    """One batch, whose records' timestamps are their offsets from START_MS on, and whose keys go round."""
    at = log.log_end_offset
    records = [
        Record(i, START_MS + at + i, b"k%d" % ((at + i) % keys), value, (("h", b"1"),))
        for i, value in enumerate(values)
    ]
    log.append(build_batch(records, codec=codec, **producer), leader_epoch=0)


def flush(log: PartitionLog) -> None:
    task = log.durability.take_dirty()
    if task is not None:
        task.run()
        log.durability.flushed(task)


def fill(log: PartitionLog, batches: int, records: int = 3, *, codec: Codec = Codec.NONE) -> None:
    for _ in range(batches):
        append(log, [b"v" * 40] * records, codec=codec)
    flush(log)


def stored(log: PartitionLog) -> list[Record]:
    found: list[Record] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        part = wait_for(lambda at=offset: log.read(at, 1, log.end, at_least_one=True))  # type: ignore[misc]
        assert part is not None
        batch = part.read()
        found += [record for record in decode_records(batch) if record.offset >= log.log_start_offset]
        offset = parse_header(batch).next_offset
    return found


def scenario(test: Callable[[Directory], Awaitable[None]]) -> Callable[[Directory], None]:
    """A test that is told in one event loop, on a directory that is open."""

    def run(directory: Directory) -> None:
        async def main() -> None:
            directory.files.make_directory("/data")
            directory.open()
            try:
                await test(directory)
            finally:
                directory.logs.abort()

        asyncio.run(main())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run
