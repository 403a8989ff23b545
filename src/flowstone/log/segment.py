"""One segment: a log file that begins at its base offset, and the indexes over it.

Owns where batches lie in the file and which of them the indexes name (Kafka's rules: after every
`index.interval.bytes`, the last offset of a batch with its position, and the newest timestamp so far with its
offset). It knows nothing of producers, flushing or the segments beside it.

The active segment is appended to and keeps its indexes in memory; `seal` writes them out. A sealed segment reads
them through the page cache and trusts none of it: an entry that does not lead to the batch it names makes the index
damaged, and a damaged index is built again from the log (`IndexDamaged.warm`), off the loop like any other read that
must wait.
"""

from __future__ import annotations

from struct import Struct

from flowstone.errors import StorageFault
from flowstone.log.handles import FileHandles, Handle
from flowstone.log.index import OFFSET_ENTRY, TIME_ENTRY, Index, IndexEntries, SealedIndex
from flowstone.log.reading import NotCached, read_cached
from flowstone.log.scanning import DamagedBatch, scan
from flowstone.ports.files import File
from flowstone.types import Bytes
from flowstone.wire.record_batch import HEADER_BYTES, MAGIC, BatchHeader, parse_header

RELATIVE_OFFSET_MAX = 2**31 - 1
NO_TIMESTAMP = -1
WALK_BYTES = 2048  # headers are looked for in reads of this size: several small batches, or one header of a large one
LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX = ".log", ".index", ".timeindex"

# Base offset, length, magic, last offset delta: what a walk needs of a header.
_WALK = Struct(">qi4xb6xi")
_LOG_OVERHEAD = 12


def segment_path(directory: str, base_offset: int, suffix: str) -> str:
    return f"{directory}/{base_offset:020d}{suffix}"


