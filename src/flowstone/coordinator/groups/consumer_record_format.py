"""The binary form of consumer groups' records, key types 3 to 8 and 16: Kafka's own, version 0, flexible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flowstone.coordinator import flexible_values as flexible
from flowstone.coordinator.effects import CoordinatorRecord
from flowstone.coordinator.flexible_values import BYTE, INT, LONG, NO_TAGS, SHORT, ValueReader
from flowstone.coordinator.groups.consumer_records import (
    ClassicMember,
    ConsumerGroupStored,
    ConsumerKey,
    ConsumerMemberCurrentStored,
    ConsumerMemberStored,
    ConsumerMemberTargetStored,
    ConsumerRecord,
    ConsumerRecordRemoved,
    ConsumerRegexStored,
    ConsumerTargetStored,
    MemberState,
    Partition,
)
from flowstone.wire.primitives import encode_tags

KEY_TYPES = frozenset(ConsumerKey)
_VALUE_VERSION = 0
# The only tag of each struct that has one: the group's metadata hash, the target's timestamp, a member's classic
# protocols, and the epochs of assigned partitions.
_TAG = 0
_NOT_NULL = b"\1"  # before a struct that may be null
_KEYS: dict[type, ConsumerKey] = {
    ConsumerMemberStored: ConsumerKey.MEMBER,
    ConsumerGroupStored: ConsumerKey.GROUP,
    ConsumerTargetStored: ConsumerKey.TARGET,
    ConsumerMemberTargetStored: ConsumerKey.MEMBER_TARGET,
    ConsumerMemberCurrentStored: ConsumerKey.MEMBER_CURRENT,
    ConsumerRegexStored: ConsumerKey.REGEX,
}
_NAMED = frozenset({ConsumerKey.MEMBER, ConsumerKey.MEMBER_TARGET, ConsumerKey.MEMBER_CURRENT, ConsumerKey.REGEX})


def encode(record: ConsumerRecord) -> CoordinatorRecord:
    if isinstance(record, ConsumerRecordRemoved):
        return _key(record.key, record.group_id, record.name), None
    kind = _KEYS[type(record)]
    return _key(kind, record.group_id, record[1] if kind in _NAMED else ""), _value(record)


def _key(kind: ConsumerKey, group_id: str, name: object) -> bytes:
    return flexible.key(kind, group_id, str(name)) if kind in _NAMED else flexible.key(kind, group_id)


def _value(record: ConsumerRecord) -> bytes:
    return SHORT.pack(_VALUE_VERSION) + b"".join(_fields(record))


def _fields(record: ConsumerRecord) -> Iterable[bytes]:
    match record:
        case ConsumerMemberStored():
            return (
                *map(flexible.nullable_string, (record.instance_id, record.rack_id)),
                *map(flexible.string, (record.client_id, record.client_host)),
                flexible.array(record.subscribed_topics, flexible.string),
                flexible.nullable_string(record.regex),
                INT.pack(record.rebalance_timeout_ms),
                flexible.nullable_string(record.assignor),
                NO_TAGS if record.classic is None else encode_tags([(_TAG, _classic(record.classic))]),
            )
        case ConsumerGroupStored():
            tags = [(_TAG, LONG.pack(record.metadata_hash))] if record.metadata_hash else []
            return INT.pack(record.epoch), encode_tags(tags)
        case ConsumerTargetStored():
            return INT.pack(record.assignment_epoch), encode_tags([(_TAG, LONG.pack(record.timestamp_ms))])
        case ConsumerMemberTargetStored():
            return _partitions(dict.fromkeys(record.partitions)), NO_TAGS
        case ConsumerMemberCurrentStored():
            epochs = INT.pack(record.member_epoch) + INT.pack(record.previous_member_epoch)
            return (
                epochs,
                BYTE.pack(record.state),
                _partitions(record.assigned),
                _partitions(record.revoking),
                NO_TAGS,
            )
        case ConsumerRegexStored():
            times = LONG.pack(record.version) + LONG.pack(record.timestamp_ms)
            return flexible.array(record.topics, flexible.string), times, NO_TAGS
    raise AssertionError(f"a tombstone has no value: {record!r}")


def _classic(classic: ClassicMember) -> bytes:
    protocols = flexible.array(
        classic.protocols, lambda each: flexible.string(each[0]) + flexible.blob(each[1]) + NO_TAGS
    )
    return _NOT_NULL + INT.pack(classic.session_timeout_ms) + protocols + NO_TAGS


def _partitions(partitions: Mapping[Partition, int | None]) -> bytes:
    """Return an array of topics with their partitions, and with an epoch for each partition if it has one."""
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        by_topic.setdefault(topic_id, []).append(index)

    def topic(item: tuple[bytes, list[int]]) -> bytes:
        topic_id, indexes = item
        epochs = [partitions[topic_id, index] for index in indexes]
        tags = [] if None in epochs else [(_TAG, flexible.array(epochs, INT.pack))]
        return topic_id + flexible.array(indexes, INT.pack) + encode_tags(tags)

    return flexible.array(by_topic.items(), topic)


def decode(key_type: int, key: bytes, value: bytes | None) -> ConsumerRecord | None:
    """Return the typed record, or None for a version that a newer broker wrote.

    Raises struct.error, IndexError, ValueError or ProtocolError if the bytes are malformed.
    """
    kind = ConsumerKey(key_type)
    group_id, name = flexible.key_texts(key, 2) if kind in _NAMED else (*flexible.key_texts(key, 1), "")
    if value is None or kind is ConsumerKey.PARTITION_METADATA:
        return ConsumerRecordRemoved(group_id, kind, name)
    (version,) = SHORT.unpack_from(value)
    if version < 0:
        raise ValueError(f"{version} is not a version")
    return _read(kind, group_id, name, ValueReader(value)) if version == _VALUE_VERSION else None


def _read(kind: ConsumerKey, group_id: str, name: str, reader: ValueReader) -> ConsumerRecord:
    match kind:
        case ConsumerKey.MEMBER:
            return _read_member(group_id, name, reader)
        case ConsumerKey.GROUP:
            epoch = reader.number(INT)
            tag = reader.tags().get(_TAG)
            return ConsumerGroupStored(group_id, epoch, tag.number(LONG) if tag else 0)
        case ConsumerKey.TARGET:
            epoch = reader.number(INT)
            tag = reader.tags().get(_TAG)
            return ConsumerTargetStored(group_id, epoch, tag.number(LONG) if tag else 0)
        case ConsumerKey.MEMBER_TARGET:
            return ConsumerMemberTargetStored(group_id, name, frozenset(_read_partitions(reader)))
        case ConsumerKey.MEMBER_CURRENT:
            epoch, previous, state = reader.number(INT), reader.number(INT), reader.number(BYTE)
            known = MemberState(state) if state in MemberState.__members__.values() else MemberState.UNKNOWN
            assigned, revoking = _read_partitions(reader), _read_partitions(reader)
            return ConsumerMemberCurrentStored(group_id, name, epoch, previous, known, assigned, revoking)
        case _:
            topics = tuple(reader.array(ValueReader.string))
            return ConsumerRegexStored(group_id, name, topics, reader.number(LONG), reader.number(LONG))


def _read_member(group_id: str, member_id: str, reader: ValueReader) -> ConsumerMemberStored:
    instance_id, rack_id = reader.nullable_string(), reader.nullable_string()
    client_id, client_host = reader.string(), reader.string()
    topics = tuple(reader.array(ValueReader.string))
    regex, rebalance_timeout_ms = reader.nullable_string(), reader.number(INT)
    assignor = reader.nullable_string()
    tag = reader.tags().get(_TAG)
    classic = None
    if tag is not None and tag.number(BYTE) > 0:
        session_timeout_ms = tag.number(INT)
        classic = ClassicMember(session_timeout_ms, tuple(tag.array(_read_protocol)))
    return ConsumerMemberStored(
        group_id,
        member_id,
        instance_id,
        rack_id,
        client_id,
        client_host,
        topics,
        regex,
        rebalance_timeout_ms,
        assignor,
        classic,
    )


def _read_protocol(reader: ValueReader) -> tuple[str, bytes]:
    protocol = reader.string(), reader.blob()
    reader.tags()
    return protocol


def _read_partitions(reader: ValueReader) -> dict[Partition, int]:
    """Return the partitions of an array of topics, with their epochs, 0 where there are none."""
    return {partition: epoch for topic in reader.array(_read_topic) for partition, epoch in topic}


def _read_topic(reader: ValueReader) -> list[tuple[Partition, int]]:
    topic_id = reader.topic_id()
    indexes = reader.int_array()
    tag = reader.tags().get(_TAG)
    epochs = tag.int_array() if tag is not None else ()
    if len(epochs) != len(indexes):
        epochs = (0,) * len(indexes)
    return [((topic_id, index), epoch) for index, epoch in zip(indexes, epochs, strict=True)]
