"""The stored segments of one log: how they grow, roll and are cut.

Owns the order of disk operations when files are made, written, sealed and cut. `partition_log` knows what the batches
are and which offsets they have; `durability` what is durable. The store never flushes, it only lists what must be
flushed. All calls come from the event loop.

Invariant: a failed write leaves the segments as they were; if even that fails, part of a batch lies after their end
(`is_torn`), and no more is written.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from flowstone.config import TopicConfig
from flowstone.errors import ApiError, StorageFault
from flowstone.log.partition.file_errors import file_error
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.index_pair import newest_timestamp
from flowstone.log.segments.partition_directory import NO_DESCRIPTORS, LogPosition, PartitionDirectory
from flowstone.log.segments.preallocation import cut_to_size, release_unused
from flowstone.log.segments.segment import RELATIVE_OFFSET_MAX, Segment
from flowstone.log.segments.segment_list import SegmentList
from flowstone.log.segments.shared_files import own_file
from flowstone.ports.clock import Clock
from flowstone.types import Bytes, TopicPartition
from flowstone.wire.record_batch import BatchHeader

NO_OFFSET = -1
# Transaction indexes made by one roll for segments older than the log's first transaction; each takes about 50 us.
OLDER_INDEXES_AT_ONCE_MAX = 256

# Equivalent to the named tuple's constructor, which takes three times as long: one is made for every batch.
_new = tuple.__new__


class SegmentStore:
    __slots__ = (
        "_clock",
        "_handles",
        "_topic_partition",
        "config",
        "directory",
        "is_torn",
        "roll_ms",
        "segments",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        config: TopicConfig,
        clock: Clock,
        handles: FileHandles,
        directory: PartitionDirectory,
    ) -> None:
        """Create one empty segment that begins at 0. Nothing touches the disk before `create`."""
        self.config = config
        self.directory = directory
        self.is_torn = False
        self._topic_partition = topic_partition
        self._clock, self._handles = clock, handles
        self.segments = SegmentList([self.new_segment(0)])
        self._set_roll_age()

    def adopt(self, segments: Sequence[Segment]) -> None:
        """Set the segments that recovery found; the last one is the active one."""
        self.segments = SegmentList(segments)
        self._set_roll_age()

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self._set_roll_age()

    def _set_roll_age(self) -> None:
        self.roll_ms = _roll_age_ms(self.config, f"{self._topic_partition}:{self.segments.active.base_offset}")

    @property
    def end(self) -> LogPosition:
        active = self.segments.active
        return _new(LogPosition, (active.next_offset, active.base_offset, active.size_bytes))

    def new_segment(self, base_offset: int) -> Segment:
        return Segment(
            self._handles,
            self.directory.path,
            base_offset,
            created_ms=self._clock.time_ms(),
            index_interval_bytes=self.config.index_interval_bytes,
        )

    # Growing

    def create(self, topic_id: bytes) -> None:
        """Make the directory and the file of the first segment. Raises OSError."""
        segment = self.segments.active
        self.directory.create(topic_id)
        segment.log.create().truncate(0)
        segment.created_ms = self._clock.time_ms()
        self.directory.exists = True

    def must_roll(self, size_bytes: int, last_offset: int, timestamp: int, now_ms: int) -> bool:
        """Return whether a batch with this size, last offset and timestamp begins a new segment, by Kafka's rules.

        Age counts from the first batch's timestamp to this one's, or by the broker's clock if the first one has none.
        """
        segment, config = self.segments.active, self.config
        if not segment.size_bytes:
            return False
        if segment.first_timestamp >= 0:
            age_ms = timestamp - segment.first_timestamp
        else:
            age_ms = now_ms - segment.created_ms
        return (
            segment.size_bytes + size_bytes > config.segment_bytes
            or age_ms > self.roll_ms
            or segment.indexes.is_full(config.segment_index_bytes)
            or segment.transactions.size_bytes >= config.segment_index_bytes
            or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
        )

    def first_run(self, headers: Sequence[BatchHeader], now_ms: int) -> Sequence[BatchHeader]:
        """Return the leader's batches that go into one segment and are written together, from the first on.

        A segment's first batch is written alone, because the rules for the others refer to it.
        """
        if not self.segments.active.size_bytes:
            return headers[:1]
        run_bytes = headers[0].size_bytes
        for count, header in enumerate(headers[1:], 1):
            run_bytes += header.size_bytes
            if self.must_roll(run_bytes, header.last_offset, newest_timestamp(header), now_ms):
                return headers[:count]
        return headers

    def roll(self, snapshot: bytes, *, has_transactions: bool) -> None:
        """Seal the active segment and begin another. If OSError is raised, the active one is unchanged.

        `snapshot` is the producers' snapshot.
        """
        sealed = self.segments.active
        assert sealed.size_bytes
        end_offset = sealed.next_offset
        segment = self.new_segment(end_offset)
        release_unused(sealed)
        if has_transactions:
            self._complete_transaction_indexes()
        sealed.write_indexes(has_transactions=has_transactions)
        self.directory.write_snapshot(end_offset, snapshot)
        file = segment.log.create()
        if file.size():  # left by a crash during a roll that did not complete
            file.truncate(0)
        self.directory.note_names_changed()
        self.directory.note_unsynced(*(handle.get() for handle in sealed.handles))
        sealed.log.pinned = False  # the list of unsynced files holds it now
        sealed.seal()
        self.segments.add(segment)
        self._set_roll_age()

    def _complete_transaction_indexes(self) -> None:
        """Give sealed segments without a transaction index an empty one. Raises OSError.

        They need not be synced: the next start makes those again that a power failure removes.
        """
        lacking = [each for each in [*self.segments][:-1] if not each.transactions.has_file]
        for segment in lacking[:OLDER_INDEXES_AT_ONCE_MAX]:
            segment.transactions.create_empty()

    def write(
        self, buffers: list[Bytes], base_offset: int, size_bytes: int, last_offset: int, timestamp: int
    ) -> LogPosition:
        """Write one batch at the end; return where the log ends now."""
        segment = self.segments.active
        try:
            if segment.ahead is not None:
                cut_to_size(segment)
            segment.append(buffers, base_offset, size_bytes, last_offset, timestamp)
        except OSError as error:
            raise self._undo(segment, error) from error
        return _new(LogPosition, (segment.next_offset, segment.base_offset, segment.size_bytes))

    def write_run(self, data: memoryview, headers: Sequence[BatchHeader]) -> LogPosition:
        """Write batches as they are, at the end and at once; return where the log ends now."""
        segment = self.segments.active
        try:
            if segment.ahead is not None:
                cut_to_size(segment)
            segment.append_found(data, headers)
        except OSError as error:
            raise self._undo(segment, error) from error
        return self.end

    def _undo(self, segment: Segment, error: OSError) -> ApiError | StorageFault:
        """Remove a partly written batch, so that the log is as before the write; return the error to raise."""
        if error.errno in NO_DESCRIPTORS:  # the file was not even opened
            return file_error(self._topic_partition, error)
        try:
            cut_to_size(segment)
        except OSError as second:
            self.is_torn = True
            return StorageFault(f"{self._topic_partition}: {error}, and undoing it: {second}")
        return file_error(self._topic_partition, error)

    # Losing the end on purpose. If OSError is raised, the files are partly cut, and only a restart can use them again.

    def shorten(self, segment: Segment, left: Segment) -> None:
        """Keep only a part of one segment, and nothing of those after it."""
        self.is_torn = True
        for handle in segment.handles:
            handle.drop()
        self.segments.cut_at(segment, left, self.directory.files)
        own_file(self.directory.files, left.log.path, left.size_bytes)
        left.log.get().truncate(left.size_bytes)
        self.directory.note_unsynced(left.log.get())
        self._set_roll_age()
        self.is_torn = False

    def restart_at(self, offset: int, topic_id: bytes) -> None:
        """Remove all segments. After a crash in between, the first segments are left, or recovery removes them too."""
        self.is_torn = True
        segment = self.new_segment(offset)
        self.segments.replace_all(segment, self.directory.files)
        if self.directory.exists:
            segment.log.create().truncate(0)
        else:
            self.create(topic_id)
        self.directory.remove_snapshots_after(NO_OFFSET)
        self._set_roll_age()
        self.is_torn = False


def _roll_age_ms(config: TopicConfig, name: str) -> int:
    """Return segment.ms minus a share of its jitter, which differs by name so that partitions do not roll together."""
    jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
    age_ms = config.segment_ms - int(random.Random(name).random() * jitter_ms) if jitter_ms else config.segment_ms
    return min(age_ms, config.max_compaction_lag_ms) if "compact" in config.cleanup_policy else age_ms
