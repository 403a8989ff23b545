"""The binary form of the records in `__consumer_offsets`: Kafka's own, so that Kafka's tools read ours.

Keys name their type by a leading number: 0 and 1 an offset, 2 a classic group. 3 to 8 and 16 are consumer groups, 10 to
15 share groups: their records have modules of their own (`consumer_record_format`, `share_record_format`). Values have
a version. The versions written are those that Kafka writes: 3, and 1 for an offset with a retention time of its client.
Every version up to 4 is read, which is the first with tagged fields (KIP-915). A null value is a tombstone.

Unknown types and versions come from a newer broker, and are skipped. All other records were written by this version or
an older one: if one cannot be read, the log is damaged (`StorageFault`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct

from flowstone.coordinator.effects import CoordinatorRecord
from flowstone.coordinator.groups import consumer_record_format as consumer_records
from flowstone.coordinator.groups import share_record_format as share_records
from flowstone.coordinator.groups.consumer_records import ConsumerRecord
from flowstone.coordinator.groups.records import (
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    GroupRecord,
    GroupRemoved,
    GroupStored,
    OffsetCommitted,
    OffsetRemoved,
    StoredMember,
)
from flowstone.errors import ProtocolError, StorageFault
from flowstone.wire.primitives import read_uvarint, skip_tags
from flowstone.wire.record_batch import VARINTS, encode_record

OFFSET_KEY_VERSIONS = (0, 1)
GROUP_KEY_VERSION = 2
OFFSET_KEY_VERSION = 1
VALUE_VERSION = 3
FLEXIBLE_VALUE_VERSION = 4
EXPIRING_OFFSET_VERSION = 1
_NULL_LENGTH = -1

# Pairs of a group and a topic whose encoded names are cached: commits name the same ones again and again.
OFFSET_NAMES_CACHED_MAX = 4096
# Longer names are not cached: any client may choose a group id of 32,767 bytes.
OFFSET_NAMES_CACHED_LENGTH_MAX = 512

_SHORT = Struct(">h")
_INT = Struct(">i")
_LONG = Struct(">q")
# The most common offset value: version, offset, leader epoch, the length of empty metadata, timestamp.
_PLAIN_OFFSET = Struct(">hqihq")
# The end of a record with such an offset: the partition, the value and its length, no headers.
_PLAIN_RECORD_END = Struct(">ichqihqc")
_PLAIN_OFFSET_LENGTH, _NO_HEADERS = VARINTS[_PLAIN_OFFSET.size], VARINTS[0]
# Offset deltas that take one byte, as do the attributes and the timestamp delta before them.
SMALL_DELTAS_COUNT = 64
_SMALL_DELTAS = tuple(VARINTS[delta] for delta in range(SMALL_DELTAS_COUNT))
_RECORD_START = bytes(2)


class _Writer:
    def __init__(self, version: int) -> None:
        self._parts = [_SHORT.pack(version)]

    def int32(self, value: int) -> _Writer:
        self._parts.append(_INT.pack(value))
        return self

    def int64(self, value: int) -> _Writer:
        self._parts.append(_LONG.pack(value))
        return self

    def string(self, value: str | None) -> _Writer:
        if value is None:
            self._parts.append(_SHORT.pack(_NULL_LENGTH))
        else:
            data = value.encode()
            self._parts += (_SHORT.pack(len(data)), data)
        return self

    def blob(self, value: bytes) -> _Writer:
        self._parts += (_INT.pack(len(value)), value)
        return self

    def done(self) -> bytes:
        return b"".join(self._parts)


class _Reader:
    """A reader of stored fields; raises struct.error, IndexError, ValueError or ProtocolError if they are malformed."""

    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0
        self.version = self._next(_SHORT)

    def int32(self) -> int:
        return self._next(_INT)

    def int64(self) -> int:
        return self._next(_LONG)

    def string(self) -> str:
        return self._take(self._next(_SHORT)).decode()

    def nullable_string(self) -> str | None:
        length = self._next(_SHORT)
        return None if length == _NULL_LENGTH else self._take(length).decode()

    def blob(self) -> bytes:
        return self._take(self._next(_INT))

    def count(self) -> int:
        return self._next(_INT)

    def skip_tags(self) -> None:
        """Pass over the tagged fields at the end of a struct, of which older versions have none."""

    def check_end(self) -> None:
        if self._position != len(self._data):
            raise ValueError(f"{len(self._data) - self._position} bytes too many")

    def _next(self, number: Struct) -> int:
        (value,) = number.unpack_from(self._data, self._position)
        self._position += number.size
        return int(value)

    def _take(self, length: int) -> bytes:
        start, self._position = self._position, self._position + length
        if length < 0 or self._position > len(self._data):
            raise ValueError(f"{length} bytes at {start} of {len(self._data)}")
        return self._data[start : self._position]


class _FlexibleReader(_Reader):
    """Reads a flexible version (KIP-482): lengths are varints, one more than the length; null is 0."""

    def string(self) -> str:
        return self._take(self.count()).decode()

    def nullable_string(self) -> str | None:
        length = self.count()
        return None if length == _NULL_LENGTH else self._take(length).decode()

    def blob(self) -> bytes:
        return self._take(self.count())

    def count(self) -> int:
        length, self._position = read_uvarint(memoryview(self._data), self._position)
        return length - 1

    def skip_tags(self) -> None:
        self._position = skip_tags(memoryview(self._data), self._position)


def encode_all(records: Sequence[GroupRecord]) -> list[bytes]:
    """Return the records as they are stored in one batch; they have the batch's timestamp."""
    encoded = []
    small_deltas = _SMALL_DELTAS
    names_of: tuple[str, str] | None = None
    for offset_delta, record in enumerate(records):
        if isinstance(record, OffsetCommitted) and offset_delta < SMALL_DELTAS_COUNT:
            group_id, topic, partition, offset, leader_epoch, metadata, timestamp_ms, expire_timestamp_ms = record
            if not metadata and expire_timestamp_ms == NO_TIMESTAMP:  # the most common form: assembled with one call
                if names_of != (group_id, topic):
                    names_of = group_id, topic
                    pack, start, names = _plain_record_parts(group_id, topic)
                delta, length = small_deltas[offset_delta], _PLAIN_OFFSET_LENGTH
                encoded.append(
                    pack(
                        start, delta, names, partition, length,
                        VALUE_VERSION, offset, leader_epoch, 0, timestamp_ms, _NO_HEADERS,
                    )
                )  # fmt: skip
                continue
        key, value = encode(record)
        encoded.append(encode_record(offset_delta, 0, key, value))
    return encoded


