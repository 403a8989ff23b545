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

from collections.abc import Iterator, Sequence
from struct import Struct

from flowstone.coordinator import flexible_values as flexible
from flowstone.coordinator.effects import CoordinatorRecord
from flowstone.coordinator.flexible_values import INT, LONG, NO_TAGS, SHORT, ValueReader
from flowstone.coordinator.transactions.records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionRecord,
    TransactionRemoved,
    TransactionState,
    TransactionStored,
)
from flowstone.errors import StorageFault
from flowstone.types import TopicPartition
from flowstone.wire.primitives import encode_tags
from flowstone.wire.record_batch import encode_record

KEY_VERSION = 0
PLAIN_VALUE_VERSION = 0
VALUE_VERSION = 1
PREVIOUS_PRODUCER_ID_TAG = 0
NEXT_PRODUCER_ID_TAG = 1
CLIENT_VERSION_TAG = 2
LAST_PRODUCER_EPOCH_TAG = 10_000
# The version and the fields before the partitions: producer id, epoch, timeout, state; and those after them: the times.
_VALUE_START = Struct(">hqhib")
_TIMES = Struct(">qq")


def encode_all(records: Sequence[TransactionRecord]) -> list[bytes]:
    """Return the records as stored in one batch; each has the batch's timestamp."""
    return [encode_record(offset_delta, 0, *encode(record)) for offset_delta, record in enumerate(records)]


def encode(record: TransactionRecord) -> CoordinatorRecord:
    key = flexible.key(KEY_VERSION, record.transactional_id)
    return key, None if isinstance(record, TransactionRemoved) else _value(record)


def decode(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """Return the typed record, or None for an unknown version of key or value.

    Raises StorageFault if the bytes are malformed.
    """
    try:
        if SHORT.unpack_from(key)[0] != KEY_VERSION:
            return None
        (transactional_id,) = flexible.key_texts(key, 1)
        if value is None:
            return TransactionRemoved(transactional_id)
        return _read_value(transactional_id, value)
    except flexible.MALFORMED as error:
        message = f"a record of __transaction_state with the key {key!r} cannot be read: {error}"
        raise StorageFault(message) from error


def _value(record: TransactionStored) -> bytes:
    start = _VALUE_START.pack(VALUE_VERSION, record.producer_id, record.producer_epoch, record.timeout_ms, record.state)
    times = _TIMES.pack(record.last_update_ms, record.start_ms)
    return b"".join((start, _partitions(record), times, _tags(record)))


def _partitions(record: TransactionStored) -> bytes:
    """Return the encoded partitions; null for an Empty transaction only, as in Kafka."""
    if record.state is TransactionState.EMPTY:
        return flexible.NULL
    numbers: dict[str, list[int]] = {}
    for topic, partition in sorted(record.partitions):
        numbers.setdefault(topic, []).append(partition)
    return flexible.array(
        numbers.items(), lambda topic: flexible.string(topic[0]) + flexible.int_array(topic[1]) + NO_TAGS
    )


def _tags(record: TransactionStored) -> bytes:
    tags = []
    if record.previous_producer_id != NO_PRODUCER_ID:
        tags.append((PREVIOUS_PRODUCER_ID_TAG, LONG.pack(record.previous_producer_id)))
    if record.next_producer_id != NO_PRODUCER_ID:
        tags.append((NEXT_PRODUCER_ID_TAG, LONG.pack(record.next_producer_id)))
    if record.client_version:
        tags.append((CLIENT_VERSION_TAG, SHORT.pack(record.client_version)))
    if record.last_producer_epoch != NO_PRODUCER_EPOCH:
        tags.append((LAST_PRODUCER_EPOCH_TAG, SHORT.pack(record.last_producer_epoch)))
    return encode_tags(tags)


def _read_value(transactional_id: str, value: bytes) -> TransactionStored | None:
    reader = ValueReader(value, 0)
    (version,) = SHORT.unpack_from(value)
    if not PLAIN_VALUE_VERSION <= version <= VALUE_VERSION:
        return None
    _, producer_id, producer_epoch, timeout_ms, state = reader.numbers(_VALUE_START)
    is_flexible = version == VALUE_VERSION
    partitions = frozenset(_read_partitions(reader, is_flexible=is_flexible))
    last_update_ms, start_ms = reader.numbers(_TIMES)
    tags = reader.tags() if is_flexible else {}
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
        _tagged(tags, PREVIOUS_PRODUCER_ID_TAG, LONG, NO_PRODUCER_ID),
        _tagged(tags, NEXT_PRODUCER_ID_TAG, LONG, NO_PRODUCER_ID),
        _tagged(tags, LAST_PRODUCER_EPOCH_TAG, SHORT, NO_PRODUCER_EPOCH),
        _tagged(tags, CLIENT_VERSION_TAG, SHORT, 0),
    )


def _read_partitions(reader: ValueReader, *, is_flexible: bool) -> Iterator[TopicPartition]:
    for _ in range(_length(reader, is_flexible=is_flexible)):  # -1 for null
        topic = reader.string() if is_flexible else reader.plain_string()
        indexes = range(_length(reader, is_flexible=is_flexible))
        yield from (TopicPartition(topic, reader.number(INT)) for _ in indexes)
        if is_flexible:
            reader.tags()


def _length(reader: ValueReader, *, is_flexible: bool) -> int:
    return reader.count() if is_flexible else reader.number(INT)


def _tagged(tags: dict[int, ValueReader], tag: int, number: Struct, default: int) -> int:
    return tags[tag].number(number) if tag in tags else default
