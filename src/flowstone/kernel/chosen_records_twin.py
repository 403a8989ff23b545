"""Copy of chosen records in Python: the reference for chosen_records.c and the fallback without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowstone.kernel.twin import (
    VARLONG_BITS,
    BadRecordError,
    RecordsStatus,
    out_of_bounds,
    read_record_length,
    read_varint,
)


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
