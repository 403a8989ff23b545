"""Conversion of columns to record batches in Python: the reference for batches.c and the fallback without it."""

from __future__ import annotations

import ctypes
from struct import calcsize
from typing import Literal

from flowstone.kernel.column_buffers import Buffer
from flowstone.kernel.row_columns import (
    BadRow,
    BinaryInput,
    Built,
    HeadersInput,
    NumberInput,
    Rows,
    RowStatus,
    Slots,
    Spread,
    check_bounds,
    check_buffers,
)

_MURMUR2_SEED = 0x9747B28C
_MURMUR2_MULTIPLIER = 0x5BD1E995
_MASK_32 = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF
# Maximum bytes of a record's lengths, deltas and counts in a batch of usual size. Keep equal to batches.c.
RECORD_OVERHEAD_BYTES = 20

Field = bytes | None
_Kind = Literal["B", "i", "q"]


def murmur2(data: bytes) -> int:
    """Return Kafka's murmur2 hash, as its Java client computes it, as an unsigned number."""
    value = _MURMUR2_SEED ^ len(data)
    tail = len(data) & ~3
    for at in range(0, tail, 4):
        block = int.from_bytes(data[at : at + 4], "little") * _MURMUR2_MULTIPLIER & _MASK_32
        block = (block ^ block >> 24) * _MURMUR2_MULTIPLIER & _MASK_32
        value = value * _MURMUR2_MULTIPLIER & _MASK_32 ^ block
    if tail < len(data):
        value = (value ^ int.from_bytes(data[tail:], "little")) * _MURMUR2_MULTIPLIER & _MASK_32
    value = (value ^ value >> 13) * _MURMUR2_MULTIPLIER & _MASK_32
    return value ^ value >> 15


def spread_rows(rows: Rows, slots: Slots) -> Spread:
    """Group rows by partition: the one in the `partition` column, else by key, else the one for rows without a key.

    The partition for rows without a key changes after it has received `keyless_bytes_max` bytes, which gives fewer and
    larger batches. Raises BadRow if a row is invalid, and ValueError if a column's buffers are too small for its rows.
    """
    check_buffers(rows)
    slot_of_row = [_place(rows, row, slots) for row in range(rows.row_count)]
    counts = [0] * slots.slot_count
    for slot in slot_of_row:
        counts[slot] += 1
    ends = (ctypes.c_int64 * slots.slot_count)(*(sum(counts[: slot + 1]) for slot in range(slots.slot_count)))
    by_slot = sorted(range(rows.row_count), key=slot_of_row.__getitem__)
    row_numbers = ctypes.c_int32 * rows.row_count
    return Spread(row_numbers(*by_slot), ends, row_numbers(*slot_of_row))


def _place(rows: Rows, row: int, slots: Slots) -> int:
    topic = _number(rows.topic, row, "i") or 0
    if not 0 <= topic < slots.topic_count:
        raise BadRow(RowStatus.BAD_COLUMN, row)
    count = slots.partition_counts[topic]
    partition = _number(rows.partition, row, "i")
    if partition is None:
        key = _field(rows.key, row, row)
        if key is None:
            partition = _place_keyless(slots, topic, len(_field(rows.value, row, row) or b"") + RECORD_OVERHEAD_BYTES)
        else:
            partition = (murmur2(key) & _POSITIVE) % count
    elif not 0 <= partition < count:
        raise BadRow(RowStatus.BAD_PARTITION, row)
    slot: int = slots.first_slots[topic] + partition
    return slot


def _place_keyless(slots: Slots, topic: int, size_bytes: int) -> int:
    if size_bytes > slots.keyless_bytes_max - slots.keyless_bytes[topic]:
        slots.keyless_partitions[topic] += 1
        slots.keyless_bytes[topic] = 0
    slots.keyless_bytes[topic] += size_bytes
    slots.keyless_partitions[topic] %= slots.partition_counts[topic]
    return slots.keyless_partitions[topic]


