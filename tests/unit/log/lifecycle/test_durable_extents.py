"""The table of how far logs reach: overwritten in place, believed entry by entry."""

from __future__ import annotations

import errno
from typing import NamedTuple

import pytest

from flowstone.log.lifecycle.durable_extents import ENTRY_BYTES, Extent, LogExtents
from flowstone.log.segments.partition_directory import LogPosition
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.types import TopicPartition

TOPIC_ID = b"i" * 16
PARTITIONS = [TopicPartition("orders", number) for number in range(20)]


class Log(NamedTuple):
    topic_partition: TopicPartition
    log_start_offset: int
    durable_end: int
    topic_id: bytes = TOPIC_ID
    exists: bool = True
    is_forgotten: bool = False

    @property
    def flushed_end(self) -> LogPosition:
        return LogPosition(self.durable_end, 0, 0)

    @property
    def directory(self) -> Log:
        return self


@pytest.fixture
def files() -> SimulatedFiles:
    made = SimulatedFiles()
    made.make_directory("/data")
    return made


def started(files: SimulatedFiles) -> LogExtents:
    extents = LogExtents(files, "/data")
    extents.start({each: Extent(TOPIC_ID, 0, 10) for each in PARTITIONS})
    return extents


def found(files: SimulatedFiles) -> dict[TopicPartition, tuple[int, int]]:
    read = LogExtents(files, "/data").read(PARTITIONS)
    return {each: (extent.log_start_offset, extent.durable_end) for each, extent in read.items()}


@pytest.mark.parametrize("count", [1, 3, 20])
def test_what_is_noted_is_read_by_the_next_life(files: SimulatedFiles, count: int) -> None:
    extents = started(files)
    extents.note([Log(each, 5, 70) for each in PARTITIONS[:count]])  # type: ignore[misc]
    assert found(files) == {each: (5, 70) if each in PARTITIONS[:count] else (0, 10) for each in PARTITIONS}


def test_what_is_not_synced_may_be_lost_with_the_power_and_what_was_true_stays(files: SimulatedFiles) -> None:
    extents = started(files)
    extents.note([Log(PARTITIONS[0], 5, 70)])  # type: ignore[list-item]
    extents.sync()
    extents.note([Log(PARTITIONS[0], 5, 90)])  # type: ignore[list-item]
    files.lose_power()
    assert found(files)[PARTITIONS[0]] == (5, 70)


def test_an_entry_that_is_not_whole_is_none_and_the_others_count(files: SimulatedFiles) -> None:
    extents = started(files)
    data = bytearray(files.read(extents.path))
    data[3 * ENTRY_BYTES + 40] ^= 1
    files.replace(extents.path, bytes(data[:-10]))
    assert set(found(files)) == set(PARTITIONS) - {PARTITIONS[3], PARTITIONS[-1]}


def test_a_forgotten_partition_has_no_entry_and_its_place_is_used_again(files: SimulatedFiles) -> None:
    extents, new = started(files), TopicPartition("new", 0)
    size = files.size(extents.path)
    extents.forget(PARTITIONS[4])
    extents.forget(new)
    assert PARTITIONS[4] not in found(files)
    extents.note([Log(new, 1, 2)])  # type: ignore[list-item]
    assert LogExtents(files, "/data").read([new]) == {new: Extent(TOPIC_ID, 1, 2)}
    assert files.size(extents.path) == size


def test_a_failed_write_is_made_up_for_by_the_next_sync(files: SimulatedFiles) -> None:
    extents = started(files)
    files.fail_next("write", errno.ENOSPC)
    extents.note([Log(PARTITIONS[0], 5, 70)])  # type: ignore[list-item]
    assert found(files)[PARTITIONS[0]] == (0, 10)
    extents.sync()
    assert found(files)[PARTITIONS[0]] == (5, 70)
    extents.note([Log(PARTITIONS[0], 5, 80)])  # type: ignore[list-item]
    assert found(files)[PARTITIONS[0]] == (5, 80)


def test_a_tool_replaces_one_entry_and_no_other(files: SimulatedFiles) -> None:
    started(files)
    tool = LogExtents(files, "/data")
    tool.put(PARTITIONS[2], Extent(TOPIC_ID, 9, 10))
    tool.put(TopicPartition("new", 0), Extent(TOPIC_ID, 1, 2))
    assert found(files) == {each: (9, 10) if each == PARTITIONS[2] else (0, 10) for each in PARTITIONS}


def test_a_full_disk_does_not_keep_a_directory_from_starting(files: SimulatedFiles) -> None:
    files.fail_next("write", errno.ENOSPC)
    extents = LogExtents(files, "/data")
    extents.start({PARTITIONS[0]: Extent(TOPIC_ID, 0, 10)})
    extents.sync()
    assert found(files) == {PARTITIONS[0]: (0, 10)}
