"""Headroom: the time until retention may delete records that a group has not read. Pure: numbers in, numbers out.

Headroom is the time in seconds until retention may delete the group's *next unread record*, the one at the committed
offset. Retention deletes whole segments, so it is the segment that counts: by time, once the newest record in it is
older than retention.ms; by size, once retention.bytes and the segment itself fit into what the log has, at the rate it
grows now. Headroom is the smaller of the two, and None if nothing deletes the record.

Headroom is exact if time only rises from segment to segment, and never too large otherwise. A segment that is still
written to has to be sealed first: it counts as growing at the present rate until segment.bytes or segment.ms ends it.
"""

from __future__ import annotations

from typing import NamedTuple

from flowstone.config import TopicConfig
from flowstone.log.lifecycle.retention import UNLIMITED

# An append rate below this is the tail of the moving average: it counts as zero.
RATE_MIN_BYTES_PER_S = 0.01


class UnreadSegment(NamedTuple):
    """The segment that holds the next unread record, as far as retention depends on it."""

    newest_ms: int  # its newest timestamp; if its records have none, when it was created
    bytes_through: int  # of the log, from its first byte to this segment's last
    log_bytes: int  # of the log as a whole
    growing_s: float = 0  # how long it will still be appended to


def growing_s(
    size_bytes: int, begun_ms: int, config: TopicConfig, append_rate_bytes_per_s: float, now_ms: int
) -> float:
    """Return for how many seconds the active segment will be appended to at this rate; 0 at a rate of zero."""
    if append_rate_bytes_per_s < RATE_MIN_BYTES_PER_S:
        return 0
    until_full_s = (config.segment_bytes - size_bytes) / append_rate_bytes_per_s
    until_old_s = (begun_ms + config.segment_ms - now_ms) / 1000
    return max(min(until_full_s, until_old_s), 0)


def headroom_s(
    segment: UnreadSegment, config: TopicConfig, append_rate_bytes_per_s: float, now_ms: int
) -> float | None:
    """Return the seconds until retention may delete the segment, or None if it never does."""
    if "delete" not in config.cleanup_policy:
        return None
    left_s = []
    if config.retention_ms != UNLIMITED:
        left_s.append((segment.newest_ms + config.retention_ms - now_ms) / 1000)
    if config.retention_bytes >= 0:
        left_bytes = config.retention_bytes + segment.bytes_through - segment.log_bytes
        if left_bytes <= 0:
            return 0
        if append_rate_bytes_per_s >= RATE_MIN_BYTES_PER_S:
            left_s.append(left_bytes / append_rate_bytes_per_s)
    if not left_s:
        return None
    # Retention also deletes an active segment that is due: it is sealed first.
    return min(left_s) + segment.growing_s if min(left_s) > 0 else 0


def is_low(headroom_seconds: float | None, warning_s: float, config: TopicConfig, rate_bytes_per_s: float) -> bool:
    """Return whether the headroom is so small that the operator should be warned.

    The threshold is `warning_s`, or half of a new record's headroom if that is less. Otherwise a topic that keeps its
    records for less than `warning_s` would be reported all the time.
    """
    if headroom_seconds is None:
        return False
    new_s = warning_s * 2
    if config.retention_ms != UNLIMITED:
        new_s = min(new_s, config.retention_ms / 1000)
    if config.retention_bytes >= 0 and rate_bytes_per_s >= RATE_MIN_BYTES_PER_S:
        new_s = min(new_s, config.retention_bytes / rate_bytes_per_s)
    return headroom_seconds < new_s / 2
