"""One segment: a log file that begins at its base offset, and its indexes.

Owns the positions of batches in the file. It does not know producers, flushing or other segments; `index_pair` decides
which batches the indexes name.

Every answer is checked against the log's own headers. An index entry that does not lead to the batch it names makes
the index damaged; a damaged or missing index is built again from the log, off the loop like any other read that must
wait (`IndexDamaged.warm`). A header whose offset is not above the one before is damage to the log itself: a
`StorageFault`. Offsets may be missing between batches and in them: compaction leaves such holes, and may leave batches
without records, whose timestamps count for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from flowstone.errors import StorageFault
from flowstone.log.segments.batch_scan import DamagedBatch, scan
from flowstone.log.segments.cached_reads import read_cached, wait_for
from flowstone.log.segments.file_handles import FileHandles, Handle
from flowstone.log.segments.file_names import offset_name
from flowstone.log.segments.index_misses import FarSearch, IndexDamaged
from flowstone.log.segments.index_pair import NO_TIMESTAMP, SegmentIndexes, newest_timestamp
from flowstone.log.segments.left_segment import LeftSegment
from flowstone.log.segments.sparse_index import IndexEntries
from flowstone.log.segments.transaction_index import TransactionIndex, aborts_below
from flowstone.ports.files import File
from flowstone.types import Bytes
from flowstone.wire.record_batch import HEADER_BYTES, LOG_OVERHEAD, MAGIC, BatchHeader, CorruptBatch, parse_header

RELATIVE_OFFSET_MAX = 2**31 - 1
# Headers are read in chunks of this size: several small batches, or one header of a large one. Usually the first one
# that an index leads to is the one.
FIRST_WALK_BYTES, WALK_BYTES = 512, 2048
# The distance between two index entries is an interval and a batch. Beyond this, entries must be missing; less is no
# proof, as they may have been made under another interval.
WALK_FAR_BYTES = 256 * 1024
CLOSING_WALK_BYTES = 16 * 1024
LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX = ".log", ".index", ".timeindex", ".txnindex"
_TIMESTAMP_MAX = 2**63 - 1

# Base offset, length, magic, last offset delta: what a walk over batches needs of a header.
_WALK = Struct(">qi4xb6xi")


def segment_path(directory: str, base_offset: int, suffix: str) -> str:
    return f"{directory}/{offset_name(base_offset, suffix)}"


class Segment:
    __slots__ = (
        *("_handles", "_last_batch_offset", "_last_batch_position", "base_offset", "created_ms"),
        *("ahead", "directory", "far_searches", "first_timestamp", "indexes", "log"),
        *("next_offset", "preallocated_end", "rebuilt", "size_bytes", "transactions"),
    )

    def __init__(
        self, handles: FileHandles, directory: str, base_offset: int, *, created_ms: int, index_interval_bytes: int
    ) -> None:
        """Create an empty active segment; its files are made by `SegmentStore`."""
        self._handles = handles
        self.directory = directory
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.log: Handle = handles.handle(segment_path(directory, base_offset, LOG_SUFFIX))
        self.indexes = SegmentIndexes(
            base_offset,
            handles.handle(segment_path(directory, base_offset, INDEX_SUFFIX)),
            handles.handle(segment_path(directory, base_offset, TIME_INDEX_SUFFIX)),
            index_interval_bytes,
        )
        self.transactions = TransactionIndex(
            handles.handle(segment_path(directory, base_offset, TRANSACTION_INDEX_SUFFIX))
        )
        self.size_bytes = 0
        self.preallocated_end = 0  # where preallocated space ends, as far as known: see `preallocation`
        self.ahead: object | None = None  # who has written records beyond the end: see `large_appends`
        self.first_timestamp = NO_TIMESTAMP  # of the first batch; time-based rolling starts from it
        self.next_offset = base_offset  # known while the segment is active; -1 in one sealed by an earlier run
        self._last_batch_offset, self._last_batch_position = base_offset, 0
        # Results of worker threads for the next call on the loop.
        self.rebuilt: Segment | None = None
        self.far_searches: dict[tuple[int, int], tuple[int, int] | None] = {}

    @property
    def handles(self) -> tuple[Handle, ...]:
        """Return the handles of the files that the segment has: few segments have a transaction index."""
        handles = self.log, self.indexes.offset_handle, self.indexes.time_handle
        return (*handles, self.transactions.handle) if self.transactions.has_file else handles

    # Growing

    def append(self, buffers: list[Bytes], base_offset: int, size_bytes: int, last_offset: int, timestamp: int) -> None:
        """Write one batch at the end. If OSError is raised the caller restores the size."""
        log, position = self.log, self.size_bytes
        log.pinned = True
        log.get().write(position, buffers)
        self.note(position, base_offset, size_bytes, last_offset, timestamp)

    def append_found(self, data: Bytes, headers: Sequence[BatchHeader]) -> None:
        """Write a leader's batches unchanged, at the end and with one call. Raises OSError as `append` does."""
        self.log.pinned = True
        self.log.get().write(self.size_bytes, [data])
        for header in headers:
            self.note_found(self.size_bytes, header)

    def note(self, position: int, base_offset: int, size_bytes: int, last_offset: int, timestamp: int) -> None:
        """Record that a batch lies at `position`, the segment's end; `timestamp` is its newest."""
        assert position == self.size_bytes
        if position == 0:
            self.first_timestamp = timestamp
        self.indexes.note(position, last_offset, timestamp)
        self._last_batch_offset, self._last_batch_position = base_offset, position
        self.next_offset = last_offset + 1
        self.size_bytes = position + size_bytes

    def note_found(self, position: int, header: BatchHeader) -> None:
        """Record a batch that was found at `position`, the known end of the segment."""
        newest = newest_timestamp(header)
        self.note(position, header.base_offset, header.size_bytes, header.last_offset, newest)

    # Opening files of an earlier run

    def open_sealed(
        self,
        size_bytes: int,
        offset_index_bytes: int | None,
        time_index_bytes: int | None,
        transaction_index_bytes: int | None,
    ) -> None:
        """Use the files as found; None is a missing index. Without a transaction index no transaction was aborted."""
        self.transactions.open_sealed(transaction_index_bytes)
        self.size_bytes = size_bytes
        self.next_offset = self._last_batch_offset = -1
        self.indexes.open_sealed(offset_index_bytes, time_index_bytes)
        self.indexes.newest_timestamp = None

    def open_active(self, size_bytes: int, offsets: IndexEntries, times: IndexEntries) -> bool:
        """Open the last segment as a clean stop left it; return whether the indexes fit the log. Raises NotCached."""
        last_position = offsets.values[-1] if offsets.values else 0
        if last_position >= max(size_bytes, 1) or bool(size_bytes) != bool(times.keys):
            return False
        self.size_bytes = size_bytes
        self.indexes.open_active(offsets, times)
        if not size_bytes:
            return True
        self._last_batch_offset = -1  # unknown until it is read
        try:
            self.first_timestamp = newest_timestamp(self.header_at(0))
            self._check_closing_entry(times.keys[-1], times.values[-1])
            position, header = last_position, self.header_at(last_position)
            if offsets.keys and header.last_offset != self.base_offset + offsets.keys[-1]:
                return False
            while position + header.size_bytes < size_bytes:
                position += header.size_bytes
                header = self.header_at(position)
        except (IndexDamaged, StorageFault):
            return False
        self._last_batch_offset, self._last_batch_position = header.base_offset, position
        self.next_offset = header.next_offset
        return True

    def write_indexes(self, *, has_transactions: bool) -> None:
        """Write the indexes of an active segment into their files, which the caller syncs. Raises OSError.

        `has_transactions` says that the log has had transactions, so that there is a transaction index, even an empty
        one.
        """
        self.indexes.write()
        self.transactions.write(even_if_empty=has_transactions)

    def seal(self) -> None:
        """Record that no append follows; the indexes have been written."""
        self.indexes.seal()
        self.transactions.seal()

    def left(self) -> LeftSegment:
        """Return the state of an active segment that `open_left` needs, besides its indexes."""
        return LeftSegment(
            self.base_offset,
            self.size_bytes,
            self.first_timestamp,
            self._last_batch_offset,
            self._last_batch_position,
            self.next_offset,
            self.transactions.has_file,
        )

    def open_left(self, left: LeftSegment, offsets: IndexEntries, times: IndexEntries, aborts: bytes) -> None:
        """Restore the active segment's state. The caller has verified that the files are unchanged."""
        assert left.base_offset == self.base_offset
        self.size_bytes, self.next_offset = left.size_bytes, left.next_offset
        self.first_timestamp = left.first_timestamp
        self._last_batch_offset, self._last_batch_position = left.last_batch_offset, left.last_batch_position
        self.indexes.open_active(offsets, times)
        self.transactions.open_active(aborts, has_file=left.has_transaction_index)

    def resume(self, position: int, header: BatchHeader, offsets: IndexEntries, times: IndexEntries) -> None:
        """Continue after the batch at `position`, which the last of the entries names."""
        self.size_bytes = position + header.size_bytes
        self.indexes.open_active(offsets, times)
        self._last_batch_offset, self._last_batch_position = header.base_offset, position
        self.next_offset = header.next_offset

    def shortened(self, file: File, size_bytes: int) -> Segment:
        """Return the segment with its first bytes only, as an active one. Waits for the disk: for a thread."""
        left = self.rebuild(file, size_bytes)
        aborts = aborts_below(wait_for(self.transactions.read), left.next_offset)
        left.transactions.open_active(aborts, has_file=self.transactions.has_file)
        return left

    # Finding offsets

    def locate(self, offset: int) -> tuple[int, int] | None:
        """Return position and size of the first batch that ends at or after `offset`, or None if there is none."""
        if offset >= self._last_batch_offset >= 0 and self.size_bytes:
            return self._last_batch_position, self.size_bytes - self._last_batch_position
        if self.rebuilt is not None:
            self._take_rebuilt()
        offsets = self.indexes.offsets
        if offsets is None:
            raise IndexDamaged(self)
        found, following = offsets.around(offset - self.base_offset)
        if found is None:
            return self._walk(0, offset, None)
        relative_offset, position = found
        if not 0 <= position < self.size_bytes:
            raise IndexDamaged(self)
        is_last = self.base_offset + relative_offset == offset
        if following is not None and not is_last and following[1] - position > 2 * self.indexes.interval_bytes:
            # Such a distance is usually one large batch: then the one that the next entry names has the offset.
            located = self._batch_with(offset, *following)
            if located is not None:
                return located
        return self._walk(position, offset, self.base_offset + relative_offset)

    def _batch_with(self, offset: int, relative_offset: int, position: int) -> tuple[int, int] | None:
        """Return position and size of the batch that an entry names, if it contains the offset."""
        batch = self._batch_of(relative_offset, position)
        if batch is None:
            raise IndexDamaged(self)
        base_offset, size_bytes = batch
        return (position, size_bytes) if base_offset <= offset else None

    def is_right(self, relative_offset: int, position: int) -> bool:
        """Return whether an entry of the offset index names a batch that is there. Raises NotCached."""
        return position >= self.indexes.own_from or self._batch_of(relative_offset, position) is not None

    def _batch_of(self, relative_offset: int, position: int) -> tuple[int, int] | None:
        """Return base offset and size of the batch that an entry names, or None if it names none. Raises NotCached."""
        end = self.size_bytes
        data = read_cached(self.log.get(), position, min(_WALK.size, end - position)) if position < end else b""
        base_offset, length, magic, delta = _WALK.unpack(data.ljust(_WALK.size, b"\0"))
        size_bytes = length + LOG_OVERHEAD
        is_batch = magic == MAGIC and delta >= 0 and HEADER_BYTES <= size_bytes <= end - position
        is_named = is_batch and base_offset + delta == self.base_offset + relative_offset
        return (base_offset, size_bytes) if is_named else None

    def _walk(self, position: int, offset: int, indexed_offset: int | None) -> tuple[int, int] | None:
        """Walk from a batch to the one that `locate` searches for; the first one's last offset is `indexed_offset`."""
        file, end = self.log.get(), self.size_bytes
        far = position + max(self.indexes.interval_bytes, WALK_FAR_BYTES)
        next_offset = self.base_offset
        data, start, size_bytes, read_bytes = b"", position, 0, FIRST_WALK_BYTES
        while position < end:
            if position - size_bytes > far:
                raise IndexDamaged(self)
            if position + _WALK.size > start + len(data):
                # Zeros replace what a truncated file lacks: they are not a batch.
                data = read_cached(file, position, min(read_bytes, end - position)).ljust(_WALK.size, b"\0")
                start, read_bytes = position, WALK_BYTES
            base_offset, length, magic, delta = _WALK.unpack_from(data, position - start)
            size_bytes = length + LOG_OVERHEAD
            is_batch = magic == MAGIC and delta >= 0 and HEADER_BYTES <= size_bytes <= end - position
            if indexed_offset is not None:
                # Whatever is wrong here, the index led to it. If the log itself is damaged, rebuilding the index
                # detects it.
                if not is_batch or base_offset + delta != indexed_offset:
                    raise IndexDamaged(self)
                indexed_offset = None
            if not is_batch or base_offset < next_offset:
                raise self.fault(position, offset)
            next_offset = base_offset + delta + 1
            if offset < next_offset:
                if offset < base_offset and position + size_bytes < end:
                    self._check_hole(position, position + size_bytes, next_offset)
                return position, size_bytes
            position += size_bytes
        return None

    def _check_hole(self, position: int, following: int, next_offset: int) -> None:
        """Check that the batch after the next confirms a hole, because checksums do not cover offsets."""
        if self.header_at(following).base_offset < next_offset:
            raise self.fault(position, next_offset)

    def header_at(self, position: int) -> BatchHeader:
        """Return the header of the batch that must be at a position."""
        data = read_cached(self.log.get(), position, HEADER_BYTES)
        try:
            header = parse_header(data)
        except CorruptBatch:
            raise self.fault(position, self.base_offset) from None
        if position + header.size_bytes > self.size_bytes:
            raise self.fault(position, self.base_offset)
        return header

    def fault(self, position: int, offset: int) -> StorageFault:
        return StorageFault(
            f"{self.directory}: no valid batch at position {position} of {self.log.path}, looking for offset {offset}"
        )

    # Finding timestamps

    def find_timestamp(self, target_ms: int, from_offset: int) -> tuple[int, int] | None:
        """Return position and size of the first batch, from `from_offset` on, with a record at or after `target_ms`."""
        if self.rebuilt is not None:
            self._take_rebuilt()
        if self.indexes.times is None:
            raise IndexDamaged(self)
        offset = max(self.base_offset, from_offset)
        found = self.indexes.times.lookup(target_ms)
        if found is not None:
            self._check_time_entry(*found)
            offset = max(offset, self.base_offset + found[1])
        located = self.locate(offset)
        if located is None:
            return None
        position, far = located[0], located[0] + WALK_FAR_BYTES
        while position < self.size_bytes:
            header = self.header_at(position)
            if newest_timestamp(header) >= target_ms:
                return position, header.size_bytes
            if position > far:
                if (position, target_ms) in self.far_searches:
                    return self.far_searches.pop((position, target_ms))
                raise FarSearch(self, position, header.base_offset, target_ms)
            position += header.size_bytes
        return None

    def latest_timestamp(self) -> int:
        """Return the newest timestamp in the segment. Raises NotCached if a sealed one's index must be read first."""
        if self.rebuilt is not None:
            self._take_rebuilt()
        indexes = self.indexes
        if indexes.newest_timestamp is None:
            last = indexes.times.lookup(_TIMESTAMP_MAX) if indexes.times is not None else None
            if last is None:
                raise IndexDamaged(self)
            self._check_closing_entry(*last)
            indexes.newest_timestamp, indexes.newest_offset = last[0], self.base_offset + last[1]
        return indexes.newest_timestamp

    def _check_time_entry(self, timestamp: int, relative_offset: int) -> int:
        """Check that an entry of a time index names the batch that has its timestamp; return where that batch ends."""
        offset = self.base_offset + relative_offset
        located = self.locate(offset) if relative_offset >= 0 else None
        if located is None:
            raise IndexDamaged(self)
        header = self.header_at(located[0])
        if header.last_offset != offset or newest_timestamp(header) != timestamp:
            raise IndexDamaged(self)
        return sum(located)

    def _check_closing_entry(self, timestamp: int, relative_offset: int) -> None:
        """Check that nothing after the last entry is newer, or retention would delete the segment too early.

        Its batch is usually the segment's last, or nearly. If it is not, the index is rebuilt.
        """
        position = self._check_time_entry(timestamp, relative_offset)
        if self.size_bytes - position > CLOSING_WALK_BYTES:
            raise IndexDamaged(self)
        while position < self.size_bytes:
            header = self.header_at(position)
            if newest_timestamp(header) > timestamp:
                raise IndexDamaged(self)
            position += header.size_bytes

    # Rebuilding indexes

    def rebuild(self, file: File, size_bytes: int) -> Segment:
        """Return the same segment up to `size_bytes` with rebuilt indexes. Waits for the disk: for a worker thread."""
        fresh = Segment(
            self._handles,
            self.directory,
            self.base_offset,
            created_ms=self.created_ms,
            index_interval_bytes=self.indexes.interval_bytes,
        )
        try:
            for position, header in scan(file, 0, size_bytes, self.base_offset):
                fresh.note_found(position, header)
        except DamagedBatch as damage:
            raise StorageFault(f"{self.log.path}: {damage}") from None
        fresh.indexes.add_time_entry()
        return fresh

    def _take_rebuilt(self) -> None:
        fresh, self.rebuilt = self.rebuilt, None
        assert fresh is not None
        self.indexes.replace(fresh.indexes, fresh.size_bytes, self.size_bytes)
