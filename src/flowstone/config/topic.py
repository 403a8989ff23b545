"""The settings of a topic."""

from __future__ import annotations

from dataclasses import dataclass

from flowstone.config.setting import DAY_MS, GIB, HOUR_MS, LONG_MAX, MIB, MINUTE_MS, Kind, topic_setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """What can be set for one topic."""

    cleanup_policy: tuple[str, ...] = topic_setting(
        "cleanup.policy",
        Kind.LIST,
        ("delete",),
        "What happens to old records: delete by age and size, compact by key, or both.",
        "log.cleanup.policy",
        choices=("delete", "compact"),
    )
    compression_type: str = topic_setting(
        "compression.type",
        Kind.STRING,
        "producer",
        "The codec records are stored with; producer keeps what the producer chose.",
        "compression.type",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    )
    compression_gzip_level: int = topic_setting(
        "compression.gzip.level",
        Kind.INT,
        -1,
        "Level of gzip; -1 is its default.",
        "compression.gzip.level",
        low=-1,
        high=9,
    )
    compression_lz4_level: int = topic_setting(
        "compression.lz4.level",
        Kind.INT,
        9,
        "Level of lz4; from 3 on, more costs time.",
        "compression.lz4.level",
        low=1,
        high=17,
    )
    compression_zstd_level: int = topic_setting(
        "compression.zstd.level", Kind.INT, 3, "Level of zstd.", "compression.zstd.level", low=-131072, high=22
    )
    delete_retention_ms: int = topic_setting(
        "delete.retention.ms",
        Kind.LONG,
        DAY_MS,
        "How long a compacted topic keeps the marker of a deleted key.",
        "log.cleaner.delete.retention.ms",
        low=0,
    )
    file_delete_delay_ms: int = topic_setting(
        "file.delete.delay.ms",
        Kind.LONG,
        MINUTE_MS,
        "How long a deleted segment's files stay on disk, renamed, before they go.",
        "log.segment.delete.delay.ms",
        low=0,
    )
    flush_messages: int = topic_setting(
        "flush.messages",
        Kind.LONG,
        1,
        "1: an acks=all produce is answered, and a record visible, once it is on disk. Above 1: nothing waits for the "
        "disk, and a flush is asked for after this many records.",
        "log.flush.interval.messages",
        low=1,
    )
    flush_ms: int = topic_setting(
        "flush.ms", Kind.LONG, LONG_MAX, "The longest a record waits for a flush.", "log.flush.interval.ms", low=0
    )
    flowstone_validation: str = topic_setting(
        "flowstone.validation",
        Kind.STRING,
        "records",
        "What is checked of a compressed batch before it is stored. records: it is decompressed and its records are "
        "checked. header: only what its header says, so a batch that no consumer can read may be stored.",
        "flowstone.validation",
        choices=("records", "header"),
    )
    index_interval_bytes: int = topic_setting(
        "index.interval.bytes",
        Kind.INT,
        4096,
        "About how many bytes of log lie between two entries of an index.",
        "log.index.interval.bytes",
        low=0,
    )
    max_compaction_lag_ms: int = topic_setting(
        "max.compaction.lag.ms",
        Kind.LONG,
        LONG_MAX,
        "The longest a record stays uncompacted.",
        "log.cleaner.max.compaction.lag.ms",
        low=1,
    )
    max_message_bytes: int = topic_setting(
        "max.message.bytes",
        Kind.INT,
        MIB + 12,
        "The largest record batch taken, as sent (compressed).",
        "message.max.bytes",
        low=0,
    )
    message_timestamp_type: str = topic_setting(
        "message.timestamp.type",
        Kind.STRING,
        "CreateTime",
        "Whether a record keeps its producer's time or gets the broker's.",
        "log.message.timestamp.type",
        choices=("CreateTime", "LogAppendTime"),
    )
    message_timestamp_before_max_ms: int = topic_setting(
        "message.timestamp.before.max.ms",
        Kind.LONG,
        LONG_MAX,
        "How far behind the broker's clock a producer's time may lie.",
        "log.message.timestamp.before.max.ms",
        low=0,
    )
    message_timestamp_after_max_ms: int = topic_setting(
        "message.timestamp.after.max.ms",
        Kind.LONG,
        HOUR_MS,
        "How far ahead of the broker's clock a producer's time may lie.",
        "log.message.timestamp.after.max.ms",
        low=0,
    )
    min_cleanable_dirty_ratio: float = topic_setting(
        "min.cleanable.dirty.ratio",
        Kind.DOUBLE,
        0.5,
        "The share of a compacted log that must be uncompacted before it is worth compacting.",
        "log.cleaner.min.cleanable.ratio",
        low=0,
        high=1,
    )
    min_compaction_lag_ms: int = topic_setting(
        "min.compaction.lag.ms",
        Kind.LONG,
        0,
        "The shortest a record stays uncompacted.",
        "log.cleaner.min.compaction.lag.ms",
        low=0,
    )
    min_insync_replicas: int = topic_setting(
        "min.insync.replicas",
        Kind.INT,
        1,
        "How many replicas must have a record before acks=all is answered.",
        "min.insync.replicas",
        low=1,
    )
    retention_bytes: int = topic_setting(
        "retention.bytes", Kind.LONG, -1, "The most a partition keeps; -1: no limit.", "log.retention.bytes", low=-1
    )
    retention_ms: int = topic_setting(
        "retention.ms",
        Kind.LONG,
        7 * DAY_MS,
        "How long records are kept; -1: for ever.",
        "log.retention.ms",
        ("log.retention.minutes", MINUTE_MS),
        ("log.retention.hours", HOUR_MS),
        low=-1,
    )
    segment_bytes: int = topic_setting(
        "segment.bytes", Kind.INT, GIB, "The size at which a new segment begins.", "log.segment.bytes", low=MIB
    )
    segment_index_bytes: int = topic_setting(
        "segment.index.bytes",
        Kind.INT,
        10 * MIB,
        "The size of an index at which a new segment begins.",
        "log.index.size.max.bytes",
        low=4,
    )
    segment_jitter_ms: int = topic_setting(
        "segment.jitter.ms",
        Kind.LONG,
        0,
        "The most that is taken off segment.ms at random, so that partitions do not roll together.",
        "log.roll.jitter.ms",
        ("log.roll.jitter.hours", HOUR_MS),
        low=0,
    )
    segment_ms: int = topic_setting(
        "segment.ms",
        Kind.LONG,
        7 * DAY_MS,
        "The age at which a new segment begins.",
        "log.roll.ms",
        ("log.roll.hours", HOUR_MS),
        low=1,
    )
    unclean_leader_election_enable: bool = topic_setting(
        "unclean.leader.election.enable",
        Kind.BOOLEAN,
        False,
        "Whether a replica that may lack records can lead when no other is left.",
        "unclean.leader.election.enable",
    )
