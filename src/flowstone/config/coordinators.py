"""The settings of a broker for consumer groups of the new protocol (KIP-848) and for share groups (KIP-932).

Most of them are the defaults and the bounds of a group's own settings (`group`).
"""

from __future__ import annotations

from dataclasses import dataclass

from flowstone.config.cluster import ClusterConfig
from flowstone.config.setting import HOUR_MS, INT_MAX, MIB, MINUTE_MS, SECOND_MS, Kind, broker_setting


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig(ClusterConfig):
    """The settings of a broker for groups other than classic ones."""

    group_consumer_session_timeout_ms: int = broker_setting(
        "group.consumer.session.timeout.ms",
        Kind.INT,
        45 * SECOND_MS,
        "How long a member of a consumer group may send no heartbeat before it is removed.",
        low=1,
    )
    group_consumer_min_session_timeout_ms: int = broker_setting(
        "group.consumer.min.session.timeout.ms",
        Kind.INT,
        45 * SECOND_MS,
        "Minimum session timeout that a consumer group may set.",
        low=1,
    )
    group_consumer_max_session_timeout_ms: int = broker_setting(
        "group.consumer.max.session.timeout.ms",
        Kind.INT,
        MINUTE_MS,
        "Maximum session timeout that a consumer group may set.",
        low=1,
    )
    group_consumer_heartbeat_interval_ms: int = broker_setting(
        "group.consumer.heartbeat.interval.ms",
        Kind.INT,
        5 * SECOND_MS,
        "How often the members of a consumer group send heartbeats.",
        low=1,
    )
    group_consumer_min_heartbeat_interval_ms: int = broker_setting(
        "group.consumer.min.heartbeat.interval.ms",
        Kind.INT,
        5 * SECOND_MS,
        "Minimum heartbeat interval that a consumer group may set.",
        low=1,
    )
    group_consumer_max_heartbeat_interval_ms: int = broker_setting(
        "group.consumer.max.heartbeat.interval.ms",
        Kind.INT,
        15 * SECOND_MS,
        "Maximum heartbeat interval that a consumer group may set.",
        low=1,
    )
    group_consumer_assignment_interval_ms: int = broker_setting(
        "group.consumer.assignment.interval.ms",
        Kind.INT,
        SECOND_MS,
        "Minimum time between two assignments of a consumer group, so that members that join one after the other "
        "share one.",
        low=0,
        read_only=False,
    )
    group_consumer_min_assignment_interval_ms: int = broker_setting(
        "group.consumer.min.assignment.interval.ms",
        Kind.INT,
        0,
        "Minimum assignment interval that a consumer group may set.",
        low=0,
    )
    group_consumer_max_assignment_interval_ms: int = broker_setting(
        "group.consumer.max.assignment.interval.ms",
        Kind.INT,
        15 * SECOND_MS,
        "Maximum assignment interval that a consumer group may set.",
        low=0,
    )
    group_consumer_max_size: int = broker_setting(
        "group.consumer.max.size", Kind.INT, INT_MAX, "Maximum number of members of a consumer group.", low=1
    )
    group_consumer_assignors: tuple[str, ...] = broker_setting(
        "group.consumer.assignors",
        Kind.LIST,
        ("uniform", "range"),
        "The assignors that members of a consumer group may choose; the first is used if none is chosen.",
        choices=("uniform", "range"),
    )
    group_consumer_migration_policy: str = broker_setting(
        "group.consumer.migration.policy",
        Kind.STRING,
        "bidirectional",
        "Whether a running group is converted when its members change the protocol. upgrade: from classic to "
        "consumer; downgrade: from consumer to classic, when the last member of the consumer protocol has left; "
        "bidirectional: both; disabled: neither.",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
        any_case=True,
    )
    group_consumer_regex_refresh_interval_ms: int = broker_setting(
        "group.consumer.regex.refresh.interval.ms",
        Kind.INT,
        10 * MINUTE_MS,
        "How often the topics that match a subscribed regular expression are determined again even if no topic was "
        "created.",
        low=10 * SECOND_MS,
    )
    group_share_session_timeout_ms: int = broker_setting(
        "group.share.session.timeout.ms",
        Kind.INT,
        45 * SECOND_MS,
        "How long a member of a share group may send no heartbeat before it is removed.",
        low=1,
    )
    group_share_min_session_timeout_ms: int = broker_setting(
        "group.share.min.session.timeout.ms",
        Kind.INT,
        45 * SECOND_MS,
        "Minimum session timeout that a share group may set.",
        low=1,
    )
    group_share_max_session_timeout_ms: int = broker_setting(
        "group.share.max.session.timeout.ms",
        Kind.INT,
        MINUTE_MS,
        "Maximum session timeout that a share group may set.",
        low=1,
    )
    group_share_heartbeat_interval_ms: int = broker_setting(
        "group.share.heartbeat.interval.ms",
        Kind.INT,
        5 * SECOND_MS,
        "How often the members of a share group send heartbeats.",
        low=1,
    )
    group_share_min_heartbeat_interval_ms: int = broker_setting(
        "group.share.min.heartbeat.interval.ms",
        Kind.INT,
        5 * SECOND_MS,
        "Minimum heartbeat interval that a share group may set.",
        low=1,
    )
    group_share_max_heartbeat_interval_ms: int = broker_setting(
        "group.share.max.heartbeat.interval.ms",
        Kind.INT,
        15 * SECOND_MS,
        "Maximum heartbeat interval that a share group may set.",
        low=1,
    )
    group_share_assignment_interval_ms: int = broker_setting(
        "group.share.assignment.interval.ms",
        Kind.INT,
        SECOND_MS,
        "Minimum time between two assignments of a share group.",
        low=0,
        read_only=False,
    )
    group_share_min_assignment_interval_ms: int = broker_setting(
        "group.share.min.assignment.interval.ms",
        Kind.INT,
        0,
        "Minimum assignment interval that a share group may set.",
        low=0,
    )
    group_share_max_assignment_interval_ms: int = broker_setting(
        "group.share.max.assignment.interval.ms",
        Kind.INT,
        15 * SECOND_MS,
        "Maximum assignment interval that a share group may set.",
        low=0,
    )
    group_share_record_lock_duration_ms: int = broker_setting(
        "group.share.record.lock.duration.ms",
        Kind.INT,
        30 * SECOND_MS,
        "How long a record that a share group's member has acquired is locked for it.",
        low=SECOND_MS,
        high=HOUR_MS,
    )
    group_share_min_record_lock_duration_ms: int = broker_setting(
        "group.share.min.record.lock.duration.ms",
        Kind.INT,
        15 * SECOND_MS,
        "Minimum record lock duration that a share group may set.",
        low=SECOND_MS,
        high=30 * SECOND_MS,
    )
    group_share_max_record_lock_duration_ms: int = broker_setting(
        "group.share.max.record.lock.duration.ms",
        Kind.INT,
        MINUTE_MS,
        "Maximum record lock duration that a share group may set.",
        low=30 * SECOND_MS,
        high=HOUR_MS,
    )
    group_share_delivery_count_limit: int = broker_setting(
        "group.share.delivery.count.limit",
        Kind.INT,
        5,
        "How often a share group delivers a record that is not accepted.",
        low=2,
        high=25,
    )
    group_share_min_delivery_count_limit: int = broker_setting(
        "group.share.min.delivery.count.limit",
        Kind.INT,
        2,
        "Minimum delivery count limit that a share group may set.",
        low=2,
        high=25,
    )
    group_share_max_delivery_count_limit: int = broker_setting(
        "group.share.max.delivery.count.limit",
        Kind.INT,
        10,
        "Maximum delivery count limit that a share group may set.",
        low=2,
        high=25,
    )
    group_share_partition_max_record_locks: int = broker_setting(
        "group.share.partition.max.record.locks",
        Kind.INT,
        2000,
        "Maximum number of records of a partition that a share group has in delivery.",
        low=100,
        high=10_000,
    )
    group_share_min_partition_max_record_locks: int = broker_setting(
        "group.share.min.partition.max.record.locks",
        Kind.INT,
        100,
        "Minimum number of records in delivery that a share group may set.",
        low=100,
        high=10_000,
    )
    group_share_max_partition_max_record_locks: int = broker_setting(
        "group.share.max.partition.max.record.locks",
        Kind.INT,
        4000,
        "Maximum number of records in delivery that a share group may set.",
        low=100,
        high=10_000,
    )
    group_share_max_size: int = broker_setting(
        "group.share.max.size", Kind.INT, 200, "Maximum number of members of a share group.", low=1, high=1000
    )
    group_share_max_share_sessions: int = broker_setting(
        "group.share.max.share.sessions",
        Kind.INT,
        2000,
        "Maximum number of share sessions on a broker: one for each member that fetches from it.",
        low=1,
    )
    group_share_assignors: tuple[str, ...] = broker_setting(
        "group.share.assignors",
        Kind.LIST,
        ("simple",),
        "The assignor of share groups.",
        choices=("simple",),
    )
    share_coordinator_state_topic_num_partitions: int = broker_setting(
        "share.coordinator.state.topic.num.partitions",
        Kind.INT,
        50,
        "Number of partitions of __share_group_state; it cannot change once share groups exist.",
        low=1,
    )
    share_coordinator_state_topic_replication_factor: int = broker_setting(
        "share.coordinator.state.topic.replication.factor",
        Kind.SHORT,
        3,
        "Number of replicas of __share_group_state; limited to the number of brokers when it is created.",
        low=1,
    )
    share_coordinator_state_topic_min_isr: int = broker_setting(
        "share.coordinator.state.topic.min.isr",
        Kind.SHORT,
        2,
        "In-sync replicas that __share_group_state needs before an acknowledgement is answered; limited to its number "
        "of replicas when it is created.",
        low=1,
    )
    share_coordinator_state_topic_segment_bytes: int = broker_setting(
        "share.coordinator.state.topic.segment.bytes",
        Kind.INT,
        16 * MIB,
        "Segment size of __share_group_state. Whole segments of obsolete records are deleted.",
        low=MIB,
    )
    share_coordinator_state_topic_prune_interval_ms: int = broker_setting(
        "share.coordinator.state.topic.prune.interval.ms",
        Kind.INT,
        5 * MINUTE_MS,
        "How often obsolete records of __share_group_state are deleted.",
        low=1,
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = broker_setting(
        "share.coordinator.snapshot.update.records.per.snapshot",
        Kind.INT,
        500,
        "Number of updates of a share partition's state until a record has the whole state again.",
        low=0,
        high=500,
    )
    errors_deadletterqueue_topic_name_prefix: str = broker_setting(
        "errors.deadletterqueue.topic.name.prefix",
        Kind.STRING,
        "dlq.",
        "The prefix that the names of share groups' dead letter queues must have.",
    )
