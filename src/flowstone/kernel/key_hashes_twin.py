"""Hashes of the keys of a batch's records in Python: the reference for key_hashes.c, and the fallback without it.

The hashes differ from those of the native form, but are equal for the same keys.
"""

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
            delta, key = _key(buffer, at, record_end)
            if (deltas and delta <= deltas[-1]) or delta < 0:
                raise BadRecordError(RecordsStatus.BAD_OFFSET_DELTA)
            deltas.append(delta)
            hashes.append(0 if key is None else (hash(key) & _HASH_MASK) or 1)
            at = record_end
    except BadRecordError:
        return None
    return KeyHashes(deltas, hashes)


def _key(buffer: bytes, at: int, end: int) -> tuple[int, bytes | None]:
    """Return the offset delta and the key of the record at `at`. Raises BadRecordError if they are malformed."""
    if at == end:
        raise BadRecordError(RecordsStatus.BAD_LENGTH)
    _timestamp_delta, at = read_varint(buffer, at + 1, end, VARLONG_BITS)
    delta, at = read_varint(buffer, at, end)
    length, at = read_varint(buffer, at, end)
    if not -1 <= length <= end - at:
        raise BadRecordError(RecordsStatus.BAD_KEY_LENGTH)
    return delta, None if length < 0 else buffer[at : at + length]
