"""The settings of groups, and their fixed limits."""

from __future__ import annotations

from dataclasses import dataclass

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""A new member's first join is dropped after this time, as in Kafka: it cannot send heartbeats before the response."""

PENDING_MEMBERS_MAX = 10_000
"""Member ids handed out in one group and not yet used. A client gets them for free, so their number is limited."""

GROUP_BYTES_MAX = 12 << 20
"""The metadata and assignments of one generation, which are stored as one record and must fit the topic's limit."""

REBALANCE_PHASE_MIN_MS = 5_000
"""The shortest time that a rebalance waits for missing members, whatever their rebalance timeout. They learn of it from
their next heartbeat, every three seconds by default. A group that removed them earlier might never become Stable."""

NOBODY_JOINED_RETRY_MIN_MS = 1_000
"""A join phase without any join starts over after this time at least, even if the rebalance timeout is zero."""

REASON_MAX_CHARS = 255
"""A client's reason for joining or leaving is stored up to this length, that of KIP-800."""

GROUP_OVERHEAD_BYTES = 2_048
MEMBER_OVERHEAD_BYTES = 1_536
PROTOCOL_OVERHEAD_BYTES = 256
PENDING_MEMBER_OVERHEAD_BYTES = 768
OFFSET_OVERHEAD_BYTES = 448
TEXT_CHARACTER_BYTES = 4
PENDING_OFFSET_OVERHEAD_BYTES = 1_024
PARTITION_OVERHEAD_BYTES = 96
"""Upper bounds on the memory of a group, a member, a protocol of a member, a member id handed out, a committed offset,
a character of a name, a pending offset of a transaction and a partition of a member, without clients' own bytes.
`group.memory.max.bytes` limits the sum over all groups."""

ASSIGNED_AT_ONCE_MAX = 4_000
"""The largest assignment that is computed within a heartbeat: members times topics, plus partitions."""

EXPIRY_OFFSETS_PER_TICK = 2_000
"""Committed offsets checked for expiry in one slice, so that a large shard does not hold the event loop."""

REBALANCE_REASON_MAX_CHARS = 2_048
"""The reason of a group's last rebalance is stored up to this length: one request may remove thousands of members."""

EMPTY_GROUP_KEPT_MS = 60_000
"""A group without members and offsets is removed after this time. Kafka removes it with the next check for expired
offsets; clients that create new groups all the time would fill the memory until then."""

EXPIRY_PAUSE_MS = 10
"""The pause between two slices of such a check."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The settings of groups, which correspond to Kafka's and have its defaults."""

    session_timeout_min_ms: int = 6_000  # group.min.session.timeout.ms
    session_timeout_max_ms: int = 1_800_000  # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    group_max_size: int = 2**31 - 1  # group.max.size
    consumer_group_max_size: int = 2**31 - 1  # group.consumer.max.size
    consumer_assignors: tuple[str, ...] = ("uniform", "range")  # group.consumer.assignors
    consumer_migration_policy: str = "bidirectional"  # group.consumer.migration.policy
    consumer_assigned_at_once_max: int = ASSIGNED_AT_ONCE_MAX
    consumer_regex_refresh_interval_ms: int = 600_000  # group.consumer.regex.refresh.interval.ms
    share_group_max_size: int = 200  # group.share.max.size
    offset_metadata_max_bytes: int = 4_096  # offset.metadata.max.bytes
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000  # offsets.retention.minutes
    offsets_retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