def _plain_record_parts(group_id: str, topic: str) -> tuple[Callable[..., bytes], bytes, bytes]:
    """Return the function that assembles a record, and the bytes before its offset delta and before its partition."""
    is_long = len(group_id) + len(topic) > OFFSET_NAMES_CACHED_LENGTH_MAX
    return _new_record_parts(group_id, topic) if is_long else _cached_record_parts(group_id, topic)


def _new_record_parts(group_id: str, topic: str) -> tuple[Callable[..., bytes], bytes, bytes]:
    prefix = _offset_key_prefix(group_id, topic)
    names = VARINTS[len(prefix) + _INT.size] + prefix
    size_bytes = len(_RECORD_START) + 1 + len(names) + _PLAIN_RECORD_END.size
    start = VARINTS[size_bytes] + _RECORD_START
    return Struct(f">{len(start)}sc{len(names)}s{_PLAIN_RECORD_END.format[1:]}").pack, start, names


_cached_record_parts = lru_cache(OFFSET_NAMES_CACHED_MAX)(_new_record_parts)


def encode(record: GroupRecord) -> CoordinatorRecord:
    match record:
        case OffsetCommitted():
            return _offset_key(record.group_id, record.topic, record.partition), _offset_value(record)
        case OffsetRemoved(group_id, topic, partition):
            return _offset_key(group_id, topic, partition), None
        case GroupStored():
            return _group_key(record), _group_value(record)
        case GroupRemoved():
            return _group_key(record), None
    if isinstance(record, ConsumerRecord):
        return consumer_records.encode(record)
    return share_records.encode(record)


def decode(key: bytes, value: bytes | None) -> GroupRecord | None:
    """Return the typed record, or None for a type or version that a newer broker wrote.

    Raises StorageFault if the bytes are malformed.
    """
    try:
        (version,) = _SHORT.unpack_from(key)
        if version in OFFSET_KEY_VERSIONS:
            group_id, topic = _read_offset_key_prefix(key[: -_INT.size])
            (partition,) = _INT.unpack_from(key, len(key) - _INT.size)
            if value is None:
                return OffsetRemoved(group_id, topic, partition)
            return _read_offset(group_id, topic, partition, value)
        if version == GROUP_KEY_VERSION:
            group_id = _Reader(key).string()
            return GroupRemoved(group_id) if value is None else _read_group(group_id, value)
        if version in consumer_records.KEY_TYPES:
            return consumer_records.decode(version, key, value)
        if version in share_records.KEY_TYPES:
            return share_records.decode(version, key, value)
    except (struct.error, IndexError, ValueError, ProtocolError) as error:
        raise StorageFault(f"a record of __consumer_offsets with the key {key!r} cannot be read: {error}") from error
    if version < 0:
        raise StorageFault(f"a record of __consumer_offsets has the key {key!r}, which has no type")
    return None


