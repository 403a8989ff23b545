"""Room on the disk beyond the end of an active segment: found at flushes, given back when nothing more comes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flowstone.config import TopicConfig
from flowstone.log.handles import FileHandles
from flowstone.log.partition_directory import PartitionDirectory
from flowstone.log.partition_log import PartitionLog
from flowstone.log.room import RESERVED_BYTES_MAX, RESERVED_BYTES_MIN
from flowstone.ports.clock import SimulatedClock
from flowstone.ports.system_files import SystemFiles
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import Record, build_batch

VALUE_BYTES = 100_000
BLOCK_BYTES = 512  # of st_blocks


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    files, path = SystemFiles(), str(tmp_path / "orders-0")
    files.make_directory(str(tmp_path))
    directory = PartitionDirectory(files, path, exists=False)
    return PartitionLog(
        TopicPartition("orders", 0), bytes(16), TopicConfig(), SimulatedClock(), FileHandles(files, 16), directory
    )


def fill(log: PartitionLog, size_bytes: int) -> None:
    """As a log grows whose every append is flushed."""
    while log.size_bytes < size_bytes:
        log.append(build_batch([Record(0, 0, None, bytes(VALUE_BYTES))]), leader_epoch=0)
        task = log.take_dirty()
        assert task is not None
        task.run()
        log.flushed(task)


def beyond_end(log: PartitionLog, number: int = -1) -> int:
    """How much the disk holds for a segment that is not there yet."""
    stat = os.stat(list(log.segments)[number].log.get().path)
    return max(stat.st_blocks * BLOCK_BYTES - stat.st_size, 0)


def require_reserving(log: PartitionLog) -> None:
    fill(log, 2 * RESERVED_BYTES_MIN)
    if beyond_end(log) < VALUE_BYTES:
        pytest.skip("this file system does not reserve")


def test_a_small_log_takes_no_more_than_it_holds(log: PartitionLog) -> None:
    fill(log, RESERVED_BYTES_MIN // 2)
    assert beyond_end(log) < VALUE_BYTES


def test_room_is_found_for_as_much_again_and_the_size_stays(log: PartitionLog) -> None:
    require_reserving(log)
    fill(log, 3 * RESERVED_BYTES_MAX)
    assert 0 < beyond_end(log) <= RESERVED_BYTES_MAX + VALUE_BYTES
    assert os.stat(log.segments.active.log.get().path).st_size == log.size_bytes


def test_a_sealed_segment_gives_back_what_it_did_not_need(log: PartitionLog) -> None:
    require_reserving(log)
    log.roll()
    assert beyond_end(log, 0) < VALUE_BYTES


def test_a_clean_stop_gives_it_back(log: PartitionLog) -> None:
    require_reserving(log)
    task = log.closing_task()
    assert task is not None
    task.run()
    assert beyond_end(log) < VALUE_BYTES
