"""The follower's role in a partition for one leader epoch: copies the leader's log, and cuts what the leader lacks.

The follower's log is at every moment a prefix of what some leader had: the leader's bytes are stored as they are,
answers of an earlier leader are not taken, and a log that diverges is cut before it goes on. While a cut waits for the
disk the replica may be elected, or deleted: the role has ended then, and nothing is cut. A follower's high watermark is
its leader's, limited by the follower's own position.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.partition.partition_log import PartitionLog, Replicated, UnfitRecords
from flowstone.replication.divergence import truncation_offset
from flowstone.replication.local_replica import LocalReplica
from flowstone.replication.services import Cutting
from flowstone.replication.state import DivergingEpoch
from flowstone.types import Bytes

logger = logging.getLogger(__name__)


class FollowerRole:
    __slots__ = (
        "_has_ended",
        "_leader_high_watermark",
        "_leader_log_start_offset",
        "_local",
        "_logs",
        "leader_epoch",
        "refused_answers",
    )

    def __init__(self, local: LocalReplica, logs: Cutting | None, leader_epoch: int) -> None:
        """Create the role. `logs` cuts logs; it is None on a single broker, which follows nothing."""
        self._local, self._logs = local, logs
        self.leader_epoch = leader_epoch
        self._has_ended = False
        self.refused_answers = 0  # responses that were damaged or not the next batches
        self._leader_high_watermark = 0  # as last told by the leader
        self._leader_log_start_offset = 0

    def end(self) -> None:
        """End the role: the leader epoch is over, or the partition closed."""
        self._has_ended = True

    def check_current(self) -> None:
        """Raise ApiError if the role has ended, or the replica is offline or closed."""
        self._local.check_serving()
        if self._has_ended:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH, f"the leader epoch is no longer {self.leader_epoch}")

    @property
    def _is_current(self) -> bool:
        return not self._has_ended and self._local.fault is None and not self._local.is_closed

    @property
    def lag(self) -> int:
        """Return how many records the follower lacks of those that its leader last reported as committed."""
        return max(0, self._leader_high_watermark - self._local.log.log_end_offset)

    # Copying

    def append_fetched(self, records: Bytes, high_watermark: int, log_start_offset: int) -> Replicated:
        """Append what the leader of this epoch answered, and take over its high watermark and log start.

        Raises UnfitRecords if nothing was appended and the follower should ask again, and another ApiError if the role
        has ended, the disk is full or the replica is offline.
        """
        self.check_current()
        local, log = self._local, self._local.log
        before = log.end.offset
        try:
            replicated = log.append_replicated(records, leader_epoch=self.leader_epoch)
            if replicated.size_bytes and log.ends_after_hole and replicated.next_offset >= high_watermark:
                log.mark_hole()
        except StorageFault as fault:
            raise local.failed(fault) from fault
        except UnfitRecords:
            self.refused_answers += 1
            raise
        except ApiError as error:
            local.append_refused(error)
            self._flush_since(before)  # some of the records may have been written
            raise
        if local.is_full:
            local.append_taken()
        self._flush_since(before)
        self._leader_high_watermark, self._leader_log_start_offset = high_watermark, log_start_offset
        self.move_high_watermark()
        return replicated

    def _flush_since(self, offset: int) -> None:
        end_offset = self._local.log.end.offset
        if end_offset > offset:
            self._local.replicated(end_offset - offset)

    def move_high_watermark(self) -> None:
        """Move the high watermark and log start to the leader's, as far as this replica's own position allows."""
        local, log = self._local, self._local.log
        local.commit(min(local.position.offset, self._leader_high_watermark))
        if self._leader_log_start_offset > log.log_start_offset:
            reached = min(local.high_watermark.offset, log.end.offset)  # the log may just have been cut
            log.advance_log_start(min(self._leader_log_start_offset, reached))

    def follow_log_start(self, leader_log_start_offset: int) -> bool:
        """Advance the log's start to its leader's, as far as records are committed here; return whether it moved."""
        if self._local.fault is not None:
            return False
        before = self._local.log.log_start_offset
        self._leader_log_start_offset = leader_log_start_offset
        self.move_high_watermark()
        return self._local.log.log_start_offset > before

    # Cutting

    async def truncate(self, diverging: DivergingEpoch) -> None:
        """Drop what the leader does not have. Raises ApiError if the role has ended or the disk is full."""
        log = self._local.log
        offset = truncation_offset(log.epochs, log.log_end_offset, diverging)
        if offset < log.log_start_offset:
            await self.reset(offset)
        else:
            await self._cut(self._cutting.truncate_to, offset)

    async def reset(self, offset: int) -> None:
        """Drop the whole log, which ends before the leader's begins, and continue at `offset`, the start of the
        leader's log.

        Raises ApiError if the role has ended or the disk is full.
        """
        await self._cut(self._cutting.reset_to, offset)

    @property
    def _cutting(self) -> Cutting:
        assert self._logs is not None, "a single broker's partitions have one replica"
        return self._logs

    async def _cut(self, cut: Callable[[PartitionLog, int, Callable[[], bool]], Awaitable[None]], offset: int) -> None:
        self.check_current()
        local = self._local
        if offset < local.high_watermark.offset:
            logger.warning(
                "%s: records from offset %d on were committed, but the leader of epoch %d does not have them",
                local.topic_partition,
                offset,
                self.leader_epoch,
            )
        try:
            await cut(local.log, offset, lambda: self._is_current)
        except StorageFault as fault:
            raise local.failed(fault) from fault
        except ApiError:
            await self._wait_flushed()  # the dropped records counted as not durable
            raise
        self.check_current()
        local.was_cut()
        await self._wait_flushed()

    async def _wait_flushed(self) -> None:
        """Return once the log's end is the replica's position. Raises ApiError if it will not be."""
        flushed: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        end_offset = self._local.log.end.offset
        self._local.when_flushed(end_offset, lambda code: None if flushed.done() else flushed.set_result(code))
        code = await flushed
        if code is not ErrorCode.NONE:
            raise ApiError(code)
