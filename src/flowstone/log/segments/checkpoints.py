"""Offsets per partition, and topic ids, in Kafka's small text files. Pure text in and out; the caller has it stored.

An offset checkpoint (`recovery-point-offset-checkpoint`, `log-start-offset-checkpoint`,
`replication-offset-checkpoint`, `cleaner-offset-checkpoint`) is a version line, a count line and a line
`topic partition offset` each. Files are replaced whole, so anything else than a whole file is damage.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowstone.types import TopicPartition, format_uuid, parse_uuid

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"  # the offsets at which compaction continues
TIME_CHECKPOINT = "time-checkpoint"  # when the broker last ran, in milliseconds
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
_VERSION = "0"


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    lines = [_VERSION, str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    return ("\n".join(lines) + "\n").encode()


def decode_offsets(data: bytes) -> dict[TopicPartition, int] | None:
    """Decode an offset checkpoint; return None if the text is not a complete checkpoint."""
    try:
        version, count, *lines = data.decode("ascii").splitlines()
        fields = [line.split(" ") for line in lines]
        offsets = {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in fields}
        if version != _VERSION or int(count) != len(fields) or len(offsets) != len(fields) or data[-1:] != b"\n":
            return None
    except ValueError:
        return None
    return None if any(offset < 0 for offset in offsets.values()) else offsets


def encode_partition_metadata(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {format_uuid(topic_id)}\n".encode()


def decode_partition_metadata(data: bytes) -> bytes | None:
    """Decode partition.metadata; return the topic id, or None if the text is not a whole file."""
    try:
        fields = dict(line.split(": ", 1) for line in data.decode("ascii").splitlines())
    except ValueError:
        return None
    return parse_uuid(fields.get("topic_id", "")) if fields.get("version") == "0" else None
