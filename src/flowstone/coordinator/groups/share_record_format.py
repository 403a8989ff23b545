"""The binary form of share groups' records, key types 10 to 15: Kafka's own, version 0, whose values are flexible."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from struct import Struct

from flowstone.coordinator.effects import CoordinatorRecord
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
from flowstone.wire.primitives import encode_uvarint, read_tag, read_tag_count, read_uvarint

KEY_TYPES = frozenset(ShareKeyType)
_VALUE_VERSION = 0
_STABLE = 0  # the only state of a share group's member
_TIMESTAMP_TAG = 0
_TOPIC_ID_BYTES = 16
_NO_TAGS = b"\0"
_SHORT, _INT, _LONG = Struct(">h"), Struct(">i"), Struct(">q")
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
    group_id, position = _key_string(key, _SHORT.size)
    member_id = ""
    if kind in _WITH_MEMBER:
        member_id, position = _key_string(key, position)
    if position != len(key):
        raise ValueError(f"{len(key) - position} bytes too many in the key")
    if value is None:
        return ShareRecordRemoved(group_id, kind, member_id)
    reader = _Reader(value)
    if reader.version != _VALUE_VERSION:
        return None
    return _read(kind, group_id, member_id, reader)


def _key(kind: ShareKeyType, group_id: str, member_id: str) -> bytes:
    texts = (group_id, member_id) if kind in _WITH_MEMBER else (group_id,)
    encoded = [text.encode() for text in texts]
    return _SHORT.pack(kind) + b"".join(_SHORT.pack(len(data)) + data for data in encoded)


def _key_string(key: bytes, position: int) -> tuple[str, int]:
    (length,) = _SHORT.unpack_from(key, position)
    start = position + _SHORT.size
    if length < 0 or start + length > len(key):
        raise ValueError(f"a text of {length} bytes at {start} of {len(key)}")
    return key[start : start + length].decode(), start + length


def _value(record: ShareGroupRecord) -> bytes:
    return b"".join((_SHORT.pack(_VALUE_VERSION), *_fields(record)))


def _fields(record: ShareGroupRecord) -> Iterable[bytes]:
    match record:
        case ShareMemberStored():
            return (
                _nullable_string(record.rack_id),
                _string(record.client_id),
                _string(record.client_host),
                _count(record.subscribed_topics),
                *map(_string, record.subscribed_topics),
                _NO_TAGS,
            )
        case ShareGroupStored():
            return (_INT.pack(record.epoch), _LONG.pack(record.metadata_hash), _NO_TAGS)
        case ShareTargetStored():
            timestamp = _LONG.pack(record.timestamp_ms)
            return (_INT.pack(record.assignment_epoch), bytes((1, _TIMESTAMP_TAG, len(timestamp))), timestamp)
        case ShareMemberTargetStored():
            return (_topic_partitions(record.partitions), _NO_TAGS)
        case ShareMemberCurrentStored():
            epochs = _INT.pack(record.member_epoch) + _INT.pack(record.previous_member_epoch)
            return (epochs, bytes((_STABLE,)), _topic_partitions(record.partitions), _NO_TAGS)
        case ShareStatesStored():
            deleting = (topic_id + _string(name) + _NO_TAGS for topic_id, name in record.deleting)
            return (
                _topic_states(record.initializing),
                _topic_states(record.initialized),
                _count(record.deleting),
                *deleting,
                _NO_TAGS,
            )
    raise AssertionError(f"a tombstone has no value: {record!r}")


def _count(elements: Sequence[object]) -> bytes:
    return encode_uvarint(len(elements) + 1)


def _string(text: str) -> bytes:
    data = text.encode()
    return _count(data) + data


def _nullable_string(text: str | None) -> bytes:
    return b"\0" if text is None else _string(text)


def _indexes(partitions: Sequence[int]) -> bytes:
    return _count(partitions) + struct.pack(f">{len(partitions)}i", *partitions)


def _topic_partitions(topics: TopicPartitions) -> bytes:
    entries = (topic_id + _indexes(partitions) + _NO_TAGS for topic_id, partitions in topics.items())
    return encode_uvarint(len(topics) + 1) + b"".join(entries)


def _topic_states(topics: Sequence[TopicState]) -> bytes:
    entries = (each.topic_id + _string(each.name) + _indexes(each.partitions) + _NO_TAGS for each in topics)
    return _count(topics) + b"".join(entries)


class _Reader:
    """A reader of a value's fields."""

    def __init__(self, data: bytes) -> None:
        self._view, self._position = memoryview(data), 0
        self.version = self._next(_SHORT)

    def int8(self) -> int:
        return self._take(1)[0]

    def int32(self) -> int:
        return self._next(_INT)

    def int64(self) -> int:
        return self._next(_LONG)

    def count(self) -> int:
        length, self._position = read_uvarint(self._view, self._position)
        return length - 1

    def string(self) -> str:
        return str(self._take(self.count()), "utf-8")

    def nullable_string(self) -> str | None:
        length = self.count()
        return None if length < 0 else str(self._take(length), "utf-8")

    def topic_id(self) -> bytes:
        return bytes(self._take(_TOPIC_ID_BYTES))

    def indexes(self) -> tuple[int, ...]:
        count = self.count()
        return struct.unpack(f">{count}i", self._take(_INT.size * count))

    def tags(self) -> dict[int, memoryview]:
        """Return the tagged fields that end a struct."""
        count, self._position = read_tag_count(self._view, self._position)
        found = {}
        for _ in range(count):
            tag, start, self._position = read_tag(self._view, self._position)
            found[tag] = self._view[start : self._position]
        return found

    def _next(self, number: Struct) -> int:
        (value,) = number.unpack(self._take(number.size))
        return int(value)

    def _take(self, length: int) -> memoryview:
        start, self._position = self._position, self._position + length
        if length < 0 or self._position > len(self._view):
            raise ValueError(f"{length} bytes at {start} of {len(self._view)}")
        return self._view[start : self._position]


