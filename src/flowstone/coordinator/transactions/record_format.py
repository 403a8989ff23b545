"""The binary form of the records in `__transaction_state`: Kafka's own, so that Kafka's tools read ours.

The key is version 0 and the transactional id. Values are written in version 1, which is flexible, whatever the
finalized `transaction.version` is: a roll-over of the producer id that a failover interrupts needs its tagged fields.
Both versions are read. Tags 0 to 2 are Kafka's: the previous and the next producer id, and the version of the client's
protocol. Kafka reserves tag 3 for the epoch of the next producer id, and does not write it. Tag 10,000 is Flowstone's:
the last producer epoch, without which a failover would fence a producer whose InitProducerId was not answered. Unknown
tags are skipped, as Kafka skips this one.

A null value is a tombstone. What is in the log was written by a broker: if it cannot be read, that is damage
(`StorageFault`). Keys and values of versions that are not known are not damage; they decode to None.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from struct import Struct

from flowstone.coordinator.effects import CoordinatorRecord
from flowstone.coordinator.transactions.records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionRecord,
    TransactionRemoved,
    TransactionState,
    TransactionStored,
)
from flowstone.errors import ProtocolError, StorageFault
from flowstone.types import TopicPartition
from flowstone.wire.primitives import encode_uvarint, read_tag, read_tag_count, read_uvarint
from flowstone.wire.record_batch import encode_record

KEY_VERSION = 0
PLAIN_VALUE_VERSION = 0
VALUE_VERSION = 1
PREVIOUS_PRODUCER_ID_TAG = 0
NEXT_PRODUCER_ID_TAG = 1
CLIENT_VERSION_TAG = 2
LAST_PRODUCER_EPOCH_TAG = 10_000
_NO_TAGS = encode_uvarint(0)

_SHORT = Struct(">h")
_INT = Struct(">i")
_LONG = Struct(">q")
# The version and the fields before the partitions: producer id, epoch, timeout, state; and those after them: the times.
_VALUE_START = Struct(">hqhib")
_TIMES = Struct(">qq")


def encode_all(records: Sequence[TransactionRecord]) -> list[bytes]:
    """Return the records as stored in one batch; each has the batch's timestamp."""
    return [encode_record(offset_delta, 0, *encode(record)) for offset_delta, record in enumerate(records)]


def encode(record: TransactionRecord) -> CoordinatorRecord:
    name = record.transactional_id.encode()
    key = _SHORT.pack(KEY_VERSION) + _SHORT.pack(len(name)) + name
    return key, None if isinstance(record, TransactionRemoved) else _value(record)


