"""Space beyond the end of an active segment: found at flushes, given back when nothing more comes, told from damage."""

from __future__ import annotations

import errno
import logging
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flowstone.config import TopicConfig
from flowstone.errors import ApiError, StorageFault
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments import preallocation
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.partition_directory import PartitionDirectory
from flowstone.log.segments.preallocation import RESERVED_BYTES_MAX, RESERVED_FROM_BYTES, SMALL_FLUSH_BYTES
from flowstone.ports.clock import SimulatedClock
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.ports.system_files import SystemFiles
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import Record, build_batch

VALUE_BYTES = 100_000
BLOCK_BYTES = 512  # of st_blocks


@pytest.fixture
def real_log(tmp_path: Path) -> PartitionLog:
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
        task = log.durability.take_dirty()
        assert task is not None
        task.run()
        log.durability.flushed(task)


def beyond_end(log: PartitionLog, number: int = -1) -> int:
    """How much the disk holds for a segment that is not there yet."""
    stat = os.stat(list(log.segments)[number].log.get().path)
    return max(stat.st_blocks * BLOCK_BYTES - stat.st_size, 0)


def require_reserving(log: PartitionLog) -> None:
    fill(log, 2 * RESERVED_FROM_BYTES)
    if beyond_end(log) < VALUE_BYTES:
        pytest.skip("this file system does not reserve")


