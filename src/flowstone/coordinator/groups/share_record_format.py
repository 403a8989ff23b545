"""The binary form of share groups' records, key types 10 to 15: Kafka's own, version 0, whose values are flexible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flowstone.coordinator import flexible_values as flexible
from flowstone.coordinator.effects import CoordinatorRecord
from flowstone.coordinator.flexible_values import BYTE, INT, LONG, NO_TAGS, SHORT, ValueReader
from flowstone.coordinator.groups.share_records import (
    ShareGroupRecord,
    ShareGroupStored,
    ShareKeyType,
    ShareMemberCurrentStored,
    ShareMemberStored,
    ShareMemberTargetStored,
    ShareRecordRemoved,
    ShareStatesStored,
    ShareTargetStored,
    TopicPartitions,
    TopicState,
)
from flowstone.wire.primitives import encode_tags

KEY_TYPES = frozenset(ShareKeyType)
_VALUE_VERSION = 0
_STABLE = 0  # the only state of a share group's member
_TIMESTAMP_TAG = 0
_KEYS: dict[type, ShareKeyType] = {
    ShareMemberStored: ShareKeyType.MEMBER,
    ShareGroupStored: ShareKeyType.GROUP,
    ShareTargetStored: ShareKeyType.TARGET,
    ShareMemberTargetStored: ShareKeyType.MEMBER_TARGET,
    ShareMemberCurrentStored: ShareKeyType.MEMBER_CURRENT,
    ShareStatesStored: ShareKeyType.STATES,
}
_WITH_MEMBER = (ShareKeyType.MEMBER, ShareKeyType.MEMBER_TARGET, ShareKeyType.MEMBER_CURRENT)


def encode(record: ShareGroupRecord) -> CoordinatorRecord:
    if isinstance(record, ShareRecordRemoved):
        return _key(record.key, record.group_id, record.member_id), None
    key = _KEYS[type(record)]
    return _key(key, record.group_id, getattr(record, "member_id", "")), _value(record)


def decode(key_type: int, key: bytes, value: bytes | None) -> ShareGroupRecord | None:
    """Return the typed record, or None for a version that a newer broker wrote.

    Raises struct.error, IndexError, ValueError or ProtocolError if the bytes are malformed.
    """
    kind = ShareKeyType(key_type)
    group_id, member_id = flexible.key_texts(key, 2) if kind in _WITH_MEMBER else (*flexible.key_texts(key, 1), "")
    if value is None:
        return ShareRecordRemoved(group_id, kind, member_id)
    (version,) = SHORT.unpack_from(value)
    return _read(kind, group_id, member_id, ValueReader(value)) if version == _VALUE_VERSION else None


def _key(kind: ShareKeyType, group_id: str, member_id: str) -> bytes:
    return flexible.key(kind, group_id, member_id) if kind in _WITH_MEMBER else flexible.key(kind, group_id)


def _value(record: ShareGroupRecord) -> bytes:
    return b"".join((SHORT.pack(_VALUE_VERSION), *_fields(record)))


def _fields(record: ShareGroupRecord) -> Iterable[bytes]:
    match record:
        case ShareMemberStored():
            return (
                flexible.nullable_string(record.rack_id),
                flexible.string(record.client_id),
                flexible.string(record.client_host),
                flexible.array(record.subscribed_topics, flexible.string),
                NO_TAGS,
            )
        case ShareGroupStored():
            return (INT.pack(record.epoch), LONG.pack(record.metadata_hash), NO_TAGS)
        case ShareTargetStored():
            tags = encode_tags([(_TIMESTAMP_TAG, LONG.pack(record.timestamp_ms))])
            return INT.pack(record.assignment_epoch), tags
        case ShareMemberTargetStored():
            return (_topic_partitions(record.partitions), NO_TAGS)
        case ShareMemberCurrentStored():
            epochs = INT.pack(record.member_epoch) + INT.pack(record.previous_member_epoch)
            return (epochs, bytes((_STABLE,)), _topic_partitions(record.partitions), NO_TAGS)
        case ShareStatesStored():
            return (
                _topic_states(record.initializing),
                _topic_states(record.initialized),
                flexible.array(record.deleting, lambda each: each[0] + flexible.string(each[1]) + NO_TAGS),
                NO_TAGS,
            )
    raise AssertionError(f"a tombstone has no value: {record!r}")


def _topic_partitions(topics: TopicPartitions) -> bytes:
    return flexible.array(topics.items(), lambda topic: topic[0] + flexible.int_array(topic[1]) + NO_TAGS)


def _topic_states(topics: Sequence[TopicState]) -> bytes:
    return flexible.array(topics, _topic_state)


def _topic_state(topic: TopicState) -> bytes:
    return topic.topic_id + flexible.string(topic.name) + flexible.int_array(topic.partitions) + NO_TAGS


def _read(kind: ShareKeyType, group_id: str, member_id: str, reader: ValueReader) -> ShareGroupRecord:
    record: ShareGroupRecord
    match kind:
        case ShareKeyType.MEMBER:
            rack_id, client_id, client_host = reader.nullable_string(), reader.string(), reader.string()
            topics = tuple(reader.array(ValueReader.string))
            record = ShareMemberStored(group_id, member_id, rack_id, client_id, client_host, topics)
        case ShareKeyType.GROUP:
            record = ShareGroupStored(group_id, reader.number(INT), reader.number(LONG))
        case ShareKeyType.TARGET:
            epoch = reader.number(INT)
            timestamp = reader.tags().get(_TIMESTAMP_TAG)
            return ShareTargetStored(group_id, epoch, 0 if timestamp is None else timestamp.number(LONG))
        case ShareKeyType.MEMBER_TARGET:
            record = ShareMemberTargetStored(group_id, member_id, _read_topic_partitions(reader))
        case ShareKeyType.MEMBER_CURRENT:
            epoch, previous_epoch, _ = reader.number(INT), reader.number(INT), reader.number(BYTE)
            record = ShareMemberCurrentStored(
                group_id, member_id, epoch, previous_epoch, _read_topic_partitions(reader)
            )
        case ShareKeyType.STATES:
            initializing, initialized = _read_topic_states(reader), _read_topic_states(reader)
            deleting = tuple(reader.array(_read_topic_info))
            record = ShareStatesStored(group_id, initializing, initialized, deleting)
    reader.tags()
    return record


def _read_topic_partitions(reader: ValueReader) -> TopicPartitions:
    return dict(reader.array(_read_topic))


def _read_topic(reader: ValueReader) -> tuple[bytes, tuple[int, ...]]:
    topic = reader.topic_id(), reader.int_array()
    reader.tags()
    return topic


def _read_topic_states(reader: ValueReader) -> tuple[TopicState, ...]:
    return tuple(reader.array(_read_topic_state))


def _read_topic_state(reader: ValueReader) -> TopicState:
    state = TopicState(reader.topic_id(), reader.string(), reader.int_array())
    reader.tags()
    return state


def _read_topic_info(reader: ValueReader) -> tuple[bytes, str]:
    topic = reader.topic_id(), reader.string()
    reader.tags()
    return topic
