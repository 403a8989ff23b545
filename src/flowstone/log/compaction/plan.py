"""Plan of a compaction: the part of the log, whether it is due, and which segments are merged. Pure.

A log is clean up to its first dirty offset: there every key was written once, when it was last compacted. From there
to the first segment that must be left alone it is dirty. Left alone are the active segment, whatever is not yet safe on
disk and committed, and what is younger than min.compaction.lag.ms.

Kafka's rules: a log is due when its dirty part is more than min.cleanable.dirty.ratio of what could be compacted, or
has waited longer than max.compaction.lag.ms. The whole of it, clean and dirty, is rewritten, small neighbours together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowstone.config import TopicConfig
from flowstone.log.segments.segment import RELATIVE_OFFSET_MAX


class SealedFacts(NamedTuple):
    """A sealed segment's properties that compaction depends on."""

    base_offset: int
    end_offset: int  # where the next one begins
    size_bytes: int
    first_ms: int  # the newest timestamp of its first batch; -1 if it has none
    newest_ms: int


class CompactionPlan(NamedTuple):
    first_dirty_offset: int
    end_offset: int  # nothing from here on may be changed
    # consecutive segments from the log's first on; each group becomes one segment; empty if compaction is not due
    groups: tuple[tuple[SealedFacts, ...], ...]
    dirty_ratio: float
    is_overdue: bool

    @property
    def is_due(self) -> bool:
        return bool(self.groups)


NOTHING = CompactionPlan(0, 0, (), 0.0, False)


def plan_compaction(
    segments: Sequence[SealedFacts], config: TopicConfig, first_dirty_offset: int, stable_offset: int, now_ms: int
) -> CompactionPlan:
    """Return what to compact of a log, given all its sealed segments and the end of what is committed and on disk."""
    if "compact" not in config.cleanup_policy or not segments:
        return NOTHING
    if not segments[0].base_offset <= first_dirty_offset <= segments[-1].end_offset:
        first_dirty_offset = segments[0].base_offset  # the log has lost its beginning or its end since
    touched = _compactable(segments, config, first_dirty_offset, stable_offset, now_ms)
    dirty = [segment for segment in touched if segment.end_offset > first_dirty_offset]
    dirty_bytes = sum(segment.size_bytes for segment in dirty)
    if not dirty_bytes:
        return NOTHING
    dirty_ratio = dirty_bytes / sum(segment.size_bytes for segment in touched)
    is_overdue = is_lag_over([segment.first_ms for segment in dirty], config, now_ms)
    is_due = dirty_ratio > config.min_cleanable_dirty_ratio or is_overdue
    groups = group_segments(touched, config.segment_bytes) if is_due else ()
    return CompactionPlan(first_dirty_offset, touched[-1].end_offset, groups, dirty_ratio, is_overdue)


def is_lag_over(first_ms: Sequence[int], config: TopicConfig, now_ms: int) -> bool:
    """Return whether a record has waited longer than max.compaction.lag.ms."""
    known = [each for each in first_ms if each >= 0]
    return bool(known) and now_ms - min(known) > config.max_compaction_lag_ms


def _compactable(
    segments: Sequence[SealedFacts], config: TopicConfig, first_dirty_offset: int, stable_offset: int, now_ms: int
) -> list[SealedFacts]:
    touchable = []
    for segment in segments:
        is_dirty = segment.end_offset > first_dirty_offset
        is_young = config.min_compaction_lag_ms > 0 and now_ms - segment.newest_ms < config.min_compaction_lag_ms
        if segment.end_offset > stable_offset or (is_dirty and is_young):
            break
        touchable.append(segment)
    return touchable


def group_segments(segments: Sequence[SealedFacts], segment_bytes: int) -> tuple[tuple[SealedFacts, ...], ...]:
    """Group consecutive segments that fit into one; a segment that is too large already stays alone."""
    groups: list[list[SealedFacts]] = []
    group_bytes = 0
    for segment in segments:
        fits = (
            bool(groups)
            and group_bytes + segment.size_bytes <= segment_bytes
            and segment.end_offset - 1 - groups[-1][0].base_offset <= RELATIVE_OFFSET_MAX
        )
        if fits:
            groups[-1].append(segment)
            group_bytes += segment.size_bytes
        else:
            groups.append([segment])
            group_bytes = segment.size_bytes
    return tuple(map(tuple, groups))
