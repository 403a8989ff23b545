"""Decoding of records into columns in Python: the reference for columns.c and the fallback without the library.

The payload comes from a peer and may contain anything. A record is parsed completely before any of it is written, so
after a bad record the columns contain exactly the records before it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from flowstone.kernel.column_buffers import BinaryBuffers, Buffer, Columns, DecodeCall, Full
from flowstone.kernel.twin import (
    VARLONG_BITS,
    BadRecordError,
    RecordsStatus,
    read_record_length,
    read_varint,
    skip_bytes,
)

MICROSECONDS_PER_MILLISECOND = 1000
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1

Field = bytes | None


class _Record(NamedTuple):
    timestamp_delta: int
    offset_delta: int
    key: Field
    value: Field
    headers: list[tuple[bytes, Field]]


def check_bounds(payload: Buffer, position: int, size: int) -> None:
    """Raise ValueError unless the payload has `size` bytes at `position`.

    This is an error of the caller, not of the peer. It is not an `assert`, because -O removes asserts and C would then
    read past the buffer.
    """
    if position < 0 or size < 0 or position + size > payload.size:
        raise ValueError(f"[{position}, {position + size}) is outside a buffer of {payload.size} bytes")


def decode_columns(payload: Buffer, position: int, columns: Columns) -> None:
    """Append the records of the batch that was started in `columns` and whose payload is at `position`.

    Stops at a bad record (`call.status`), at a column without space (`call.full`, `call.needed`), or after the last
    record. The next call continues at the same record.
    """
    call = columns.call
    check_bounds(payload, position, call.size)
    call.full, call.needed = Full.NOT_FULL, 0
    try:
        _decode(bytes(memoryview(payload)[position : position + call.size]), columns)
        call.status = RecordsStatus.VALID
    except BadRecordError as bad:
        call.status = bad.status


def _decode(payload: bytes, columns: Columns) -> None:
    call = columns.call
    if call.row_count == 0:
        _begin(columns)
    at = call.position
    while call.record_index < call.record_count:
        at, end = read_record_length(payload, at, call.size)
        record = _read_record(payload, at, end, call)
        if call.start_offset <= call.base_offset + record.offset_delta < call.end_offset:
            call.full, call.needed = _find_full(columns, record)
            if call.full:
                return
            _append_record(columns, record)
        call.last_delta = record.offset_delta
        at = call.position = end
        call.record_index += 1
    if at != call.size:
        raise BadRecordError(RecordsStatus.TRAILING_BYTES)


def _begin(columns: Columns) -> None:
    for binary in columns.binaries.values():
        _put(binary.offsets, "i", 0, 0)
    if columns.header_offsets is not None:
        _put(columns.header_offsets, "i", 0, 0)


def _read_record(payload: bytes, at: int, end: int, call: DecodeCall) -> _Record:
    if at == end:
        raise BadRecordError(RecordsStatus.BAD_LENGTH)
    at += 1  # the record's attributes: unused by the format, any value is legal
    timestamp_delta, at = read_varint(payload, at, end, VARLONG_BITS)
    offset_delta, at = read_varint(payload, at, end)
    if not call.last_delta < offset_delta <= call.last_offset_delta:
        raise BadRecordError(RecordsStatus.BAD_OFFSET_DELTA)
    key, at = _read_field(payload, at, end, -1, RecordsStatus.BAD_KEY_LENGTH)
    value, at = _read_field(payload, at, end, -1, RecordsStatus.BAD_VALUE_LENGTH)
    header_count, at = read_varint(payload, at, end)
    if header_count < 0:
        raise BadRecordError(RecordsStatus.BAD_HEADERS)
    headers: list[tuple[bytes, Field]] = []
    for _ in range(header_count):
        header_key, at = _read_field(payload, at, end, 0, RecordsStatus.BAD_HEADERS)
        header_value, at = _read_field(payload, at, end, -1, RecordsStatus.BAD_HEADERS)
        assert header_key is not None
        headers.append((header_key, header_value))
    if at != end:
        raise BadRecordError(RecordsStatus.BAD_LENGTH)
    return _Record(timestamp_delta, offset_delta, key, value, headers)


def _read_field(payload: bytes, at: int, end: int, least: int, bad: RecordsStatus) -> tuple[Field, int]:
    length, at = skip_bytes(payload, at, end, least, bad)
    return (payload[at - length : at] if length >= 0 else None), at


def _find_full(columns: Columns, record: _Record) -> tuple[Full, int]:
    if columns.call.row_count == columns.call.row_capacity:
        return Full.ROWS, 1
    needed = {
        Full.KEY: len(record.key or b""),
        Full.VALUE: len(record.value or b""),
        Full.HEADERS: len(record.headers),
        Full.HEADER_KEY: sum(len(key) for key, _ in record.headers),
        Full.HEADER_VALUE: sum(len(value or b"") for _, value in record.headers),
    }
    for full, amount in needed.items():
        wanted = columns.header_offsets if full is Full.HEADERS else columns.binaries.get(full)
        if wanted is not None and amount > columns.capacity(full) - columns.used(full):
            return full, amount
    return Full.NOT_FULL, 0


def _append_record(columns: Columns, record: _Record) -> None:
    call = columns.call
    row = call.row_count
    if columns.offsets is not None:
        _put(columns.offsets, "q", row, call.base_offset + record.offset_delta)
    if columns.timestamps is not None:
        _put(columns.timestamps, "q", row, _microseconds(call, record.timestamp_delta))
    for full, field in ((Full.KEY, record.key), (Full.VALUE, record.value)):
        if full in columns.binaries:
            _append(columns.binaries[full], row, field)
    if columns.header_offsets is not None and columns.header_validity is not None:
        for key, value in record.headers:
            _append(columns.binaries[Full.HEADER_KEY], call.header_count, key)
            _append(columns.binaries[Full.HEADER_VALUE], call.header_count, value)
            call.header_count += 1
        _put(columns.header_offsets, "i", row + 1, call.header_count)
        _set_bit(columns.header_validity, row, bool(record.headers))
        call.rows_without_headers += not record.headers
    call.row_count = row + 1


def _append(column: BinaryBuffers, index: int, field: Field) -> None:
    state = column.state
    _set_bit(column.validity, index, field is not None)
    if field is None:
        state.null_count += 1
    else:
        memoryview(column.data).cast("B")[state.size_bytes : state.size_bytes + len(field)] = field
        state.size_bytes += len(field)
    _put(column.offsets, "i", index + 1, state.size_bytes)


def _set_bit(buffer: Buffer, index: int, is_set: bool) -> None:
    """Set or clear one validity bit. Bits must be written in order: the first one of a byte clears the others."""
    bits = memoryview(buffer).cast("B")
    bits[index // 8] = (bits[index // 8] if index % 8 else 0) | is_set << index % 8


def _put(buffer: Buffer, kind: Literal["i", "q"], index: int, number: int) -> None:
    memoryview(buffer).cast("B").cast(kind)[index] = number


def _microseconds(call: DecodeCall, timestamp_delta: int) -> int:
    """Return the record's timestamp in microseconds, limited to the range of int64."""
    timestamp = call.base_timestamp + (0 if call.uses_log_append_time else timestamp_delta)
    return max(_INT64_MIN, min(timestamp * MICROSECONDS_PER_MILLISECOND, _INT64_MAX))
