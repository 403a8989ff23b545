"""The offset index and time index of one segment: which batches they name, where they are stored, how they are
replaced.

Kafka's rules: whenever more than `index.interval.bytes` were appended since the last entry, the next batch gets one
in the offset index (its last offset and its position), and, if the newest timestamp so far has risen, one in the
time index (that timestamp and the last offset of its batch). A closing entry of the time index names the newest
timestamp of all.

While the segment is active the entries are in memory; `write` puts them into their files, and from `seal` on they
are searched there. What is in a file may be wrong: the segment checks every entry it uses.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right

from flowstone.log.segments.file_handles import Handle
from flowstone.log.segments.sparse_index import OFFSET_ENTRY, TIME_ENTRY, Index, IndexEntries, SealedIndex
from flowstone.wire.record_batch import BatchHeader

NO_TIMESTAMP = -1


def newest_timestamp(header: BatchHeader) -> int:
    """Return the newest timestamp of a batch's records; a batch that compaction has emptied has none."""
    return header.max_timestamp if header.record_count else NO_TIMESTAMP


class SegmentIndexes:
    __slots__ = (
        "_base_offset",
        "interval_bytes",
        "newest_offset",
        "newest_timestamp",
        "offset_handle",
        "offsets",
        "own_from",
        "time_handle",
        "times",
    )

    def __init__(self, base_offset: int, offset_handle: Handle, time_handle: Handle, interval_bytes: int) -> None:
        self._base_offset = base_offset
        self.offset_handle, self.time_handle = offset_handle, time_handle
        self.interval_bytes = interval_bytes
        # None: the file is missing, or malformed.
        self.offsets: Index | None = IndexEntries(OFFSET_ENTRY)
        self.times: Index | None = IndexEntries(TIME_ENTRY)
        self.newest_timestamp: int | None = NO_TIMESTAMP  # None: not read from the sealed index yet
        self.newest_offset = base_offset  # the last offset of the batch with the newest timestamp
        # Entries that lead to this position or beyond were made here, from batches that were appended: they are right.
        self.own_from = 0

    def note(self, position: int, last_offset: int, timestamp: int) -> None:
        """Record that a batch was appended at `position`, and add the index entries that are due."""
        assert self.newest_timestamp is not None
        if timestamp > self.newest_timestamp:
            self.newest_timestamp, self.newest_offset = timestamp, last_offset
        offsets = self.offsets
        assert isinstance(offsets, IndexEntries)
        if position - (offsets.values[-1] if offsets.values else 0) > self.interval_bytes:
            offsets.append(last_offset - self._base_offset, position)
            self.add_time_entry()

    def add_time_entry(self) -> None:
        assert isinstance(self.times, IndexEntries)
        assert self.newest_timestamp is not None
        if self.newest_timestamp > (self.times.keys[-1] if self.times.keys else NO_TIMESTAMP):
            self.times.append(self.newest_timestamp, self.newest_offset - self._base_offset)

    def is_full(self, index_bytes_max: int) -> bool:
        """Return whether an index has no space for another entry besides the time index's closing one."""
        offsets, times = self.offsets, self.times
        assert isinstance(offsets, IndexEntries)
        assert isinstance(times, IndexEntries)
        return (
            len(offsets.keys) >= index_bytes_max // OFFSET_ENTRY.size
            or len(times.keys) >= index_bytes_max // TIME_ENTRY.size - 1
        )

    def write(self) -> None:
        """Write the entries, with the closing one, into their files; the caller syncs them. Raises OSError."""
        assert isinstance(self.offsets, IndexEntries)
        assert isinstance(self.times, IndexEntries)
        self.add_time_entry()
        for handle, entries in ((self.offset_handle, self.offsets), (self.time_handle, self.times)):
            data = entries.encode()
            file = handle.create_own()
            file.write(0, [data])
            if file.size() > len(data):
                file.truncate(len(data))

    def seal(self) -> None:
        """Record that no append follows: entries are searched in the files from now on."""
        assert self.offsets is not None
        assert self.times is not None
        self.open_sealed(len(self.offsets) * OFFSET_ENTRY.size, len(self.times) * TIME_ENTRY.size)

    def open_sealed(self, offset_index_bytes: int | None, time_index_bytes: int | None) -> None:
        """Use the existing files of a sealed segment; a size of None means that the file is missing."""
        self.offsets = self.times = None
        self.own_from = sys.maxsize
        if offset_index_bytes is not None and offset_index_bytes % OFFSET_ENTRY.size == 0:
            self.offsets = SealedIndex(OFFSET_ENTRY, self.offset_handle, offset_index_bytes)
        if time_index_bytes is not None and time_index_bytes % TIME_ENTRY.size == 0:
            self.times = SealedIndex(TIME_ENTRY, self.time_handle, time_index_bytes)

    def open_active(self, offsets: IndexEntries, times: IndexEntries) -> None:
        """Continue with entries that were read back from their files."""
        self.offsets, self.times = offsets, times
        self.own_from = offsets.values[-1] + 1 if offsets.values else 0
        if times.keys:
            self.newest_timestamp, self.newest_offset = times.keys[-1], self._base_offset + times.values[-1]

    def replace(self, fresh: SegmentIndexes, covered_bytes: int, size_bytes: int) -> None:
        """Replace the indexes by ones rebuilt from the log's first `covered_bytes`; keep the entries added since."""
        assert isinstance(fresh.offsets, IndexEntries)
        assert isinstance(fresh.times, IndexEntries)
        if isinstance(self.offsets, IndexEntries) and isinstance(self.times, IndexEntries):
            newest = fresh.times.keys[-1] if fresh.times.keys else NO_TIMESTAMP
            fresh.offsets.extend(self.offsets, bisect_left(self.offsets.values, covered_bytes))
            fresh.times.extend(self.times, bisect_right(self.times.keys, newest))
        elif covered_bytes == size_bytes:
            self.newest_timestamp, self.newest_offset = fresh.newest_timestamp, fresh.newest_offset
        else:
            return  # sealed meanwhile with the damaged index: rebuild again
        self.offsets, self.times = fresh.offsets, fresh.times
