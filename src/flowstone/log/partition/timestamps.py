"""Lookup of offsets by time: the batch with the first record at or after a timestamp, and that record in it."""

from __future__ import annotations

from collections.abc import Sequence

from flowstone.kernel import find_timestamp
from flowstone.log.segments.cached_reads import LogSlice
from flowstone.log.segments.index_pair import NO_TIMESTAMP
from flowstone.log.segments.segment import Segment
from flowstone.types import Bytes
from flowstone.wire.record_batch import parse_header, read_payload

_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
# The search for a client's batch before end markers begins with so many offsets, and reads so many headers in all.
_TAIL_OFFSETS, TAIL_HEADERS_MAX = 64, 2048


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


def newest_client_timestamp(segments: Sequence[Segment], end_offset: int) -> int:
    """Return the newest timestamp near the end of a log that is not an end marker's, or NO_TIMESTAMP.

    Brokers stamp end markers with their own clocks. At most TAIL_HEADERS_MAX headers are read to find another batch.
    Raises NotCached if something must be read first.
    """
    headers_left = TAIL_HEADERS_MAX
    for segment in reversed(segments):
        if segment.size_bytes and segment.latest_timestamp() >= 0:
            newest = segment.locate(segment.indexes.newest_offset)
            if newest is not None and not segment.header_at(newest[0]).is_control:
                return segment.latest_timestamp()
            newest_ms, headers_left = _newest_of_clients(segment, end_offset, headers_left)
            if newest_ms >= 0 or headers_left <= 0:
                return newest_ms
        end_offset = segment.base_offset
    return NO_TIMESTAMP


def _newest_of_clients(segment: Segment, end_offset: int, headers_left: int) -> tuple[int, int]:
    """Search back from the end, in ever larger steps, for batches of clients; return also how many headers are left."""
    first, span = end_offset, _TAIL_OFFSETS
    while first > segment.base_offset and headers_left > 0:
        first, span = max(segment.base_offset, end_offset - span), 4 * span
        found = segment.locate(first)
        position, newest_ms = found[0] if found else segment.size_bytes, NO_TIMESTAMP
        while position < segment.size_bytes and headers_left > 0:
            header = segment.header_at(position)
            if not header.is_control:
                newest_ms = max(newest_ms, header.max_timestamp)
            position, headers_left = position + header.size_bytes, headers_left - 1
        if newest_ms >= 0:
            return newest_ms, headers_left
    return NO_TIMESTAMP, headers_left


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
