"""Parsing and building of batches and records for compaction's Python twin, byte for byte as compaction.h defines.

Only the twin uses this module. The broker reads batches with `wire`, which the kernel must not import.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from flowstone.kernel.compaction_contract import (
    CODEC_MASK,
    DELETE_HORIZON_FLAG,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    NO_TIMESTAMP,
    BadRecord,
    BatchFields,
    Damage,
    FilteredRecords,
    Stop,
    Walk,
)
from flowstone.kernel.twin import VARLONG_BITS, BadRecordError, read_record_length, read_varint, skip_bytes
from flowstone.kernel.twin import RecordsStatus as Status
from flowstone.types import Bytes

_LONG_MAX = 2**63 - 1
_HEADER = Struct(">qiibIhiqqqhii")
_LOG_OVERHEAD, _CHECKSUM_START, _MAGIC = 12, 21, 2


class Batch:
    """A parsed batch header, with methods that build the batches derived from it."""

    def __init__(self, buffer: Bytes, position: int) -> None:
        header = self._header = _HEADER.unpack_from(buffer, position)
        self.base_offset, length, _, self.magic, self.crc, self.attributes, delta = header[:7]
        self.base_timestamp, self.max_timestamp, _, _, _, self.record_count = header[7:]
        self.size_bytes = length + _LOG_OVERHEAD
        self.last_offset = self.base_offset + delta

    def fields(self) -> BatchFields:
        return BatchFields(self.base_offset, self.last_offset, self.base_timestamp, self.record_count, self.attributes)

    def rewritten(self, filtered: FilteredRecords, delete_horizon_ms: int) -> bytes:
        attributes, base_timestamp = self.attributes, self.base_timestamp
        if filtered.has_new_horizon:
            attributes, base_timestamp = attributes | DELETE_HORIZON_FLAG, delete_horizon_ms
        newest = self.max_timestamp if attributes & LOG_APPEND_TIME_FLAG else filtered.max_timestamp
        return self._encode(filtered.payload, attributes, base_timestamp, newest, filtered.kept_count)

    def emptied(self) -> bytes:
        attributes = self.attributes & ~(CODEC_MASK | DELETE_HORIZON_FLAG)
        return self._encode(b"", attributes, NO_TIMESTAMP, self.max_timestamp, 0)

    def _encode(self, payload: Bytes, attributes: int, base_timestamp: int, max_timestamp: int, count: int) -> bytes:
        base_offset, _, epoch, magic, _, _, delta, _, _, *producer, _ = self._header
        length = HEADER_BYTES - _LOG_OVERHEAD + len(payload)
        rest = (attributes, delta, base_timestamp, max_timestamp, *producer, count)
        unchecked = _HEADER.pack(base_offset, length, epoch, magic, 0, *rest) + payload
        crc = crc32c(unchecked[_CHECKSUM_START:])
        return _HEADER.pack(base_offset, length, epoch, magic, crc, *rest) + bytes(payload)


def next_batch(buffer: Bytes, position: int, next_offset: int, end_offset: int) -> Batch | Walk:
    """Return the batch at `position`, or a `Walk` with the reason why there is none."""
    if len(buffer) - position < HEADER_BYTES:
        return Walk(Stop.MORE, position, next_offset, HEADER_BYTES, Damage.NO_DAMAGE)
    batch = Batch(buffer, position)
    end, damage, needed_bytes = position + batch.size_bytes, Damage.NO_DAMAGE, HEADER_BYTES
    if (
        batch.magic != _MAGIC
        or batch.size_bytes < HEADER_BYTES
        or not 0 <= batch.base_offset <= batch.last_offset <= _LONG_MAX
        or batch.record_count < 0
    ):
        damage = Damage.BAD_HEADER
    elif batch.base_offset < next_offset or batch.last_offset >= end_offset:
        damage = Damage.OUT_OF_ORDER
    else:
        needed_bytes = batch.size_bytes
        if end <= len(buffer):
            if crc32c(memoryview(buffer)[position + _CHECKSUM_START : end]) == batch.crc:
                return batch
            damage = Damage.BAD_CHECKSUM
    return Walk(Stop.DAMAGED if damage else Stop.MORE, position, next_offset, needed_bytes, damage)


class Record(NamedTuple):
    encoded: Bytes  # with its length
    attributes: int
    timestamp_delta: int
    offset_delta: int
    rest: Bytes  # from the offset delta on
    key: Bytes | None
    has_value: bool


def records_of(payload: Bytes, batch: BatchFields) -> Iterator[Record]:
    """Yield every record of a payload, with the same checks as the kernel. Raises BadRecord if one is malformed."""
    view, at, last_delta = memoryview(payload), 0, -1
    try:
        for left in range(batch.record_count - 1, -1, -1):
            body, end = read_record_length(view, at, len(view))
            record = _read_record(view, at, body, end)
            if not last_delta < record.offset_delta <= batch.last_offset - batch.base_offset:
                raise BadRecord
            if not left and end != len(view):
                raise BadRecord  # bytes behind the last record
            yield record
            at, last_delta = end, record.offset_delta
    except BadRecordError as bad:
        raise BadRecord from bad
    if not batch.record_count and len(view):
        raise BadRecord


def _read_record(view: memoryview, start: int, body: int, end: int) -> Record:
    if body == end:
        raise BadRecord
    timestamp_delta, offset_at = read_varint(view, body + 1, end, VARLONG_BITS)
    offset_delta, at = read_varint(view, offset_at, end)
    key_bytes, at = skip_bytes(view, at, end, -1, Status.BAD_KEY_LENGTH)
    key = view[at - key_bytes : at] if key_bytes >= 0 else None
    value_bytes, at = skip_bytes(view, at, end, -1, Status.BAD_VALUE_LENGTH)
    header_count, at = read_varint(view, at, end)
    if header_count < 0:
        raise BadRecord
    for _ in range(header_count):
        _, at = skip_bytes(view, at, end, 0, Status.BAD_HEADERS)
        _, at = skip_bytes(view, at, end, -1, Status.BAD_HEADERS)
    if at != end:
        raise BadRecord
    rest = view[offset_at:end]
    return Record(view[start:end], view[body], timestamp_delta, offset_delta, rest, key, value_bytes >= 0)


def restamped(record: Record, timestamp_delta: int) -> bytes:
    body = bytes([record.attributes]) + _varint(timestamp_delta) + record.rest
    return _varint(len(body)) + body


def _varint(value: int) -> bytes:
    out, raw = bytearray(), (value << 1) ^ (value >> 63)
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def as_long(value: int) -> int:
    """Return the value wrapped to int64, as C computes it: timestamps of a compressed batch are never checked."""
    return (value + 2**63) % 2**64 - 2**63
