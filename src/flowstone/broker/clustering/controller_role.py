"""The controller role, held by the senior member of the cluster: it adapts the metadata to the brokers that are alive.

The decisions are made in `cluster.decisions`, from the newest image. The metadata log takes their records only if
nothing was appended in between, so two brokers that both believe to be the senior member do no harm.

The list of members is read after the image, and brokers that registered later than that image are left alone: a list
older than a registration would show the new broker as dead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from flowstone.cluster.decisions.elections import balance_leaders, reconcile
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import (
    BrokerConfigChanged,
    BrokerFenced,
    BrokerRegistered,
    ControllerElected,
    MetadataRecord,
    PartitionChanged,
    TopicConfigChanged,
)
from flowstone.cluster.logs.consensus import Consensus, Member
from flowstone.cluster.metadata import Metadata
from flowstone.config import BrokerConfig
from flowstone.errors import ApiError, StorageFault
from flowstone.ports.clock import Clock, Timer

logger = logging.getLogger(__name__)

RETRY_S = 1.0
# Records after which dead brokers may have to be fenced, and partitions without a leader may get one.
_CAUSES = (BrokerRegistered, BrokerFenced, ControllerElected, TopicConfigChanged, BrokerConfigChanged)


class Controlling:
    def __init__(
        self,
        config: BrokerConfig,
        topic_defaults: Mapping[str, str],
        consensus: Consensus,
        metadata: Metadata,
        clock: Clock,
    ) -> None:
        self._config, self._consensus, self._metadata, self._clock = config, consensus, metadata, clock
        self._topic_defaults = topic_defaults
        self._is_due = False
        self._working: asyncio.Task[None] | None = None
        self._balancing: Timer | None = None
        self._is_closed = False
        self._problem = ""  # why the last write failed; logged once, not with each try
        consensus.on_members(self._look)
        metadata.on_change(self._follow)

    def start(self) -> None:
        self._look()
        self._schedule_balance()

    def close(self) -> None:
        self._is_closed = True
        if self._balancing is not None:
            self._balancing.cancel()
        if self._working is not None:
            self._working.cancel()

    @property
    def is_controller(self) -> bool:
        members = self._consensus.members
        return bool(members) and members[0].node_id == self._config.node_id and not self._is_closed

    def _follow(self, before: ClusterImage, after: ClusterImage, records: Sequence[MetadataRecord]) -> None:
        if any(isinstance(record, _CAUSES) for record in records):
            self._look()

    def _look(self) -> None:
        if not self.is_controller:
            return
        self._is_due = True
        if self._working is None or self._working.done():
            self._working = asyncio.ensure_future(self._work())

    async def _work(self) -> None:
        """Run one round of decisions at a time; a cause that arrives during a round starts another one at its end."""
        while self._is_due and self.is_controller:
            self._is_due = False
            try:
                await self._keep_in_step()
            except (ApiError, StorageFault) as error:
                self._report(str(error))
                self._is_due = True
                await self._clock.sleep(RETRY_S)
            else:
                self._report("")

    def _report(self, problem: str) -> None:
        if problem and problem != self._problem:
            told = "the controller could not write its decisions to the metadata log: %s. It tries again every second"
            logger.error(told, problem)
        elif self._problem and not problem:
            logger.warning("the controller can write to the metadata log again")
        self._problem = problem

    async def _keep_in_step(self) -> None:
        known_version = self._metadata.image.version
        members = await self._consensus.look()

        def decide(image: ClusterImage) -> tuple[list[MetadataRecord], list[MetadataRecord]]:
            newcomers = [
                Member(broker.node_id, broker.incarnation)
                for broker in image.brokers.values()
                if broker.epoch > known_version
            ]
            records = reconcile(image, [*members, *newcomers], self._config.node_id, self._topic_defaults)
            return records, records

        done = await self._metadata.change(decide)
        fenced = [record.node_id for record in done if isinstance(record, BrokerFenced)]
        if fenced:
            logger.warning("brokers %s stopped or failed; %d partitions change", fenced, _partitions_changed(done))

    # Preferred leaders

    def _schedule_balance(self) -> None:
        if self._config.auto_leader_rebalance_enable:
            interval_s = self._config.leader_imbalance_check_interval_seconds
            self._balancing = self._clock.call_later(interval_s, self._balance)

    def _balance(self) -> None:
        self._schedule_balance()
        if self.is_controller:
            asyncio.ensure_future(self._metadata.change(self._decide_balance)).add_done_callback(_report)

    def _decide_balance(self, image: ClusterImage) -> tuple[list[MetadataRecord], int]:
        return balance_leaders(image, self._config.leader_imbalance_per_broker_percentage)


def _partitions_changed(records: Sequence[MetadataRecord]) -> int:
    return sum(isinstance(record, PartitionChanged) for record in records)


def _report(balanced: asyncio.Future[int]) -> None:
    if not balanced.cancelled() and balanced.exception() is not None:
        logger.error("leaders could not be balanced: %s", balanced.exception())
