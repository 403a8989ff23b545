"""Search for invalid records in Python: the reference for refused_records.c and the fallback without the library."""

from __future__ import annotations

from typing import NamedTuple

from flowstone.kernel.twin import VARLONG_BITS, BadRecordError, out_of_bounds, read_record_length, read_varint
from flowstone.types import Bytes


class RefusedRecord(NamedTuple):
    record_index: int
    is_keyless: bool  # otherwise its timestamp is out of range
    timestamp_delta: int


def find_refused(
    buffer: Bytes,
    position: int,
    size: int,
    record_count: int,
    *,
    needs_key: bool,
    low_delta: int,
    high_delta: int,
    exempt_delta: int,
    limit: int,
) -> list[RefusedRecord]:
    """Return the first `limit` records that lack a required key or have a timestamp delta out of range.

    A timestamp delta is in range if it is `exempt_delta`, or from `low_delta` to `high_delta`. A damaged record ends
    the search.
    """
    if position < 0 or size < 0 or position + size > len(buffer):
        raise out_of_bounds(buffer, position, size)
    found: list[RefusedRecord] = []
    at, end = position, position + size
    try:
        for index in range(record_count):
            if len(found) >= limit:
                break
            at, record_end = read_record_length(buffer, at, end)
            if at == record_end:
                break
            timestamp_delta, at = read_varint(buffer, at + 1, record_end, VARLONG_BITS)
            _offset_delta, at = read_varint(buffer, at, record_end)
            key_length, at = read_varint(buffer, at, record_end)
            is_keyless = needs_key and key_length < 0
            in_range = timestamp_delta == exempt_delta or low_delta <= timestamp_delta <= high_delta
            if is_keyless or not in_range:
                found.append(RefusedRecord(index, is_keyless, timestamp_delta))
            at = record_end
    except BadRecordError:
        pass
    return found
