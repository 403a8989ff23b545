"""A replica that follows: it takes over what its leader has, and drops what its leader does not have.

Its log is at every moment a prefix of what some leader had: the leader's bytes are stored as they are, answers of a
leader that is none any more are not taken, and where the two part ways the log is cut before it goes on (R2, R5). While
a cut waits for the disk the replica may be elected, or deleted: then nothing is cut.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.partition.partition_log import PartitionLog, Replicated, UnfitRecords
from flowstone.replication.divergence import truncation_offset
from flowstone.replication.replica import OnFault, Replica
from flowstone.replication.services import Flushing, ReplicaServices
from flowstone.replication.state import NO_LEADER_EPOCH, DivergingEpoch
from flowstone.types import Bytes

logger = logging.getLogger(__name__)


class FollowingReplica(Replica):
    __slots__ = (
        "_leader_high_watermark",
        "_leader_log_start_offset",
        "_services",
        "epoch_start_offset",
        "is_leader",
        "leader_epoch",
        "leader_id",
        "refused_fetches",
    )

    def __init__(
        self, log: PartitionLog, flusher: Flushing, services: ReplicaServices | None, on_fault: OnFault
    ) -> None:
        super().__init__(log, flusher, on_fault)
        self.is_leader = False
        self.leader_epoch = NO_LEADER_EPOCH
        self.refused_fetches = 0  # answers of a leader that were not the next batches, or none
        self._services = services
        self._leader_high_watermark = 0  # as last told in this epoch
        self._leader_log_start_offset = 0

    @property
    def _cluster(self) -> ReplicaServices:
        assert self._services is not None, "a single broker's partitions have one replica"
        return self._services

    def _move_high_watermark(self) -> None:
        """As far as the leader told, and the replica's own position reaches; and so the log's start."""
        self._commit(min(self.position.offset, self._leader_high_watermark))
        if self._leader_log_start_offset > self.log.log_start_offset:
            reached = min(self.high_watermark.offset, self.log.end.offset)  # the log may just have been cut
            self.log.advance_log_start(min(self._leader_log_start_offset, reached))

    def follow_log_start(self, leader_log_start_offset: int) -> bool:
        """Advance the log's start to its leader's, as far as records are committed here; return whether it moved."""
        if self.is_leader or self.fault is not None:
            return False
        before = self.log.log_start_offset
        self._leader_log_start_offset = leader_log_start_offset
        self._move_high_watermark()
        return self.log.log_start_offset > before

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last record."""
        return self.log.epochs.latest

    def append_fetched(
        self, records: Bytes, leader_epoch: int, high_watermark: int, log_start_offset: int
    ) -> Replicated:
        """Appends what the leader of this epoch answered, and takes over what it told of its log.

        `UnfitRecords`: nothing was appended; ask again. Other ApiErrors: it is no longer the leader, or the disk full.
        """
        self._check_following(leader_epoch)
        before = self.log.end.offset
        try:
            replicated = self.log.append_replicated(records, leader_epoch=leader_epoch)
            if replicated.size_bytes and self.log.ends_after_hole and replicated.next_offset >= high_watermark:
                self.log.mark_hole()
        except StorageFault as fault:
            raise self._failed(fault) from fault
        except UnfitRecords:
            self.refused_fetches += 1
            raise
        except ApiError as error:
            self._note_full(error)
            self._request_flush_since(before)  # some of it may have been written
            raise
        if self._is_full:
            self._note_room()
        self._request_flush_since(before)
        self._leader_high_watermark, self._leader_log_start_offset = high_watermark, log_start_offset
        self._move_high_watermark()
        return replicated

    def _request_flush_since(self, offset: int) -> None:
        end = self.log.end
        if end.offset == offset:
            return
        self._remember_end(end)
        if self.log.config.flush_messages == 1:
            self._flusher.request(self.log)
        else:
            self._flusher.appended(self.log, end.offset - offset)

    def _follows_in(self, leader_epoch: int) -> bool:
        return self.fault is None and not self.is_closed and not self.is_leader and self.leader_epoch == leader_epoch

    def _check_following(self, leader_epoch: int) -> None:
        if not self._follows_in(leader_epoch):
            self.check_serving()
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH, f"the leader epoch is {self.leader_epoch}")

    @property
    def replica_lag(self) -> int:
        """How many records a follower lacks of those that its leader last said are committed."""
        return 0 if self.is_leader else max(0, self._leader_high_watermark - self.log.log_end_offset)

    async def truncate(self, diverging: DivergingEpoch) -> None:
        """Drops what the leader of the present epoch does not have. ApiError as of `append_fetched`."""
        offset = truncation_offset(self.log.epochs, self.log.log_end_offset, diverging)
        if offset < self.log.log_start_offset:
            await self.reset(offset)
        else:
            await self._cut(self._cluster.logs.truncate_to, offset)

    async def reset(self, offset: int) -> None:
        """Drops the log, which ends before the leader's begins: it goes on at `offset`, where that does."""
        await self._cut(self._cluster.logs.reset_to, offset)

    async def _cut(self, cut: Callable[[PartitionLog, int, Callable[[], bool]], Awaitable[None]], offset: int) -> None:
        leader_epoch = self.leader_epoch
        self._check_following(leader_epoch)
        if offset < self.high_watermark.offset:
            logger.warning(
                "%s: records from offset %d on were committed, but the leader of epoch %d does not have them",
                self.topic_partition,
                offset,
                leader_epoch,
            )
        try:
            await cut(self.log, offset, lambda: self._follows_in(leader_epoch))
        except StorageFault as fault:
            raise self._failed(fault) from fault
        except ApiError:
            await self._wait_flushed()  # what was about to go counted as not durable
            raise
        self._check_following(leader_epoch)
        self._ends.clear()
        self.high_watermark = self._within_log(self.high_watermark.offset)
        await self._wait_flushed()

    async def _wait_flushed(self) -> None:
        """Returns once the log's end is the replica's position. ApiError: it will not be."""
        flushed: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self.when_flushed(self.log.end.offset, lambda code: None if flushed.done() else flushed.set_result(code))
        code = await flushed
        if code is not ErrorCode.NONE:
            raise ApiError(code)
