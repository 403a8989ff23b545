"""The settings of a broker for classic groups, the memory of all groups, and committed offsets."""

from __future__ import annotations

from dataclasses import dataclass

from flowstone.config.access import AccessConfig
from flowstone.config.setting import DAY_MS, HOUR_MS, INT_MAX, MIB, MINUTE_MS, SECOND_MS, Kind, broker_setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicGroupConfig(AccessConfig):
    """Settings of classic groups, of the memory of all groups, and of committed offsets."""

    group_min_session_timeout_ms: int = broker_setting(
        "group.min.session.timeout.ms",
        Kind.INT,
        6 * SECOND_MS,
        "Minimum session timeout that a group member may use.",
        low=1,
    )
    group_max_session_timeout_ms: int = broker_setting(
        "group.max.session.timeout.ms",
        Kind.INT,
        30 * MINUTE_MS,
        "Maximum session timeout that a group member may use.",
        low=1,
    )
    group_initial_rebalance_delay_ms: int = broker_setting(
        "group.initial.rebalance.delay.ms",
        Kind.INT,
        3 * SECOND_MS,
        "How long the first rebalance of an empty group waits for more members.",
        low=0,
    )
    group_max_size: int = broker_setting(
        "group.max.size", Kind.INT, INT_MAX, "Maximum number of members of a group.", low=1
    )
    group_memory_max_bytes: int = broker_setting(
        "group.memory.max.bytes",
        Kind.LONG,
        256 * MIB,
        "Maximum memory of all groups of this broker: member subscriptions, assignments, committed offsets. A group "
        "may grow only up to the size of the remaining memory, so that small groups continue to work.",
        low=MIB,
    )
    group_headroom_warning_ms: int = broker_setting(
        "group.headroom.warning.ms",
        Kind.LONG,
        HOUR_MS,
        "The broker warns about a group, in the log and in metrics, when retention will delete its next unread record "
        "sooner than this. The threshold is half of the time for which new records are kept if that is less; 0: "
        "never.",
        low=0,
    )
    offset_metadata_max_bytes: int = broker_setting(
        "offset.metadata.max.bytes", Kind.INT, 4096, "Maximum length of the metadata text of a committed offset.", low=0
    )
    offsets_retention_minutes: int = broker_setting(
        "offsets.retention.minutes",
        Kind.INT,
        7 * DAY_MS // MINUTE_MS,
        "How long a group's offsets are kept after it has no members, or no longer subscribes to the topic.",
        low=1,
    )
    offsets_retention_check_interval_ms: int = broker_setting(
        "offsets.retention.check.interval.ms",
        Kind.LONG,
        10 * MINUTE_MS,
        "How often the broker checks for expired offsets.",
        low=1,
    )
    offsets_topic_num_partitions: int = broker_setting(
        "offsets.topic.num.partitions",
        Kind.INT,
        50,
        "Number of partitions of __consumer_offsets; it cannot change once groups exist.",
        low=1,
    )
    offsets_topic_replication_factor: int = broker_setting(
        "offsets.topic.replication.factor",
        Kind.SHORT,
        3,
        "Number of replicas of __consumer_offsets; limited to the number of brokers when it is created.",
        low=1,
    )
    offsets_topic_segment_bytes: int = broker_setting(
        "offsets.topic.segment.bytes",
        Kind.INT,
        4 * MIB,
        "Segment size of __consumer_offsets. The last segment is not compacted and is read completely at start.",
        low=MIB,
    )
