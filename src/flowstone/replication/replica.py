"""A replica's log with its high watermark: what may be read, who waits for more of it, and the end by a fault.

Knows nothing of leaders and followers; `partition` does, and says how far the high watermark may move. Where in the log
it lies is looked up when somebody reads, if it is not at one of the places that are known anyway.

A replica that met a storage fault is offline: it answers KAFKA_STORAGE_ERROR and acknowledges nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.partition.partition_log import LogPosition, LogSlice, PartitionLog
from flowstone.replication.services import Flushing
from flowstone.types import TopicPartition

logger = logging.getLogger(__name__)

# Ends of appends above the high watermark whose places are remembered; those before are looked up.
REMEMBERED_ENDS_MAX = 1024
# Stands for a segment's base offset where it is not known where an offset lies.
NOT_LOOKED_UP = -1
# Told to watchers where it is not known how much there is: as much as anyone waits for.
ANY_SIZE_BYTES = 2**31 - 1

# Called once: with NONE when what was waited for has happened, else with why it may not.
OnReached = Callable[[ErrorCode], None]
OnFault = Callable[[PartitionLog, StorageFault], None]
# Ascending by offset: appends come in order.
Waiters = deque[tuple[int, OnReached]]
# Partitions that nobody has ever waited for share these: an empty queue takes three quarters of a kilobyte.
_NO_WAITERS: Waiters = deque(maxlen=0)
_NO_ENDS: deque[LogPosition] = deque(maxlen=0)


class Watcher(Protocol):
    """Somebody who waits for a partition to have more to read."""

    def advanced(self, size_bytes: int) -> None:
        """There are about so many bytes more."""
        ...

    def interrupted(self) -> None:
        """The partition is no longer what it was: look again."""
        ...


_NO_WATCHERS: set[Watcher] = set()


class Replica:
    # With a thousand partitions all that an append looks at comes from far away: slots keep it together.
    __slots__ = (
        "_closed_with",
        "_end_watchers",
        "_ends",
        "_flusher",
        "_is_full",
        "_on_fault",
        "_uncommitted",
        "_unflushed",
        "_watchers",
        "fault",
        "high_watermark",
        "log",
        "topic_id",
        "topic_partition",
    )

    def __init__(self, log: PartitionLog, flusher: Flushing, on_fault: OnFault) -> None:
        """`on_fault` hears why it went offline: there may be more to it than this partition."""
        self.log = log
        self.topic_partition: TopicPartition = log.topic_partition
        self.topic_id: bytes = log.topic_id
        self.fault: StorageFault | None = None
        self._flusher = flusher
        self._on_fault = on_fault
        self._closed_with: ErrorCode | None = None
        self._is_full = False  # the disk is; told once, not per request
        self._watchers: set[Watcher] = _NO_WATCHERS
        self._end_watchers: set[Watcher] = _NO_WATCHERS
        self._uncommitted: Waiters = _NO_WAITERS
        self._unflushed: Waiters = _NO_WAITERS
        self._ends: deque[LogPosition] = _NO_ENDS
        self.high_watermark = self._within_log(log.stored_high_watermark)

    @property
    def position(self) -> LogPosition:
        """The end of what the replica has for good (D5)."""
        return self.log.flushed_end if self.log.config.flush_messages == 1 else self.log.end

    # Reading

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> LogSlice | None:
        """Committed bytes from the batch that holds `offset` on; None if there are none. May raise NotCached."""
        self.check_serving()
        try:
            if self.high_watermark.segment_base_offset == NOT_LOOKED_UP:
                self.high_watermark = self.log.position_of(self.high_watermark.offset)
            return self.log.read(offset, max_bytes, self.high_watermark, at_least_one=at_least_one)
        except StorageFault as fault:
            raise self._failed(fault) from fault

    def watch(self, watcher: Watcher) -> None:
        """It hears when the high watermark moves."""
        self._watchers = _with(self._watchers, watcher)

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def watch_end(self, watcher: Watcher) -> None:
        """It hears when the log's end moves: for followers."""
        self._end_watchers = _with(self._end_watchers, watcher)

    def unwatch_end(self, watcher: Watcher) -> None:
        self._end_watchers.discard(watcher)

    def when_flushed(self, offset: int, callback: OnReached) -> None:
        """Calls back when the replica's `position` has reached `offset`: at once, or later in order."""
        if self.fault is not None or self._closed_with is not None:
            callback(self._closed_with or ErrorCode.KAFKA_STORAGE_ERROR)
        elif offset <= self.position.offset:
            callback(ErrorCode.NONE)
        else:
            self._unflushed = add_waiter(self._unflushed, offset, callback)

    # The high watermark

    def _commit(self, offset: int) -> None:
        """Everything below the offset is committed, if it was not before."""
        if self.fault is None and offset > self.high_watermark.offset:
            self._advance(self._place(offset))

    def _advance(self, end: LogPosition) -> None:
        before = self.high_watermark
        if end.offset <= before.offset:
            return
        self.high_watermark = end
        uncommitted = self._uncommitted  # not by `answer_reached`: with one replica this runs for every flush
        while uncommitted and uncommitted[0][0] <= end.offset:
            uncommitted.popleft()[1](ErrorCode.NONE)
        if self._watchers:
            size_bytes = _size_between(before, end)
            for watcher in tuple(self._watchers):
                watcher.advanced(size_bytes)

    def _within_log(self, high_watermark: int) -> LogPosition:
        """The log may have been cut since; and what lies before its start was committed."""
        return self._place(min(max(high_watermark, self.log.log_start_offset), self.log.end.offset))

    def _remember_end(self, end: LogPosition) -> None:
        """The high watermark may come to be there."""
        if self._ends is _NO_ENDS:
            self._ends = deque(maxlen=REMEMBERED_ENDS_MAX)
        self._ends.append(end)

    def _place(self, offset: int) -> LogPosition:
        """Where an offset between the high watermark and the log's end lies, if that can be told at once."""
        for known in (self.log.end, self.log.flushed_end):
            if known.offset == offset:
                return known
        ends = self._ends
        while ends and ends[0].offset < offset:
            ends.popleft()
        return ends[0] if ends and ends[0].offset == offset else LogPosition(offset, NOT_LOOKED_UP, 0)

    # Life

    def fail(self, fault: StorageFault) -> None:
        """Takes the partition offline for good."""
        if self.fault is None:
            self.fault = fault
            logger.error("partition %s is offline: %s", self.topic_partition, fault)
            self._release(ErrorCode.KAFKA_STORAGE_ERROR)
            self._on_fault(self.log, fault)

    def close(self, code: ErrorCode) -> None:
        """The partition is served no more; whoever waits is told why."""
        self._closed_with = code
        self._release(code)

    @property
    def is_closed(self) -> bool:
        return self._closed_with is not None

    def check_serving(self) -> None:
        """ApiError if the partition is offline or closed."""
        if self.fault is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.fault))
        if self._closed_with is not None:
            raise ApiError(self._closed_with)

    def _failed(self, fault: StorageFault) -> ApiError:
        self.fail(fault)
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(fault))

    def _note_full(self, error: ApiError) -> None:
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR and not self._is_full:
            self._is_full = True
            logger.warning("partition %s takes no records for now: %s", self.topic_partition, error.message)

    def _note_room(self) -> None:
        self._is_full = False
        logger.warning("partition %s takes records again", self.topic_partition)

    def _release(self, code: ErrorCode) -> None:
        """All that was waited for is over."""
        answer_all(self._uncommitted, code)
        answer_all(self._unflushed, code)
        for watcher in (*self._watchers, *self._end_watchers):
            watcher.interrupted()


def add_waiter(waiters: Waiters, offset: int, callback: OnReached) -> Waiters:
    """The queue with one more at its end."""
    if waiters is _NO_WAITERS:
        waiters = deque()
    waiters.append((offset, callback))
    return waiters


def _with(watchers: set[Watcher], watcher: Watcher) -> set[Watcher]:
    if watchers is _NO_WATCHERS:
        watchers = set()
    watchers.add(watcher)
    return watchers


def answer_reached(waiters: Waiters, offset: int) -> None:
    while waiters and waiters[0][0] <= offset:
        waiters.popleft()[1](ErrorCode.NONE)


def answer_all(waiters: Waiters, code: ErrorCode) -> None:
    """Those who wait now: who is called may wait for something new."""
    for _ in range(len(waiters)):
        waiters.popleft()[1](code)


def _size_between(before: LogPosition, end: LogPosition) -> int:
    if NOT_LOOKED_UP in (before.segment_base_offset, end.segment_base_offset):
        return ANY_SIZE_BYTES
    return end.position - before.position if end.segment_base_offset == before.segment_base_offset else end.position
