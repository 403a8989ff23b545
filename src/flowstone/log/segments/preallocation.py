"""Preallocated space beyond the end of an active segment, made at a flush so that later flushes write less (ADR 0014).

- A log with small flushes gets zeros. Later batches overwrite blocks that exist, and a flush writes only these: neither
  the file's size nor the list of its blocks changes. Until the zeros are used up or released, the file is longer than
  the segment.
- A log with large flushes gets blocks beyond the end of the file, whose size stays the same: writing zeros there first
  would cost more than it saves.

Unused space is released when a segment is sealed, and at a clean stop. Until then, and after any other stop, the file
may end in zeros. No batch begins with so many zeros, so they cannot be taken for one. If the disk is full, nothing is
preallocated.
"""

from __future__ import annotations

from contextlib import suppress

from flowstone.log.segments.partition_directory import LogPosition
from flowstone.log.segments.segment import RELATIVE_OFFSET_MAX, Segment
from flowstone.ports.files import File

SMALL_FLUSH_BYTES = 48 << 10
# The preallocated bytes are as many as the segment has, within bounds; none for a segment smaller than this.
ZEROS_FROM_BYTES, ZEROS_BYTES_MIN, ZEROS_BYTES_MAX = 4 << 10, 64 << 10, 512 << 10
RESERVED_FROM_BYTES, RESERVED_BYTES_MAX = 1 << 20, 8 << 20
_CHUNK_BYTES = 1 << 16

_zeros = memoryview(bytes(ZEROS_BYTES_MAX))


def preallocate(segment: Segment, flushed_end: LogPosition) -> None:
    """Preallocate space after a flush that begins at `flushed_end`, unless the segment is small or the disk full."""
    end = segment.size_bytes
    begin = flushed_end.position if flushed_end.segment_base_offset == segment.base_offset else 0
    if begin < end <= begin + SMALL_FLUSH_BYTES and end >= ZEROS_FROM_BYTES:
        count = min(max(end, ZEROS_BYTES_MIN), ZEROS_BYTES_MAX)
        _write_zeros(segment, count)
    elif end > begin + SMALL_FLUSH_BYTES and end >= RESERVED_FROM_BYTES:
        count = min(end, RESERVED_BYTES_MAX)
        segment.log.get().reserve(end, count)
    else:
        return
    segment.preallocated_end = end + count


def _write_zeros(segment: Segment, count: int) -> None:
    """Write zeros after the segment's end. An error is ignored here: the next append reports a full disk."""
    try:
        segment.log.get().write(segment.size_bytes, [_zeros[:count]])
    except OSError:
        with suppress(OSError):
            segment.log.get().truncate(segment.size_bytes)


def release_unused(segment: Segment) -> None:
    """Release preallocated space that was not used, also that of an earlier run. Raises OSError."""
    if segment.preallocated_end or segment.size_bytes >= RESERVED_FROM_BYTES:
        cut_to_size(segment)


def cut_to_size(segment: Segment) -> None:
    """Remove whatever lies beyond the segment's end in its file. Raises OSError."""
    segment.ahead = None
    segment.log.get().truncate(segment.size_bytes)
    segment.preallocated_end = 0


def stop_preallocating(segment: Segment) -> None:
    segment.preallocated_end = RELATIVE_OFFSET_MAX


def is_preallocated(file: File, begin: int, end: int) -> bool:
    """Return whether the bytes from `begin` to the file's end are unused preallocated space. Waits for the disk."""
    return end - begin <= ZEROS_BYTES_MAX and written_end(file, end) <= begin


def written_end(file: File, end: int) -> int:
    """Return where the last byte that is not zero ends, up to `end`; zeros follow. Waits for the disk."""
    while end:
        begin = max(end - _CHUNK_BYTES, 0)
        data = file.read(begin, end - begin).rstrip(b"\0")
        if data:
            return begin + len(data)
        end = begin
    return 0
