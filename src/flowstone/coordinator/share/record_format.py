"""The binary form of the records in `__share_group_state`: Kafka's own, so that Kafka's tools read ours.

A key is its type (0: snapshot, 1: update), the group's id, the topic's id and the partition; a snapshot's key with a
null value ends the state. Values are flexible, in version 0. Tag 0 is Kafka's number of completed deliveries. Tag
10,000 to 10,002 are Flowstone's: the delays of records that are to be delivered again later, the batch of dead letters
that is being written, and the records that were given up and wait for their letters. Kafka skips them. Brokers exchange
them in the same form.

What is in the log was written by a broker: if it cannot be read, that is damage (`StorageFault`). Keys and values of
versions that are not known are not damage; they decode to None.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from struct import Struct

from flowstone.coordinator.effects import CoordinatorRecord
from flowstone.coordinator.share.records import (
    UNKNOWN_COUNT,
    Delay,
    LetterBatch,
    LetterRange,
    ShareKey,
    ShareRecord,
    ShareSnapshot,
    ShareStateRemoved,
    ShareUpdate,
    StateBatch,
)
from flowstone.errors import ProtocolError, StorageFault
from flowstone.wire.primitives import encode_tags, encode_uvarint, read_tag, read_tag_count, read_uvarint, skip_tags
from flowstone.wire.record_batch import encode_record

SNAPSHOT_KEY_TYPE, UPDATE_KEY_TYPE = 0, 1
VALUE_VERSION = 0
DELIVERY_COMPLETE_COUNT_TAG = 0
DELAYS_TAG, LETTERS_TAG, GIVEN_UP_TAG = 10_000, 10_001, 10_002

_SHORT = Struct(">h")
_INT = Struct(">i")
_KEY_END = Struct(">16si")
# The version and the fields before the batches: the epochs and the start offset, and a snapshot's two times.
_SNAPSHOT_START = Struct(">hiiiqqq")
_UPDATE_START = Struct(">hiiq")
# A batch and its empty tag section.
_BATCH = Struct(">qqbh")
_BATCH_WITHOUT_TAGS = Struct(">qqbhx")
_DELAY = Struct(">qq")
# The batch's partition and producer, and each of its ranges.
_LETTERS = Struct(">16siqiq")
_LETTER_RANGE = Struct(">qqhb")


def encode_all(records: Sequence[ShareRecord]) -> list[bytes]:
    """Return the records as stored in one batch; each has the batch's timestamp."""
    return [encode_record(offset_delta, 0, *encode(record)) for offset_delta, record in enumerate(records)]


def encode(record: ShareRecord) -> CoordinatorRecord:
    name = record.key.group_id.encode()
    key_type = UPDATE_KEY_TYPE if isinstance(record, ShareUpdate) else SNAPSHOT_KEY_TYPE
    end = _KEY_END.pack(record.key.topic_id, record.key.partition)
    key = _SHORT.pack(key_type) + _SHORT.pack(len(name)) + name + end
    if isinstance(record, ShareStateRemoved):
        return key, None
    if isinstance(record, ShareUpdate):
        start = _UPDATE_START.pack(VALUE_VERSION, record.snapshot_epoch, record.leader_epoch, record.start_offset)
    else:
        epochs = record.snapshot_epoch, record.state_epoch, record.leader_epoch
        times = record.create_ms, record.write_ms
        start = _SNAPSHOT_START.pack(VALUE_VERSION, *epochs, record.start_offset, *times)
    batches = b"".join([_BATCH_WITHOUT_TAGS.pack(*each) for each in record.batches])
    return key, b"".join((start, encode_uvarint(len(record.batches) + 1), batches, _tags(record)))


def decode(key: bytes, value: bytes | None) -> ShareRecord | None:
    """Return the typed record, or None for an unknown type of key or version of value.

    Raises StorageFault if the bytes are malformed.
    """
    try:
        (key_type,) = _SHORT.unpack_from(key)
        if key_type not in (SNAPSHOT_KEY_TYPE, UPDATE_KEY_TYPE):
            return None
        share_key = _read_key(key)
        if value is None:
            return ShareStateRemoved(share_key) if key_type == SNAPSHOT_KEY_TYPE else None
        if _SHORT.unpack_from(value)[0] != VALUE_VERSION:
            return None
        return _read_update(share_key, value) if key_type == UPDATE_KEY_TYPE else _read_snapshot(share_key, value)
    except (struct.error, ValueError, IndexError, ProtocolError) as error:
        message = f"a record of __share_group_state with the key {key!r} cannot be read: {error}"
        raise StorageFault(message) from error


