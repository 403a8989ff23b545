"""What an operator may set about groups, and the limits nobody may."""

from __future__ import annotations

from dataclasses import dataclass

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""A member that never had an answer cannot send heartbeats; its first join is given up after this long (Kafka's)."""

PENDING_MEMBERS_MAX = 10_000
"""Member ids handed out in one group and not yet used. They cost a client nothing, so they need their own bound."""

GROUP_BYTES_MAX = 12 << 20
"""What members say and are told in one generation; it is stored as one record, which the topic's limit must hold."""

REBALANCE_PHASE_MIN_MS = 5_000
"""However short its members' rebalance timeout is, a group waits this long for members that are missing. They hear of a
rebalance with their next heartbeat, every three seconds by default. A group that drops them before may never settle."""

NOBODY_JOINED_RETRY_MIN_MS = 1_000
"""A join phase that nobody came to starts over; a client's rebalance timeout of zero must not make that a busy loop."""

REASON_MAX_CHARS = 255
"""A client's reason for joining or leaving is kept for people to read, up to KIP-800's length."""

GROUP_OVERHEAD_BYTES = 2_048
MEMBER_OVERHEAD_BYTES = 1_536
PROTOCOL_OVERHEAD_BYTES = 256
PENDING_MEMBER_OVERHEAD_BYTES = 768
OFFSET_OVERHEAD_BYTES = 448
TEXT_CHARACTER_BYTES = 4
PENDING_OFFSET_OVERHEAD_BYTES = 1_024
"""What each of these takes in memory at most, besides what clients say: a group, a member, a protocol of a member, a
member id handed out, a committed offset, a character of a name, an offset of an open transaction.
`group.memory.max.bytes` limits the sum over all groups."""

EXPIRY_OFFSETS_PER_TICK = 5_000
"""Committed offsets looked at in one go when old ones are removed, so that a large shard does not hold up the loop."""

REBALANCE_REASON_MAX_CHARS = 2_048
"""A group remembers why it last rebalanced, up to this length: one request may remove thousands of members."""

EMPTY_GROUP_KEPT_MS = 60_000
"""A group without members and offsets has nothing to remember and is removed after this long. Kafka removes it with the
next check for old offsets; clients that make up new groups all the time would fill the memory until then."""

EXPIRY_PAUSE_MS = 10
"""Between two such goes."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Kafka's settings of the same meaning; the defaults are Kafka's."""

    session_timeout_min_ms: int = 6_000  # group.min.session.timeout.ms
    session_timeout_max_ms: int = 1_800_000  # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    group_max_size: int = 2**31 - 1  # group.max.size
    offset_metadata_max_bytes: int = 4_096  # offset.metadata.max.bytes
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000  # offsets.retention.minutes
    offsets_retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
