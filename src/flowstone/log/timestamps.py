"""Offsets by time: which batch holds the first record at or after a timestamp, and which record of it.

The first question is answered on the loop from the segments' time indexes; the second may have to decompress the
batch, so `first_record_at` takes its bytes and runs wherever the caller likes.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowstone.log.reading import LogSlice
from flowstone.log.segment import Segment
from flowstone.types import Bytes
from flowstone.wire.record_batch import decode_records


def find_batch(segments: Sequence[Segment], target_ms: int, from_offset: int) -> LogSlice | None:
    """The first batch, from the one that holds `from_offset` on, with a record at or after `target_ms`."""
    for segment in segments:
        if segment.size_bytes and segment.latest_timestamp() >= target_ms:
            found = segment.find_timestamp(target_ms, from_offset)
            if found is not None:
                return LogSlice(segment.log.get(), *found)
    return None


def newest_batch(segments: Sequence[Segment]) -> tuple[int, LogSlice] | None:
    """The largest timestamp in the log, and the first batch that has it."""
    filled = [segment for segment in segments if segment.size_bytes]
    if not filled:
        return None
    segment = max(filled, key=Segment.latest_timestamp)
    located = segment.locate(segment.indexes.newest_offset)
    assert located is not None
    return segment.latest_timestamp(), LogSlice(segment.log.get(), *located)


def first_record_at(batch: Bytes, target_ms: int, from_offset: int = 0) -> tuple[int, int] | None:
    """Offset and timestamp of the first record at or after both; None if the batch has none."""
    for record in decode_records(batch):
        if record.timestamp >= target_ms and record.offset >= from_offset:
            return record.offset, record.timestamp
    return None
