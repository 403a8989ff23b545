"""When a segment is full: by size, age, indexes and offsets; how jitter and compaction shorten its age."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.config import TopicConfig
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.segment import RELATIVE_OFFSET_MAX
from flowstone.wire.record_batch import Record, build_batch, parse_header
from tests.support.partitions import a_log

FIRST_MS = 5_000


def log_with(count: int = 1, *, timestamp: int = FIRST_MS, **config: Any) -> PartitionLog:
    """A log of one batch."""
    log = a_log(TopicConfig(**{"segment_bytes": 1 << 20, **config}))
    if count:
        log.append(build_batch([Record(at, timestamp, None, b"v") for at in range(count)]), leader_epoch=0)
    return log


def rolls(log: PartitionLog, size_bytes: int = 1, last_offset: int = 1, age_ms: int = 0, now_ms: int = 0) -> bool:
    return log.store.must_roll(size_bytes, last_offset, FIRST_MS + age_ms, now_ms)


def test_a_segment_is_filled_to_its_last_byte() -> None:
    log = log_with(segment_bytes=1000)
    left = 1000 - log.segments.active.size_bytes
    assert not rolls(log, left)
    assert rolls(log, left + 1)
    assert not rolls(log_with(0, segment_bytes=1000), 10_000)


def test_a_segment_takes_as_many_offsets_as_its_index_can_name() -> None:
    assert not rolls(log_with(), last_offset=RELATIVE_OFFSET_MAX)
    assert rolls(log_with(), last_offset=RELATIVE_OFFSET_MAX + 1)


def test_a_segment_ages_by_the_timestamps_of_its_batches() -> None:
    log = log_with(segment_ms=100, segment_jitter_ms=0)
    assert not rolls(log, age_ms=100, now_ms=10**12)
    assert rolls(log, age_ms=101)


def test_a_segment_without_timestamps_ages_by_the_clock() -> None:
    log = log_with(timestamp=-1, segment_ms=100, segment_jitter_ms=0)
    created_ms = log.segments.active.created_ms
    assert not rolls(log, age_ms=10_000, now_ms=created_ms + 100)
    assert rolls(log, now_ms=created_ms + 101)


def test_a_segment_whose_first_timestamp_is_zero_has_one() -> None:
    log = log_with(timestamp=0, segment_ms=FIRST_MS, segment_jitter_ms=0)
    assert not rolls(log, now_ms=10**12)
    assert rolls(log, age_ms=1)


@pytest.mark.parametrize(
    ("settings", "least_ms", "most_ms"),
    [
        ({}, 1000, 1000),
        ({"segment_jitter_ms": 500}, 500, 999),
        ({"segment_jitter_ms": 5000}, 0, 999),
        ({"max_compaction_lag_ms": 10}, 1000, 1000),
        ({"max_compaction_lag_ms": 10, "cleanup_policy": ("compact",)}, 10, 10),
        ({"max_compaction_lag_ms": 5000, "cleanup_policy": ("compact", "delete")}, 1000, 1000),
    ],
)
def test_the_age_is_shortened_by_jitter_and_by_the_lag_of_compaction(
    settings: dict[str, Any], least_ms: int, most_ms: int
) -> None:
    log = log_with(0, **{"segment_ms": 1000, "segment_jitter_ms": 0, **settings})
    assert least_ms <= log.store.roll_ms <= most_ms
    log.configure(TopicConfig(segment_ms=7, segment_jitter_ms=0))
    assert log.store.roll_ms == 7


def headers(*sizes: int) -> list[Any]:
    header = parse_header(build_batch([Record(0, FIRST_MS, None, b"v")]))
    above = header.size_bytes - header.batch_length
    return [header._replace(base_offset=10 + number, batch_length=size - above) for number, size in enumerate(sizes)]


def test_the_first_batch_of_a_segment_is_written_alone() -> None:
    batches = headers(100, 100)
    assert log_with(0).store.first_run(batches, 0) == batches[:1]
    assert log_with().store.first_run(batches, 0) == batches


def test_a_run_ends_where_the_segment_is_full() -> None:
    log = log_with(segment_bytes=1000)
    left = 1000 - log.segments.active.size_bytes
    batches = headers(100, left - 200, 100, 100)
    assert log.store.first_run(batches, 0) == batches[:3]
    batches = headers(100, left - 200, 101, 100)
    assert log.store.first_run(batches, 0) == batches[:2]
    batches = headers(left, 100)
    assert log.store.first_run(batches, 0) == batches[:1]
