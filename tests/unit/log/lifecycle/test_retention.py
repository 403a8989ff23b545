from __future__ import annotations

from flowstone.config import TopicConfig
from flowstone.log.lifecycle.retention import SegmentFacts, retained_from

NOW_MS = 1_000_000
# Three segments of 100 bytes, the newest records 500, 300 and 100 s old; the last one is being written to.
SEGMENTS = [
    SegmentFacts(end_offset=10, size_bytes=100, newest_ms=NOW_MS - 500_000),
    SegmentFacts(end_offset=20, size_bytes=100, newest_ms=NOW_MS - 300_000),
    SegmentFacts(end_offset=30, size_bytes=100, newest_ms=NOW_MS - 100_000),
]


def retain(config: TopicConfig, *, start: int = 0, high_watermark: int = 30) -> int:
    return retained_from(SEGMENTS, config, start, high_watermark, NOW_MS)


def test_nothing_is_deleted_while_nothing_is_too_old_or_too_large() -> None:
    assert retain(TopicConfig(retention_ms=500_000)) == 0


def test_segments_whose_newest_record_is_too_old_go() -> None:
    assert retain(TopicConfig(retention_ms=200_000)) == 20


def test_the_active_segment_is_deleted_too_once_it_is_too_old() -> None:
    assert retain(TopicConfig(retention_ms=50_000)) == 30


def test_no_segment_is_deleted_that_would_leave_less_than_the_limit() -> None:
    assert retain(TopicConfig(retention_ms=-1, retention_bytes=150)) == 10
    assert retain(TopicConfig(retention_ms=-1, retention_bytes=200)) == 10
    assert retain(TopicConfig(retention_ms=-1, retention_bytes=201)) == 0


def test_nothing_beyond_the_high_watermark_is_deleted() -> None:
    assert retain(TopicConfig(retention_ms=1), high_watermark=19) == 10


def test_a_topic_that_is_only_compacted_loses_nothing() -> None:
    assert retain(TopicConfig(retention_ms=1, cleanup_policy=("compact",))) == 0


def test_a_compacted_topic_that_also_deletes_loses_old_segments() -> None:
    assert retain(TopicConfig(retention_ms=200_000, cleanup_policy=("compact", "delete"))) == 20


def test_an_old_segment_behind_a_young_one_stays() -> None:
    young_first = [SEGMENTS[0]._replace(newest_ms=NOW_MS), *SEGMENTS[1:]]
    assert retained_from(young_first, TopicConfig(retention_ms=1000), 0, 30, NOW_MS) == 0


def test_the_log_never_starts_earlier_than_it_did() -> None:
    assert retain(TopicConfig(retention_ms=400_000), start=15) == 15


def test_an_empty_log_has_nothing_to_lose() -> None:
    empty = [SegmentFacts(end_offset=7, size_bytes=0, newest_ms=-1)]
    assert retained_from(empty, TopicConfig(retention_ms=1, retention_bytes=0), 7, 7, NOW_MS) == 7
