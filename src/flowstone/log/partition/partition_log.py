"""One partition's log: batches in, slices out, offsets in order.

Owns the end of the log and the next offset: a leader's, which gives them to the batches of clients, and a follower's,
which takes them over. Its parts: `segment_store` (how segments are stored), `durability` (what of them survives a power
loss), `producer_state` and `leader_epochs` (what is derived from the batches), `log_reader`. How its end is cut off is
in `log_cutting`. It knows nothing of replicas, requests or who waits. All calls come from the event loop. Reads never
wait for the disk: see `cached_reads`.

Invariants: offsets are given without a gap, and only compaction makes one. A failed write leaves the log as it was; if
even that fails, the fault is for good. `log_start_offset <= end`; `flushed_end <= end`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from flowstone.config import TopicConfig
from flowstone.log.partition.aborted_transactions import AbortedTransaction
from flowstone.log.partition.durability import Durability
from flowstone.log.partition.file_errors import file_error
from flowstone.log.partition.leader_epochs import LeaderEpochs
from flowstone.log.partition.log_reader import LogReader
from flowstone.log.partition.placed_batch import Appended, place_batch
from flowstone.log.partition.producer_state import UNVERIFIED, ProducerStates
from flowstone.log.partition.record_checks import Timestamps
from flowstone.log.partition.replica_append import Replicated, UnfitRecords, check_batches
from flowstone.log.partition.rolling import must_roll
from flowstone.log.partition.segment_store import SegmentStore
from flowstone.log.partition.undecided_transactions import DecidedTransaction
from flowstone.log.partition.validation import NeedsWorker, check_batch
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
]

# As a named tuple's constructor makes it, which takes three times as long: two are made for every batch.
_new = tuple.__new__


class PartitionLog:
    # With a thousand partitions all that an append looks at comes from far away: slots keep it together.
    __slots__ = (
        "_clock",
        "_reader",
        "branch_point",
        "config",
        "directory",
        "durability",
        "end",
        "ends_after_hole",
        "epochs",
        "first_dirty_offset",
        "is_forgotten",
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
        """An empty log that begins at 0. Nothing touches the disk before the first append."""
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.store = SegmentStore(topic_partition, config, clock, handles, directory)
        self.durability = Durability(directory)
        self.log_start_offset = 0
        self.branch_point: BranchPoint | None = None  # where it left the log it was branched from
        self.is_forgotten = False  # its files go, or nobody knows what is in them: there are no more flushes
        self.ends_after_hole = False  # what a leader sent last does not follow what it sent before
        self.epochs = LeaderEpochs()
        self.producers = ProducerStates()
        self._clock = clock
        self.directory = directory
        self._reader = LogReader(self)
        self.first_dirty_offset = 0  # compaction has seen to all below it
        self.stored_high_watermark = 0  # as last checkpointed in an earlier life
        self.names_lock = asyncio.Lock()  # held while files change their names in several steps
        self.end = self.durability.flushed_end

    def adopt(
        self,
        segments: Sequence[Segment],
        log_start_offset: int,
        log_end_offset: int,
        epochs: LeaderEpochs,
        producers: ProducerStates,
    ) -> None:
        """Takes over what recovery found; all of it is durable. The last segment is the active one."""
        self.store.adopt(segments)
        self.log_start_offset = log_start_offset
        self.epochs, self.producers = epochs, producers
        self.end = LogPosition(log_end_offset, segments[-1].base_offset, segments[-1].size_bytes)
        self.durability.flushed_end = self.end

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
        """Everything below it survives a power loss."""
        return self.durability.flushed_end.offset

    @property
    def flushed_end(self) -> LogPosition:
        return self.durability.flushed_end

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.store.segments)

    @property
    def segments(self) -> SegmentList:
        return self.store.segments

    @property
    def producers_from(self) -> int:
        """What lies below says nothing about producers: it was written to another topic."""
        return self.branch_point.offset if self.branch_point is not None else 0

    @property
    def exists(self) -> bool:
        """Whether there is a directory: it is made with the first append."""
        return self.directory.exists

    @property
    def has_segments_to_drop(self) -> bool:
        return self.store.segments.has_any_below(self.log_start_offset)

    def claim(self, topic_id: bytes) -> None:
        """The log is this topic's: a directory whose partition.metadata was lost gets it back."""
        if self.topic_id != topic_id:
            assert self.topic_id == ZERO_UUID
            self.topic_id = topic_id
            self.directory.store_topic_id(topic_id)

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self.store.configure(config)

    @property
    def has_transactions(self) -> bool:
        """Whether there has been a transaction: then the active segment needs an index of them, be it empty."""
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
    ) -> Appended:
        """Append a client's batch. Raises ApiError if it is refused or there is no room; nothing is written then.

        A batch of our own, which a coordinator has just made, is taken as it is, an end marker of a transaction too.
        `opened` is what a worker has found in a compressed batch; without it, NeedsWorker says of a large one that a
        worker must open it first. `transaction_version` is the transaction protocol of a transactional batch whose
        producer has a transaction with this partition, as its coordinator has said, or of an end marker.
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
        self._make_room(size_bytes, last_offset, timestamp, now_ms)
        buffers = place_batch(records, header, stored, base_offset, leader_epoch)
        self.end = self.store.write(buffers, base_offset, size_bytes, last_offset, timestamp)
        if leader_epoch > self.epochs.latest and self.epochs.assign(leader_epoch, base_offset):
            self.directory.store_epochs(self.epochs.encode())
        if is_idempotent:
            decided = self.producers.apply(header, base_offset, now_ms, marker)
            if decided is not None:
                self._note_decided(decided)
        return _new(Appended, (base_offset, last_offset, append_time_ms, self.log_start_offset, False))

    def _note_decided(self, decided: DecidedTransaction) -> None:
        """The marker that decides a transaction is the last batch of the active segment."""
        if not decided.is_commit:
            self.store.segments.active.transactions.note(decided.abort_entry())

    def append_replicated(self, records: Bytes, *, leader_epoch: int) -> Replicated:
        """Appends whole batches as the leader of this epoch has them; the last one may be cut short, and is left out.

        `UnfitRecords`: nothing was appended. Another ApiError: there was no room for all of them.
        """
        headers = check_batches(records, self.end.offset, self.epochs.latest, leader_epoch)
        before, now_ms = self.end.offset, self._clock.time_ms()
        view, position = memoryview(records), 0
        while headers:
            first = headers[0]
            self._make_room(first.size_bytes, first.last_offset, newest_timestamp(first), now_ms)
            run = self.store.first_run(headers, now_ms)
            run_bytes = sum(header.size_bytes for header in run)
            self._write_run(view[position : position + run_bytes], run, now_ms)
            position += run_bytes
            headers = headers[len(run) :]
        return Replicated(before, self.end.offset, position)

    def _make_room(self, size_bytes: int, last_offset: int, timestamp: int, now_ms: int) -> None:
        """The active segment is the one that a batch with these belongs into."""
        store = self.store
        active = store.segments.active
        try:
            if not active.size_bytes:
                if not self.directory.exists:
                    store.create(self.topic_id)
            elif must_roll(active, self.config, store.roll_ms, size_bytes, last_offset, timestamp, now_ms):
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
        """The hole before the last batch must be believed after a crash: the log is about to be in sync.

        While much is still to come nobody relies on the last batch, and this would be for nothing.
        """
        try:
            self.directory.mark_hole(self.end.offset)
        except OSError as error:
            raise file_error(self.topic_partition, error) from error

    # Reading

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return up to where a read_committed reader may see records: where the first undecided transaction begins, or
        the partition's high watermark. A transaction is undecided until its marker is below that.
        """
        undecided = self.producers.undecided
        if undecided is None:
            return high_watermark
        return min(max(undecided.first_unstable_offset(high_watermark), self.log_start_offset), high_watermark)

    def aborted_transactions(self, start: int, end: int, read: LogSlice | None = None) -> list[AbortedTransaction]:
        """Return the aborted transactions with records from `start` to before `end`, sorted by their first offsets.

        `end` is at most the last stable offset; with `read`, no more than these records is looked at. NotCached.
        """
        return self._reader.aborted_transactions(start, end, read) if self.has_transactions else []

    def read(self, offset: int, max_bytes: int, until: LogPosition, *, at_least_one: bool) -> LogSlice | None:
        """Bytes of one segment from the batch that holds `offset` on, or the first one after it, up to `until`.

        None if there are none, or if the first batch is above `max_bytes` and not asked for all the same. NotCached.
        """
        return self._reader.read(offset, max_bytes, until, at_least_one)

    def position_of(self, offset: int) -> LogPosition:
        """Where the batch that holds `offset`, or the first one after it, begins; NotCached."""
        return self._reader.position_of(offset)

    def find_timestamp(self, target_ms: int) -> LogSlice | None:
        """The batch with the first record at or after `target_ms`: see `timestamps.first_record_at`. NotCached."""
        return self._reader.find_timestamp(target_ms)

    def max_timestamp(self) -> tuple[int, LogSlice] | None:
        """The newest timestamp, and the first batch that has it; None for an empty log. NotCached."""
        return self._reader.max_timestamp()

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self.epochs.end_offset_for(epoch, self.end.offset)

    # Flushing

    def roll(self) -> None:
        """Seals the active segment and begins another. OSError leaves the active one as it was."""
        self.store.roll(self.producers.encode_snapshot(), has_transactions=self.has_transactions)
        self.end = self.store.end

    def take_dirty(self) -> FlushTask | None:
        """What makes all of the log so far durable; None if it is. `flushed` must follow before the next one."""
        return self.durability.take_dirty(self.end, self.store.segments)

    def flushed(self, task: FlushTask) -> int:
        """The task has run: what it covers is durable. How many bytes were not so before."""
        return self.durability.flushed(task, self.end, self.store.segments)

    def closing_task(self) -> FlushTask | None:
        """What makes all of the log durable, with what shortens the next start; None if all of that is there."""
        if not self.directory.exists or self.durability.is_closed(self.end):
            return None
        self.durability.prepare_close(
            self.end,
            self.store.segments,
            has_transactions=self.has_transactions,
            snapshot=self.producers.encode_snapshot(),
        )
        return self.take_dirty()

    def close(self) -> None:
        """Lets go of the files."""
        for segment in self.store.segments:
            for handle in segment.handles:
                handle.drop()

    # Losing records on purpose

    def advance_log_start(self, offset: int) -> bool:
        """Nothing below `offset` is served any more; whether that is news. Its segments go with `drop_segments`."""
        assert offset <= self.end.offset
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        if self.epochs.truncate_start(offset):
            self.directory.store_epochs(self.epochs.encode())
        return True

    def drop_segments(self) -> list[str]:
        """Lets go of the segments below the log's start, which must be durable; their renamed files, to be removed."""
        if self.has_segments_to_drop:
            self.directory.note_names_changed()
        return self.store.segments.drop_below(self.log_start_offset, self.directory.files)

    async def replace_segments(self, old: Sequence[Segment], cleaned: CleanedSegment, in_thread: InThread) -> list[str]:
        """Puts a compacted segment in the place of those it was made of; their renamed files, to be removed.

        None if they are gone already. OSError: nothing has changed. StorageFault: the log directory has failed.
        """
        async with self.names_lock:
            swap = SegmentSwap(self.directory, self.store.segments, old)
            return await swap.run(cleaned, self.store.new_segment(cleaned.base_offset), in_thread)
