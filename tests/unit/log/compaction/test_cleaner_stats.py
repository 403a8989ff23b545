"""What the cleaner counts of its runs."""

from __future__ import annotations

import pytest

from flowstone.log.compaction.cleaner_stats import CleanerStats
from flowstone.log.segments.compaction_job import CleanedSegment, CompactionJob, SourceSegment

GROUPS = (
    (SourceSegment(0, 10, 1), SourceSegment(10, 20, 10)),
    (SourceSegment(20, 30, 100), SourceSegment(30, 40, 1000)),
)


@pytest.mark.parametrize(
    ("first_dirty", "mapped_end", "read_bytes"),
    [
        (0, 40, 1111),
        (9, 40, 1111),
        (10, 40, 1110),
        (19, 40, 1110),
        (20, 40, 1100),
        (20, 31, 1100),
        (20, 30, 100),
        (35, 40, 1000),
        (40, 40, 0),
    ],
)
def test_the_first_pass_reads_the_segments_of_the_dirty_part(
    first_dirty: int, mapped_end: int, read_bytes: int
) -> None:
    stats = CleanerStats()
    job = CompactionJob("/t-0", GROUPS, first_dirty, 40, (), (), 0, 0, 4096, 1 << 20, 1.0)
    stats.mapped(job, mapped_end)
    assert stats.read_bytes == read_bytes
    stats.mapped(job, mapped_end)
    assert stats.read_bytes == 2 * read_bytes


def test_the_second_pass_reads_a_whole_group_and_writes_the_new_segment() -> None:
    stats = CleanerStats()
    cleaned = CleanedSegment(0, 20, 7, 0, 0, None)
    stats.cleaned(GROUPS[0], cleaned)
    stats.cleaned(GROUPS[1], cleaned)
    assert (stats.read_bytes, stats.written_bytes) == (1111, 14)


def test_failures_are_counted_with_the_time_of_the_last() -> None:
    stats = CleanerStats()
    assert (stats.failed_runs, stats.last_error_ms) == (0, 0)
    for now_ms in (5, 6):
        stats.failed(now_ms)
    assert (stats.failed_runs, stats.last_error_ms) == (2, 6)
