"""The `.cleaned` files of one new segment: its log, written in order, and the indexes that follow from it.

The files are durable when `finish` returns; their names become so when `segment_swap` puts them in place.
"""

from __future__ import annotations

from collections.abc import Container
from contextlib import suppress

from flowstone.kernel.compaction import IndexBuilder
from flowstone.log.segments.compaction_job import CLEANED_SUFFIX, CleanedSegment, CompactionError, SourceSegment
from flowstone.log.segments.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_path,
)
from flowstone.log.segments.transaction_index import decode_aborts, encode_aborts, is_sound
from flowstone.log.workers.throttle import Throttle
from flowstone.ports import page_cache
from flowstone.ports.files import File, Files
from flowstone.types import Bytes

# This many bytes at a time are queued for the disk without a flush of their own. The broker's frequent flushes then
# each write a little of them. A flush of many megabytes would delay one of those for long, one per piece would delay
# them all.
WRITE_BACK_BYTES = 256 << 10
POSITION_MAX = 2**31 - 1  # the largest position that an index entry can hold


class CleanedOutput:
    def __init__(
        self, files: Files, directory: str, group: tuple[SourceSegment, ...], interval_bytes: int, throttle: Throttle
    ) -> None:
        self._files, self._directory, self._group, self._throttle = files, directory, group, throttle
        self._indexes = IndexBuilder(group[0].base_offset, interval_bytes)
        self._file = self._create(LOG_SUFFIX)
        self._size_bytes = self._begun_bytes = 0

    def write(self, batches: Bytes) -> None:
        """Append whole batches that follow those written. Raises CompactionError if the segment grows too large."""
        if not batches:
            return
        if self._size_bytes + len(batches) > POSITION_MAX:
            raise CompactionError(f"{self._file.path}: a segment cannot be larger than {POSITION_MAX} bytes")
        self._throttle.spend(len(batches))
        self._file.write(self._size_bytes, [batches])
        self._indexes.add(batches)
        self._size_bytes += len(batches)
        if self._size_bytes - self._begun_bytes >= WRITE_BACK_BYTES:
            with suppress(OSError):  # a simulated file has no descriptor
                page_cache.begin_writing(self._file.fileno(), self._begun_bytes, self._size_bytes - self._begun_bytes)
            self._begun_bytes = self._size_bytes

    def finish(self, removed_markers: Container[int]) -> CleanedSegment:
        """Finish the segment. `removed_markers` are the offsets of markers removed with their transactions."""
        self._indexes.close()
        self._file.sync()
        self._file.close()
        offsets_bytes = self._write_index(INDEX_SUFFIX, self._indexes.offset_entries)
        times_bytes = self._write_index(TIME_INDEX_SUFFIX, self._indexes.time_entries)
        aborts = self._remaining_aborts(removed_markers)
        aborts_bytes = self._write_index(TRANSACTION_INDEX_SUFFIX, aborts) if aborts is not None else None
        begin, end = self._group[0].base_offset, self._group[-1].end_offset
        return CleanedSegment(begin, end, self._size_bytes, offsets_bytes, times_bytes, aborts_bytes)

    def _write_index(self, suffix: str, entries: Bytes) -> int:
        index = self._create(suffix)
        index.write(0, [entries])
        index.sync()
        index.close()
        return len(entries)

    def _remaining_aborts(self, removed_markers: Container[int]) -> bytes | None:
        """Return the group's transaction index, or None if no segment of it has one."""
        aborts, has_any = list[bytes](), False
        for segment in self._group:
            path = segment_path(self._directory, segment.base_offset, TRANSACTION_INDEX_SUFFIX)
            if not self._files.exists(path):
                continue
            has_any, data = True, self._files.read(path)
            if not is_sound(data, segment.base_offset, segment.end_offset):
                raise CompactionError(f"{path} is damaged; the next start builds it again")
            left = (entry for entry in decode_aborts(data) if entry.marker_offset not in removed_markers)
            aborts.append(encode_aborts(left))
        return b"".join(aborts) if has_any else None

    def _create(self, suffix: str) -> File:
        path = segment_path(self._directory, self._group[0].base_offset, suffix) + CLEANED_SUFFIX
        file = self._files.open(path, create=True)
        file.truncate(0)
        return file
