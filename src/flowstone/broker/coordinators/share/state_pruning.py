"""Deletion of obsolete records of `__share_group_state`, which is not compacted.

For each shard on this broker: note the log's end, write a new snapshot of every state whose last one is older, and once
those are committed move the log's start to the noted end. Whole segments before it are deleted, and a shard that loads
reads from there. A shard whose log has few records is left alone.
"""

from __future__ import annotations

import asyncio
import logging

from flowstone.broker.coordinators.share.share_coordinator import ShareCoordinator
from flowstone.cluster.decisions.topic_names import SHARE_GROUP_STATE
from flowstone.coordinator.runtime import HostedShard
from flowstone.coordinator.share.shard import ShareShard
from flowstone.errors import ApiError, StorageFault
from flowstone.log.manager import LogManager
from flowstone.ports.clock import Clock, Timer
from flowstone.replication.partition import Partition
from flowstone.replication.served_partitions import Partitions
from flowstone.types import TopicPartition

logger = logging.getLogger(__name__)

# How often logs are checked at least, and with how many records one is pruned before its interval is over.
CHECK_INTERVAL_S = 30.0
RECORDS_MAX = 500_000
# With fewer records a log is not pruned, nor with fewer than so many for each state.
RECORDS_MIN = 1_000
RECORDS_PER_STATE_MIN = 4


class StatePruning:
    def __init__(
        self, coordinator: ShareCoordinator, partitions: Partitions, logs: LogManager, clock: Clock, interval_ms: int
    ) -> None:
        self._coordinator, self._partitions, self._logs = coordinator, partitions, logs
        self._clock, self._interval_s = clock, interval_ms / 1000
        self._pruned_s: dict[int, float] = {}
        self._pruning: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._set_timer()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._pruning is not None:
            self._pruning.cancel()

    def _set_timer(self) -> None:
        self._timer = self._clock.call_later(min(self._interval_s, CHECK_INTERVAL_S), self._check)

    def _check(self) -> None:
        self._pruning = asyncio.ensure_future(self._prune_all())

    async def _prune_all(self) -> None:
        try:
            for index, shard in self._coordinator.shards():
                partition = self._partitions.find(TopicPartition(SHARE_GROUP_STATE, index))
                if partition is not None and self._is_due(index, shard, partition):
                    self._pruned_s[index] = self._clock.monotonic()
                    await self._prune(shard, partition)
        except (ApiError, StorageFault) as error:  # the shard moves, or its log is offline
            logger.info("__share_group_state is not pruned now: %s", error)
        except Exception:
            logger.exception("pruning __share_group_state failed")
        finally:
            self._set_timer()

    def _is_due(self, index: int, shard: HostedShard[ShareShard], partition: Partition) -> bool:
        machine, log = shard.machine, partition.log
        if machine is None:
            return False
        count = log.log_end_offset - log.log_start_offset
        if count < max(RECORDS_MIN, RECORDS_PER_STATE_MIN * len(machine)):
            return False
        waited_s = self._clock.monotonic() - self._pruned_s.get(index, -self._interval_s)
        return count >= RECORDS_MAX or waited_s >= self._interval_s

    async def _prune(self, shard: HostedShard[ShareShard], partition: Partition) -> None:
        obsolete_before = partition.log.log_end_offset
        is_done = await shard.request(lambda machine, now_ms, token: machine.begin_refresh(now_ms, token))
        while not is_done:
            is_done = await shard.request(lambda machine, now_ms, token: machine.refresh(now_ms, token))
        await self._logs.delete_records_before(partition.log, obsolete_before)
        partition.log_start_moved()