def _read(kind: ShareKeyType, group_id: str, member_id: str, reader: _Reader) -> ShareGroupRecord:
    record: ShareGroupRecord
    match kind:
        case ShareKeyType.MEMBER:
            rack_id, client_id, client_host = reader.nullable_string(), reader.string(), reader.string()
            topics = tuple(reader.string() for _ in range(reader.count()))
            record = ShareMemberStored(group_id, member_id, rack_id, client_id, client_host, topics)
        case ShareKeyType.GROUP:
            record = ShareGroupStored(group_id, reader.int32(), reader.int64())
        case ShareKeyType.TARGET:
            epoch = reader.int32()
            timestamp = reader.tags().get(_TIMESTAMP_TAG)
            return ShareTargetStored(group_id, epoch, 0 if timestamp is None else _LONG.unpack(timestamp)[0])
        case ShareKeyType.MEMBER_TARGET:
            record = ShareMemberTargetStored(group_id, member_id, _read_topic_partitions(reader))
        case ShareKeyType.MEMBER_CURRENT:
            epoch, previous_epoch, _ = reader.int32(), reader.int32(), reader.int8()
            record = ShareMemberCurrentStored(
                group_id, member_id, epoch, previous_epoch, _read_topic_partitions(reader)
            )
        case ShareKeyType.STATES:
            initializing, initialized = _read_topic_states(reader), _read_topic_states(reader)
            deleting = tuple(_read_topic_info(reader) for _ in range(reader.count()))
            record = ShareStatesStored(group_id, initializing, initialized, deleting)
    reader.tags()
    return record


def _read_topic_partitions(reader: _Reader) -> TopicPartitions:
    topics = {}
    for _ in range(reader.count()):
        topic_id = reader.topic_id()
        topics[topic_id] = reader.indexes()
        reader.tags()
    return topics


def _read_topic_states(reader: _Reader) -> tuple[TopicState, ...]:
    return tuple(_read_topic_state(reader) for _ in range(reader.count()))


def _read_topic_state(reader: _Reader) -> TopicState:
    state = TopicState(reader.topic_id(), reader.string(), reader.indexes())
    reader.tags()
    return state


def _read_topic_info(reader: _Reader) -> tuple[bytes, str]:
    topic = reader.topic_id(), reader.string()
    reader.tags()
    return topic