class IndexDamaged(NotCached):
    """A sealed segment's index is missing or wrong; `warm` builds it again."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment.log.get(), 0, segment.size_bytes)
        self.segment = segment

    def warm(self) -> None:
        self.segment.rebuild_indexes(self.file)


class Segment:
    __slots__ = (
        "_handles",
        "_index_interval_bytes",
        "_last_batch_offset",
        "_last_batch_position",
        "_unindexed_bytes",
        "base_offset",
        "created_ms",
        "directory",
        "first_timestamp",
        "index",
        "log",
        "max_timestamp",
        "max_timestamp_offset",
        "offsets",
        "size_bytes",
        "time_index",
        "times",
    )

    def __init__(
        self, handles: FileHandles, directory: str, base_offset: int, *, created_ms: int, index_interval_bytes: int
    ) -> None:
        """An empty active segment; its files are made by whoever makes names."""
        self._handles = handles
        self.directory = directory
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.log: Handle = handles.handle(segment_path(directory, base_offset, LOG_SUFFIX))
        self.index: Handle = handles.handle(segment_path(directory, base_offset, INDEX_SUFFIX))
        self.time_index: Handle = handles.handle(segment_path(directory, base_offset, TIME_INDEX_SUFFIX))
        self.size_bytes = 0
        self._index_interval_bytes = index_interval_bytes
        self._unindexed_bytes = 0
        self._last_batch_offset = base_offset
        self._last_batch_position = 0
        # None: a sealed segment whose index must be built again before it can be used.
        self.offsets: Index | None = IndexEntries(OFFSET_ENTRY)
        self.times: Index | None = IndexEntries(TIME_ENTRY)
        self.max_timestamp: int | None = NO_TIMESTAMP  # None: not read from the sealed index yet
        self.max_timestamp_offset = base_offset
        self.first_timestamp = NO_TIMESTAMP  # of the first batch; time rolls count from it

    @property
    def handles(self) -> tuple[Handle, Handle, Handle]:
        return self.log, self.index, self.time_index

    def append(self, buffers: list[Bytes], base_offset: int, size_bytes: int, last_offset: int, timestamp: int) -> None:
        """Writes one batch at the end. OSError if the file does not take it: the caller restores the size."""
        position = self.size_bytes
        self.log.pinned = True
        self.log.get().write(position, buffers)
        self.note(position, base_offset, size_bytes, last_offset, timestamp)

    def note(self, position: int, base_offset: int, size_bytes: int, last_offset: int, timestamp: int) -> None:
        """A batch now lies at `position`, the segment's end."""
        assert position == self.size_bytes
        assert self.max_timestamp is not None
        if timestamp > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = timestamp, last_offset
        if position == 0:
            self.first_timestamp = timestamp
        if self._unindexed_bytes > self._index_interval_bytes:
            self._add_index_entries(position, last_offset)
        self._unindexed_bytes += size_bytes
        self._last_batch_offset, self._last_batch_position = base_offset, position
        self.size_bytes = position + size_bytes

    def _add_index_entries(self, position: int, last_offset: int) -> None:
        assert isinstance(self.offsets, IndexEntries)
        self.offsets.append(last_offset - self.base_offset, position)
        self._add_time_entry()
        self._unindexed_bytes = 0

    def _add_time_entry(self) -> None:
        assert isinstance(self.times, IndexEntries)
        assert self.max_timestamp is not None
        if self.max_timestamp > (self.times.keys[-1] if self.times.keys else NO_TIMESTAMP):
            self.times.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def is_full(self, index_bytes_max: int) -> bool:
        """Whether an index has no room for another entry (and the time index for its last one, at the seal)."""
        assert self.offsets is not None
        assert self.times is not None
        return (
            len(self.offsets) >= index_bytes_max // OFFSET_ENTRY.size
            or len(self.times) >= index_bytes_max // TIME_ENTRY.size - 1
        )

    def write_indexes(self) -> None:
        """Puts the indexes into their files, with the time index's closing entry; the caller has them synced."""
        assert isinstance(self.offsets, IndexEntries)
        assert isinstance(self.times, IndexEntries)
        self._add_time_entry()
        for handle, entries in ((self.index, self.offsets), (self.time_index, self.times)):
            data = entries.encode()
            file = handle.create()
            file.truncate(len(data))
            file.write(0, [data])

    def seal(self) -> None:
        """No append comes any more: the indexes, written out, are searched in their files from now on."""
        assert self.offsets is not None
        assert self.times is not None
        self.offsets = SealedIndex(OFFSET_ENTRY, self.index, len(self.offsets) * OFFSET_ENTRY.size)
        self.times = SealedIndex(TIME_ENTRY, self.time_index, len(self.times) * TIME_ENTRY.size)

    def open_sealed(self, size_bytes: int, index_bytes: int | None, time_index_bytes: int | None) -> None:
        """Takes up the files of a segment sealed in an earlier life, as found; None is a missing index."""
        self.size_bytes = size_bytes
        self._last_batch_offset = self._last_batch_position = -1
        self.max_timestamp = None
        self.offsets = self.times = None
        if index_bytes is None or time_index_bytes is None:
            return
        if index_bytes % OFFSET_ENTRY.size or time_index_bytes % TIME_ENTRY.size:
            return
        self.offsets = SealedIndex(OFFSET_ENTRY, self.index, index_bytes)
        self.times = SealedIndex(TIME_ENTRY, self.time_index, time_index_bytes)

    def locate(self, offset: int) -> tuple[int, int]:
        """Position and size of the batch that holds `offset`, or else of the first one after it."""
        if offset >= self._last_batch_offset >= 0 and self.size_bytes:
            return self._last_batch_position, self.size_bytes - self._last_batch_position
        if self.offsets is None:
            raise IndexDamaged(self)
        found = self.offsets.lookup(offset - self.base_offset)
        file = self.log.get()
        if found is None:
            return self._walk(file, 0, offset, None)
        return self._walk(file, found[1], offset, self.base_offset + found[0])

    def _walk(self, file: File, position: int, offset: int, indexed_offset: int | None) -> tuple[int, int]:
        """From the batch at `position` on; `indexed_offset` is the last offset the index says that batch has."""
        end = self.size_bytes
        data, start = b"", position
        while position + HEADER_BYTES <= end:
            if position + _WALK.size > start + len(data):
                data, start = read_cached(file, position, min(WALK_BYTES, end - position)), position
            base_offset, length, magic, delta = _WALK.unpack_from(data, position - start)
            last_offset = base_offset + delta
            if indexed_offset is not None and last_offset != indexed_offset:
                self.offsets = None
                raise IndexDamaged(self)
            indexed_offset = None
            size_bytes = length + _LOG_OVERHEAD
            if magic != MAGIC or size_bytes < HEADER_BYTES or position + size_bytes > end or delta < 0:
                raise self.fault(position, offset)
            if last_offset >= offset:
                return position, size_bytes
            position += size_bytes
        if indexed_offset is not None:  # the index leads beyond the log
            self.offsets = None
            raise IndexDamaged(self)
        raise self.fault(position, offset)

    def fault(self, position: int, offset: int) -> StorageFault:
        return StorageFault(
            f"{self.directory}: no valid batch at position {position} of {self.log.path}, looking for offset {offset}"
        )

    def find_timestamp(self, target_ms: int, from_offset: int) -> tuple[int, int] | None:
        """Position and size of the first batch, at or after `from_offset`, with a record at or after `target_ms`."""
        if self.times is None:
            raise IndexDamaged(self)
        offset = max(self.base_offset, from_offset)
        found = self.times.lookup(target_ms)
        if found is not None:
            self._check_time_entry(*found)
            offset = max(offset, self.base_offset + found[1])
        position, _size_bytes = self.locate(offset)
        file = self.log.get()
        while True:
            header = self.header_at(file, position)
            if header.max_timestamp >= target_ms:
                return position, header.size_bytes
            position += header.size_bytes
            if position >= self.size_bytes:
                return None

    def latest_timestamp(self) -> int:
        """The newest timestamp in the segment; NotCached if a sealed one's index has to be read first."""
        if self.max_timestamp is None:
            if self.times is None:
                raise IndexDamaged(self)
            last = self.times.lookup(2**63 - 1)
            if last is not None:
                self._check_time_entry(*last)
                self.max_timestamp_offset = self.base_offset + last[1]
            self.max_timestamp = last[0] if last is not None else NO_TIMESTAMP
        return self.max_timestamp

    def _check_time_entry(self, timestamp: int, relative_offset: int) -> None:
        """An entry of a time index names the batch that holds its timestamp; a wrong one would skip records."""
        if isinstance(self.times, IndexEntries):
            return
        offset = self.base_offset + relative_offset
        header = None
        if relative_offset >= 0:
            position, _size = self.locate(offset)
            header = self.header_at(self.log.get(), position)
        if header is None or header.last_offset != offset or header.max_timestamp != timestamp:
            self.offsets = self.times = None
            raise IndexDamaged(self)

    def header_at(self, file: File, position: int) -> BatchHeader:
        data = read_cached(file, position, HEADER_BYTES)
        header = parse_header(data) if len(data) == HEADER_BYTES and data[16] == MAGIC else None
        if header is None or position + header.size_bytes > self.size_bytes:
            raise self.fault(position, self.base_offset)
        return header

    def rebuild_indexes(self, file: File) -> None:
        """Builds a sealed segment's indexes again from its log. Waits for the disk; runs in a reader thread."""
        fresh = Segment(
            self._handles,
            self.directory,
            self.base_offset,
            created_ms=self.created_ms,
            index_interval_bytes=self._index_interval_bytes,
        )
        try:
            for position, header in scan(file, 0, self.size_bytes, self.base_offset, verify=False, gaps_allowed=True):
                fresh.note(position, header.base_offset, header.size_bytes, header.last_offset, header.max_timestamp)
        except DamagedBatch as damage:
            raise StorageFault(f"{self.log.path}: {damage}") from None
        fresh._add_time_entry()
        assert isinstance(fresh.offsets, IndexEntries)
        assert isinstance(fresh.times, IndexEntries)
        self._handles.files.replace(self.index.path, fresh.offsets.encode())
        self._handles.files.replace(self.time_index.path, fresh.times.encode())
        # They serve from memory until the next start, which finds good files.
        self.max_timestamp_offset = fresh.max_timestamp_offset
        self.max_timestamp = fresh.max_timestamp
        self.times = fresh.times
        self.offsets = fresh.offsets
