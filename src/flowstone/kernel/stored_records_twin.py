"""Check and partial copy of a stored batch's records in Python.

The reference for stored_records.c and chosen_records.c, and the fallback without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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


class Chosen(NamedTuple):
    """Records of a batch, as stored, their number, and the offset delta of the last one, -1 without any."""

    payload: bytes
    record_count: int
    last_delta: int


def copy_chosen(
    buffer: bytes, position: int, size: int, record_count: int, ranges: Sequence[tuple[int, int]]
) -> Chosen | None:
    """Return the records of buffer[position : position + size] whose offset deltas are in one of the ranges.

    A range is a first and a last delta; ranges are in order and disjoint. Returns None if a record up to the end of the
    last range is malformed. Only lengths and offset deltas are checked.
    """
    if position < 0 or size < 0 or position + size > len(buffer):
        raise out_of_bounds(buffer, position, size)
    at, end, left = position, position + size, list(reversed(ranges))
    parts: list[bytes] = []
    last_delta = -1
    try:
        for _ in range(record_count):
            if not left:
                break
            begin = at
            at, record_end = read_record_length(buffer, at, end)
            delta = _offset_delta(buffer, at, record_end)
            at = record_end
            while left and left[-1][1] < delta:
                left.pop()
            if left and left[-1][0] <= delta:
                parts.append(buffer[begin:record_end])
                last_delta = delta
    except BadRecordError:
        return None
    return Chosen(b"".join(parts), len(parts), last_delta)


def _offset_delta(buffer: bytes, at: int, end: int) -> int:
    if at == end:
        raise BadRecordError(RecordsStatus.BAD_LENGTH)
    _timestamp_delta, at = read_varint(buffer, at + 1, end, VARLONG_BITS)
    offset_delta, _ = read_varint(buffer, at, end)
    return offset_delta
