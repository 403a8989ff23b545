"""Retention: the old segments that a partition may delete, by age and by size. Pure.

Segments go from the oldest on, whole, and only where every record of them is below the high watermark. A topic whose
cleanup.policy lacks `delete` loses nothing here. The active segment may go too, once all of it has expired: the
caller rolls first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowstone.config import TopicConfig

UNLIMITED = -1


class SegmentFacts(NamedTuple):
    end_offset: int  # where the next segment begins, or the log ends
    size_bytes: int
    newest_ms: int  # its newest timestamp, or the time of its creation if its records have none


def retained_from(
    segments: Sequence[SegmentFacts], config: TopicConfig, log_start_offset: int, high_watermark: int, now_ms: int
) -> int:
    """Return the offset at which the log should begin."""
    if "delete" not in config.cleanup_policy:
        return log_start_offset
    start_offset = log_start_offset
    excess_bytes = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    for segment in segments:
        too_large = config.retention_bytes >= 0 and excess_bytes >= segment.size_bytes
        too_old = config.retention_ms != UNLIMITED and now_ms - segment.newest_ms > config.retention_ms
        if not segment.size_bytes or segment.end_offset > high_watermark or not (too_large or too_old):
            break
        excess_bytes -= segment.size_bytes
        start_offset = max(start_offset, segment.end_offset)
    return start_offset
