"""The files of a branched partition, made from its source's: hard links, and a copy of the segment that is cut.

For a worker thread: everything here waits for the disk and does not touch a log. The directory is made under a name
that a start ignores, is durable when `sync_branch` returns, and is valid once it has been renamed (`branches`). Making
and syncing are two steps, because making names is slow while others are synced: first all partitions are made, then all
are synced.

Whole segments are linked with their indexes, which costs neither time nor disk space: neither side ever changes them in
place (`shared_files`). The segment that contains the end is copied up to the batch that holds it; the records of that
batch before the end become a batch of their own. The active segment is new, so that no write ever reaches a shared
file.

The source may lose segments to retention meanwhile; then FileNotFoundError is raised and the caller plans again. The
source must not be compacted meanwhile: its `names_lock` is held.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from struct import Struct
from typing import NamedTuple

from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.branching.plan import BranchPlan, CutSegment, WholeSegment
from flowstone.log.partition.inherited_transactions import InheritedTransactions, find_inherited, write_aborts
from flowstone.log.partition.leader_epochs import LeaderEpochs
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.batch_scan import OFFSET_MAX, DamagedBatch, scan
from flowstone.log.segments.branch_point import (
    BRANCH_POINT_SUFFIX,
    UNPUBLISHED,
    branch_point_name,
    encode_branch_source,
)
from flowstone.log.segments.checkpoints import PARTITION_METADATA, encode_partition_metadata
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
    segment_path,
)
from flowstone.log.segments.sparse_index import OFFSET_ENTRY, TIME_ENTRY, IndexEntries
from flowstone.log.segments.transaction_index import aborts_below, is_sound
from flowstone.ports.files import File, Files
from flowstone.wire.batch_slices import cut_batch
from flowstone.wire.record_batch import HEADER_BYTES, BatchHeader, CorruptBatch, parse_header

# The file system supports no hard links, or this file has as many as it may have: the file is copied instead.
NO_LINKS = (errno.EPERM, errno.EMLINK, errno.EXDEV, errno.ENOTSUP, errno.ENOSYS)
BUILDING_FILES_MAX = 8


class BuiltSegment(NamedTuple):
    base_offset: int
    created_ms: int
    size_bytes: int
    offset_index_bytes: int | None
    time_index_bytes: int | None
    transaction_index_bytes: int | None


class BuiltBranch(NamedTuple):
    """A branch whose directory is complete. `segments` lacks the last one, which has no record yet."""

    path: str
    segments: tuple[BuiltSegment, ...]
    log_start_offset: int
    end_offset: int
    linked_bytes: int
    copied_bytes: int
    unsynced: tuple[File, ...]
    inherited: InheritedTransactions | None  # None if no transaction was open where the branch begins


def make_common(files: Files, path: str, source: PartitionLog, topic_id: bytes) -> None:
    """Make the directory of files that all partitions of a branch share by hard links, and make it durable."""
    files.new_directory(path)
    for name, data in (
        (PARTITION_METADATA, encode_partition_metadata(topic_id)),
        (BRANCH_POINT_SUFFIX, encode_branch_source(source.topic_partition.topic, source.topic_id)),
        (UNPUBLISHED, b""),
    ):
        file = files.open(f"{path}/{name}", create=True)
        file.write(0, [data])
        _sync(file)


def build_branch(files: Files, plan: BranchPlan, path: str, common_path: str) -> BuiltBranch:
    """Make the directory of a branch. Raises OSError, or ApiError if the source is damaged; files may remain then."""
    try:
        return _Building(files, plan, path).run(common_path)
    except (CorruptBatch, DamagedBatch) as damage:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{plan.source.path} is damaged: {damage}") from None


def sync_branch(files: Files, built: BuiltBranch) -> None:
    """Make the directory durable except for its name. Raises StorageFault for a file, otherwise OSError."""
    for file in built.unsynced:
        _sync(file)
    files.sync_directory(built.path)


def _sync(file: File) -> None:
    """Sync a file. The bytes may be the source's, so an error is a StorageFault, as with any flush."""
    try:
        file.sync()
    except OSError as error:
        raise StorageFault(f"{file.path} cannot be made durable: {error}") from error


