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
from flowstone.wire.record_batch import HEADER_BYTES, LOG_OVERHEAD, MAGIC, BatchHeader, CorruptBatch, parse_header

RELATIVE_OFFSET_MAX = 2**31 - 1
NO_TIMESTAMP = -1
WALK_BYTES = 2048  # headers are looked for in reads of this size: several small batches, or one header of a large one
WALK_FAR_BYTES = 256 * 1024  # an index may also have been made under another interval
CLOSING_WALK_BYTES = 16384
_TIMESTAMP_MAX = 2**63 - 1
OFFSET_DIGITS = 20  # of a base offset in a file's name
LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX = ".log", ".index", ".timeindex"

# Base offset, length, magic, last offset delta: what a walk needs of a header.
_WALK = Struct(">qi4xb6xi")


def segment_path(directory: str, base_offset: int, suffix: str) -> str:
    return f"{directory}/{base_offset:0{OFFSET_DIGITS}d}{suffix}"


class IndexDamaged(NotCached):
    """An index is missing or wrong; `warm` builds it again, and the next call takes it over."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment.log.get(), 0, segment.size_bytes)
        self._segment = segment

    def warm(self) -> None:
        self._segment.rebuilt = self._segment.rebuild(self.file, self.count)


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
        "next_offset",
        "offsets",
        "rebuilt",
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
        self.next_offset = base_offset  # known of the segment that is, or was in this life, appended to
        self._index_interval_bytes = index_interval_bytes
        self._unindexed_bytes = 0
        self._last_batch_offset = base_offset
        self._last_batch_position = 0
        # None: a sealed segment whose index must be built again before it can be used.
        self.offsets: Index | None = IndexEntries(OFFSET_ENTRY)
        self.times: Index | None = IndexEntries(TIME_ENTRY)
        self.max_timestamp: int | None = NO_TIMESTAMP  # None: not read from the sealed index yet
        self.max_timestamp_offset = base_offset
        self.rebuilt: Segment | None = None  # left by a reader thread that built the indexes again
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
        self.next_offset = last_offset + 1
        self.size_bytes = position + size_bytes

    def _add_index_entries(self, position: int, last_offset: int) -> None:
        assert isinstance(self.offsets, IndexEntries)
        self.offsets.append(last_offset - self.base_offset, position)
        self.add_time_entry()
        self._unindexed_bytes = 0

    def add_time_entry(self) -> None:
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
        self.add_time_entry()
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

    def open_active(self, size_bytes: int, offsets: IndexEntries, times: IndexEntries) -> int | None:
        """Takes up the last segment as a clean stop left it; its end offset, or None if the indexes do not fit.

        NotCached like any read.
        """
        last_position = offsets.values[-1] if offsets.values else 0
        if last_position >= max(size_bytes, 1) or bool(size_bytes) != bool(times.keys):
            return None
        self.offsets, self.times, self.size_bytes = offsets, times, size_bytes
        self._last_batch_offset = -1  # not known yet
        self._unindexed_bytes = size_bytes - last_position
        if not size_bytes:
            self._last_batch_offset = self.base_offset
            return self.base_offset
        try:
            self.first_timestamp = self.header_at(0).max_timestamp
            self._check_time_entry(times.keys[-1], times.values[-1])
            position, header = last_position, self.header_at(last_position)
            if offsets.keys and header.last_offset != self.base_offset + offsets.keys[-1]:
                return None
            while position + header.size_bytes < size_bytes:
                position += header.size_bytes
                header = self.header_at(position)
        except (IndexDamaged, StorageFault):
            return None
        self.max_timestamp, self.max_timestamp_offset = times.keys[-1], self.base_offset + times.values[-1]
        self._last_batch_offset, self._last_batch_position = header.base_offset, position
        return header.next_offset

    def locate(self, offset: int) -> tuple[int, int] | None:
        """Position and size of the batch that holds `offset`; None if the segment ends before it."""
        if offset >= self._last_batch_offset >= 0 and self.size_bytes:
            return self._last_batch_position, self.size_bytes - self._last_batch_position
        if self.rebuilt is not None:
            self._take_rebuilt()
        if self.offsets is None:
            raise IndexDamaged(self)
        found = self.offsets.lookup(offset - self.base_offset)
        if found is None:
            return self._walk(0, offset)
        relative_offset, position = found
        header = self._header(position) if 0 <= position < self.size_bytes else None
        if header is None or header.last_offset != self.base_offset + relative_offset:
            raise IndexDamaged(self)
        return self._walk(position, offset, header.base_offset)

    def _walk(self, position: int, offset: int, base_offset: int | None = None) -> tuple[int, int] | None:
        """From batch to batch, the first of which begins with `base_offset`, to the one that holds `offset`."""
        file, end = self.log.get(), self.size_bytes
        expected_offset = self.base_offset if base_offset is None else base_offset
        # From one index entry to the next it is an interval and a batch; beyond that entries must have been lost.
        far = position + max(self._index_interval_bytes, WALK_FAR_BYTES)
        data, start, size_bytes = b"", position, 0
        while position < end:
            if position - size_bytes > far:
                raise IndexDamaged(self)
            if position + _WALK.size > start + len(data):
                data, start = read_cached(file, position, min(WALK_BYTES, end - position)), position
                if len(data) < _WALK.size:
                    raise self.fault(position, offset)
            base_offset, length, magic, delta = _WALK.unpack_from(data, position - start)
            size_bytes = length + LOG_OVERHEAD
            if (
                magic != MAGIC
                or base_offset != expected_offset
                or delta < 0
                or size_bytes < HEADER_BYTES
                or position + size_bytes > end
            ):
                raise self.fault(position, offset)
            expected_offset = base_offset + delta + 1
            if offset < expected_offset:
                return position, size_bytes
            position += size_bytes
        return None

    def fault(self, position: int, offset: int) -> StorageFault:
        return StorageFault(
            f"{self.directory}: no valid batch at position {position} of {self.log.path}, looking for offset {offset}"
        )

    def find_timestamp(self, target_ms: int, from_offset: int) -> tuple[int, int] | None:
        """Position and size of the first batch, at or after `from_offset`, with a record at or after `target_ms`."""
        if self.rebuilt is not None:
            self._take_rebuilt()
        if self.times is None:
            raise IndexDamaged(self)
        offset = max(self.base_offset, from_offset)
        found = self.times.lookup(target_ms)
        if found is not None:
            self._check_time_entry(*found)
            offset = max(offset, self.base_offset + found[1])
        located = self.locate(offset)
        position = located[0] if located is not None else self.size_bytes
        while position < self.size_bytes:
            header = self.header_at(position)
            if header.max_timestamp >= target_ms:
                return position, header.size_bytes
            position += header.size_bytes
        return None

    def latest_timestamp(self) -> int:
        """The newest timestamp in the segment; NotCached if a sealed one's index has to be read first."""
        if self.rebuilt is not None:
            self._take_rebuilt()
        if self.max_timestamp is None:
            if self.times is None:
                raise IndexDamaged(self)
            last = self.times.lookup(_TIMESTAMP_MAX)
            if last is None:
                raise IndexDamaged(self)
            self._check_time_entry(*last)
            self._check_closing_entry(*last)
            self.max_timestamp, self.max_timestamp_offset = last[0], self.base_offset + last[1]
        return self.max_timestamp

    def _check_closing_entry(self, timestamp: int, relative_offset: int) -> None:
        """Nothing after the last entry may be newer, or retention would take the segment too early.

        As a rule its batch is the segment's last, or nearly. Where it is not, the index is better made again.
        """
        located = self.locate(self.base_offset + relative_offset)
        assert located is not None
        position = sum(located)
        if self.size_bytes - position > CLOSING_WALK_BYTES:
            raise IndexDamaged(self)
        while position < self.size_bytes:
            header = self.header_at(position)
            if header.max_timestamp > timestamp:
                raise IndexDamaged(self)
            position += header.size_bytes

    def _check_time_entry(self, timestamp: int, relative_offset: int) -> None:
        """An entry of a time index names the batch that holds its timestamp; a wrong one would skip records."""
        offset = self.base_offset + relative_offset
        located = self.locate(offset) if relative_offset >= 0 else None
        header = self._header(located[0]) if located is not None else None
        if header is None or header.last_offset != offset or header.max_timestamp != timestamp:
            raise IndexDamaged(self)

    def header_at(self, position: int) -> BatchHeader:
        """The header of the batch that must be there."""
        header = self._header(position)
        if header is None:
            raise self.fault(position, self.base_offset)
        return header

    def _header(self, position: int) -> BatchHeader | None:
        """The header of the batch at `position`, None if no batch can be there."""
        data = read_cached(self.log.get(), position, HEADER_BYTES)
        try:
            header = parse_header(data)
        except CorruptBatch:
            return None
        return header if position + header.size_bytes <= self.size_bytes else None

    def rebuild(self, file: File, size_bytes: int) -> Segment:
        """The same segment up to `size_bytes`, its indexes made afresh. Waits for the disk: for a reader thread."""
        fresh = Segment(
            self._handles,
            self.directory,
            self.base_offset,
            created_ms=self.created_ms,
            index_interval_bytes=self._index_interval_bytes,
        )
        try:
            for position, header in scan(file, 0, size_bytes, self.base_offset):
                fresh.note(position, header.base_offset, header.size_bytes, header.last_offset, header.max_timestamp)
        except DamagedBatch as damage:
            raise StorageFault(f"{self.log.path}: {damage}") from None
        fresh.add_time_entry()
        return fresh

    def _take_rebuilt(self) -> None:
        """Puts indexes made in a thread in place of the bad ones, with what was appended meanwhile."""
        fresh, self.rebuilt = self.rebuilt, None
        assert fresh is not None
        assert isinstance(fresh.offsets, IndexEntries)
        assert isinstance(fresh.times, IndexEntries)
        if isinstance(self.offsets, IndexEntries) and isinstance(self.times, IndexEntries):
            covered, newest = fresh.size_bytes, fresh.times.keys[-1] if fresh.times.keys else NO_TIMESTAMP
            for key, position in zip(self.offsets.keys, self.offsets.values, strict=True):
                if position >= covered:
                    fresh.offsets.append(key, position)
            for key, relative_offset in zip(self.times.keys, self.times.values, strict=True):
                if key > newest and relative_offset + self.base_offset > fresh._last_batch_offset:
                    fresh.times.append(key, relative_offset)
        elif fresh.size_bytes != self.size_bytes:
            return  # sealed meanwhile, with the bad index: build it once more
        else:
            self.max_timestamp, self.max_timestamp_offset = fresh.max_timestamp, fresh.max_timestamp_offset
        self.offsets, self.times = fresh.offsets, fresh.times
