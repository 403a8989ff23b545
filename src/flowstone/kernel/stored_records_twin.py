"""Check and partial copy of a stored batch's records in Python.

The reference for stored_records.c, chosen_records.c and key_hashes.c, and the fallback without them.
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


# Its length, its attributes, two deltas, and the length of its key.
RECORD_BYTES_MIN = 5
_HASH_MASK = 2**64 - 1


class KeyHashes(NamedTuple):
    """The offset deltas of a batch's records, in order, and the 64-bit hashes of their keys, 0 without a key."""

    deltas: Sequence[int]
    hashes: list[int]


def hash_keys(buffer: bytes, position: int, size: int, record_count: int) -> KeyHashes | None:
    """Return the hashes of the keys of the records in buffer[position : position + size].

    Returns None if a record is malformed; what follows the key is not checked. A hash is the same for the same key in
    this process, and nobody outside of it can find keys that have the same one.
    """
    if position < 0 or size < 0 or position + size > len(buffer):
        raise out_of_bounds(buffer, position, size)
    if not 0 <= record_count * RECORD_BYTES_MIN <= size:
        return None
    at, end = position, position + size
    deltas: list[int] = []
    hashes: list[int] = []
    try:
        for _ in range(record_count):
            at, record_end = read_record_length(buffer, at, end)
            delta, key = _delta_and_key(buffer, at, record_end)
            if (deltas and delta <= deltas[-1]) or delta < 0:
                raise BadRecordError(RecordsStatus.BAD_OFFSET_DELTA)
            deltas.append(delta)
            hashes.append(0 if key is None else (hash(key) & _HASH_MASK) or 1)
            at = record_end
    except BadRecordError:
        return None
    return KeyHashes(deltas, hashes)


def _delta_and_key(buffer: bytes, at: int, end: int) -> tuple[int, bytes | None]:
    """Return the offset delta and the key of the record at `at`. Raises BadRecordError if they are malformed."""
    if at == end:
        raise BadRecordError(RecordsStatus.BAD_LENGTH)
    _timestamp_delta, at = read_varint(buffer, at + 1, end, VARLONG_BITS)
    delta, at = read_varint(buffer, at, end)
    length, at = read_varint(buffer, at, end)
    if not -1 <= length <= end - at:
        raise BadRecordError(RecordsStatus.BAD_KEY_LENGTH)
    return delta, None if length < 0 else buffer[at : at + length]
