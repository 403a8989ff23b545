"""Room beyond the end of an active segment, found at a flush so that the next ones have less to write (ADR 0014).

- A log that is flushed a little at a time gets zeros. What comes then lies in blocks that are there, and a flush writes
  these and nothing else: neither the file's size, nor where its blocks are. Until the zeros are used up or given back,
  the file is longer than the segment.
- A log that is flushed much at a time gets blocks beyond the end of the file, whose size stays: to write zeros there
  first would cost more than it saves.

What is left is given back when a segment is sealed, and at a clean stop. Until then, and after any other stop, the file
may end in zeros. No batch begins with so many, so that they can be told from one. Where the disk has no room, all works
without.
"""

from __future__ import annotations

from contextlib import suppress

from flowstone.log.segments.partition_directory import LogPosition
from flowstone.log.segments.segment import RELATIVE_OFFSET_MAX, Segment
from flowstone.ports.files import File

SMALL_FLUSH_BYTES = 48 << 10
# As much again as there is, within bounds; nothing for a log that has less than this.
ZEROS_FROM_BYTES, ZEROS_BYTES_MIN, ZEROS_BYTES_MAX = 4 << 10, 64 << 10, 512 << 10
RESERVED_FROM_BYTES, RESERVED_BYTES_MAX = 1 << 20, 8 << 20
_LOOK_BYTES = 1 << 16

_zeros = memoryview(bytes(ZEROS_BYTES_MAX))


def preallocate(segment: Segment, flushed_end: LogPosition) -> None:
    """Preallocate space after the flushed end, if the segment is large enough and the disk has space."""
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
    """A full disk keeps what it had left; the write that follows will tell."""
    try:
        segment.log.get().write(segment.size_bytes, [_zeros[:count]])
    except OSError:
        with suppress(OSError):
            segment.log.get().truncate(segment.size_bytes)


def give_back(segment: Segment) -> None:
    """What was found and not used, in this life or before, is free again. OSError."""
    if segment.preallocated_end or segment.size_bytes >= RESERVED_FROM_BYTES:
        segment.log.get().truncate(segment.size_bytes)
        segment.preallocated_end = 0


def stop_preallocating(segment: Segment) -> None:
    segment.preallocated_end = RELATIVE_OFFSET_MAX


def is_preallocated(file: File, begin: int, end: int) -> bool:
    """Return whether the file has only unused preallocated zeros from `begin` on. Waits for the disk."""
    return end - begin <= ZEROS_BYTES_MAX and written_end(file, end) <= begin


def written_end(file: File, end: int) -> int:
    """Where the last byte lies, up to `end`, that is not zero; what follows may be room. Waits for the disk."""
    while end:
        begin = max(end - _LOOK_BYTES, 0)
        data = file.read(begin, end - begin).rstrip(b"\0")
        if data:
            return begin + len(data)
        end = begin
    return 0