def _tags(record: ShareSnapshot | ShareUpdate) -> bytes:
    tags = []
    if record.delivery_complete_count != UNKNOWN_COUNT:
        tags.append((DELIVERY_COMPLETE_COUNT_TAG, _INT.pack(record.delivery_complete_count)))
    if record.delays:
        tags.append((DELAYS_TAG, encode_delays(record.delays)))
    if record.letters is not None:
        tags.append((LETTERS_TAG, encode_letters(record.letters)))
    if record.given_up:
        tags.append((GIVEN_UP_TAG, encode_ranges(record.given_up)))
    return encode_tags(tags)


def _read_key(key: bytes) -> ShareKey:
    (length,) = _SHORT.unpack_from(key, _SHORT.size)
    start = 2 * _SHORT.size
    if length < 0 or start + length + _KEY_END.size != len(key):
        raise ValueError(f"a group id of {length} bytes in a key of {len(key)}")
    return ShareKey(key[start : start + length].decode(), *_KEY_END.unpack_from(key, start + length))


def _read_snapshot(key: ShareKey, value: bytes) -> ShareSnapshot:
    _, snapshot_epoch, state_epoch, leader_epoch, start_offset, create_ms, write_ms = _SNAPSHOT_START.unpack_from(value)
    batches, count, delays, letters, given_up = _read_rest(value, _SNAPSHOT_START.size)
    epochs = snapshot_epoch, state_epoch, leader_epoch
    return ShareSnapshot(key, *epochs, start_offset, create_ms, write_ms, batches, count, delays, letters, given_up)


def _read_update(key: ShareKey, value: bytes) -> ShareUpdate:
    _, snapshot_epoch, leader_epoch, start_offset = _UPDATE_START.unpack_from(value)
    return ShareUpdate(key, snapshot_epoch, leader_epoch, start_offset, *_read_rest(value, _UPDATE_START.size))


def _read_rest(
    value: bytes, position: int
) -> tuple[tuple[StateBatch, ...], int, tuple[Delay, ...], LetterBatch | None, tuple[LetterRange, ...]]:
    """Return the batches, completed deliveries, delays, letters and records given up that follow the first fields."""
    view = memoryview(value)
    length, position = read_uvarint(view, position)
    batches = []
    for _ in range(length - 1):
        batches.append(StateBatch(*_BATCH.unpack_from(value, position)))
        position = skip_tags(view, position + _BATCH.size)
    completed, delays, letters, given_up = UNKNOWN_COUNT, tuple[Delay, ...](), None, tuple[LetterRange, ...]()
    tag_count, position = read_tag_count(view, position)
    for _ in range(tag_count):
        tag, start, position = read_tag(view, position)
        if tag == DELIVERY_COMPLETE_COUNT_TAG:
            (completed,) = _INT.unpack(value[start:position])
        elif tag == DELAYS_TAG:
            delays = decode_delays(value[start:position])
        elif tag == LETTERS_TAG:
            letters = decode_letters(value[start:position])
        elif tag == GIVEN_UP_TAG:
            given_up = decode_ranges(value[start:position])
    if position != len(value):
        raise ValueError(f"{len(value) - position} bytes too many")
    return tuple(batches), completed, delays, letters, given_up


def encode_delays(delays: Sequence[Delay]) -> bytes:
    return b"".join([_DELAY.pack(*each) for each in delays])


def decode_delays(data: bytes) -> tuple[Delay, ...]:
    """Return the delays. Raises struct.error if the bytes are malformed."""
    return tuple(Delay(*each) for each in _DELAY.iter_unpack(data))


def encode_letters(letters: LetterBatch) -> bytes:
    return _LETTERS.pack(*letters[:5]) + encode_ranges(letters.ranges)


def decode_letters(data: bytes) -> LetterBatch:
    """Return the batch of letters. Raises struct.error if the bytes are malformed."""
    return LetterBatch(*_LETTERS.unpack_from(data))._replace(ranges=decode_ranges(data[_LETTERS.size :]))


def encode_ranges(ranges: Sequence[LetterRange]) -> bytes:
    return b"".join([_LETTER_RANGE.pack(*each) for each in ranges])


def decode_ranges(data: bytes) -> tuple[LetterRange, ...]:
    """Return the ranges of records that letters are about. Raises struct.error if the bytes are malformed."""
    return tuple(LetterRange(*each) for each in _LETTER_RANGE.iter_unpack(data))
