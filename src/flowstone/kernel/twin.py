"""The kernel in Python: the reference for the native code, and the fallback if it is not built.

Owns the contract (`RecordsStatus`, `RecordsCheck`) that the C sources implement too; the tests verify equal results for
generated and damaged batches. The module knows records only: headers, checksums and compression belong to `wire`. It is
about 400 times slower than the native code.

A payload is what follows the 61-byte header of an uncompressed v2 batch. It comes from a peer and may contain anything.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from flowstone.types import Bytes

VARINT_BITS = 32
VARLONG_BITS = 64


class RecordsStatus(IntEnum):
    """The result of a check: valid, or the defect of the first bad record. Keep equal to `enum status` in records.h."""

    VALID = 0
    TRUNCATED = 1  # the payload ends inside the record, or before the last one
    BAD_VARINT = 2  # a varint that is too long or out of range
    BAD_LENGTH = 3  # the record's fields do not fill exactly the length it states
    BAD_OFFSET_DELTA = 4  # not the record's index in the batch
    BAD_KEY_LENGTH = 5
    BAD_VALUE_LENGTH = 6
    BAD_HEADERS = 7  # a negative count or an invalid length
    TRAILING_BYTES = 8  # bytes are left after the last record


class RecordsCheck(NamedTuple):
    """The result of `check_records`. All fields after the first two are 0, 0, 0 and -1 unless the status is VALID."""

    status: RecordsStatus
    record_index: int  # of the first bad record; the count if bytes trail it; -1 if all are good
    null_keys: int
    min_timestamp_delta: int
    max_timestamp_delta: int
    max_timestamp_index: int  # the first record that has it


class BadRecordError(Exception):
    def __init__(self, status: RecordsStatus) -> None:
        self.status = status


def check_records(buffer: Bytes, position: int, size: int, record_count: int) -> RecordsCheck:
    """Check that buffer[position : position + size] is exactly `record_count` well-formed records; summarise them."""
    if position < 0 or size < 0 or position + size > len(buffer):
        raise out_of_bounds(buffer, position, size)
    at, end = position, position + size
    null_keys = min_delta = max_delta = 0
    max_index = -1
    index = 0
    try:
        for index in range(record_count):
            at, record_end = read_record_length(buffer, at, end)
            timestamp_delta, key_is_null = _check_record(buffer, at, record_end, index)
            at = record_end
            null_keys += key_is_null
            if index == 0 or timestamp_delta < min_delta:
                min_delta = timestamp_delta
            if index == 0 or timestamp_delta > max_delta:
                max_delta, max_index = timestamp_delta, index
        if at != end:
            index = max(record_count, 0)
            raise BadRecordError(RecordsStatus.TRAILING_BYTES)
    except BadRecordError as bad:
        return RecordsCheck(bad.status, index, 0, 0, 0, -1)
    return RecordsCheck(RecordsStatus.VALID, -1, null_keys, min_delta, max_delta, max_index)


def find_timestamp(
    buffer: Bytes, position: int, size: int, record_count: int, first_offset_delta: int, target_delta: int
) -> tuple[int, int] | None:
    """Return the offset and timestamp deltas of the first record with at least the given deltas, or None.

    The payload may be unchecked, because compressed payloads are not checked when stored. A damaged record ends the
    search.
    """
    if position < 0 or size < 0 or position + size > len(buffer):
        raise out_of_bounds(buffer, position, size)
    at, end = position, position + size
    try:
        for _ in range(record_count):
            at, record_end = read_record_length(buffer, at, end)
            if at == record_end:
                return None
            timestamp_delta, at = read_varint(buffer, at + 1, record_end, VARLONG_BITS)
            offset_delta, at = read_varint(buffer, at, record_end)
            if offset_delta < 0:
                return None
            if timestamp_delta >= target_delta and offset_delta >= first_offset_delta:
                return offset_delta, timestamp_delta
            at = record_end
    except BadRecordError:
        pass
    return None


def out_of_bounds(buffer: Bytes, position: int, size: int) -> ValueError:
    """Return the error for a position outside the buffer.

    The check is not an `assert`, because -O removes asserts and C would then read past the buffer.
    """
    return ValueError(f"[{position}, {position + size}) is outside a buffer of {len(buffer)} bytes")


def _check_record(buffer: Bytes, at: int, end: int, index: int) -> tuple[int, bool]:
    if at == end:
        raise BadRecordError(RecordsStatus.BAD_LENGTH)
    at += 1  # the record's attributes: unused by the format, any value is legal
    timestamp_delta, at = read_varint(buffer, at, end, VARLONG_BITS)
    offset_delta, at = read_varint(buffer, at, end)
    if offset_delta != index:
        raise BadRecordError(RecordsStatus.BAD_OFFSET_DELTA)
    return timestamp_delta, check_body(buffer, at, end) < 0


def check_body(buffer: Bytes, at: int, end: int) -> int:
    """Return the length of the record's key; its key, value and headers must reach from `at` exactly to `end`."""
    key_length, at = skip_bytes(buffer, at, end, -1, RecordsStatus.BAD_KEY_LENGTH)
    _, at = skip_bytes(buffer, at, end, -1, RecordsStatus.BAD_VALUE_LENGTH)
    header_count, at = read_varint(buffer, at, end)
    if header_count < 0:
        raise BadRecordError(RecordsStatus.BAD_HEADERS)
    for _ in range(header_count):
        _, at = skip_bytes(buffer, at, end, 0, RecordsStatus.BAD_HEADERS)
        _, at = skip_bytes(buffer, at, end, -1, RecordsStatus.BAD_HEADERS)
    if at != end:
        raise BadRecordError(RecordsStatus.BAD_LENGTH)
    return key_length


def read_record_length(buffer: Bytes, at: int, end: int) -> tuple[int, int]:
    length, at = read_varint(buffer, at, end, missing=RecordsStatus.TRUNCATED)
    if length < 0:
        raise BadRecordError(RecordsStatus.BAD_LENGTH)
    if length > end - at:
        raise BadRecordError(RecordsStatus.TRUNCATED)
    return at, at + length


def skip_bytes(buffer: Bytes, at: int, end: int, least: int, bad: RecordsStatus) -> tuple[int, int]:
    length, at = read_varint(buffer, at, end)
    if length < least:
        raise BadRecordError(bad)
    if length > end - at:
        raise BadRecordError(RecordsStatus.BAD_LENGTH)
    return length, at + max(length, 0)


def read_varint(
    buffer: Bytes, at: int, end: int, bits: int = VARINT_BITS, missing: RecordsStatus = RecordsStatus.BAD_LENGTH
) -> tuple[int, int]:
    raw = 0
    for shift in range(0, bits, 7):
        if at == end:
            raise BadRecordError(missing)
        byte = buffer[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if raw >> bits:
            break
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
    raise BadRecordError(RecordsStatus.BAD_VARINT)
