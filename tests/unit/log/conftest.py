"""A partition's log on a disk that can lose power, opened and opened again as a broker would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from flowstone.config import TopicConfig
from flowstone.log.lifecycle.directory_identity import LogDirectory
from flowstone.log.lifecycle.durable_extents import Extent, LogExtents
from flowstone.log.lifecycle.extent_witnesses import read_witnesses
from flowstone.log.lifecycle.log_recovery import recover
from flowstone.log.lifecycle.stored_offsets import StoredOffsets
from flowstone.log.lifecycle.truncator import Truncator
from flowstone.log.partition.partition_log import Appended, FlushTask, PartitionLog
from flowstone.log.segments import preallocation
from flowstone.log.segments.cached_reads import wait_for
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.partition_directory import PartitionDirectory
from flowstone.ports.clock import SimulatedClock
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.types import TopicPartition
from flowstone.wire.compression import Codec
from flowstone.wire.record_batch import Record, build_batch, parse_header
from tests.support.cutting import truncating_at_once

TOPIC_PARTITION = TopicPartition("orders", 3)
TOPIC_ID = bytes(range(16))
DATA = "/data"


class LogWorld:
    """One partition, its disk, its clock and its checkpoints."""

    def __init__(self, files: SimulatedFiles | None = None) -> None:
        self.files = files or SimulatedFiles()
        self.files.make_directory(DATA)
        self.clock = SimulatedClock()
        self.config = TopicConfig(segment_bytes=1500, index_interval_bytes=200)
        self.directory = LogDirectory(self.files, DATA)
        self.path = f"{DATA}/{TOPIC_PARTITION}"
        self.extents = LogExtents(self.files, DATA)
        self.extents.start({})
        self.log = self.new_log(exists=False)

    def new_log(self, *, exists: bool) -> PartitionLog:
        self.handles = FileHandles(self.files, open_files_max=16)
        self.partition_directory = PartitionDirectory(self.files, self.path, exists=exists)
        return PartitionLog(TOPIC_PARTITION, TOPIC_ID, self.config, self.clock, self.handles, self.partition_directory)

    def batch(self, count: int = 1, *, value_bytes: int = 40, timestamp: int | None = None, **more: object) -> bytes:
        """What a client sends: `more` goes to build_batch."""
        time_ms = self.clock.time_ms() if timestamp is None else timestamp
        records = [Record(at, time_ms + at, b"key", bytes([at % 251]) * value_bytes) for at in range(count)]
        return build_batch(records, **more)  # type: ignore[arg-type]

    def append(self, count: int = 1, *, epoch: int = 0, **more: object) -> Appended:
        return self.log.append(self.batch(count, **more), leader_epoch=epoch)  # type: ignore[arg-type]

    def flush(self) -> None:
        task = self.log.durability.take_dirty()
        if task is not None:
            self.run(task)

    def run(self, task: FlushTask) -> None:
        """A flush, as the flusher does it."""
        task.run()
        self.log.durability.flushed(task)
        self.extents.note([self.log])

    def truncate_to(self, offset: int) -> None:
        asyncio.run(self._truncating().truncate_to(self.log, offset, lambda: True))

    def reset_to(self, offset: int) -> None:
        asyncio.run(self._truncating().reset_to(self.log, offset, lambda: True))

    def _truncating(self) -> Truncator:
        return truncating_at_once(self.clock, self.checkpoint)

    def checkpoint(self) -> None:
        self.extents.note([self.log])
        self.extents.sync()
        self.directory.write_offsets("recovery-point-offset-checkpoint", {TOPIC_PARTITION: self.log.recovery_point})
        self.directory.write_offsets("log-start-offset-checkpoint", {TOPIC_PARTITION: self.log.log_start_offset})

    def stored(self, *, clean: bool = False) -> StoredOffsets:
        extents = LogExtents(self.files, DATA)
        return read_witnesses(self.directory, extents, [TOPIC_PARTITION], clean=clean).of(TOPIC_PARTITION)

    def reopen(self, *, clean: bool = False) -> PartitionLog:
        """A new process on the same disk. StorageFault leaves the partition offline."""
        log = self.new_log(exists=self.files.exists(self.path))
        if log.exists:
            recover(log, self.partition_directory, self.handles, self.clock, self.stored(clean=clean))
        self.log = log
        self.extents = LogExtents(self.files, DATA)
        self.extents.start({TOPIC_PARTITION: Extent(log.topic_id, log.log_start_offset, log.recovery_point)})
        return log

    def stop_cleanly(self) -> None:
        task = self.log.closing_task()
        if task is not None:
            self.run(task)
        self.log.close()
        self.checkpoint()

    def read_batch(self, offset: int) -> bytes:
        """The whole batch that holds `offset`."""
        found = wait_for(lambda: self.log.read(offset, 1, self.log.end, at_least_one=True))
        assert found is not None
        return found.read()

    def read_all(self) -> list[bytes]:
        """Every batch from the log's start on, as stored."""
        batches, offset = [], self.log.log_start_offset
        while offset < self.log.log_end_offset:
            batches.append(self.read_batch(offset))
            offset = parse_header(batches[-1]).next_offset
        return batches

    def names(self, suffix: str = "") -> list[str]:
        names = self.files.names(self.path) if self.files.exists(self.path) else []
        return [name for name in names if name.endswith(suffix)]

    def damage(self, name: str, change: Callable[[bytearray], None]) -> None:
        """Changes a file's bytes behind the broker's back, durably."""
        path = f"{self.path}/{name}"
        data = bytearray(self.files.read(path))
        change(data)
        file = self.files.open(path)
        file.truncate(0)
        file.write(0, [data])
        file.sync()


@pytest.fixture(autouse=True)
def early_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs stay small here: they find space early, and little of it."""
    for name, value in {"ZEROS_FROM_BYTES": 300, "ZEROS_BYTES_MIN": 400, "ZEROS_BYTES_MAX": 1500}.items():
        monkeypatch.setattr(preallocation, name, value)


@pytest.fixture
def world() -> LogWorld:
    return LogWorld()


@pytest.fixture
def make_world() -> Callable[..., LogWorld]:
    return LogWorld


@pytest.fixture(params=[codec for codec in Codec if codec is not Codec.NONE], ids=lambda codec: codec.name.lower())
def codec(request: pytest.FixtureRequest) -> Codec:
    return Codec(request.param)
