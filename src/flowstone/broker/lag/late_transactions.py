"""Watch for transactions that hold up read_committed consumers for longer than any transaction may be open.

Such a transaction hangs: its coordinator would have aborted it. Only the oldest open transaction of each led partition
is examined, which is the one that holds back the last stable offset. Each is logged once.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import NamedTuple

from flowstone.broker.loop.time_slices import yield_to_loop
from flowstone.broker.requests.context import Services
from flowstone.ports.clock import Timer
from flowstone.replication.partition import Partition
from flowstone.types import TopicPartition

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 30.0
# A transaction is late if its producer is silent for transaction.max.timeout.ms and so much longer, as in Kafka.
LATE_BUFFER_MS = 5 * 60_000
# Partitions examined in one time slice.
SLICE_PARTITIONS = 200
# Warnings of one check; the others are counted in one more line, and each is logged by a later check.
WARNINGS_MAX = 10


class LateTransaction(NamedTuple):
    """The oldest open transaction of a partition, if it is late."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    first_offset: int


class LateTransactions:
    def __init__(self, services: Services) -> None:
        self._services, self._clock = services, services.clock
        self._late_ms = services.config.transaction_max_timeout_ms + LATE_BUFFER_MS
        self._timer: Timer | None = None
        self._checking: asyncio.Task[None] | None = None
        self._logged: set[LateTransaction] = set()
        # The number of partitions with a late transaction at the last check.
        self.count = 0

    def start(self) -> None:
        self._timer = self._clock.call_later(CHECK_INTERVAL_S, self._begin_check)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._checking is not None:
            self._checking.cancel()

    def _begin_check(self) -> None:
        self._checking = asyncio.ensure_future(self._check_and_schedule())

    async def _check_and_schedule(self) -> None:
        try:
            await self.check()
        except Exception:  # the task is not awaited, and the next check may succeed
            logger.exception("open transactions could not be checked")
        self._timer = self._clock.call_later(CHECK_INTERVAL_S, self._begin_check)

    async def check(self) -> None:
        """Examine all led partitions, and log late transactions that were not logged before."""
        found: dict[LateTransaction, int] = {}
        left = iter([*self._services.partitions])  # partitions may be closed between two slices
        while slice_ := list(islice(left, SLICE_PARTITIONS)):
            for partition in slice_:
                self._examine(partition, found)
            await yield_to_loop()
        for each in self._logged - found.keys():
            logger.info("the transaction of producer %d in %s holds up nobody any more", *_named(each))
        self._logged &= found.keys()
        self._log(found)
        self.count = len(found)

    def _examine(self, partition: Partition, found: dict[LateTransaction, int]) -> None:
        """Add the partition's oldest open transaction and the time its producer has been silent, if it is late."""
        producers = partition.log.producers
        oldest = producers.undecided.oldest() if producers.undecided is not None and partition.is_leader else None
        if oldest is None:
            return
        producer_id, first_offset = oldest
        producer = producers.get(producer_id)
        assert producer is not None, "a producer with an open transaction is not forgotten"
        silent_ms = self._clock.time_ms() - producer.seen_ms
        if silent_ms > self._late_ms:
            found[LateTransaction(partition.topic_partition, producer_id, producer.epoch, first_offset)] = silent_ms

    def _log(self, found: dict[LateTransaction, int]) -> None:
        new = [each for each in found if each not in self._logged]
        for each in new[:WARNINGS_MAX]:
            topic, index = each.partition
            logger.warning(
                "%s: the transaction of producer %d (epoch %d) from offset %d on holds up read_committed consumers, "
                "and its producer has been silent for %.0f s, longer than any transaction may be open: see "
                "`flowstone txn find-hanging`, then `flowstone txn abort %s/%d@%d`",
                *(each.partition, each.producer_id, each.producer_epoch, each.first_offset),
                *(found[each] / 1000, topic, index, each.first_offset),
            )
            self._logged.add(each)
        if len(new) > WARNINGS_MAX:
            logger.warning("%d more partitions have a hanging transaction", len(new) - WARNINGS_MAX)


def _named(late: LateTransaction) -> tuple[int, TopicPartition]:
    return late.producer_id, late.partition