def decode(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """Return the typed record, or None for an unknown version of key or value.

    Raises StorageFault if the bytes are malformed.
    """
    try:
        reader = _Reader(key)
        if reader.int16() != KEY_VERSION:
            return None
        transactional_id = reader.string()
        reader.check_end()
        if value is None:
            return TransactionRemoved(transactional_id)
        return _read_value(transactional_id, value)
    except (struct.error, ValueError, IndexError, ProtocolError) as error:
        message = f"a record of __transaction_state with the key {key!r} cannot be read: {error}"
        raise StorageFault(message) from error


def _value(record: TransactionStored) -> bytes:
    start = _VALUE_START.pack(VALUE_VERSION, record.producer_id, record.producer_epoch, record.timeout_ms, record.state)
    times = _TIMES.pack(record.last_update_ms, record.start_ms)
    return b"".join((start, _partitions(record), times, _tags(record)))


def _partitions(record: TransactionStored) -> bytes:
    """Return the encoded partitions; null for an Empty transaction only, as in Kafka."""
    if record.state is TransactionState.EMPTY:
        return encode_uvarint(0)
    numbers: dict[str, list[int]] = {}
    for topic, partition in sorted(record.partitions):
        numbers.setdefault(topic, []).append(partition)
    parts = [encode_uvarint(len(numbers) + 1)]
    for topic, indexes in numbers.items():
        name = topic.encode()
        parts += (encode_uvarint(len(name) + 1), name, encode_uvarint(len(indexes) + 1))
        parts += (struct.pack(f">{len(indexes)}i", *indexes), _NO_TAGS)
    return b"".join(parts)


def _tags(record: TransactionStored) -> bytes:
    tags = []
    if record.previous_producer_id != NO_PRODUCER_ID:
        tags.append((PREVIOUS_PRODUCER_ID_TAG, _LONG.pack(record.previous_producer_id)))
    if record.next_producer_id != NO_PRODUCER_ID:
        tags.append((NEXT_PRODUCER_ID_TAG, _LONG.pack(record.next_producer_id)))
    if record.client_version:
        tags.append((CLIENT_VERSION_TAG, _SHORT.pack(record.client_version)))
    if record.last_producer_epoch != NO_PRODUCER_EPOCH:
        tags.append((LAST_PRODUCER_EPOCH_TAG, _SHORT.pack(record.last_producer_epoch)))
    fields = (encode_uvarint(tag) + encode_uvarint(len(data)) + data for tag, data in tags)
    return encode_uvarint(len(tags)) + b"".join(fields)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._view, self._position = data, memoryview(data), 0

    def int16(self) -> int:
        return int(self.fixed(_SHORT)[0])

    def int32(self) -> int:
        return int(self.fixed(_INT)[0])

    def fixed(self, numbers: Struct) -> tuple[int, ...]:
        values = numbers.unpack_from(self._data, self._position)
        self._position += numbers.size
        return values

    def string(self) -> str:
        return self._text(self.int16())

    def compact_string(self) -> str:
        return self._text(self.compact_length())

    def compact_length(self) -> int:
        value, self._position = read_uvarint(self._view, self._position)
        return value - 1

    def tags(self) -> Iterator[tuple[int, bytes]]:
        count, self._position = read_tag_count(self._view, self._position)
        for _ in range(count):
            tag, start, end = read_tag(self._view, self._position)
            self._position = end
            yield tag, self._data[start:end]

    def check_end(self) -> None:
        if self._position != len(self._data):
            raise ValueError(f"{len(self._data) - self._position} bytes too many")

    def _text(self, length: int) -> str:
        start, self._position = self._position, self._position + length
        if length < 0 or self._position > len(self._data):
            raise ValueError(f"{length} bytes at {start} of {len(self._data)}")
        return self._data[start : self._position].decode()


def _read_value(transactional_id: str, value: bytes) -> TransactionStored | None:
    reader = _Reader(value)
    (version,) = _SHORT.unpack_from(value)
    if not PLAIN_VALUE_VERSION <= version <= VALUE_VERSION:
        return None
    _, producer_id, producer_epoch, timeout_ms, state = reader.fixed(_VALUE_START)
    is_flexible = version == VALUE_VERSION
    partitions = frozenset(_read_partitions(reader, is_flexible=is_flexible))
    last_update_ms, start_ms = reader.fixed(_TIMES)
    tags = dict(reader.tags()) if is_flexible else {}
    reader.check_end()
    return TransactionStored(
        transactional_id,
        producer_id,
        producer_epoch,
        timeout_ms,
        TransactionState(state),
        last_update_ms,
        partitions,
        start_ms,
        _tagged(tags, PREVIOUS_PRODUCER_ID_TAG, _LONG, NO_PRODUCER_ID),
        _tagged(tags, NEXT_PRODUCER_ID_TAG, _LONG, NO_PRODUCER_ID),
        _tagged(tags, LAST_PRODUCER_EPOCH_TAG, _SHORT, NO_PRODUCER_EPOCH),
        _tagged(tags, CLIENT_VERSION_TAG, _SHORT, 0),
    )


def _read_partitions(reader: _Reader, *, is_flexible: bool) -> Iterator[TopicPartition]:
    length = reader.compact_length if is_flexible else reader.int32
    for _ in range(length()):  # -1 for null
        topic = reader.compact_string() if is_flexible else reader.string()
        yield from (TopicPartition(topic, reader.int32()) for _ in range(length()))
        if is_flexible:
            for _ in reader.tags():
                pass


def _tagged(tags: dict[int, bytes], tag: int, number: Struct, default: int) -> int:
    return int(number.unpack(tags[tag])[0]) if tag in tags else default
