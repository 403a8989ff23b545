"""One partition as its leader sees it: the log, the high watermark, and who waits for it to move.

The high watermark is the end of what consumers may see and of what acks=all has promised. With one replica and
`flush.messages=1` it is the flushed end of the log: nothing a power cut could take back is ever shown (D5). With
`flush.messages` above 1 it is the log's end. It never goes back.

A partition that met a storage fault is offline: it answers KAFKA_STORAGE_ERROR and acknowledges nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.partition_log import Appended, LogPosition, LogSlice, PartitionLog
from flowstone.types import Bytes, TopicPartition

logger = logging.getLogger(__name__)

ACKS_ALL = -1

# Called once, with NONE when the records are committed, else with why they may not be.
OnCommitted = Callable[[ErrorCode], None]
OnFault = Callable[[PartitionLog, StorageFault], None]


class Watcher(Protocol):
    """Somebody who waits for a partition to have more to read."""

    def advanced(self, size_bytes: int) -> None:
        """The high watermark moved by about so many bytes."""
        ...

    def interrupted(self) -> None:
        """The partition is no longer what it was: look again."""
        ...


class Flushing(Protocol):
    """The flusher, as a partition sees it."""

    def request(self, log: PartitionLog) -> None: ...

    def appended(self, log: PartitionLog, record_count: int) -> None: ...


class Partition:
    def __init__(
        self,
        log: PartitionLog,
        flusher: Flushing,
        leader_epoch: int,
        replica_count: int,
        on_fault: OnFault = lambda log, fault: None,
    ) -> None:
        """`on_fault` hears why it went offline: there may be more to it than this partition."""
        self.log = log
        self.topic_partition: TopicPartition = log.topic_partition
        self.topic_id: bytes = log.topic_id
        self.leader_epoch = leader_epoch
        self.replica_count = replica_count
        self.high_watermark: LogPosition = log.end
        self.fault: StorageFault | None = None
        self._is_full = False  # the disk is; told once, not per request
        self._flusher = flusher
        self._on_fault = on_fault
        self._closed_with: ErrorCode | None = None
        self._watchers: set[Watcher] = set()
        # Ascending by offset: appends come in order.
        self._uncommitted: deque[tuple[int, OnCommitted]] = deque()

    # Writing

    def append(self, records: Bytes, acks: int) -> Appended:
        """Appends one batch from a client. ApiError says why it was refused; nothing was written then."""
        self.check_serving()
        if acks == ACKS_ALL and self.replica_count < self.log.config.min_insync_replicas:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.replica_count} in-sync replicas, min.insync.replicas asks for "
                f"{self.log.config.min_insync_replicas}",
            )
        try:
            appended = self.log.append(records, leader_epoch=self.leader_epoch)
        except StorageFault as fault:
            raise self._failed(fault) from fault
        except ApiError as error:
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR and not self._is_full:
                self._is_full = True
                logger.warning("partition %s takes no records for now: %s", self.topic_partition, error.message)
            raise
        if self._is_full:
            self._is_full = False
            logger.warning("partition %s takes records again", self.topic_partition)
        if not appended.duplicate:
            if self.log.config.flush_messages == 1:
                self._flusher.request(self.log)
            else:
                self._flusher.appended(self.log, appended.last_offset - appended.base_offset + 1)
                self._advance(self.log.end)
        return appended

    def when_committed(self, offset: int, callback: OnCommitted) -> None:
        """Calls back when everything below `offset` is committed: at once, or later in order."""
        if offset <= self.high_watermark.offset:
            callback(ErrorCode.NONE)
        else:
            self._uncommitted.append((offset, callback))

    def flushed(self) -> None:
        """More of the log is on disk."""
        if self.fault is None and self.log.config.flush_messages == 1:
            self._advance(self.log.flushed_end)

    def configured(self) -> None:
        """The topic's settings changed; what waited for the disk under the old ones may be due now."""
        if self.fault is None and self.log.config.flush_messages > 1:
            self._advance(self.log.end)
        else:
            self._flusher.request(self.log)

    # Reading

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> LogSlice | None:
        """Committed bytes from the batch that holds `offset` on; None if there are none. May raise NotCached."""
        self.check_serving()
        try:
            return self.log.read(offset, max_bytes, self.high_watermark, at_least_one=at_least_one)
        except StorageFault as fault:
            raise self._failed(fault) from fault

    def watch(self, watcher: Watcher) -> None:
        self._watchers.add(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    # Life

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Fences clients that know an older leader epoch than ours, or a newer one."""
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)

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

    def _release(self, code: ErrorCode) -> None:
        uncommitted, self._uncommitted = self._uncommitted, deque()
        for _, callback in uncommitted:
            callback(code)
        for watcher in tuple(self._watchers):
            watcher.interrupted()

    def _advance(self, end: LogPosition) -> None:
        before = self.high_watermark
        if end.offset <= before.offset:
            return
        self.high_watermark = end
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= end.offset:
            uncommitted.popleft()[1](ErrorCode.NONE)
        if self._watchers:
            same_segment = end.segment_base_offset == before.segment_base_offset
            size_bytes = end.position - before.position if same_segment else end.position
            for watcher in tuple(self._watchers):
                watcher.advanced(size_bytes)
