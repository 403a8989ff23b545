"""A log as it is stored: its segments, what of it is durable, and what is derived from it (producers, leader epochs).

Owns the order of things on disk: how a segment ends and the next begins, what there is to flush, and how records go on
purpose, at the log's start or at its end. What is appended and how it is read is `partition_log`'s business. It never
flushes, it only says what there is to flush. All calls come from the event loop.

Invariants: `log_start_offset <= end`; `flushed_end <= end`; the recovery point, which is the flushed end, moves only
when every byte, index, snapshot and name below it is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from flowstone.config import TopicConfig
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.partition.aborted_transactions import FoundAborts
from flowstone.log.partition.leader_epochs import LeaderEpochs
from flowstone.log.partition.producer_state import ProducerStates
from flowstone.log.partition.rolling import roll_age_ms
from flowstone.log.partition.truncation_plan import Cut
from flowstone.log.segments.branch_point import BranchPoint
from flowstone.log.segments.compaction_job import CleanedSegment
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.partition_directory import (
    NO_DESCRIPTORS,
    NO_SPACE,
    FlushTask,
    LogPosition,
    PartitionDirectory,
)
from flowstone.log.segments.preallocation import find_no_more, find_room, give_back
from flowstone.log.segments.segment import Segment
from flowstone.log.segments.segment_list import SegmentList
from flowstone.log.segments.segment_swap import InThread, SegmentSwap
from flowstone.log.segments.shared_files import own_file
from flowstone.ports.clock import Clock
from flowstone.ports.files import Files
from flowstone.types import ZERO_UUID, TopicPartition

NO_OFFSET = -1


class StoredLog:
    # With a thousand partitions all that an append looks at comes from far away: slots keep it together.
    __slots__ = (
        "_clock",
        "_closed_at",
        "_directory",
        "_found_aborts",
        "_generation",
        "_handles",
        "_is_held",
        "_roll_ms",
        "_segments",
        "branch_point",
        "config",
        "end",
        "ends_after_hole",
        "epochs",
        "first_dirty_offset",
        "flushed_end",
        "is_checkpoint_due",
        "is_forgotten",
        "is_torn",
        "log_start_offset",
        "names_lock",
        "producers",
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
        self.log_start_offset = 0
        self.branch_point: BranchPoint | None = None  # where it left the log it was branched from
        self.is_torn = False  # part of a batch may stand after the log's end
        self.is_checkpoint_due = False  # its first records or a sealed segment are durable: a checkpoint should say so
        self.is_forgotten = False  # its files go, or nobody knows what is in them: there are no more flushes
        self.ends_after_hole = False  # what a leader sent last does not follow what it sent before
        self.epochs = LeaderEpochs()
        self.producers = ProducerStates()
        self._clock = clock
        self._handles = handles
        self._directory = directory
        self._generation = 0
        self._closed_at: tuple[LogPosition, int] | None = None  # all that a clean close leaves was there, as of then
        self._is_held = False
        self._found_aborts: FoundAborts = {}
        self.first_dirty_offset = 0  # compaction has seen to all below it
        self.stored_high_watermark = 0  # as last checkpointed in an earlier life
        self.names_lock = asyncio.Lock()  # held while files change their names in several steps
        self.end = LogPosition(0, 0, 0)
        self.flushed_end = self.end
        self._segments = SegmentList([self._new_segment(0)])
        self._roll_ms = self._roll_age_ms()

    def adopt(
        self,
        segments: Sequence[Segment],
        log_start_offset: int,
        log_end_offset: int,
        epochs: LeaderEpochs,
        producers: ProducerStates,
    ) -> None:
        """Takes over what recovery found; all of it is durable. The last segment is the active one."""
        self._segments = SegmentList(segments)
        self._roll_ms = self._roll_age_ms()
        self.log_start_offset = log_start_offset
        self.epochs, self.producers = epochs, producers
        self.end = LogPosition(log_end_offset, segments[-1].base_offset, segments[-1].size_bytes)
        self.flushed_end = self.end

    # What it is

    @property
    def path(self) -> str:
        return self._directory.path

    @property
    def directory(self) -> PartitionDirectory:
        return self._directory

    @property
    def files(self) -> Files:
        return self._directory.files

    @property
    def log_end_offset(self) -> int:
        return self.end.offset

    @property
    def recovery_point(self) -> int:
        """Everything below it survives a power loss."""
        return self.flushed_end.offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def segments(self) -> SegmentList:
        return self._segments

    @property
    def producers_from(self) -> int:
        """What lies below says nothing about producers: it was written to another topic."""
        return self.branch_point.offset if self.branch_point is not None else 0

    @property
    def exists(self) -> bool:
        """Whether there is a directory: it is made with the first append."""
        return self._directory.exists

    @property
    def has_segments_to_drop(self) -> bool:
        return self._segments.has_any_below(self.log_start_offset)

    def claim(self, topic_id: bytes) -> None:
        """The log is this topic's: a directory whose partition.metadata was lost gets it back."""
        if self.topic_id != topic_id:
            assert self.topic_id == ZERO_UUID
            self.topic_id = topic_id
            self._directory.store_topic_id(topic_id)

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self._roll_ms = self._roll_age_ms()

    @property
    def has_transactions(self) -> bool:
        """Whether there has been a transaction: then the active segment needs an index of them, be it empty."""
        return self.producers.has_transactions or any(
            segment.transactions.has_file or segment.transactions.size_bytes for segment in self._segments[-2:]
        )

    # Segments

    def _create(self) -> None:
        segment = self._segments.active
        self._directory.create(self.topic_id)
        segment.log.create().truncate(0)
        segment.created_ms = self._clock.time_ms()
        self._directory.exists = True

    def _new_segment(self, base_offset: int) -> Segment:
        return Segment(
            self._handles,
            self._directory.path,
            base_offset,
            created_ms=self._clock.time_ms(),
            index_interval_bytes=self.config.index_interval_bytes,
        )

    def _roll_age_ms(self) -> int:
        return roll_age_ms(self.config, f"{self.topic_partition}:{self._segments.active.base_offset}")

    def roll(self) -> None:
        """Seals the active segment and begins another. OSError leaves the active one as it was."""
        sealed = self._segments.active
        assert sealed.size_bytes
        segment = self._new_segment(self.end.offset)
        give_back(sealed)
        sealed.write_indexes(has_transactions=self.has_transactions)
        self._directory.write_snapshot(self.end.offset, self.producers.encode_snapshot())
        file = segment.log.create()
        if file.size():  # what a crash left of a roll that never came to be
            file.truncate(0)
        self._directory.note_names_changed()
        self._directory.note_unsynced(*(handle.get() for handle in sealed.handles))
        sealed.log.pinned = False  # the list of unsynced files keeps it now
        sealed.seal()
        self._segments.add(segment)
        self._roll_ms = self._roll_age_ms()
        self.end = LogPosition(self.end.offset, segment.base_offset, 0)

    def _file_error(self, error: OSError) -> ApiError | StorageFault:
        """What will pass is no fault."""
        if error.errno in NO_SPACE or error.errno in NO_DESCRIPTORS:
            return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition}: {error.strerror}")
        return StorageFault(f"{self.topic_partition}: {error}")

    # Flushing

    def take_dirty(self) -> FlushTask | None:
        """What makes all of the log so far durable; None if it is. `flushed` must follow before the next one."""
        if self.flushed_end.offset == self.end.offset and not self._directory.has_unsynced:
            return None
        active = self._segments.active
        if active.size_bytes > active.room_end:
            find_room(active, self.flushed_end)
        return self._directory.take(self.end, self._generation, active.log.get())

    def flushed(self, task: FlushTask) -> int:
        """The task has run: what it covers is durable. How many bytes were not so before."""
        if task.generation != self._generation or self._is_held:
            return 0
        before, end = self.flushed_end, task.end
        assert before.offset <= end.offset <= self.end.offset
        self.flushed_end = end
        if end.segment_base_offset != before.segment_base_offset or not before.offset:
            self.is_checkpoint_due = True
        if end == self.end:
            self._segments.active.log.pinned = False
        return self._segments.bytes_between(before, end)

    # Losing records on purpose

    def advance_log_start(self, offset: int) -> bool:
        """Nothing below `offset` is served any more; whether that is news. Its segments go with `drop_segments`."""
        assert offset <= self.end.offset
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        if self.epochs.truncate_start(offset):
            self._directory.store_epochs(self.epochs.encode())
        return True

    def drop_segments(self) -> list[str]:
        """Lets go of the segments below the log's start, which must be durable; their renamed files, to be removed."""
        if self.has_segments_to_drop:
            self._directory.note_names_changed()
        return self._segments.drop_below(self.log_start_offset, self._directory.files)

    async def replace_segments(self, old: Sequence[Segment], cleaned: CleanedSegment, in_thread: InThread) -> list[str]:
        """Puts a compacted segment in the place of those it was made of; their renamed files, to be removed.

        None if they are gone already. OSError: nothing has changed. StorageFault: the log directory has failed.
        """
        async with self.names_lock:
            swap = SegmentSwap(self._directory, self._segments, old)
            return await swap.run(cleaned, self._new_segment(cleaned.base_offset), in_thread)

    @contextmanager
    def recovery_point_held(self, end: LogPosition) -> Iterator[None]:
        """What lies from `end` on counts as not durable, whatever is flushed meanwhile."""
        self.lower_recovery_point(end)
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def lower_recovery_point(self, end: LogPosition) -> None:
        """What lies from `end` on counts as not durable; a flush under way does not change that."""
        self._generation += 1
        self.flushed_end = min(self.flushed_end, end)

    def cut(self, cut: Cut) -> None:
        """Drops the log's end, or all of it. OSError: the log is left half-way, and only a start can use it again.

        The recovery point must have been lowered, and checkpointed, or the next start takes this for damage; and
        `names_lock` must be held, or a compacted segment may bring back what was dropped: see `truncating`.
        """
        assert cut.log_end == self.end
        assert self.flushed_end.offset <= cut.untouched_end.offset
        self.is_torn = True
        if cut.shortened is None:
            self._restart_at(cut.end.offset)
        else:
            self._shorten(*cut.shortened)
        self.is_torn = False
        self.end, self.producers = cut.end, cut.producers
        self._roll_ms = self._roll_age_ms()
        self._generation += 1
        self._directory.note_names_changed()
        self._forget_after(cut.end.offset)

    def _shorten(self, segment: Segment, left: Segment) -> None:
        """Of one segment only a part is left, and nothing of those after it."""
        for handle in segment.handles:
            handle.drop()
        self._segments.cut_at(segment, left, self._directory.files)
        own_file(self._directory.files, left.log.path, left.size_bytes)
        left.log.get().truncate(left.size_bytes)
        self._directory.note_unsynced(left.log.get())

    def _restart_at(self, offset: int) -> None:
        """Nothing is left. A crash half-way leaves the first segments, or recovery to do the same."""
        segment = self._new_segment(offset)
        self._segments.replace_all(segment, self._directory.files)
        if self._directory.exists:
            segment.log.create().truncate(0)
        else:
            self._create()
        self.log_start_offset = offset
        self.epochs = LeaderEpochs()
        self._directory.store_epochs(self.epochs.encode())
        self._directory.remove_snapshots_after(NO_OFFSET)

    def _forget_after(self, end_offset: int) -> None:
        """What is derived from the log follows its new end."""
        self.first_dirty_offset = min(self.first_dirty_offset, end_offset)
        self._directory.remove_snapshots_after(end_offset)
        if self.branch_point is not None and end_offset < self.branch_point.offset:
            # What comes here from now on is no longer the source's.
            self._set_branch_point(self.branch_point._replace(offset=end_offset))
        if self.epochs.truncate_end(end_offset):
            self._directory.store_epochs(self.epochs.encode())

    def _set_branch_point(self, point: BranchPoint) -> None:
        self.branch_point = point
        self._directory.store_branch_point(point)

    # The end

    def closing_task(self) -> FlushTask | None:
        """What makes all of the log durable, with what shortens the next start; None if all of that is there."""
        if not self._directory.exists or (self._closed_at == self._state and not self._directory.has_unsynced):
            return None
        active = self._segments.active
        give_back(active)
        find_no_more(active)
        active.write_indexes(has_transactions=self.has_transactions)
        self._directory.note_unsynced(*(handle.get() for handle in active.handles))
        self._directory.note_names_changed()
        self._directory.write_snapshot(self.end.offset, self.producers.encode_snapshot())
        return self.take_dirty()

    @property
    def _state(self) -> tuple[LogPosition, int]:
        return self.end, self._generation

    def note_as_closed(self) -> None:
        """The log is as a clean close has left it: as long as that is so, the next one has nothing to do."""
        self._closed_at = self._state

    def close(self) -> None:
        """Lets go of the files."""
        for segment in self._segments:
            for handle in segment.handles:
                handle.drop()