def _offset_key_prefix(group_id: str, topic: str) -> bytes:
    return _Writer(OFFSET_KEY_VERSION).string(group_id).string(topic).done()


def _read_offset_key_prefix(data: bytes) -> tuple[str, str]:
    """Return the group and the topic, as shared objects: a million records may have the same names."""
    is_long = len(data) > OFFSET_NAMES_CACHED_LENGTH_MAX
    return _parse_offset_key_prefix(data) if is_long else _cached_offset_key_prefix(data)


def _parse_offset_key_prefix(data: bytes) -> tuple[str, str]:
    reader = _Reader(data)
    group_id, topic = reader.string(), reader.string()
    reader.check_end()
    return group_id, topic


_cached_offset_key_prefix = lru_cache(OFFSET_NAMES_CACHED_MAX)(_parse_offset_key_prefix)


def _offset_key(group_id: str, topic: str, partition: int) -> bytes:
    return _offset_key_prefix(group_id, topic) + _INT.pack(partition)


def _offset_value(record: OffsetCommitted) -> bytes:
    """Return an offset's value, in the version that has a retention time if the record has one."""
    if record.expire_timestamp_ms != NO_TIMESTAMP:
        writer = _Writer(EXPIRING_OFFSET_VERSION).int64(record.offset).string(record.metadata)
        return writer.int64(record.commit_timestamp_ms).int64(record.expire_timestamp_ms).done()
    writer = _Writer(VALUE_VERSION).int64(record.offset).int32(record.leader_epoch)
    return writer.string(record.metadata).int64(record.commit_timestamp_ms).done()


def _read_offset(group_id: str, topic: str, partition: int, value: bytes) -> OffsetCommitted | None:
    if len(value) == _PLAIN_OFFSET.size:
        version, offset, leader_epoch, metadata_bytes, commit_timestamp_ms = _PLAIN_OFFSET.unpack(value)
        if version == VALUE_VERSION and metadata_bytes == 0:
            return OffsetCommitted(group_id, topic, partition, offset, leader_epoch, "", commit_timestamp_ms)
    reader = _value_reader(value)
    if reader is None:
        return None
    record = OffsetCommitted(
        group_id=group_id,
        topic=topic,
        partition=partition,
        offset=reader.int64(),
        leader_epoch=reader.int32() if reader.version >= 3 else NO_LEADER_EPOCH,
        metadata=reader.string(),
        commit_timestamp_ms=reader.int64(),
        expire_timestamp_ms=reader.int64() if reader.version == EXPIRING_OFFSET_VERSION else NO_TIMESTAMP,
    )
    reader.skip_tags()
    return record


def _group_key(record: GroupStored | GroupRemoved) -> bytes:
    return _Writer(GROUP_KEY_VERSION).string(record.group_id).done()


def _group_value(record: GroupStored) -> bytes:
    writer = _Writer(VALUE_VERSION).string(record.protocol_type).int32(record.generation)
    writer.string(record.protocol).string(record.leader).int64(record.current_state_timestamp_ms)
    writer.int32(len(record.members))
    for member in record.members:
        writer.string(member.member_id).string(member.group_instance_id)
        writer.string(member.client_id).string(member.client_host)
        writer.int32(member.rebalance_timeout_ms).int32(member.session_timeout_ms)
        writer.blob(member.subscription).blob(member.assignment)
    return writer.done()


def _read_group(group_id: str, value: bytes) -> GroupStored | None:
    reader = _value_reader(value)
    if reader is None:
        return None
    record = GroupStored(
        group_id=group_id,
        protocol_type=reader.string(),
        generation=reader.int32(),
        protocol=reader.nullable_string(),
        leader=reader.nullable_string(),
        current_state_timestamp_ms=reader.int64() if reader.version >= 2 else NO_TIMESTAMP,
        members=tuple(_read_member(reader) for _ in range(reader.count())),
    )
    reader.skip_tags()
    return record


def _read_member(reader: _Reader) -> StoredMember:
    member_id = reader.string()
    group_instance_id = reader.nullable_string() if reader.version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = reader.int32() if reader.version >= 1 else None
    session_timeout_ms = reader.int32()
    member = StoredMember(
        member_id=member_id,
        group_instance_id=group_instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms is None else rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=reader.blob(),
        assignment=reader.blob(),
    )
    reader.skip_tags()
    return member


def _value_reader(value: bytes) -> _Reader | None:
    """Return the reader for a value's version, or None if the version is a newer broker's."""
    (version,) = _SHORT.unpack_from(value)
    if version < 0:
        raise ValueError(f"{version} is not a version")
    if version > FLEXIBLE_VALUE_VERSION:
        return None
    return _FlexibleReader(value) if version == FLEXIBLE_VALUE_VERSION else _Reader(value)