class RecordBuilder:
    """Builder of the records of one `Spread`. `now_ms` is the timestamp of rows without a timestamp."""

    def __init__(self, rows: Rows, spread: Spread, now_ms: int) -> None:
        check_buffers(rows)
        self._rows, self._order, self._now_ms = rows, spread.order, now_ms

    def build(self, first: int, end: int, out: bytearray, position: int, capacity_bytes: int) -> Built:
        """Write the rows order[first:end] to `out` until the next one does not fit.

        Raises BadRow if even the first one does not fit or if a row is invalid.
        """
        check_bounds(self._rows.row_count, first, end, out, position, capacity_bytes)
        size = count = base_timestamp = max_timestamp = 0
        for place in range(first, end):
            row = self._order[place]
            timestamp, fields = self._read(row)
            if not count:
                base_timestamp = max_timestamp = timestamp
            record = _record(timestamp - base_timestamp, count, fields)
            if len(record) > capacity_bytes - size:
                if not count:
                    raise BadRow(RowStatus.TOO_LARGE, row, len(record))
                break
            out[position + size : position + size + len(record)] = record
            size += len(record)
            count += 1
            max_timestamp = max(max_timestamp, timestamp)
        return Built(first + count, size, count, base_timestamp, max_timestamp)

    def _read(self, row: int) -> tuple[int, bytes]:
        """Return the row's timestamp and the encoded record from its key on."""
        rows = self._rows
        fields = _encode_field(_field(rows.key, row, row)) + _encode_field(_field(rows.value, row, row))
        timestamp = _number(rows.timestamp, row, "q")
        if timestamp is None:
            timestamp = self._now_ms
        elif timestamp < 0:
            raise BadRow(RowStatus.BAD_TIMESTAMP, row)
        return timestamp, fields + _encode_headers(rows.headers, row)


def _record(timestamp_delta: int, offset_delta: int, fields: bytes) -> bytes:
    body = b"\x00" + _varint(timestamp_delta) + _varint(offset_delta) + fields  # 0: the record's attributes
    return _varint(len(body)) + body


def _encode_headers(headers: HeadersInput, row: int) -> bytes:
    index = headers.first + row
    if headers.offsets is None or not _is_valid(headers.validity, index):
        return _varint(0)
    offsets = _cast(headers.offsets, "i")
    start, end = offsets[index], offsets[index + 1]
    if not 0 <= start <= end <= headers.header_count:
        raise BadRow(RowStatus.BAD_COLUMN, row)
    encoded = _varint(end - start)
    for header in range(start, end):
        key, value = _field(headers.key, header, row), _field(headers.value, header, row)
        if key is None:
            raise BadRow(RowStatus.NULL_HEADER_KEY, row)
        encoded += _encode_field(key) + _encode_field(value)
    return encoded


def _field(column: BinaryInput, at: int, row: int) -> Field:
    """Return value `at` of the column, which belongs to row `row`."""
    index = column.first + at
    if column.offsets is None or not _is_valid(column.validity, index):
        return None
    offsets = _cast(column.offsets, "q" if column.is_large else "i")
    start, end = offsets[index], offsets[index + 1]
    data = memoryview(column.data) if column.data is not None else memoryview(b"")
    if not 0 <= start <= end <= len(data):
        raise BadRow(RowStatus.BAD_COLUMN, row)
    return bytes(data[start:end])


def _number(column: NumberInput, row: int, kind: _Kind) -> int | None:
    index = column.first + row
    if column.values is None or not _is_valid(column.validity, index):
        return None
    return _cast(column.values, kind)[index]


def _is_valid(validity: Buffer | None, index: int) -> bool:
    return validity is None or bool(_cast(validity, "B")[index // 8] >> index % 8 & 1)


def _cast(buffer: Buffer, kind: _Kind) -> memoryview:
    """Return the buffer as numbers of the kind; trailing bytes that do not make a number are cut off."""
    view, item_bytes = memoryview(buffer).cast("B"), calcsize(kind)
    return view[: len(view) // item_bytes * item_bytes].cast(kind)


def _encode_field(field: Field) -> bytes:
    return _varint(-1) if field is None else _varint(len(field)) + field


def _varint(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while raw > 0x7F:
        encoded.append(raw & 0x7F | 0x80)
        raw >>= 7
    encoded.append(raw)
    return bytes(encoded)
