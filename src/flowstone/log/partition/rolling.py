"""When a segment ends and the next one begins: Kafka's rules. Pure."""

from __future__ import annotations

import random

from flowstone.config import TopicConfig
from flowstone.log.segments.segment import RELATIVE_OFFSET_MAX, Segment


def roll_age_ms(config: TopicConfig, name: str) -> int:
    """Return segment.ms minus a share of its jitter that depends on the name, so that partitions do not roll together.

    The active segment is never compacted, so it rolls no later than compaction must run.
    """
    jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
    age_ms = config.segment_ms - int(random.Random(name).random() * jitter_ms) if jitter_ms else config.segment_ms
    return min(age_ms, config.max_compaction_lag_ms) if "compact" in config.cleanup_policy else age_ms


def must_roll(
    segment: Segment,
    config: TopicConfig,
    age_ms_max: int,
    size_bytes: int,
    last_offset: int,
    timestamp: int,
    now_ms: int,
) -> bool:
    """Return whether a batch with this size, last offset and timestamp belongs into a new segment.

    Age is measured from the first batch's timestamp to this one's, or by the broker's clock if the first has none.
    """
    if not segment.size_bytes:
        return False
    if segment.first_timestamp >= 0:
        age_ms = timestamp - segment.first_timestamp
    else:
        age_ms = now_ms - segment.created_ms
    return (
        segment.size_bytes + size_bytes > config.segment_bytes
        or age_ms > age_ms_max
        or segment.indexes.is_full(config.segment_index_bytes)
        or segment.transactions.size_bytes >= config.segment_index_bytes
        or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
    )