class _Building:
    def __init__(self, files: Files, plan: BranchPlan, path: str) -> None:
        self._files, self._plan, self._path = files, plan, path
        self._source_path = plan.source.path
        self._linked_bytes = self._copied_bytes = 0
        self._unsynced: list[File] = []

    def run(self, common_path: str) -> BuiltBranch:
        files, plan = self._files, self._plan
        files.new_directory(self._path)
        segments = [self._link_segment(each) for each in plan.whole]
        end_offset = plan.end_offset
        split = b""
        if plan.cut is not None:
            split = self._read_split(plan.cut)
            copied, end_offset = self._copy_segment(plan.cut, split)
            segments += [copied] if copied is not None else []
        if end_offset < plan.log_start_offset:
            # Compaction removed the rest: no records remain below the start.
            segments, end_offset = [], plan.log_start_offset
        for name, common in (
            (PARTITION_METADATA, PARTITION_METADATA),
            (branch_point_name(end_offset), BRANCH_POINT_SUFFIX),
            (UNPUBLISHED, UNPUBLISHED),
        ):
            self._link(f"{common_path}/{common}", f"{self._path}/{name}", is_durable=True)
        files.open(segment_path(self._path, end_offset, LOG_SUFFIX), create=True)
        inherited = self._abort_open(end_offset, split) if plan.has_transactions and segments else None
        sizes = self._linked_bytes, self._copied_bytes
        offsets = plan.log_start_offset, end_offset
        return BuiltBranch(self._path, tuple(segments), *offsets, *sizes, tuple(self._unsynced), inherited)

    def _abort_open(self, end_offset: int, split: bytes) -> InheritedTransactions | None:
        """Return markers that abort, in the branch, the transactions open at its end; None if there are none."""
        plan = self._plan
        sizes = {each.base_offset: each.size_bytes for each in plan.whole}
        if plan.cut is not None:
            sizes[plan.cut.base_offset] = plan.cut.position
        cut_batch = parse_header(split) if split else None
        states = find_inherited(self._files, self._source_path, sizes, plan.producers_from, plan.end_offset, cut_batch)
        if not len(states):
            return None
        epochs = LeaderEpochs.decode(plan.epochs)
        assert epochs is not None
        inherited, written = write_aborts(self._files, self._path, end_offset, epochs.latest, states)
        self._unsynced += written
        return inherited

    # Whole segments

    def _link_segment(self, whole: WholeSegment) -> BuiltSegment:
        """Link a segment's files, the log first: if it is gone, the segment is too. Raises FileNotFoundError then."""
        self._link_part(whole, LOG_SUFFIX, whole.size_bytes)
        indexes = list[int | None]()
        for suffix, size_bytes in (
            (INDEX_SUFFIX, whole.offset_index_bytes),
            (TIME_INDEX_SUFFIX, whole.time_index_bytes),
        ):
            try:
                indexes.append(self._link_part(whole, suffix, size_bytes))
            except FileNotFoundError:  # a missing index is rebuilt when it is needed
                indexes.append(None)
        aborts_bytes = self._link_part(whole, TRANSACTION_INDEX_SUFFIX, None) if whole.has_transaction_index else None
        return BuiltSegment(whole.base_offset, whole.created_ms, whole.size_bytes, indexes[0], indexes[1], aborts_bytes)

    def _link_part(self, whole: WholeSegment, suffix: str, size_bytes: int | None) -> int:
        """Link or copy one file of a segment and return its size."""
        source, target = (segment_path(each, whole.base_offset, suffix) for each in (self._source_path, self._path))
        is_linked = self._link(source, target, whole.is_durable)
        if size_bytes is None:
            size_bytes = self._files.size(target)
        if is_linked:
            self._linked_bytes += size_bytes
        else:
            self._copied_bytes += size_bytes
        return size_bytes

    def _link(self, source: str, target: str, is_durable: bool) -> bool:
        """Add another name to the file; return False if it was copied instead and the copy must still be synced."""
        try:
            self._files.link(source, target)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            self._files.copy(source, target, self._files.size(source))
            self._unsynced.append(self._files.open(target))
            return False
        if not is_durable:
            self._unsynced.append(self._files.open(target))
        return True

    # The segment that is cut

    def _read_split(self, cut: CutSegment) -> bytes:
        """Return the batch that contains the end offset, without later records; empty if a batch begins there."""
        source = segment_path(self._source_path, cut.base_offset, LOG_SUFFIX)
        tail = self._files.open(source).read(cut.position, cut.batch_bytes)
        return cut_batch(tail, self._plan.end_offset) if self._is_split(tail) else b""

    def _copy_segment(self, cut: CutSegment, split: bytes) -> tuple[BuiltSegment | None, int]:
        """Copy the cut segment. Return the copy, or None if nothing of it is left, and the offset where the branch
        ends.

        If offsets are missing just before the end, the branch ends with the last batch: no hole lies between segments.
        """
        if not cut.position and not split:
            return None, cut.base_offset
        source = segment_path(self._source_path, cut.base_offset, LOG_SUFFIX)
        self._files.copy(source, segment_path(self._path, cut.base_offset, LOG_SUFFIX), cut.position)
        segment = self._index(cut)
        if split:
            header = parse_header(split)
            segment.append([split], header.base_offset, len(split), header.last_offset, header.max_timestamp)
        segment.transactions.open_active(self._aborts(cut), has_file=False)
        segment.write_indexes(has_transactions=self._plan.has_transactions)
        self._unsynced += [handle.get() for handle in segment.handles]
        self._copied_bytes += segment.size_bytes
        log, offsets, times = (handle.get().size() for handle in segment.handles[:3])
        aborts_bytes = segment.transactions.size_bytes if segment.transactions.has_file else None
        built = BuiltSegment(cut.base_offset, cut.created_ms, log, offsets, times, aborts_bytes)
        return built, segment.next_offset

    def _is_split(self, batch: bytes) -> bool:
        return parse_header(batch).base_offset < self._plan.end_offset

    def _index(self, cut: CutSegment) -> Segment:
        """Return the copy with the source's index entries up to the cut, or reindexed if they do not fit."""
        segment = self._new_segment(cut)
        file = segment.log.get()
        offsets, times = self._entries(cut)
        if offsets.keys:
            position = offsets.values[-1]
            header = _header_at(file, position)
            if header is not None and header.last_offset == cut.base_offset + offsets.keys[-1]:
                segment.resume(position, header, offsets, times)
        for position, header in scan(file, segment.size_bytes, cut.position, segment.next_offset):
            segment.note_found(position, header)
        return segment

    def _new_segment(self, cut: CutSegment) -> Segment:
        return Segment(
            FileHandles(self._files, BUILDING_FILES_MAX),
            self._path,
            cut.base_offset,
            created_ms=cut.created_ms,
            index_interval_bytes=cut.index_interval_bytes,
        )

    def _entries(self, cut: CutSegment) -> tuple[IndexEntries, IndexEntries]:
        if cut.offsets is not None and cut.times is not None:
            return cut.offsets, cut.times
        offsets = self._load(cut.base_offset, INDEX_SUFFIX, OFFSET_ENTRY)
        times = self._load(cut.base_offset, TIME_INDEX_SUFFIX, TIME_ENTRY)
        if offsets is None or times is None:
            return IndexEntries(OFFSET_ENTRY), IndexEntries(TIME_ENTRY)
        relative_end = self._plan.end_offset - cut.base_offset
        return (
            offsets.first(bisect_left(offsets.values, cut.position)),
            times.first(bisect_left(times.values, relative_end)),
        )

    def _aborts(self, cut: CutSegment) -> bytes:
        """Return the entries of the source's transaction index up to the end."""
        if cut.aborts is not None:
            return cut.aborts
        path = segment_path(self._source_path, cut.base_offset, TRANSACTION_INDEX_SUFFIX)
        data = self._files.read(path) if self._files.exists(path) else b""
        if not is_sound(data, cut.base_offset, OFFSET_MAX):
            raise CorruptBatch(f"{path} is no index of transactions")
        return aborts_below(data, self._plan.end_offset)

    def _load(self, base_offset: int, suffix: str, entry: Struct) -> IndexEntries | None:
        path = segment_path(self._source_path, base_offset, suffix)
        return IndexEntries.decode(entry, self._files.read(path)) if self._files.exists(path) else None


def _header_at(file: File, position: int) -> BatchHeader | None:
    """Return the header of the batch at a position, or None if no batch is there."""
    try:
        return parse_header(file.read(position, HEADER_BYTES))
    except CorruptBatch:
        return None