def test_a_small_log_takes_no_more_than_it_holds(real_log: PartitionLog) -> None:
    fill(real_log, RESERVED_FROM_BYTES // 2)
    assert beyond_end(real_log) < VALUE_BYTES


def test_as_many_bytes_as_the_log_has_are_reserved_and_the_size_stays(real_log: PartitionLog) -> None:
    require_reserving(real_log)
    fill(real_log, 3 * RESERVED_BYTES_MAX)
    assert 0 < beyond_end(real_log) <= RESERVED_BYTES_MAX + VALUE_BYTES
    assert os.stat(real_log.segments.active.log.get().path).st_size == real_log.size_bytes


def test_a_sealed_segment_gives_back_what_it_did_not_need(real_log: PartitionLog) -> None:
    require_reserving(real_log)
    real_log.roll()
    assert beyond_end(real_log, 0) < VALUE_BYTES


def test_a_clean_stop_gives_it_back(real_log: PartitionLog) -> None:
    require_reserving(real_log)
    task = real_log.closing_task()
    assert task is not None
    task.run()
    assert beyond_end(real_log) < VALUE_BYTES


# Zeros, for small flushes


@pytest.fixture
def world(world: Any) -> Any:
    world.config = TopicConfig(segment_bytes=1 << 20)
    world.log.configure(world.config)
    return world


@pytest.fixture
def preallocated(world: Any) -> Any:
    """A log flushed batch by batch, that has found space, and one batch that is not flushed."""
    append_and_flush(world)
    while not unused(world):
        append_and_flush(world)
    world.checkpoint()
    append_and_flush(world)
    world.append()
    return world


def append_and_flush(world: Any) -> None:
    world.append()
    world.flush()


def file_of(world: Any, number: int = -1) -> str:
    path: str = list(world.log.segments)[number].log.path
    return path


def unused(world: Any, number: int = -1) -> int:
    size: int = world.files.size(file_of(world, number))
    return size - list(world.log.segments)[number].size_bytes


def test_a_log_flushed_a_little_at_a_time_finds_zeros_and_fills_them_in_place(world: Any) -> None:
    sizes = [0]
    while world.log.size_bytes < 4 * preallocation.ZEROS_BYTES_MAX:
        append_and_flush(world)
        assert 0 <= unused(world) <= preallocation.ZEROS_BYTES_MAX
        sizes.append(world.files.size(file_of(world)))
    data = world.files.read(file_of(world))
    assert not any(data[world.log.size_bytes :])
    assert len(data) > world.log.size_bytes
    grown = [size for before, size in pairwise(sizes) if size > before and size > preallocation.ZEROS_BYTES_MAX]
    assert len(grown) <= 4


def test_little_in_a_log_is_no_reason_for_zeros(world: Any) -> None:
    while world.log.size_bytes + len(world.batch()) < preallocation.ZEROS_FROM_BYTES:
        append_and_flush(world)
        assert unused(world) == 0


def test_large_flushes_get_none(world: Any) -> None:
    while world.log.size_bytes < preallocation.ZEROS_BYTES_MAX:
        world.append(value_bytes=SMALL_FLUSH_BYTES)
        world.flush()
        assert unused(world) == 0


def test_unused_space_is_released_when_the_segment_is_sealed_and_at_a_clean_stop(preallocated: Any) -> None:
    assert unused(preallocated) > 0
    preallocated.log.roll()
    assert unused(preallocated, 0) == 0
    while not unused(preallocated):
        append_and_flush(preallocated)
    preallocated.stop_cleanly()
    assert unused(preallocated) == 0
    before = preallocated.log.log_end_offset
    preallocated.reopen(clean=True)
    assert preallocated.log.log_end_offset == before


def test_a_kill_leaves_zeros_that_the_next_start_removes_without_a_warning(
    preallocated: Any, caplog: pytest.LogCaptureFixture
) -> None:
    before = preallocated.read_all()
    with caplog.at_level(logging.WARNING):
        preallocated.reopen()
    assert preallocated.read_all() == before
    assert unused(preallocated) == 0
    assert not caplog.records


def test_a_power_loss_leaves_what_was_flushed_and_zeros(preallocated: Any, caplog: pytest.LogCaptureFixture) -> None:
    before = preallocated.read_all()
    preallocated.files.lose_power()
    with caplog.at_level(logging.WARNING):
        preallocated.reopen()
    assert preallocated.read_all() == before[:-1]
    assert unused(preallocated) == 0
    assert not caplog.records
    append_and_flush(preallocated)
    assert preallocated.log.recovery_point == len(before)


def test_more_zeros_than_are_ever_preallocated_are_logged(preallocated: Any, caplog: pytest.LogCaptureFixture) -> None:
    preallocated.damage(
        os.path.basename(file_of(preallocated)), lambda data: data.extend(bytes(preallocation.ZEROS_BYTES_MAX))
    )
    before = preallocated.log.log_end_offset
    with caplog.at_level(logging.WARNING):
        preallocated.reopen()
    assert preallocated.log.log_end_offset == before
    assert "truncated" in caplog.text


def test_zeros_in_the_place_of_durable_records_are_a_fault(preallocated: Any) -> None:
    preallocated.flush()
    preallocated.checkpoint()
    position = preallocated.log.position_of(preallocated.log.log_end_offset - 1).position
    zeros = bytes(preallocated.log.size_bytes - position)
    preallocated.damage(
        os.path.basename(file_of(preallocated)), lambda data: data.__setitem__(slice(position, None), zeros)
    )
    with pytest.raises(StorageFault, match="below its recovery point"):
        preallocated.reopen()


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_sealed_segment_whose_end_was_not_durable_keeps_what_follows_only_if_nothing_is_missing(
    preallocated: Any, is_whole: bool
) -> None:
    if is_whole:
        preallocated.flush()
    sealed, rolled_at = file_of(preallocated), preallocated.log.log_end_offset
    durable = preallocated.files.read(sealed) if is_whole else None
    preallocated.log.roll()
    preallocated.append()
    preallocated.files.open(file_of(preallocated)).sync()
    preallocated.files.sync_directory(preallocated.path)
    preallocated.files.lose_power()
    if durable is not None:
        assert preallocated.files.read(sealed) == durable, "the truncation was to be lost"
    preallocated.reopen()
    assert preallocated.log.log_end_offset == (rolled_at + 1 if is_whole else rolled_at - 1)
    assert unused(preallocated, 0) == 0


def test_a_disk_too_full_for_preallocation_still_takes_the_records(world: Any) -> None:
    while world.log.size_bytes < preallocation.ZEROS_FROM_BYTES:
        world.append()
    world.files.fail_next("write", errno.ENOSPC)
    world.flush()
    assert unused(world) == 0
    append_and_flush(world)
    assert world.log.recovery_point == world.log.log_end_offset


def test_a_failed_append_releases_the_space_and_the_next_flush_preallocates_it_again(preallocated: Any) -> None:
    preallocated.files.fail_next("write", errno.ENOSPC)
    with pytest.raises(ApiError):
        preallocated.append()
    assert unused(preallocated) == 0
    append_and_flush(preallocated)
    assert unused(preallocated) > 0


def test_a_truncated_log_preallocates_again(preallocated: Any) -> None:
    preallocated.truncate_to(preallocated.log.log_end_offset - 2)
    assert unused(preallocated) == 0
    append_and_flush(preallocated)
    assert unused(preallocated) > 0
    before = preallocated.read_all()
    preallocated.reopen()
    assert preallocated.read_all() == before


def test_a_failed_roll_leaves_the_preallocated_space(preallocated: Any) -> None:
    preallocated.files.fail_next("open", errno.ENOSPC)
    with pytest.raises(OSError, match="simulated open"):
        preallocated.log.roll()
    append_and_flush(preallocated)
    assert unused(preallocated) > 0


# A sealed segment that ends at the recovery point


@pytest.fixture
def sealed(preallocated: Any) -> Any:
    """All of it is durable; the segment after it is empty."""
    preallocated.flush()
    preallocated.log.roll()
    preallocated.flush()
    preallocated.checkpoint()
    assert preallocated.stored().recovery_point == preallocated.log.segments.active.base_offset
    return preallocated


def test_an_offset_that_is_wrong_in_a_sealed_segment_is_a_fault_and_cuts_nothing(sealed: Any) -> None:
    """Checksums do not cover offsets: one that seems to be the last may be in the middle."""
    name, wrong = os.path.basename(file_of(sealed, 0)), sealed.log.log_end_offset - 1
    position, size = sealed.log.position_of(2).position, sealed.files.size(file_of(sealed, 0))
    sealed.damage(name, lambda data: data.__setitem__(slice(position, position + 8), wrong.to_bytes(8, "big")))
    sealed.reopen()
    assert sealed.files.size(file_of(sealed, 0)) == size
    with pytest.raises(StorageFault):
        sealed.read_all()


def test_what_a_truncation_dropped_does_not_come_back_in_a_sealed_segment(preallocated: Any) -> None:
    """The log was cut, and sealed there; of this only the recovery point and names are durable."""
    preallocated.flush()
    end = preallocated.log.log_end_offset - 2
    preallocated.truncate_to(end)
    before = preallocated.read_all()
    preallocated.log.roll()
    preallocated.append(epoch=1)
    task = preallocated.log.durability.take_dirty()
    assert task is not None
    task.replace_files()
    preallocated.files.lose_power()
    assert preallocated.stored().recovery_point == end == int(preallocated.names(".log")[-1][:20])
    preallocated.reopen()
    assert preallocated.read_all() == before
    assert unused(preallocated, 0) == 0


@pytest.mark.parametrize(
    ("begin", "expected"),
    [(10, True), (11, True), (9, False)],
    ids=["right behind", "later", "a byte before the end"],
)
def test_zeros_after_the_last_written_byte_are_preallocated_space(begin: int, expected: bool) -> None:
    file = SimulatedFiles().open("/file", create=True)
    file.write(0, [b"x" * 10 + bytes(50)])
    assert preallocation.is_preallocated(file, begin, 60) is expected


def test_more_zeros_than_a_log_ever_preallocates_are_not_preallocated_space() -> None:
    file = SimulatedFiles().open("/file", create=True)
    file.write(0, [b"x" + bytes(preallocation.ZEROS_BYTES_MAX + 1)])
    assert preallocation.is_preallocated(file, 1, preallocation.ZEROS_BYTES_MAX + 1)
    assert not preallocation.is_preallocated(file, 1, preallocation.ZEROS_BYTES_MAX + 2)


def test_a_file_of_zeros_is_all_preallocated_space() -> None:
    file = SimulatedFiles().open("/file", create=True)
    file.write(0, [bytes(50)])
    assert preallocation.is_preallocated(file, 0, 50)
