"""Finding batches through indexes that may be missing, wrong or not in memory."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from flowstone.config import TopicConfig
from flowstone.errors import StorageFault
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.partition.timestamps import first_record_at
from flowstone.log.segments import segment as segment_module
from flowstone.log.segments.cached_reads import NotCached, read_cached, wait_for
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.index_misses import FarSearch, IndexDamaged
from flowstone.log.segments.partition_directory import PartitionDirectory
from flowstone.ports.clock import SimulatedClock
from flowstone.ports.system_files import SystemFiles
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import Record, build_batch, parse_header


def reopened(world: Any, *, segments: int = 3) -> Any:
    """A log of several sealed segments, stopped cleanly and opened again."""
    while len(world.log.segments) <= segments:
        world.append(2)
        world.clock.advance(1)
    world.stop_cleanly()
    return world


def test_a_missing_index_is_built_again_off_the_loop(world: Any) -> None:
    reopened(world)
    world.reopen(clean=True)
    segment = world.log.segments[0]
    segment.open_sealed(segment.size_bytes, None, None, None)
    with pytest.raises(IndexDamaged) as damaged:
        world.log.read(2, 1, world.log.end, at_least_one=True)
    damaged.value.warm()
    assert parse_header(world.log.read(2, 1, world.log.end, at_least_one=True).read()).base_offset == 2


def test_an_index_entry_that_leads_astray_is_noticed(world: Any) -> None:
    reopened(world)
    world.reopen(clean=True)
    world.damage(world.names(".index")[0], lambda data: data.__setitem__(-1, data[-1] ^ 1))
    last = world.log.segments[1].base_offset - 1
    with pytest.raises(IndexDamaged):
        world.log.read(last, 1, world.log.end, at_least_one=True)
    assert parse_header(world.read_batch(last)).last_offset == last


def test_every_offset_is_found_among_small_and_large_batches(world: Any) -> None:
    chance = random.Random(3)
    world.log.configure(TopicConfig(segment_bytes=12_000))
    while len(world.log.segments) < 4:
        world.append(chance.choice((1, 2, 3, 20, 30)))
    for offset in range(world.log.end.offset):
        header = parse_header(world.log.read(offset, 1, world.log.end, at_least_one=True).read())
        assert header.base_offset <= offset <= header.last_offset


def test_an_offset_in_a_large_batch_takes_one_read_of_the_log(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.log.configure(TopicConfig())
    for _ in range(10):
        world.append(20)
    reads = []
    monkeypatch.setattr(segment_module, "read_cached", lambda *asked: reads.append(asked) or read_cached(*asked))
    segment = world.log.segments[-1]
    assert [segment.locate(offset)[0] for offset in (85, 99, 100)] == [
        segment.indexes.offsets.values[at] for at in (3, 3, 4)
    ]
    assert len(reads) == 3


def test_a_next_entry_that_leads_astray_is_noticed(world: Any) -> None:
    world.log.configure(TopicConfig())
    for _ in range(10):
        world.append(20)
    segment = world.log.segments[-1]
    for wrong in (1, 10**6):
        segment.indexes.offsets.values[3] += wrong
        with pytest.raises(IndexDamaged) as damaged:
            segment.locate(85)
        damaged.value.warm()
        assert segment.locate(85)[0] == segment.indexes.offsets.values[3]


def test_appends_go_on_while_the_active_segments_index_is_built_again(world: Any) -> None:
    world.log.configure(TopicConfig())
    for _ in range(100):
        world.append(2)
    segment = world.log.segments[-1]
    segment.indexes.offsets.values[20] += 1
    offset = segment.indexes.offsets.keys[20] + 1
    with pytest.raises(IndexDamaged) as damaged:
        world.log.read(offset, 1, world.log.end, at_least_one=True)
    for _ in range(100):
        world.append(2)
    damaged.value.warm()
    assert len(world.read_all()) == 200
    keys = list(segment.indexes.offsets.keys)
    assert keys == sorted(set(keys))


def test_a_damaged_batch_is_a_fault_and_not_the_indexs(world: Any) -> None:
    reopened(world)
    world.damage(world.names(".log")[0], lambda data: data.__setitem__(16, 9))
    world.reopen(clean=True)
    with pytest.raises(StorageFault):
        world.read_batch(0)


def test_a_shortened_time_index_does_not_hide_the_newest_record(world: Any) -> None:
    reopened(world)
    name = world.names(".timeindex")[0]
    world.damage(name, lambda data: data.__delitem__(slice(24, None)))
    world.reopen(clean=True)
    newest = parse_header(world.read_batch(world.log.segments[1].base_offset - 1)).max_timestamp
    assert wait_for(world.log.segments[0].latest_timestamp) == newest


def test_a_timestamp_far_from_where_the_index_leads_is_searched_off_the_loop(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_module, "WALK_FAR_BYTES", 300)
    start_ms = world.clock.time_ms()
    world.log.configure(TopicConfig())
    world.append(timestamp=start_ms)
    for _ in range(50):
        world.append(timestamp=start_ms - 1000)
    world.append(timestamp=start_ms + 5)
    with pytest.raises(FarSearch) as far:
        world.log.find_timestamp(start_ms + 1)
    far.value.warm()
    found = world.log.find_timestamp(start_ms + 1)
    assert first_record_at(found.read(), start_ms + 1) == (51, start_ms + 5)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is in the page cache")
def test_what_is_not_in_the_page_cache_is_never_waited_for(tmp_path: Path) -> None:
    files, clock = SystemFiles(), SimulatedClock()
    log = PartitionLog(
        TopicPartition("cold", 0),
        bytes(16),
        TopicConfig(),
        clock,
        FileHandles(files, 10),
        PartitionDirectory(files, str(tmp_path / "cold-0"), exists=False),
    )
    batch = build_batch([Record(0, clock.time_ms(), None, bytes(10_000))])
    for _ in range(100):
        log.append(batch, leader_epoch=0)
    task = log.durability.take_dirty()
    assert task is not None
    task.run()
    file = log.segments[0].log.get()
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if file.read_cached(0, 100) is not None:
        pytest.skip("this file system keeps everything in memory")
    with pytest.raises(NotCached) as missing:
        log.read(50, 1, log.end, at_least_one=True)
    missing.value.warm()
    found = wait_for(lambda: log.read(50, 1, log.end, at_least_one=True))
    assert found is not None
    assert parse_header(found.read()).base_offset == 50


def test_times_of_appends_meanwhile_stay_in_an_index_that_is_built_again(world: Any) -> None:
    world.log.configure(TopicConfig())
    for _ in range(100):
        world.clock.advance(1)
        world.append(2)
    indexes = world.log.segments[-1].indexes
    indexes.offsets.values[20] += 1
    with pytest.raises(IndexDamaged) as damaged:
        world.log.read(indexes.offsets.keys[20] + 1, 1, world.log.end, at_least_one=True)
    for _ in range(100):
        world.clock.advance(1)
        world.append(2)
    added = list(indexes.times.keys)[-3:]
    damaged.value.warm()
    assert len(world.read_all()) == 200
    assert list(indexes.times.keys)[-3:] == added


def test_a_walk_reads_a_little_at_a_time(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.append()
    world.log.configure(TopicConfig(index_interval_bytes=10**6))
    world.log.roll()
    segment = world.log.segments[-1]
    while segment.size_bytes < 4 * segment_module.WALK_BYTES:
        world.append()
    reads = []
    monkeypatch.setattr(segment_module, "read_cached", lambda *asked: reads.append(asked) or read_cached(*asked))
    assert segment.locate(world.log.log_end_offset - 2)
    assert max(count for _, _, count in reads) == segment_module.WALK_BYTES
    assert all(position + count <= segment.size_bytes for _, position, count in reads)


def test_a_batch_that_claims_offsets_beyond_its_segment_is_rejected(world: Any) -> None:
    world.log.configure(TopicConfig())
    for _ in range(10):
        world.append(20)
    segment = world.log.segments[-1]
    position = segment.indexes.offsets.values[3]
    segment.log.get().write(position + 8, [(segment.size_bytes - position).to_bytes(4, "big")])
    with pytest.raises(IndexDamaged):
        segment.locate(85)
