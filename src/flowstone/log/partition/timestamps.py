"""Lookup of offsets by time: the batch with the first record at or after a timestamp, and that record in it."""

from __future__ import annotations

from collections.abc import Sequence

from flowstone.kernel import find_timestamp
from flowstone.log.segments.cached_reads import LogSlice
from flowstone.log.segments.segment import Segment
from flowstone.types import Bytes
from flowstone.wire.record_batch import parse_header, read_payload

_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1


def find_batch(segments: Sequence[Segment], target_ms: int, from_offset: int) -> LogSlice | None:
    """Return the first batch, from the one that contains `from_offset` on, with a record at or after `target_ms`."""
    for segment in segments:
        if segment.size_bytes and segment.latest_timestamp() >= target_ms:
            found = segment.find_timestamp(target_ms, from_offset)
            if found is not None:
                return LogSlice(segment.log.get(), *found)
    return None


def newest_batch(segments: Sequence[Segment]) -> tuple[int, LogSlice] | None:
    """Return the largest timestamp in the log, and the first batch that has it."""
    filled = [segment for segment in segments if segment.size_bytes]
    if not filled:
        return None
    segment = max(filled, key=Segment.latest_timestamp)
    located = segment.locate(segment.indexes.newest_offset)
    assert located is not None
    return segment.latest_timestamp(), LogSlice(segment.log.get(), *located)


def first_record_at(batch: Bytes, target_ms: int, from_offset: int = 0) -> tuple[int, int] | None:
    """Return offset and timestamp of the first record at or after both; None if the batch has none.

    A few hundred bytes may decompress to millions of records: they are searched natively, and none becomes an object.
    """
    header = parse_header(batch)
    is_stamped = header.uses_log_append_time
    if is_stamped and header.max_timestamp < target_ms:
        return None
    payload = read_payload(batch, 0, header)
    first_delta = max(from_offset - header.base_offset, 0)
    target_delta = _LONG_MIN if is_stamped else _within_long(target_ms - header.base_timestamp)
    found = find_timestamp(payload, 0, len(payload), header.record_count, first_delta, target_delta)
    if found is None:
        return None
    offset_delta, timestamp_delta = found
    timestamp = header.max_timestamp if is_stamped else _within_long(header.base_timestamp + timestamp_delta)
    return header.base_offset + offset_delta, timestamp


def _within_long(value: int) -> int:
    """Clamp a value to 64 bits: the timestamps in a compressed batch may never have been checked."""
    return max(_LONG_MIN, min(value, _LONG_MAX))
