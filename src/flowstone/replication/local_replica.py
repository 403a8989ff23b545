"""This broker's copy of a partition: its log, what each reader may see, the requests that wait, and its storage fault.

A `LocalReplica` knows nothing of leaders and followers: the partition's role (`leader_role`, `follower_role`) says how
far the high watermark may move. The high watermark is the end of what is committed: of what consumers may see and of
what acks=all has promised. It never goes back, unless the log is cut below it after an unclean election. Its position
in the log is looked up at the next read, if it is not among the known positions.

A replica that met a storage fault is offline: it answers KAFKA_STORAGE_ERROR and acknowledges nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.partition.partition_log import AbortedTransaction, LogPosition, LogSlice, PartitionLog
from flowstone.replication.known_positions import NOT_LOOKED_UP, KnownPositions
from flowstone.replication.readers import COMMITTED, UNCOMMITTED, Reader
from flowstone.replication.services import Flushing
from flowstone.replication.waiters import (
    NO_WAITERS,
    OnReached,
    Waiters,
    Watchers,
    add_waiter,
    answer_all,
    answer_reached,
)
from flowstone.types import TopicPartition

logger = logging.getLogger(__name__)

# Reported to watchers if the number of bytes is unknown: as many as any request waits for.
ANY_SIZE_BYTES = 2**31 - 1

OnFault = Callable[[PartitionLog, StorageFault], None]
OnFull = Callable[[PartitionLog], None]


class LocalReplica:
    # With a thousand partitions an append finds little in the processor's cache: slots keep the fields close together.
    __slots__ = (
        "_flusher",
        "_on_fault",
        "_on_full",
        "_positions",
        "_told_stable_offset",
        "_watchers",
        "_watchers_committed",
        "_watchers_end",
        "closed_with",
        "fault",
        "high_watermark",
        "is_full",
        "log",
        "topic_partition",
        "uncommitted",
        "unflushed",
    )

    def __init__(
        self, log: PartitionLog, flusher: Flushing, on_fault: OnFault, on_full: OnFull = lambda log: None
    ) -> None:
        """Create the replica. `on_fault` is told why it went offline, `on_full` of each append to a full disk."""
        self.log = log
        self.topic_partition: TopicPartition = log.topic_partition
        self.fault: StorageFault | None = None
        self._flusher, self._on_fault, self._on_full = flusher, on_fault, on_full
        self.closed_with: ErrorCode | None = None
        self.is_full = False  # whether the last append was refused for lack of space; logged once, not for each append
        self._watchers: Watchers | None = None  # of the high watermark
        self._watchers_committed: Watchers | None = None  # of the last stable offset
        self._watchers_end: Watchers | None = None  # of the log's end
        self._told_stable_offset = 0
        self.uncommitted: Waiters = NO_WAITERS  # see `Partition.when_committed`
        self.unflushed: Waiters = NO_WAITERS  # see `when_flushed`
        self._positions = KnownPositions(log)
        self.high_watermark = self._within_log(log.stored_high_watermark)

    @property
    def position(self) -> LogPosition:
        """Return the end of what counts as stored: the flushed end with `flush.messages=1`, otherwise the log's end.

        So with `flush.messages=1` nothing that a power loss could undo is shown or acknowledged.
        """
        return self.log.flushed_end if self.log.config.flush_messages == 1 else self.log.end

    # Reading

    def visible_end(self, reader: Reader) -> int:
        """Return the offset up to which `reader` may see; on a follower, as far as the follower knows.

        A read_uncommitted consumer sees up to the high watermark, a read_committed one up to the last stable offset,
        and a follower up to the log's end.
        """
        if reader is UNCOMMITTED:
            return self.high_watermark.offset
        if reader is COMMITTED:
            return self.log.last_stable_offset(self.high_watermark.offset)
        return self.log.end.offset

    def read(self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool) -> LogSlice | None:
        """Return bytes below `end_offset`, a `visible_end`, from the batch that holds `offset`; None if there are none.

        Raises NotCached if the disk is needed to find them, ApiError if the offset is out of range or the replica
        is offline or closed.
        """
        if self.fault is not None or self.closed_with is not None:
            self.check_serving()
        try:
            end = self.high_watermark
            if end_offset != end.offset or end.segment_base_offset == NOT_LOOKED_UP:
                end = self._look_up(end_offset)
            return self.log.read(offset, max_bytes, end, at_least_one=at_least_one)
        except StorageFault as fault:
            raise self.failed(fault) from fault

    def read_as(self, reader: Reader, offset: int, max_bytes: int, *, at_least_one: bool) -> LogSlice | None:
        """Return the bytes at `offset` that such a reader may see, as `read` does."""
        return self.read(offset, max_bytes, self.visible_end(reader), at_least_one=at_least_one)

    def aborted_transactions(self, offset: int, end_offset: int, records: LogSlice) -> list[AbortedTransaction]:
        """Return the aborted transactions among `records`, which `read` returned for the offsets. Raises NotCached."""
        try:
            return self.log.aborted_transactions(offset, end_offset, records)
        except StorageFault as fault:
            raise self.failed(fault) from fault

    def _look_up(self, end_offset: int) -> LogPosition:
        """Return the position of an offset that a reader may see up to. Raises NotCached."""
        if end_offset <= self.log.log_start_offset:  # there is nothing to read
            return LogPosition(end_offset, NOT_LOOKED_UP, 0)
        found = self.log.position_of(end_offset)
        if end_offset == self.high_watermark.offset:
            self.high_watermark = found
        return found

    def watchers(self, reader: Reader) -> Watchers:
        """Return the watchers to notify when `visible_end` of such a reader moves."""
        if reader is UNCOMMITTED:
            if self._watchers is None:
                self._watchers = Watchers()
            return self._watchers
        if reader is COMMITTED:
            if self._watchers_committed is None:
                self._watchers_committed = Watchers()
                self._told_stable_offset = self.visible_end(Reader.COMMITTED)
            return self._watchers_committed
        if self._watchers_end is None:
            self._watchers_end = Watchers()
        return self._watchers_end

    def interrupt_followers(self) -> None:
        """Notify the followers' watchers of a change that is not an append and that followers should learn at once."""
        if self._watchers_end is not None:
            self._watchers_end.interrupted()

    # Waiting

    def when_flushed(self, offset: int, callback: OnReached) -> None:
        """Call back once the replica's `position` has reached `offset`: at once, or in order of offsets."""
        if self.fault is not None or self.closed_with is not None:
            callback(self.closed_with or ErrorCode.KAFKA_STORAGE_ERROR)
        elif offset <= self.position.offset:
            callback(ErrorCode.NONE)
        else:
            self.unflushed = add_waiter(self.unflushed, offset, callback)

    def position_moved(self) -> None:
        """Call the callbacks that wait for offsets up to the replica's `position`."""
        if self.unflushed:
            answer_reached(self.unflushed, self.position.offset)

    # The end of the log

    def appended(self, size_bytes: int) -> None:
        """Record an append that is not committed yet, and tell the watchers of the log's end."""
        self._positions.remember_end()
        if self._watchers_end is not None:
            self._watchers_end.advanced(size_bytes)

    def replicated(self, record_count: int) -> None:
        """Record `record_count` records copied from the leader, and request the flush that `flush.messages` demands."""
        self._positions.remember_end()
        if self.log.config.flush_messages == 1:
            self._flusher.request(self.log)
        else:
            self._flusher.appended(self.log, record_count)

    def was_cut(self) -> None:
        """Record that the log was cut: the high watermark is not above its end."""
        self._positions.forget()
        self.high_watermark = self._within_log(self.high_watermark.offset)
        self._told_stable_offset = min(self._told_stable_offset, self.high_watermark.offset)

    # The high watermark

    def commit(self, offset: int) -> None:
        """Move the high watermark to `offset`, if it is below."""
        if self.fault is None and offset > self.high_watermark.offset:
            self.advance(self._positions.place(offset))

    def advance(self, end: LogPosition) -> None:
        """Move the high watermark to `end` if that is higher, and notify its watchers."""
        before = self.high_watermark
        if end.offset <= before.offset:
            return
        self.high_watermark = end
        # inlined instead of `answer_reached`: with one replica this runs for every flush
        uncommitted = self.uncommitted
        while uncommitted and uncommitted[0][0] <= end.offset:
            uncommitted.popleft()[1](ErrorCode.NONE)
        if self._watchers is not None:
            self._watchers.advanced(_size_between(before, end))
        if self._watchers_committed is not None:
            self.tell_stable_readers(before)

    def tell_stable_readers(self, high_watermark_before: LogPosition | None = None) -> None:
        """Notify read_committed consumers if the last stable offset has moved since the last notification."""
        if self._watchers_committed is None:
            return
        before, stable_offset = self._told_stable_offset, self.visible_end(Reader.COMMITTED)
        if stable_offset <= before:
            return
        self._told_stable_offset, end = stable_offset, self.high_watermark
        has_no_transaction = high_watermark_before is not None and before == high_watermark_before.offset
        if high_watermark_before is not None and has_no_transaction and stable_offset == end.offset:
            self._watchers_committed.advanced(_size_between(high_watermark_before, end))
        else:
            self._watchers_committed.advanced(ANY_SIZE_BYTES)

    def begin_epoch(self) -> None:
        """Drop the callbacks that wait for commits of the previous leader epoch: uncommitted records may be lost."""
        self._positions.forget()
        self.release(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _within_log(self, high_watermark: int) -> LogPosition:
        """Limit a high watermark to the log, which may have been cut; what lies before its start was committed."""
        return self._positions.place(min(max(high_watermark, self.log.log_start_offset), self.log.end.offset))

    def moved(self, flusher: Flushing) -> None:
        """Take over the flusher of the log directory that the log is in now."""
        self._flusher = flusher

    # Life

    def fail(self, fault: StorageFault) -> None:
        """Take the replica offline permanently."""
        if self.fault is None:
            self.fault = fault
            logger.error("partition %s is offline: %s", self.topic_partition, fault)
            self.release(ErrorCode.KAFKA_STORAGE_ERROR)
            self._on_fault(self.log, fault)

    def failed(self, fault: StorageFault) -> ApiError:
        """Take the replica offline and return the error for the client."""
        self.fail(fault)
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(fault))

    def close(self, code: ErrorCode) -> None:
        """Stop serving the replica; waiting requests are answered with `code`."""
        self.closed_with = code
        self.release(code)

    @property
    def is_closed(self) -> bool:
        return self.closed_with is not None

    def check_serving(self) -> None:
        """Raise ApiError if the replica is offline or closed."""
        if self.fault is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.fault))
        if self.closed_with is not None:
            raise ApiError(self.closed_with)

    def append_refused(self, error: ApiError) -> None:
        """Record whether an append was refused for lack of space."""
        if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
            return
        if not self.is_full:
            self.is_full = True
            logger.warning("partition %s accepts no records for now: %s", self.topic_partition, error.message)
        self._on_full(self.log)

    def append_taken(self) -> None:
        """Record an append after one that was refused for lack of space."""
        self.is_full = False
        logger.warning("partition %s accepts records again", self.topic_partition)

    def release(self, code: ErrorCode) -> None:
        """Answer all waiting requests with `code`, and have all watchers read again."""
        answer_all(self.uncommitted, code)
        answer_all(self.unflushed, code)
        for watchers in (self._watchers, self._watchers_committed, self._watchers_end):
            if watchers is not None:
                watchers.interrupted()


def _size_between(before: LogPosition, end: LogPosition) -> int:
    if NOT_LOOKED_UP in (before.segment_base_offset, end.segment_base_offset):
        return ANY_SIZE_BYTES
    return end.position - before.position if end.segment_base_offset == before.segment_base_offset else end.position
