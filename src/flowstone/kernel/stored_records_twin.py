"""Check of a stored batch's records in Python: the reference for stored_records.c and the fallback without it."""

from __future__ import annotations

from flowstone.kernel.twin import (
    VARLONG_BITS,
    BadRecordError,
    RecordsStatus,
    check_body,
    out_of_bounds,
    read_record_length,
    read_varint,
)
from flowstone.types import Bytes


def check_stored(
    buffer: Bytes, position: int, size: int, record_count: int, last_offset_delta: int
) -> tuple[RecordsStatus, int]:
    """Return whether buffer[position : position + size] is exactly `record_count` well-formed records.

    Their offset deltas must increase and be at most `last_offset_delta`. The second value is the index of the first bad
    record, `record_count` if bytes follow the last record, and -1 if all are good.
    """
    if position < 0 or size < 0 or position + size > len(buffer):
        raise out_of_bounds(buffer, position, size)
    at, end, previous, index = position, position + size, -1, 0
    try:
        while index < record_count:
            at, record_end = read_record_length(buffer, at, end)
            previous = _check_record(buffer, at, record_end, previous, last_offset_delta)
            at = record_end
            index += 1
        if at != end:
            raise BadRecordError(RecordsStatus.TRAILING_BYTES)
    except BadRecordError as bad:
        return bad.status, index
    return RecordsStatus.VALID, -1


def _check_record(buffer: Bytes, at: int, end: int, previous: int, last_offset_delta: int) -> int:
    """Return the offset delta of the record at `at`. Raises an error if the record is malformed."""
    if at == end:
        raise BadRecordError(RecordsStatus.BAD_LENGTH)
    _timestamp_delta, at = read_varint(buffer, at + 1, end, VARLONG_BITS)
    offset_delta, at = read_varint(buffer, at, end)
    if not previous < offset_delta <= last_offset_delta:
        raise BadRecordError(RecordsStatus.BAD_OFFSET_DELTA)
    check_body(buffer, at, end)
    return offset_delta
