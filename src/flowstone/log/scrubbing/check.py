"""Checks one segment for the scrubber: reads all of it, slowly, and says what is wrong. Changes nothing.

A sealed segment is good when every batch is whole with its checksum right and its records can be read, offsets rise,
and it ends where the next one begins. The caller's file decides how fast bytes are read and what stays in the page
cache.
"""

from __future__ import annotations

from typing import NamedTuple

from flowstone.log.partition.readability import why_unreadable
from flowstone.log.segments.batch_scan import DamagedBatch, scan
from flowstone.ports.files import File


class SegmentToCheck(NamedTuple):
    path: str  # of the segment's log file
    base_offset: int
    end_offset: int  # where the next segment begins
    size_bytes: int


def check_segment(file: File, segment: SegmentToCheck) -> str | None:
    """Return what is wrong with a segment, as a clause, or None if nothing is. Raises OSError if it cannot be read."""
    size_bytes = file.size()
    if size_bytes < segment.size_bytes:
        return f"it has {size_bytes} bytes and should have {segment.size_bytes}"
    next_offset = segment.base_offset
    batches = scan(
        file,
        0,
        segment.size_bytes,
        segment.base_offset,
        verify_from_offset=segment.base_offset,
        holes_end_max=segment.end_offset,
        inspect=why_unreadable,
    )
    try:
        for batch in batches:
            next_offset = batch.header.next_offset
    except DamagedBatch as damage:
        return str(damage)
    if next_offset != segment.end_offset:
        return f"it ends at offset {next_offset}, not at {segment.end_offset}"
    return None
