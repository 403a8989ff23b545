"""Which segments are compacted, when, and together with which others."""

from __future__ import annotations

import pytest

from flowstone.config import TopicConfig
from flowstone.log.compaction.plan import CompactionPlan, SealedFacts, group_segments, is_lag_over, plan_compaction
from flowstone.log.segments.segment import RELATIVE_OFFSET_MAX

NOW_MS = 1_000_000
# Four sealed segments of ten offsets and 100 bytes each, written one second after the other.
SEGMENTS = [SealedFacts(10 * at, 10 * at + 10, 100, 1000 * at, 1000 * at + 900) for at in range(4)]


def plan(first_dirty: int = 0, stable: int = 40, *, now_ms: int = NOW_MS, **config: object) -> CompactionPlan:
    config = {"cleanup_policy": ("compact",), **config}
    return plan_compaction(SEGMENTS, TopicConfig(**config), first_dirty, stable, now_ms)  # type: ignore[arg-type]


def test_a_log_never_compacted_is_dirty_from_its_start() -> None:
    made = plan()
    assert (made.first_dirty_offset, made.end_offset, made.dirty_ratio, made.is_overdue) == (0, 40, 1.0, False)


def test_a_log_that_only_deletes_is_never_compacted() -> None:
    assert not plan(cleanup_policy=("delete",)).is_due
    assert plan(cleanup_policy=("compact", "delete")).is_due


@pytest.mark.parametrize(("first_dirty", "is_due"), [(0, True), (10, True), (20, False), (30, False), (40, False)])
def test_the_dirty_part_must_be_more_than_the_ratio(first_dirty: int, is_due: bool) -> None:
    assert plan(first_dirty).is_due is is_due


def test_with_a_ratio_of_nothing_any_dirty_segment_will_do() -> None:
    assert plan(30, min_cleanable_dirty_ratio=0.0).is_due
    assert not plan(40, min_cleanable_dirty_ratio=0.0).is_due


def test_a_segment_that_is_partly_dirty_counts_as_dirty() -> None:
    assert plan(35, min_cleanable_dirty_ratio=0.0).dirty_ratio == 0.25


def test_segments_that_are_not_committed_and_on_disk_are_left_alone() -> None:
    assert plan(stable=39).end_offset == 30
    assert not plan(stable=9).is_due


def test_segments_younger_than_the_lag_are_left_alone_with_all_after_them() -> None:
    assert plan(now_ms=3000, min_compaction_lag_ms=1100).end_offset == 20
    assert plan(now_ms=2000, min_compaction_lag_ms=0).end_offset == 40


def test_what_was_compacted_once_may_be_compacted_again_however_young() -> None:
    made = plan(20, now_ms=3900, min_compaction_lag_ms=1000, min_cleanable_dirty_ratio=0.0)
    assert (made.end_offset, made.groups[0][0].base_offset) == (30, 0)


def test_records_that_have_waited_too_long_make_it_due_whatever_the_ratio() -> None:
    assert not plan(30, now_ms=10_000, max_compaction_lag_ms=7000).is_due
    made = plan(30, now_ms=10_001, max_compaction_lag_ms=7000)
    assert made.is_due
    assert made.is_overdue


def test_a_first_dirty_offset_that_the_log_does_not_have_is_not_believed() -> None:
    assert plan(41).first_dirty_offset == 0
    assert (
        plan_compaction(SEGMENTS[2:], TopicConfig(cleanup_policy=("compact",)), 5, 40, NOW_MS).first_dirty_offset == 20
    )


def test_neighbours_that_fit_together_become_one_segment() -> None:
    bases = [[segment.base_offset for segment in group] for group in group_segments(SEGMENTS, 250)]
    assert bases == [[0, 10], [20, 30]]


def test_a_segment_that_is_too_large_already_stays_by_itself() -> None:
    large = SealedFacts(40, 50, 1000, 0, 0)
    assert [len(group) for group in group_segments([*SEGMENTS, large], 250)] == [2, 2, 1]


def test_a_group_has_no_more_offsets_than_an_index_can_name() -> None:
    far = SealedFacts(40, RELATIVE_OFFSET_MAX + 2, 1, 0, 0)
    assert [len(group) for group in group_segments([*SEGMENTS, far], 10_000)] == [4, 1]


def test_a_group_has_as_many_offsets_as_an_index_can_name() -> None:
    last = SealedFacts(40, RELATIVE_OFFSET_MAX + 1, 1, 0, 0)
    assert [len(group) for group in group_segments([*SEGMENTS, last], 10_000)] == [5]


def test_a_group_may_be_as_large_as_a_segment_and_not_larger() -> None:
    assert [len(group) for group in group_segments(SEGMENTS, 200)] == [2, 2]
    assert [len(group) for group in group_segments(SEGMENTS, 199)] == [1, 1, 1, 1]
    assert [len(group) for group in group_segments(SEGMENTS, 400)] == [4]


def test_the_offsets_of_a_group_are_counted_from_its_first_segment() -> None:
    base = RELATIVE_OFFSET_MAX
    late = [SealedFacts(base, base + 10, 1, 0, 0), SealedFacts(base + 10, 2 * base + 1, 1, 0, 0)]
    assert [len(group) for group in group_segments(late, 10)] == [2]
    assert [len(group) for group in group_segments([late[0], SealedFacts(base + 10, 2 * base + 2, 1, 0, 0)], 10)] == [
        1,
        1,
    ]


def test_the_lag_counts_from_the_oldest_known_timestamp() -> None:
    config = TopicConfig(max_compaction_lag_ms=100)
    assert is_lag_over([900, 1000], config, 1001)
    assert not is_lag_over([900, 1000], config, 1000)
    assert is_lag_over([0], config, 101)
    assert not is_lag_over([-1], config, 1001)
    assert not is_lag_over([], config, 1001)


def test_a_segment_that_ends_where_the_dirty_part_begins_is_clean() -> None:
    made = plan(20, now_ms=2900, min_compaction_lag_ms=1100, min_cleanable_dirty_ratio=0.0)
    assert not made.is_due
    made = plan(10, now_ms=3500, min_compaction_lag_ms=1100, min_cleanable_dirty_ratio=0.0)
    assert (made.end_offset, made.dirty_ratio) == (20, 0.5)


def test_a_lag_of_one_millisecond_is_a_lag() -> None:
    assert plan(now_ms=3900, min_compaction_lag_ms=1).end_offset == 30
    assert plan(now_ms=3901, min_compaction_lag_ms=1).end_offset == 40
