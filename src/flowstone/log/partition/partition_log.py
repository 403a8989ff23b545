"""The log of one partition: appends batches, reads slices, and owns the order of offsets.

Owns the end of the log and the next offset. A leader's log assigns offsets to the batches of clients; a follower's
takes over its leader's. Its parts: `segment_store` (how segments are stored), `durability` (what of them survives a
power loss), `producer_state` and `leader_epochs` (what is derived from the batches), `log_reader`. `log_cutting`
truncates it. The log does not know replicas, requests or waiting callers. All calls come from the event loop. Reads
never wait for the disk: see `cached_reads`.

Invariants: offsets are assigned without a gap, and only compaction makes one. A failed write leaves the log as it was;
if even that fails, the fault is for good. `log_start_offset <= end`; `flushed_end <= end`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from flowstone.config import LONG_MAX, TopicConfig
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition import log_reader
from flowstone.log.partition.aborted_transactions import AbortedTransaction, FoundAborts
from flowstone.log.partition.durability import Durability
from flowstone.log.partition.file_errors import file_error
from flowstone.log.partition.large_appends import WrittenAhead, begin_large_append
from flowstone.log.partition.leader_epochs import LeaderEpochs
from flowstone.log.partition.producer_state import UNVERIFIED, ProducerStates
from flowstone.log.partition.record_checks import Timestamps
from flowstone.log.partition.replica_append import Replicated, UnfitRecords, check_batches
from flowstone.log.partition.segment_store import SegmentStore
from flowstone.log.partition.undecided_transactions import DecidedTransaction
from flowstone.log.partition.validation import NeedsWorker, check_batch, header_of, place_batch
from flowstone.log.segments.branch_point import BranchPoint
from flowstone.log.segments.cached_reads import LogSlice, NotCached
from flowstone.log.segments.compaction_job import CleanedSegment
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.index_pair import newest_timestamp
from flowstone.log.segments.partition_directory import FlushTask, LogPosition, PartitionDirectory
from flowstone.log.segments.segment import Segment
from flowstone.log.segments.segment_list import SegmentList
from flowstone.log.segments.segment_swap import InThread, SegmentSwap
from flowstone.ports.clock import Clock
from flowstone.ports.files import Files
from flowstone.types import ZERO_UUID, Bytes, TopicPartition
from flowstone.wire.end_markers import read_end_marker
from flowstone.wire.record_batch import BatchHeader, parse_header

__all__ = [
    "AbortedTransaction",
    "Appended",
    "FlushTask",
    "LogPosition",
    "LogSlice",
    "NeedsWorker",
    "NotCached",
    "PartitionLog",
    "Replicated",
    "Timestamps",
    "UnfitRecords",
    "WrittenAhead",
]

# Equivalent to the named tuple's constructor, which takes three times as long: two are made for every batch.
_new = tuple.__new__


class Appended(NamedTuple):
    base_offset: int
    last_offset: int
    log_append_time_ms: int  # -1: the producer's timestamps were kept
    log_start_offset: int
    duplicate: bool  # this very batch was in the log already


class PartitionLog:
    # With a thousand partitions an append finds little in the processor's cache: slots keep the fields close together.
    __slots__ = (
        "__weakref__",
        "_clock",
        "branch_point",
        "config",
        "directory",
        "durability",
        "end",
        "ends_after_hole",
        "epochs",
        "first_dirty_offset",
        "flushed_end",
        "found_aborts",
        "is_forgotten",
        "is_held",
        "log_start_offset",
        "names_lock",
        "producers",
        "store",
        "stored_high_watermark",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: bytes,
        config: TopicConfig,
        clock: Clock,
        handles: FileHandles,
        directory: PartitionDirectory,
    ) -> None:
        """Create an empty log that begins at 0. Nothing touches the disk before the first append."""
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.store = SegmentStore(topic_partition, config, clock, handles, directory)
        self.durability = Durability(self)
        self.log_start_offset = 0
        self.branch_point: BranchPoint | None = None  # the offset at which it left the log it was branched from
        self.is_forgotten = False  # the files are being deleted, or their state is unknown: no more flushes
        self.is_held = False  # its files are being swapped for those in another log directory: it takes no records
        self.ends_after_hole = False  # the last batches from the leader do not directly follow those before
        self.epochs = LeaderEpochs()
        self.producers = ProducerStates()
        self._clock = clock
        self.directory = directory
        self.found_aborts: FoundAborts = {}  # what `log_reader` has found in sealed segments
        self.first_dirty_offset = 0  # compaction has seen to all below it
        self.stored_high_watermark = 0  # as last checkpointed in an earlier life
        self.names_lock = asyncio.Lock()  # held while files change their names in several steps
        self.end = self.flushed_end = LogPosition(0, 0, 0)

    def adopt(
        self,
        segments: Sequence[Segment],
        log_start_offset: int,
        log_end_offset: int,
        epochs: LeaderEpochs,
        producers: ProducerStates,
    ) -> None:
        """Set the state that recovery found, all of it durable. The last segment is the active one."""
        self.store.adopt(segments)
        self.log_start_offset = log_start_offset
        self.epochs, self.producers = epochs, producers
        self.end = LogPosition(log_end_offset, segments[-1].base_offset, segments[-1].size_bytes)
        self.flushed_end = self.end

    # What it is

    @property
    def path(self) -> str:
        return self.directory.path

    @property
    def files(self) -> Files:
        return self.directory.files

    @property
    def log_end_offset(self) -> int:
        return self.end.offset

    @property
    def recovery_point(self) -> int:
        """Return the offset below which everything survives a power loss."""
        return self.flushed_end.offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.store.segments)

    @property
    def segments(self) -> SegmentList:
        return self.store.segments

    @property
    def producers_from(self) -> int:
        """Return the offset below which batches do not affect producer states: they were written to another topic."""
        return self.branch_point.offset if self.branch_point is not None else 0

    @property
    def exists(self) -> bool:
        """Return whether the log has a directory, which is made with the first append."""
        return self.directory.exists

    @property
    def has_segments_to_drop(self) -> bool:
        return self.store.segments.has_any_below(self.log_start_offset)

    def claim(self, topic_id: bytes) -> None:
        """Assign the log to a topic, and write partition.metadata again if it was lost."""
        if self.topic_id != topic_id:
            assert self.topic_id == ZERO_UUID
            self.topic_id = topic_id
            self.directory.store_topic_id(topic_id)

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self.store.configure(config)

    @property
    def has_transactions(self) -> bool:
        """Return whether the log ever had a transaction, so that the active segment needs a transaction index."""
        return self.producers.has_transactions or any(
            segment.transactions.has_file or segment.transactions.size_bytes for segment in self.store.segments[-2:]
        )

    # Appending

    def append(
        self,
        records: Bytes,
        *,
        leader_epoch: int,
        is_own: bool = False,
        opened: Timestamps | None = None,
        transaction_version: int = UNVERIFIED,
        written: WrittenAhead | None = None,
    ) -> Appended:
        """Append a client's batch. Raises ApiError, and writes nothing, if it is refused or the disk is full.

        A batch of our own, which a coordinator has just made, is taken as it is, an end marker of a transaction too.
        `opened` is what a worker has found in a compressed batch; without it, NeedsWorker says of a large one that a
        worker must open it first. `transaction_version` is the protocol of a transactional batch whose producer has a
        transaction here, as its coordinator has said, or of an end marker. `written` is from `begin_large_append`.
        """
        now_ms, config = self._clock.time_ms(), self.config
        marker = None
        if is_own:
            header = stored = parse_header(records)
            marker = self.producers.check_own(records, header, transaction_version)
        else:
            header, stored = check_batch(records, config, now_ms, opened, transaction_version != UNVERIFIED)
        append_time_ms = now_ms if config.message_timestamp_type == "LogAppendTime" else -1
        is_idempotent = header.producer_id >= 0
        if is_idempotent and not is_own:
            repeated = self.producers.check(header, now_ms, transaction_version)
            if repeated is not None:
                return Appended(repeated.base_offset, repeated.last_offset, append_time_ms, self.log_start_offset, True)
        base_offset = self.end.offset
        last_offset = base_offset + header.last_offset_delta
        size_bytes, timestamp = len(records), stored.max_timestamp
        self.prepare_active_segment(size_bytes, last_offset, timestamp, now_ms)
        buffers = place_batch(records, header, stored, base_offset, leader_epoch)
        if written is not None and written.take():
            buffers = header_of(buffers)
        self.end = self.store.write(buffers, base_offset, size_bytes, last_offset, timestamp)
        if leader_epoch > self.epochs.latest and self.epochs.assign(leader_epoch, base_offset):
            self.directory.store_epochs(self.epochs.encode())
        if is_idempotent:
            decided = self.producers.apply(header, base_offset, now_ms, marker)
            if decided is not None:
                self._note_decided(decided)
        return _new(Appended, (base_offset, last_offset, append_time_ms, self.log_start_offset, False))

    def _note_decided(self, decided: DecidedTransaction) -> None:
        """Record the transaction that a marker, the last batch of the active segment, decides."""
        if not decided.is_commit:
            self.store.segments.active.transactions.note(decided.abort_entry())

    def append_replicated(self, records: Bytes, *, leader_epoch: int) -> Replicated:
        """Append whole batches with the leader's offsets; the last one may be incomplete, and is left out.

        Raises UnfitRecords if nothing was appended, and another ApiError if the disk took only some of them or none.
        """
        headers = check_batches(records, self.end.offset, self.epochs.latest, leader_epoch)
        before, now_ms = self.end.offset, self._clock.time_ms()
        view, position = memoryview(records), 0
        while headers:
            first = headers[0]
            self.prepare_active_segment(first.size_bytes, first.last_offset, newest_timestamp(first), now_ms)
            run = self.store.first_run(headers, now_ms)
            run_bytes = sum(header.size_bytes for header in run)
            self._write_run(view[position : position + run_bytes], run, now_ms)
            position += run_bytes
            headers = headers[len(run) :]
        return Replicated(before, self.end.offset, position)

    def held_error(self) -> ApiError:
        """Return the error while the log's files are being swapped for those in another log directory (`is_held`)."""
        told = f"{self.topic_partition} is being moved to another log directory: try again"
        return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, told)

    def prepare_active_segment(self, size_bytes: int, last_offset: int, timestamp: int, now_ms: int) -> None:
        """Create the first segment, or roll the active one if a batch with these properties belongs into a new one."""
        store = self.store
        if self.is_held:
            raise self.held_error()
        try:
            if not store.segments.active.size_bytes:
                if not self.directory.exists:
                    store.create(self.topic_id)
            elif store.must_roll(size_bytes, last_offset, timestamp, now_ms):
                self.roll()
        except OSError as error:
            raise file_error(self.topic_partition, error) from error

    def _write_run(self, data: memoryview, headers: Sequence[BatchHeader], now_ms: int) -> None:
        next_offset = headers[-2].next_offset if len(headers) > 1 else self.end.offset
        self.end = self.store.write_run(data, headers)
        self.ends_after_hole = headers[-1].base_offset > next_offset
        position = 0
        for header in headers:
            epoch = header.partition_leader_epoch
            if epoch > self.epochs.latest and self.epochs.assign(epoch, header.base_offset):
                self.directory.store_epochs(self.epochs.encode())
            if header.producer_id >= 0:
                marker = read_end_marker(data, position, header) if header.is_control else None
                decided = self.producers.apply(header, header.base_offset, now_ms, marker)
                if decided is not None:
                    self._note_decided(decided)
            position += header.size_bytes

    def mark_hole(self) -> None:
        """Mark the hole before the last batch, so that a recovery accepts it: the log is about to be in sync.

        A follower that still copies much does not need the mark: nothing depends on its last batch yet.
        """
        try:
            self.directory.mark_hole(self.end.offset)
        except OSError as error:
            raise file_error(self.topic_partition, error) from error

    # Reading

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the offset up to which a read_committed reader may see records.

        That is the first offset of the earliest undecided transaction, or else the partition's high watermark. A
        transaction is undecided until its marker is below the high watermark.
        """
        undecided = self.producers.undecided
        if undecided is None:
            return high_watermark
        return min(max(undecided.first_unstable_offset(high_watermark), self.log_start_offset), high_watermark)

    def aborted_transactions(self, start: int, end: int, read: LogSlice | None = None) -> list[AbortedTransaction]:
        """Return the aborted transactions with records from `start` to before `end`, sorted by their first offsets.

        `end` is at most the last stable offset. With `read`, only these records are searched. Raises NotCached.
        """
        return log_reader.aborted_transactions(self, start, end, read) if self.has_transactions else []

    # Methods that are written elsewhere.
    begin_large_append = begin_large_append
    read = log_reader.read
    position_of = log_reader.position_of
    find_timestamp = log_reader.find_timestamp
    max_timestamp = log_reader.max_timestamp

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self.epochs.end_offset_for(epoch, self.end.offset)

    # Flushing

    def roll(self) -> None:
        """Seal the active segment and begin another, unless the log is held. If OSError is raised, nothing changes."""
        if self.is_held:
            return
        self.store.roll(self.producers.encode_snapshot(), has_transactions=self.has_transactions)
        self.end = self.store.end

    def closing_task(self) -> FlushTask | None:
        """Return the task that makes the log durable and shortens the next start, or None if nothing is left to do."""
        if not self.directory.exists or self.durability.is_closed():
            return None
        self.durability.prepare_close()
        return self.durability.take_dirty()

    def close(self) -> None:
        """Close the files."""
        for segment in self.store.segments:
            for handle in segment.handles:
                handle.drop()

    # Losing records on purpose

    def advance_log_start(self, offset: int) -> bool:
        """Move the log's start up to `offset`; return whether it moved. The segments go with `drop_segments`."""
        assert offset <= self.end.offset
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        if self.epochs.truncate_start(offset):
            self.directory.store_epochs(self.epochs.encode())
        return True

    def drop_segments(self, start: int = LONG_MAX) -> list[str]:
        """Drop segments below the log's start, and `start`, which is durable; return their renamed files."""
        if self.is_held:
            return []
        if self.has_segments_to_drop:
            self.directory.note_names_changed()
        return self.store.segments.drop_below(min(start, self.log_start_offset), self.directory.files)

    async def replace_segments(self, old: Sequence[Segment], cleaned: CleanedSegment, in_thread: InThread) -> list[str]:
        """Replace segments by the one compacted from them; return the old ones' renamed files, to be removed.

        Returns None if the old ones are gone already. Raises OSError if nothing has changed, StorageFault if the log
        directory has
        """
        async with self.names_lock:
            swap = SegmentSwap(self.directory, self.store.segments, old)
            return await swap.run(cleaned, self.store.new_segment(cleaned.base_offset), in_thread)
