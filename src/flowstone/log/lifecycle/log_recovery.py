"""Opening a partition's log after a stop, clean or not.

Rules (S1 to S5, S7):
- Below the recovery point everything was durable: it is used as it is, and damage there is a `StorageFault`. It is
  never cut off. If a segment ends at the recovery point, bytes after its last batch do not belong to it.
- From the recovery point on, after an unclean stop, every batch is checked. One that is not whole, or does not follow
  the one before, is damage (a `StorageFault`, nothing is cut) if it lies below the end that was durable as of the last
  flush, or if good batches follow it and missing blocks do not explain it (`torn_writes`). Otherwise it is an
  unfinished write: it and all after it are cut off. Zeros at a file's end are unused preallocated space
  (`preallocation`): they are cut off, and nothing was lost.
- A segment ends where the next one begins, and the log reaches as far as its witnesses (`extent_witnesses`) say;
  otherwise `StorageFault` is raised.
- Indexes, producer snapshots and leader epochs follow from the log; missing or wrong ones are made again.
- When recovery returns, the whole log is durable. After a clean stop only what recovery itself changed is synced.
  Recovery that is killed at any point can be run again: it only removes what a second run would remove too.

Waits for the disk. Which logs there are, and what the checkpoints say of them, is passed in by the manager.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from struct import Struct

from flowstone.errors import StorageFault
from flowstone.log.lifecycle.extent_witnesses import check_derived, check_end, check_start, missing_files, remedy
from flowstone.log.lifecycle.stored_offsets import StoredOffsets
from flowstone.log.lifecycle.transaction_index_recovery import TransactionIndexRecovery
from flowstone.log.partition.derived_state import load_epochs, load_producers, read_epochs
from flowstone.log.partition.leader_epochs import LeaderEpochs
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.batch_scan import OFFSET_MAX, DamagedBatch, scan
from flowstone.log.segments.branch_point import read_branch_point
from flowstone.log.segments.cached_reads import wait_for
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.file_names import offset_in_name
from flowstone.log.segments.partition_directory import DELETED_SUFFIX, HOLE_SUFFIX, PartitionDirectory
from flowstone.log.segments.preallocation import is_preallocated
from flowstone.log.segments.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
    segment_path,
)
from flowstone.log.segments.segment_swap import finish_swaps
from flowstone.log.segments.shared_files import TEMPORARY_SUFFIX, own_file
from flowstone.log.segments.sparse_index import OFFSET_ENTRY, TIME_ENTRY, IndexEntries
from flowstone.log.segments.torn_writes import good_batches_behind
from flowstone.ports.clock import Clock
from flowstone.ports.files import File

logger = logging.getLogger(__name__)

_LEFTOVER_SUFFIXES = (DELETED_SUFFIX, TEMPORARY_SUFFIX)


def recover(
    log: PartitionLog, directory: PartitionDirectory, handles: FileHandles, clock: Clock, stored: StoredOffsets
) -> None:
    """Fill `log`, empty so far, from its directory. Raises StorageFault if the partition must stay offline."""
    try:
        _Recovery(log, directory, handles, clock, stored).run()
    except OSError as error:
        raise StorageFault(f"{directory.path}: {error}") from error


class _Recovery:
    def __init__(
        self,
        log: PartitionLog,
        directory: PartitionDirectory,
        handles: FileHandles,
        clock: Clock,
        stored: StoredOffsets,
    ) -> None:
        self._log = log
        self._directory = directory
        self._files = directory.files
        self._handles = handles
        self._now_ms = clock.time_ms()
        self._stored = stored
        self._epochs_seen = LeaderEpochs()
        self._markers_in: dict[int, bool] = {}  # of checked segments, by base offset: whether they have control batches
        self._names: list[str] = []  # of the files in the directory

    def run(self) -> None:
        bases = self._tidy()
        check_start(self._log.topic_partition, self._directory.path, bases, self._stored)
        segments: list[Segment] = []
        end_offset = bases[0] if bases else self._stored.log_start_offset
        for at, base_offset in enumerate(bases):
            following = bases[at + 1] if at + 1 < len(bases) else None
            if following is not None and (self._stored.clean or following <= self._stored.recovery_point):
                segments.append(self._open_sealed(base_offset, following))
                end_offset = following
                continue
            if segments and base_offset != end_offset:
                self._cut(bases[at:], end_offset, f"segment {base_offset} does not follow offset {end_offset}")
                break
            segment, end_offset, whole = self._check_segment(base_offset, following)
            segments.append(segment)
            if not whole:
                self._cut(bases[at + 1 :], end_offset, "it follows a batch that is not whole")
                break
        self._finish(segments, end_offset)

    def _tidy(self) -> list[int]:
        """Return the base offsets of the segments, after removing and renaming what an earlier run had begun to."""
        names = self._files.names(self._directory.path)
        if finish_swaps(self._files, self._directory.path, names):
            names = self._files.names(self._directory.path)
        self._names = names
        self._directory.hole_ends = [
            end_offset for name in names if (end_offset := offset_in_name(name, HOLE_SUFFIX)) is not None
        ]
        for name in names:
            if name.endswith(_LEFTOVER_SUFFIXES):
                self._files.remove(f"{self._directory.path}/{name}")
        bases = [base for name in names if (base := offset_in_name(name, LOG_SUFFIX)) is not None]
        for name in names:
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX):
                base_offset = offset_in_name(name, suffix)
                if base_offset is not None and base_offset not in bases:
                    self._files.remove(f"{self._directory.path}/{name}")
        while len(bases) > 1 and bases[1] <= self._stored.log_start_offset:
            self._remove_segment(bases.pop(0))
        return bases

    def _open_sealed(self, base_offset: int, following: int) -> Segment:
        segment = self._segment(base_offset)
        log_bytes, offsets_bytes, times_bytes = [
            self._files.size(handle.path) if self._files.exists(handle.path) else None for handle in segment.handles
        ]
        assert log_bytes is not None
        # The transaction index is made last: see `TransactionIndexRecovery`.
        segment.open_sealed(log_bytes, offsets_bytes, times_bytes, None)
        if following == self._stored.recovery_point and not self._stored.clean:
            self._cut_after(segment, following)
        self._check_follows(segment, following)
        return segment

    def _check_follows(self, segment: Segment, following: int) -> None:
        """Raise StorageFault unless a sealed segment ends where the next one begins."""
        located = wait_for(partial(segment.locate, following - 1))
        end_offset = wait_for(partial(segment.header_at, located[0])).next_offset if located is not None else None
        if end_offset != following:
            raise StorageFault(
                f"{self._log.topic_partition}: the segment after {segment.log.path} begins at offset {following}, "
                f"where that one does not end: {missing_files(self._log.topic_partition, self._directory.path)}"
            )

    def _cut_after(self, segment: Segment, end_offset: int) -> None:
        """Cut a segment after its durable end: the file may not have been cut before the segment was sealed."""
        end, size_bytes = self._end_of(segment, end_offset), segment.size_bytes
        if end < size_bytes:
            self._log_cut(segment.log.get(), end, size_bytes, end_offset, "they were dropped before")
            segment.size_bytes = end
            self._copy_if_shared(segment)
            segment.log.get().truncate(end)
        self._directory.note_unsynced(segment.log.get())

    def _end_of(self, segment: Segment, end_offset: int) -> int:
        """Return where the last batch below the offset ends, or the file's end if that is in doubt."""
        file, size_bytes = segment.log.get(), segment.size_bytes
        with suppress(StorageFault):  # a damaged index cannot be built again without the end
            located = wait_for(partial(segment.locate, end_offset - 1))
            if located is not None and (sum(located) == size_bytes or is_preallocated(file, sum(located), size_bytes)):
                return sum(located)
        with suppress(DamagedBatch):
            for position, header in scan(file, 0, size_bytes, segment.base_offset):
                if header.next_offset >= end_offset:
                    return position + header.size_bytes if header.next_offset == end_offset else size_bytes
        return size_bytes

    def _log_cut(self, file: File, begin: int, end: int, next_offset: int, reason: str) -> bool:
        """Log which bytes are truncated from a file; return whether they were only preallocated space."""
        count, partition = end - begin, self._log.topic_partition
        if is_preallocated(file, begin, end):
            logger.info("%s: released %d preallocated bytes after offset %d", partition, count, next_offset - 1)
            return True
        logger.warning("%s: truncated %d bytes from offset %d on: %s", partition, count, next_offset, reason)
        return False

    def _check_segment(self, base_offset: int, following: int | None) -> tuple[Segment, int, bool]:
        """Return the segment, its end, and whether all of it was good; after a clean stop its indexes are used."""
        if self._stored.clean:
            opened = self._open_clean(base_offset)
            if opened is not None:
                return *opened, True
        segment = self._segment(base_offset)
        file = segment.log.get()
        self._markers_in[base_offset] = False
        size_bytes, next_offset, whole = file.size(), base_offset, True
        promised_end = self._stored.promised_end
        verify_from = None if self._stored.clean else self._stored.recovery_point
        # Compaction stays below the recovery point, and a follower marks holes that it was sent above it; if the
        # recovery point was lost with its file, holes may be anywhere.
        marked_end = max(self._directory.hole_ends, default=0)
        holes_end_max = following or (max(promised_end, marked_end) if promised_end else OFFSET_MAX)
        batches = scan(file, 0, size_bytes, base_offset, verify_from_offset=verify_from, holes_end_max=holes_end_max)
        try:
            for position, header in batches:
                segment.note_found(position, header)
                if header.is_control:
                    self._markers_in[base_offset] = True
                self._epochs_seen.assign(header.partition_leader_epoch, header.base_offset)
                next_offset = header.next_offset
        except DamagedBatch as damage:
            self._refuse_below_durable_end(next_offset, f"{segment.log.path} {damage}")
            if not is_preallocated(file, segment.size_bytes, size_bytes):
                self._refuse_before_good_batches(segment, size_bytes, next_offset, following, damage)
            was_preallocated = self._log_cut(file, segment.size_bytes, size_bytes, next_offset, damage.reason)
            whole = was_preallocated and following in (None, next_offset)
            if self._copy_if_shared(segment):
                file = segment.log.get()
            file.truncate(segment.size_bytes)
        if whole and following is not None:  # the last segment is synced with everything else, in `_finish`
            file.sync()
        return segment, next_offset, whole

    def _refuse_before_good_batches(
        self, segment: Segment, size_bytes: int, next_offset: int, following: int | None, damage: DamagedBatch
    ) -> None:
        """Raise StorageFault if good batches follow a damaged one and an interrupted write does not explain it."""
        after = (following, self._segment(following).log.get()) if following is not None else None
        file, position = segment.log.get(), segment.size_bytes
        behind = good_batches_behind(file, position, size_bytes, segment.base_offset, next_offset, after)
        if behind is not None:
            tp = self._log.topic_partition
            raise StorageFault(
                f"{tp} is damaged at offset {next_offset}: {file.path} {damage}; good batches follow at {behind}, "
                f"so nothing is cut off; {remedy(tp, self._directory.path)}"
            )

    def _copy_if_shared(self, segment: Segment) -> bool:
        """Replace a file that is shared with a branch by a copy, before it is changed; return whether it was shared."""
        if not own_file(self._files, segment.log.path, segment.size_bytes):
            return False
        segment.log.drop()
        return True

    def _open_clean(self, base_offset: int) -> tuple[Segment, int] | None:
        """Return the active segment with the indexes of a clean stop, and its end; None if they do not fit the log."""
        segment = self._segment(base_offset)
        offsets = self._load_index(segment.indexes.offset_handle.path, OFFSET_ENTRY)
        times = self._load_index(segment.indexes.time_handle.path, TIME_ENTRY)
        if offsets is None or times is None:
            return None
        fits = wait_for(partial(segment.open_active, segment.log.get().size(), offsets, times))
        return (segment, segment.next_offset) if fits else None

    def _load_index(self, path: str, entry: Struct) -> IndexEntries | None:
        return IndexEntries.decode(entry, self._files.read(path)) if self._files.exists(path) else None

    def _cut(self, bases: list[int], from_offset: int, reason: str) -> None:
        """Remove segments, newest first, so that the rest is a prefix at every moment."""
        for base_offset in reversed(bases):
            self._refuse_below_durable_end(from_offset, f"segment {base_offset}: {reason}")
            logger.warning("%s: removed segment %d: %s", self._log.topic_partition, base_offset, reason)
            self._remove_segment(base_offset)

    def _refuse_below_durable_end(self, offset: int, damage: str) -> None:
        end = self._stored.promised_end
        if offset < end or self._stored.clean:
            tp = self._log.topic_partition
            raise StorageFault(
                f"{tp} is damaged at offset {offset}, below its recovery point {end}: {damage}; "
                f"{remedy(tp, self._directory.path)}"
            )

    def _finish(self, segments: list[Segment], end_offset: int) -> None:
        stored = self._stored
        check_end(self._log.topic_partition, self._directory.path, end_offset, stored)
        self._check_derived(segments, end_offset)
        log_start_offset = max(stored.log_start_offset, segments[0].base_offset if segments else 0)
        if not segments or end_offset < log_start_offset:
            # What was deleted may reach beyond what became durable; offsets once assigned are never assigned again.
            for segment in segments:
                self._remove_segment(segment.base_offset)
            end_offset = log_start_offset
            segments = [self._segment(end_offset)]
            segments[0].log.create().truncate(0)
            self._directory.note_names_changed()
        if self._copy_if_shared(segments[-1]):
            self._directory.note_names_changed()
        for segment in segments[:-1]:
            if isinstance(segment.indexes.offsets, IndexEntries):
                segment.indexes.write()
                self._directory.note_unsynced(*(handle.get() for handle in segment.handles))
                segment.indexes.seal()
        if not stored.clean:
            self._directory.note_found(self._names, stored.recovery_point)
        self._log.branch_point = read_branch_point(self._files, self._directory.path, self._names)
        derive = partial(
            load_producers,
            self._directory,
            self._names,
            segments,
            self._log.producers_from,
            end_offset,
            self._now_ms,
        )
        producers = TransactionIndexRecovery(self._directory, segments, end_offset).run(self._markers_in, derive)
        epochs = load_epochs(self._directory, segments, end_offset, self._epochs_seen)
        self._log.adopt(segments, log_start_offset, end_offset, epochs, producers)
        task = self._log.durability.take_dirty()
        if task is not None:
            task.run()
            self._log.durability.flushed(task)

    def _check_derived(self, segments: list[Segment], end_offset: int) -> None:
        stored, path = self._stored, self._directory.path
        if stored.clean and not (stored.is_start_known and stored.is_end_known) and segments:
            epochs = LeaderEpochs.decode(read_epochs(self._directory))
            tp, first_offset = self._log.topic_partition, segments[0].base_offset
            check_derived(tp, path, self._names, epochs, first_offset, end_offset, stored)

    def _segment(self, base_offset: int) -> Segment:
        return Segment(
            self._handles,
            self._directory.path,
            base_offset,
            created_ms=self._now_ms,
            index_interval_bytes=self._log.config.index_interval_bytes,
        )

    def _remove_segment(self, base_offset: int) -> None:
        """Remove a segment's files, the log file last: as long as it exists, its indexes are not orphans."""
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, LOG_SUFFIX):
            path = segment_path(self._directory.path, base_offset, suffix)
            if self._files.exists(path):
                self._files.remove(path)
