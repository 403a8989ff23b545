"""The settings of a topic."""

from __future__ import annotations

from dataclasses import dataclass

from flowstone.config.setting import DAY_MS, GIB, HOUR_MS, LONG_MAX, MIB, MINUTE_MS, Kind, topic_setting

# "*" or the number of a partition and the id of a broker.
THROTTLED_REPLICA = r"\*|[0-9]+:[0-9]+"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings of a topic."""

    cleanup_policy: tuple[str, ...] = topic_setting(
        "cleanup.policy",
        Kind.LIST,
        ("delete",),
        "How old records are removed: delete (by age and size), compact (by key), or both; empty: records are not "
        "removed.",
        "log.cleanup.policy",
        choices=("delete", "compact"),
        can_be_empty=True,
    )
    compression_type: str = topic_setting(
        "compression.type",
        Kind.STRING,
        "producer",
        "The codec with which records are stored; producer: the codec that the producer chose.",
        "compression.type",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    )
    compression_gzip_level: int = topic_setting(
        "compression.gzip.level",
        Kind.INT,
        -1,
        "Compression level of gzip; -1: gzip's default.",
        "compression.gzip.level",
        low=-1,
        high=9,
        excluded=(0,),
    )
    compression_lz4_level: int = topic_setting(
        "compression.lz4.level",
        Kind.INT,
        9,
        "Compression level of lz4; higher levels from 3 on take more time.",
        "compression.lz4.level",
        low=1,
        high=17,
    )
    compression_zstd_level: int = topic_setting(
        "compression.zstd.level",
        Kind.INT,
        3,
        "Compression level of zstd.",
        "compression.zstd.level",
        low=-131072,
        high=22,
    )
    delete_retention_ms: int = topic_setting(
        "delete.retention.ms",
        Kind.LONG,
        DAY_MS,
        "How long a compacted topic keeps a tombstone.",
        "log.cleaner.delete.retention.ms",
        low=0,
    )
    file_delete_delay_ms: int = topic_setting(
        "file.delete.delay.ms",
        Kind.LONG,
        MINUTE_MS,
        "How long the renamed files of a deleted segment stay on disk before they are removed.",
        "log.segment.delete.delay.ms",
        low=0,
    )
    flush_messages: int = topic_setting(
        "flush.messages",
        Kind.LONG,
        1,
        "1: an acks=all produce is acknowledged, and records become visible, when they are on disk. Above 1: nothing "
        "waits for the disk, and a flush is requested after this many records.",
        "log.flush.interval.messages",
        low=1,
    )
    flush_ms: int = topic_setting(
        "flush.ms",
        Kind.LONG,
        LONG_MAX,
        "Maximum time before a record is flushed.",
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
        low=0,
    )
    flowstone_validation: str = topic_setting(
        "flowstone.validation",
        Kind.STRING,
        "records",
        "How a compressed batch is checked before it is stored. records: it is decompressed and its records are "
        "checked. header: only its header is checked, so a batch that no consumer can read may be stored.",
        "flowstone.validation",
        choices=("records", "header"),
    )
    errors_deadletterqueue_group_enable: bool = topic_setting(
        "errors.deadletterqueue.group.enable",
        Kind.BOOLEAN,
        False,
        "Whether share groups may use the topic as their dead letter queue.",
    )
    index_interval_bytes: int = topic_setting(
        "index.interval.bytes",
        Kind.INT,
        4096,
        "Approximate number of log bytes between two index entries.",
        "log.index.interval.bytes",
        low=0,
    )
    max_compaction_lag_ms: int = topic_setting(
        "max.compaction.lag.ms",
        Kind.LONG,
        LONG_MAX,
        "Maximum time before a record is compacted.",
        "log.cleaner.max.compaction.lag.ms",
        low=1,
    )
    max_message_bytes: int = topic_setting(
        "max.message.bytes",
        Kind.INT,
        MIB + 12,
        "Maximum size of a record batch, as sent (compressed).",
        "message.max.bytes",
        low=0,
    )
    message_timestamp_type: str = topic_setting(
        "message.timestamp.type",
        Kind.STRING,
        "CreateTime",
        "Whether a record has its producer's timestamp or the broker's.",
        "log.message.timestamp.type",
        choices=("CreateTime", "LogAppendTime"),
    )
    message_timestamp_before_max_ms: int = topic_setting(
        "message.timestamp.before.max.ms",
        Kind.LONG,
        LONG_MAX,
        "How far a producer's timestamp may be behind the broker's clock.",
        "log.message.timestamp.before.max.ms",
        low=0,
    )
    message_timestamp_after_max_ms: int = topic_setting(
        "message.timestamp.after.max.ms",
        Kind.LONG,
        HOUR_MS,
        "How far a producer's timestamp may be ahead of the broker's clock.",
        "log.message.timestamp.after.max.ms",
        low=0,
    )
    min_cleanable_dirty_ratio: float = topic_setting(
        "min.cleanable.dirty.ratio",
        Kind.DOUBLE,
        0.5,
        "Minimum uncompacted share of a log before it is compacted.",
        "log.cleaner.min.cleanable.ratio",
        low=0,
        high=1,
    )
    min_compaction_lag_ms: int = topic_setting(
        "min.compaction.lag.ms",
        Kind.LONG,
        0,
        "Minimum time before a record is compacted.",
        "log.cleaner.min.compaction.lag.ms",
        low=0,
    )
    min_insync_replicas: int = topic_setting(
        "min.insync.replicas",
        Kind.INT,
        1,
        "Number of replicas that must have a record before acks=all is acknowledged.",
        "min.insync.replicas",
        low=1,
    )
    retention_bytes: int = topic_setting(
        "retention.bytes", Kind.LONG, -1, "Maximum size of a partition; negative: no limit.", "log.retention.bytes"
    )
    retention_ms: int = topic_setting(
        "retention.ms",
        Kind.LONG,
        7 * DAY_MS,
        "How long records are kept; -1: forever.",
        "log.retention.ms",
        ("log.retention.minutes", MINUTE_MS),
        ("log.retention.hours", HOUR_MS),
        low=-1,
    )
    segment_bytes: int = topic_setting(
        "segment.bytes", Kind.INT, GIB, "Size at which a new segment starts.", "log.segment.bytes", low=MIB
    )
    segment_index_bytes: int = topic_setting(
        "segment.index.bytes",
        Kind.INT,
        10 * MIB,
        "Size of an index at which a new segment starts.",
        "log.index.size.max.bytes",
        low=4,
    )
    segment_jitter_ms: int = topic_setting(
        "segment.jitter.ms",
        Kind.LONG,
        0,
        "Maximum random reduction of segment.ms, so that partitions do not roll at the same time.",
        "log.roll.jitter.ms",
        ("log.roll.jitter.hours", HOUR_MS),
        low=0,
    )
    segment_ms: int = topic_setting(
        "segment.ms",
        Kind.LONG,
        7 * DAY_MS,
        "Age at which a new segment starts.",
        "log.roll.ms",
        ("log.roll.hours", HOUR_MS),
        low=1,
    )
    unclean_leader_election_enable: bool = topic_setting(
        "unclean.leader.election.enable",
        Kind.BOOLEAN,
        False,
        "Whether a replica that may lack records can become leader if no in-sync replica is left.",
        "unclean.leader.election.enable",
    )
    # Settings that Kafka has and that change nothing here. They are stored, so that tools can copy topics.
    follower_replication_throttled_replicas: tuple[str, ...] = topic_setting(
        "follower.replication.throttled.replicas",
        Kind.LIST,
        (),
        "No effect: throttles apply to every replica that is being added, whatever is listed here.",
        pattern=THROTTLED_REPLICA,
        has_effect=False,
    )
    leader_replication_throttled_replicas: tuple[str, ...] = topic_setting(
        "leader.replication.throttled.replicas",
        Kind.LIST,
        (),
        "No effect: throttles apply to every replica that is being added, whatever is listed here.",
        pattern=THROTTLED_REPLICA,
        has_effect=False,
    )
    internal_segment_bytes: int | None = topic_setting(
        "internal.segment.bytes",
        Kind.INT,
        None,
        "No effect: Kafka's own tests use it for segments smaller than segment.bytes allows.",
        has_effect=False,
        is_hidden=True,
    )
    local_retention_bytes: int = topic_setting(
        "local.retention.bytes",
        Kind.LONG,
        -2,
        "No effect: segments are not moved to a remote storage, so retention.bytes applies.",
        "log.local.retention.bytes",
        low=-2,
        has_effect=False,
    )
    local_retention_ms: int = topic_setting(
        "local.retention.ms",
        Kind.LONG,
        -2,
        "No effect: segments are not moved to a remote storage, so retention.ms applies.",
        "log.local.retention.ms",
        low=-2,
        has_effect=False,
    )
    preallocate: bool = topic_setting(
        "preallocate",
        Kind.BOOLEAN,
        False,
        "No effect: busy logs always preallocate space, in small pieces.",
        "log.preallocate",
        has_effect=False,
    )
    remote_log_copy_disable: bool = topic_setting(
        "remote.log.copy.disable",
        Kind.BOOLEAN,
        False,
        "No effect: segments are not moved to a remote storage.",
        has_effect=False,
    )
    remote_log_delete_on_disable: bool = topic_setting(
        "remote.log.delete.on.disable",
        Kind.BOOLEAN,
        False,
        "No effect: segments are not moved to a remote storage.",
        has_effect=False,
    )
    remote_storage_enable: bool = topic_setting(
        "remote.storage.enable",
        Kind.BOOLEAN,
        False,
        "No effect: segments are not moved to a remote storage.",
        has_effect=False,
    )
