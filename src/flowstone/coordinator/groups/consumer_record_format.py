"""The binary form of consumer groups' records, key types 3 to 8 and 16: Kafka's own, version 0, flexible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from struct import Struct
from typing import TypeVar

from flowstone.coordinator.effects import CoordinatorRecord
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
from flowstone.wire.primitives import encode_tags, encode_uvarint, read_tag, read_tag_count, read_uvarint

KEY_TYPES = frozenset(ConsumerKey)
_VALUE_VERSION = 0
# The only tag of each struct that has one: the group's metadata hash, the target's timestamp, a member's classic
# protocols, and the epochs of assigned partitions.
_TAG = 0
_TOPIC_ID_BYTES = 16
_NO_TAGS = b"\0"
_NOT_NULL = b"\1"  # before a struct that may be null
_BYTE, _SHORT, _INT, _LONG = Struct(">b"), Struct(">h"), Struct(">i"), Struct(">q")
_KEYS: dict[type, ConsumerKey] = {
    ConsumerMemberStored: ConsumerKey.MEMBER,
    ConsumerGroupStored: ConsumerKey.GROUP,
    ConsumerTargetStored: ConsumerKey.TARGET,
    ConsumerMemberTargetStored: ConsumerKey.MEMBER_TARGET,
    ConsumerMemberCurrentStored: ConsumerKey.MEMBER_CURRENT,
    ConsumerRegexStored: ConsumerKey.REGEX,
}
_NAMED = frozenset({ConsumerKey.MEMBER, ConsumerKey.MEMBER_TARGET, ConsumerKey.MEMBER_CURRENT, ConsumerKey.REGEX})

Element = TypeVar("Element")


def encode(record: ConsumerRecord) -> CoordinatorRecord:
    if isinstance(record, ConsumerRecordRemoved):
        return _key(record.key, record.group_id, record.name), None
    kind = _KEYS[type(record)]
    return _key(kind, record.group_id, record[1] if kind in _NAMED else ""), _value(record)


def _key(kind: ConsumerKey, group_id: str, name: object) -> bytes:
    texts = (group_id, str(name)) if kind in _NAMED else (group_id,)
    encoded = [text.encode() for text in texts]
    return _SHORT.pack(kind) + b"".join(_SHORT.pack(len(data)) + data for data in encoded)


def _value(record: ConsumerRecord) -> bytes:
    return _SHORT.pack(_VALUE_VERSION) + b"".join(_fields(record))


def _fields(record: ConsumerRecord) -> Iterable[bytes]:
    match record:
        case ConsumerMemberStored():
            return (
                *map(_nullable_string, (record.instance_id, record.rack_id)),
                *map(_string, (record.client_id, record.client_host)),
                _array(record.subscribed_topics, _string),
                _nullable_string(record.regex),
                _INT.pack(record.rebalance_timeout_ms),
                _nullable_string(record.assignor),
                _NO_TAGS if record.classic is None else encode_tags([(_TAG, _classic(record.classic))]),
            )
        case ConsumerGroupStored():
            tags = [(_TAG, _LONG.pack(record.metadata_hash))] if record.metadata_hash else []
            return _INT.pack(record.epoch), encode_tags(tags)
        case ConsumerTargetStored():
            return _INT.pack(record.assignment_epoch), encode_tags([(_TAG, _LONG.pack(record.timestamp_ms))])
        case ConsumerMemberTargetStored():
            return _partitions(dict.fromkeys(record.partitions)), _NO_TAGS
        case ConsumerMemberCurrentStored():
            epochs = _INT.pack(record.member_epoch) + _INT.pack(record.previous_member_epoch)
            return (
                epochs,
                _BYTE.pack(record.state),
                _partitions(record.assigned),
                _partitions(record.revoking),
                _NO_TAGS,
            )
        case ConsumerRegexStored():
            times = _LONG.pack(record.version) + _LONG.pack(record.timestamp_ms)
            return _array(record.topics, _string), times, _NO_TAGS
    raise AssertionError(f"a tombstone has no value: {record!r}")


def _array(elements: Iterable[Element], encode_one: Callable[[Element], bytes]) -> bytes:
    encoded = [encode_one(each) for each in elements]
    return encode_uvarint(len(encoded) + 1) + b"".join(encoded)


def _bytes(data: bytes) -> bytes:
    return encode_uvarint(len(data) + 1) + data


def _string(text: str) -> bytes:
    return _bytes(text.encode())


def _nullable_string(text: str | None) -> bytes:
    return b"\0" if text is None else _string(text)


def _classic(classic: ClassicMember) -> bytes:
    protocols = _array(classic.protocols, lambda each: _string(each[0]) + _bytes(each[1]) + _NO_TAGS)
    return _NOT_NULL + _INT.pack(classic.session_timeout_ms) + protocols + _NO_TAGS


def _partitions(partitions: Mapping[Partition, int | None]) -> bytes:
    """Return an array of topics with their partitions, and with an epoch for each partition if it has one."""
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        by_topic.setdefault(topic_id, []).append(index)

    def topic(item: tuple[bytes, list[int]]) -> bytes:
        topic_id, indexes = item
        epochs = [partitions[topic_id, index] for index in indexes]
        tags = [] if None in epochs else [(_TAG, _array(epochs, _INT.pack))]
        return topic_id + _array(indexes, _INT.pack) + encode_tags(tags)

    return _array(by_topic.items(), topic)


def decode(key_type: int, key: bytes, value: bytes | None) -> ConsumerRecord | None:
    """Return the typed record, or None for a version that a newer broker wrote.

    Raises struct.error, IndexError, ValueError or ProtocolError if the bytes are malformed.
    """
    kind = ConsumerKey(key_type)
    group_id, position = _key_string(key, _SHORT.size)
    name = ""
    if kind in _NAMED:
        name, position = _key_string(key, position)
    if position != len(key):
        raise ValueError(f"{len(key) - position} bytes too many in the key")
    if value is None or kind is ConsumerKey.PARTITION_METADATA:
        return ConsumerRecordRemoved(group_id, kind, name)
    (version,) = _SHORT.unpack_from(value)
    if version < 0:
        raise ValueError(f"{version} is not a version")
    return _read(kind, group_id, name, _Reader(value)) if version == _VALUE_VERSION else None


def _key_string(key: bytes, position: int) -> tuple[str, int]:
    (length,) = _SHORT.unpack_from(key, position)
    start = position + _SHORT.size
    if length < 0 or start + length > len(key):
        raise ValueError(f"a text of {length} bytes at {start} of {len(key)}")
    return key[start : start + length].decode(), start + length


def _read(kind: ConsumerKey, group_id: str, name: str, reader: _Reader) -> ConsumerRecord:
    match kind:
        case ConsumerKey.MEMBER:
            return _read_member(group_id, name, reader)
        case ConsumerKey.GROUP:
            epoch = reader.number(_INT)
            tag = reader.tag()
            return ConsumerGroupStored(group_id, epoch, tag.number(_LONG) if tag else 0)
        case ConsumerKey.TARGET:
            epoch = reader.number(_INT)
            tag = reader.tag()
            return ConsumerTargetStored(group_id, epoch, tag.number(_LONG) if tag else 0)
        case ConsumerKey.MEMBER_TARGET:
            return ConsumerMemberTargetStored(group_id, name, frozenset(reader.partitions()))
        case ConsumerKey.MEMBER_CURRENT:
            epoch, previous, state = reader.number(_INT), reader.number(_INT), reader.number(_BYTE)
            known = MemberState(state) if state in MemberState.__members__.values() else MemberState.UNKNOWN
            assigned, revoking = reader.partitions(), reader.partitions()
            return ConsumerMemberCurrentStored(group_id, name, epoch, previous, known, assigned, revoking)
        case _:
            topics = tuple(reader.array(_Reader.string))
            return ConsumerRegexStored(group_id, name, topics, reader.number(_LONG), reader.number(_LONG))


def _read_member(group_id: str, member_id: str, reader: _Reader) -> ConsumerMemberStored:
    instance_id, rack_id = reader.nullable_string(), reader.nullable_string()
    client_id, client_host = reader.string(), reader.string()
    topics = tuple(reader.array(_Reader.string))
    regex, rebalance_timeout_ms = reader.nullable_string(), reader.number(_INT)
    assignor = reader.nullable_string()
    tag = reader.tag()
    classic = None
    if tag is not None and tag.number(_BYTE) > 0:
        session_timeout_ms = tag.number(_INT)
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


def _read_protocol(reader: _Reader) -> tuple[str, bytes]:
    protocol = reader.string(), reader.blob()
    reader.tag()
    return protocol


class _Reader:
    """A reader of a flexible value; raises struct.error, IndexError, ValueError or ProtocolError for bad bytes."""

    def __init__(self, data: bytes, position: int = _SHORT.size) -> None:
        self._data, self._view, self._position = data, memoryview(data), position

    def number(self, form: Struct) -> int:
        (value,) = form.unpack_from(self._data, self._position)
        self._position += form.size
        return int(value)

    def blob(self) -> bytes:
        return self._take(self._count())

    def string(self) -> str:
        return self.blob().decode()

    def nullable_string(self) -> str | None:
        length = self._count()
        return None if length < 0 else self._take(length).decode()

    def array(self, read_one: Callable[[_Reader], Element]) -> list[Element]:
        count = self._count()
        if count > len(self._data) - self._position:
            raise ValueError(f"an array of {count} elements is longer than the bytes that are left")
        return [read_one(self) for _ in range(count)]

    def tag(self) -> _Reader | None:
        """Read the tags at the end of a struct; return a reader of the one that is known, if it is there."""
        found = None
        count, self._position = read_tag_count(self._view, self._position)
        for _ in range(count):
            tag, start, end = read_tag(self._view, self._position)
            if tag == _TAG:
                found = _Reader(self._data[start:end], 0)
            self._position = end
        return found

    def partitions(self) -> dict[Partition, int]:
        """Return the partitions of an array of topics, with their epochs, 0 where there are none."""
        return {partition: epoch for topic in self.array(_read_topic) for partition, epoch in topic}

    def _count(self) -> int:
        length, self._position = read_uvarint(self._view, self._position)
        return length - 1

    def _take(self, length: int) -> bytes:
        start, self._position = self._position, self._position + length
        if length < 0 or self._position > len(self._data):
            raise ValueError(f"{length} bytes at {start} of {len(self._data)}")
        return self._data[start : self._position]

    def topic_id(self) -> bytes:
        return self._take(_TOPIC_ID_BYTES)


def _read_topic(reader: _Reader) -> list[tuple[Partition, int]]:
    topic_id = reader.topic_id()
    indexes = reader.array(_read_int)
    tag = reader.tag()
    epochs = tag.array(_read_int) if tag is not None else []
    if len(epochs) != len(indexes):
        epochs = [0] * len(indexes)
    return [((topic_id, index), epoch) for index, epoch in zip(indexes, epochs, strict=True)]


def _read_int(reader: _Reader) -> int:
    return reader.number(_INT)
