"""Handling of a full disk in a cluster: other brokers become leaders, and this broker's replicas leave the ISR.

A leader that cannot write hands its partitions over to in-sync replicas, and a follower that cannot write leaves the
ISR. Both are one change of the metadata: the broker's replicas on that disk are no longer in sync. Where no other
replica is in sync nothing changes: no other broker has the records.

A disk is full below the floor of free space (`disk_space`), where clients' records are refused, and after an append has
failed for lack of space. Below the floor the replicas of internal topics stay in sync, since their records are still
accepted. While the disk is full its followers fetch nothing: a fetch would bring them back into the ISR. So that space
can become free, this broker asks the leaders where their logs start, and deletes what they have deleted.

Once there is space again the followers fetch, catch up and are added to the ISR as usual. The preferred leader leads
again with the next balance of leaders.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections.abc import Sequence
from functools import partial

from flowstone.broker.clustering.remote_offsets import RemoteOffsets
from flowstone.broker.clustering.replica_roles import Replicas
from flowstone.cluster.decisions.topic_names import is_internal
from flowstone.cluster.decisions.withdrawals import replica_failed
from flowstone.cluster.metadata import Metadata
from flowstone.config import MIB
from flowstone.errors import ApiError, StorageFault
from flowstone.log.directories.log_set import DirectoryLogs
from flowstone.log.manager import LogManager
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.ports.clock import Clock, Timer
from flowstone.replication.partition import Partition
from flowstone.replication.served_partitions import Partitions

logger = logging.getLogger(__name__)

# How often a full disk is checked, and its replicas that are in sync again are removed from the ISR.
CHECK_INTERVAL_S = 1.0
# How often leaders are asked where their logs start.
LOG_STARTS_INTERVAL_S = 5.0
# An append failed for lack of space: appends are tried again once a file of this size could be written.
PROBE_BYTES = MIB


class FullDisks:
    def __init__(
        self,
        node_id: int,
        metadata: Metadata,
        logs: LogManager,
        partitions: Partitions,
        replicas: Replicas,
        remote_offsets: RemoteOffsets,
        clock: Clock,
    ) -> None:
        self._node_id, self._metadata, self._logs = node_id, metadata, logs
        self._partitions, self._replicas, self._remote_offsets, self._clock = (
            partitions,
            replicas,
            remote_offsets,
            clock,
        )
        # Paths of log directories.
        self._below_floor: set[str] = set()
        self._out_of_space: set[str] = set()
        self._timer: Timer | None = None
        self._withdrawing: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._asked_s = -LOG_STARTS_INTERVAL_S
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in (self._withdrawing, self._asking):
            if task is not None:
                task.cancel()

    def is_full(self, partition: Partition) -> bool:
        """Return whether the replica is on a full disk: it must not follow, and leads only if no other replica can."""
        if not self._below_floor and not self._out_of_space:
            return False
        path = posixpath.dirname(partition.log.path)
        if path in self._out_of_space:
            return True
        return path in self._below_floor and not is_internal(partition.topic_partition.topic)

    # Events

    def floor_passed(self, path: str, *, is_below: bool) -> None:
        """Record that a log directory has fallen below the floor of free space, or risen above it."""
        if is_below:
            self._below_floor.add(path)
            self._check_soon()
        else:
            self._below_floor.discard(path)
            self._follow_again(path)

    def append_failed(self, log: PartitionLog) -> None:
        """Record that an append to a log failed for lack of space."""
        path = posixpath.dirname(log.path)
        if path not in self._out_of_space:
            self._out_of_space.add(path)
            logger.error(
                "%s is full: other brokers with an in-sync replica lead its partitions until space is free", path
            )
            self._check_soon()

    # Checks while a disk is full

    def _check_soon(self) -> None:
        """Schedule a check for the loop's next iteration; at once, it could end a fetch of the caller."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_closed:
            self._timer = self._clock.call_later(0.0, self._check)

    def _check(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_closed or not (self._below_floor or self._out_of_space):
            return
        self._timer = self._clock.call_later(CHECK_INTERVAL_S, self._check)
        full = [each for each in self._partitions if each.fault is None and self.is_full(each)]
        following = [each for each in full if not each.is_leader]
        for partition in following:
            self._replicas.removed(partition)
        in_sync = [each for each in full if self._node_id in each.isr and len(each.isr) > 1]
        if in_sync and (self._withdrawing is None or self._withdrawing.done()):
            self._withdrawing = asyncio.ensure_future(self._withdraw(in_sync))
        now_s = self._clock.monotonic()
        if now_s - self._asked_s >= LOG_STARTS_INTERVAL_S and (self._asking is None or self._asking.done()):
            self._asked_s = now_s
            self._asking = asyncio.ensure_future(self._delete_what_leaders_deleted(following))
        for path in self._out_of_space - self._below_floor:
            directory = self._directory(path)
            if directory.fault is None:
                self._probe(directory)
            else:
                self._out_of_space.discard(path)

    async def _withdraw(self, partitions: Sequence[Partition]) -> None:
        wanted = [(each.topic_id, each.topic_partition.partition) for each in partitions]
        try:
            left = await self._metadata.change(lambda image: replica_failed(image, self._node_id, wanted))
        except (ApiError, StorageFault) as error:  # the next check tries again
            logger.warning(
                "broker %d has a full disk, but could not leave the in-sync replicas: %s", self._node_id, error
            )
            return
        logger.warning(
            "broker %d has a full disk: it left the in-sync replicas of %d partition(s), and no longer leads them",
            self._node_id,
            len(wanted) - len(left),
        )

    async def _delete_what_leaders_deleted(self, following: Sequence[Partition]) -> None:
        directories = set()
        for partition in following:
            bounds = await self._remote_offsets.bounds(partition.topic_partition)
            follower = partition.following
            if bounds is not None and follower is not None and follower.follow_log_start(bounds.log_start_offset):
                directories.add(posixpath.dirname(partition.log.path))
        for path in directories:
            await self._directory(path).housekeeping.apply_retention()

    def _directory(self, path: str) -> DirectoryLogs:
        return next(each for each in self._logs.directories if each.path == path)

    def _probe(self, directory: DirectoryLogs) -> None:
        probing = asyncio.wrap_future(directory.housekeeping.submit(partial(directory.write_probe, PROBE_BYTES)))
        probing.add_done_callback(partial(self._probed, directory))

    def _probed(self, directory: DirectoryLogs, probing: asyncio.Future[None]) -> None:
        if probing.cancelled() or self._is_closed or directory.path not in self._out_of_space:
            return
        if probing.exception() is None:
            self._out_of_space.discard(directory.path)
            logger.warning("%s has free space again", directory.path)
            self._follow_again(directory.path)

    def _follow_again(self, path: str) -> None:
        for partition in self._partitions:
            if posixpath.dirname(partition.log.path) == path and not self.is_full(partition):
                self._replicas.placed(partition)
