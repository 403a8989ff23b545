"""Keeps this broker's replicas in step with the cluster: whom the followers follow, and who is in sync with the
leaders.

Connects `replication`, which knows nothing of the metadata, with `cluster`, which knows nothing of logs. An ISR that a
leader proposes becomes a change of the metadata; the decision comes back through `Assignments`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from flowstone.client.connection import Address
from flowstone.cluster.decisions.configs import broker_config
from flowstone.cluster.decisions.in_sync_changes import InSyncResult, change_in_sync
from flowstone.cluster.decisions.partition_states import alive_brokers
from flowstone.cluster.decisions.withdrawals import replica_failed
from flowstone.cluster.image.cluster_image import NO_LEADER, ClusterImage
from flowstone.cluster.image.records import BrokerConfigChanged, BrokerRegistered, MetadataRecord
from flowstone.cluster.metadata import Metadata
from flowstone.config import BrokerConfig
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.ports.clock import Clock, Timer
from flowstone.replication.in_sync import ProposedIsr
from flowstone.replication.lease import Lease
from flowstone.replication.partition import Partition
from flowstone.replication.replica_fetchers import ReplicaFetchers
from flowstone.replication.served_partitions import Partitions
from flowstone.replication.state import IsrMember
from flowstone.types import TopicPartition

logger = logging.getLogger(__name__)

# A follower that lags is noticed at most half its time later, as in Kafka.
LAG_CHECKS_PER_LAG_TIME = 2


class Replicas:
    def __init__(
        self,
        config: BrokerConfig,
        listener_name: str,
        metadata: Metadata,
        partitions: Partitions,
        fetchers: ReplicaFetchers,
        lease: Lease,
        clock: Clock,
    ) -> None:
        self._config, self._node_id, self._listener_name = config, config.node_id, listener_name
        self._metadata, self._partitions, self._fetchers, self._clock = metadata, partitions, fetchers, clock
        self._check_interval_s = config.replica_lag_time_max_ms / 1000 / LAG_CHECKS_PER_LAG_TIME
        self._checking: Timer | None = None
        self._is_closed = False
        # Whether the disk under a replica is full, so that it must not be followed with.
        self.is_full: Callable[[Partition], bool] = lambda partition: False
        lease.on_regained(self._lease_regained)
        metadata.on_change(self._follow)

    def start(self) -> None:
        self._checking = self._clock.call_later(self._check_interval_s, self._check)

    def close(self) -> None:
        self._is_closed = True
        if self._checking is not None:
            self._checking.cancel()
        self._fetchers.close()

    # Following

    def placed(self, partition: Partition) -> None:
        """Start or stop following, after a partition has applied a decision of the cluster."""
        image, leader_id = self._metadata.image, partition.leader_id
        endpoint = image.endpoint(leader_id, self._listener_name) if leader_id != NO_LEADER else None
        cannot_write = partition.fault is not None or self.is_full(partition)
        if partition.is_leader or endpoint is None or self._is_closed or cannot_write:
            self._fetchers.unfollow(partition)
        else:
            self._fetchers.follow(partition, leader_id, Address(endpoint.host, endpoint.port))
        if partition.fault is not None and self._node_id in partition.isr and len(partition.isr) > 1:
            # A fetch that was in flight when the disk failed has added it to the ISR again.
            self.failed(partition.topic_id, partition.topic_partition)

    def removed(self, partition: Partition) -> None:
        self._fetchers.unfollow(partition)

    def _follow(self, before: ClusterImage, after: ClusterImage, records: Sequence[MetadataRecord]) -> None:
        """Apply a change of the metadata: leaders' addresses, the catch-up rate, and brokers that are gone."""
        if any(isinstance(record, BrokerConfigChanged) for record in records):
            self._fetchers.throttle_to(broker_config(after, self._config).follower_replication_throttled_rate)
        moved = {
            record.broker.node_id
            for record in records
            if isinstance(record, BrokerRegistered)
            and before.endpoint(record.broker.node_id, self._listener_name)
            != after.endpoint(record.broker.node_id, self._listener_name)
        }
        for partition in self._partitions if moved else ():
            if partition.leader_id in moved:
                self.placed(partition)
        gone = alive_brokers(before) - alive_brokers(after)
        for partition in self._partitions if gone else ():
            if partition.is_leader and not gone.isdisjoint(partition.replicas):
                partition.move_high_watermark()

    # Leading

    def propose(self, partition: Partition, isr: ProposedIsr) -> None:
        """Propose an ISR for a partition that this broker leads; a refusal must not hold up other partitions."""
        members = tuple(each for each in isr if each.node_id in partition.isr or self.is_eligible(each))
        at_epoch = partition.partition_epoch
        if set(partition.isr) == {each.node_id for each in members}:
            _change_failed(partition, at_epoch)
            return
        change = self._metadata.change(
            partial(
                change_in_sync,
                topic_id=partition.topic_id,
                partition=partition.topic_partition.partition,
                leader=self._node_id,
                leader_epoch=partition.leader_epoch,
                partition_epoch=at_epoch,
                isr=members,
                min_insync=partition.log.config.min_insync_replicas,
            )
        )
        asyncio.ensure_future(change).add_done_callback(partial(self._decided, partition, at_epoch))

    def is_eligible(self, member: IsrMember) -> bool:
        """Return whether a follower may join the ISR: its broker is alive, and has not restarted since it fetched."""
        broker = self._metadata.image.brokers.get(member.node_id)
        return broker is not None and not broker.is_fenced and broker.epoch == member.broker_epoch

    def _decided(self, partition: Partition, at_epoch: int, change: asyncio.Future[InSyncResult]) -> None:
        if change.cancelled() or self._is_closed:
            return
        error = change.exception()
        if error is not None:
            # After a failure of the metadata log the outcome is unknown: the proposal then counts as under way.
            logger.warning("the in-sync replicas of %s could not be changed: %s", partition.topic_partition, error)
            if isinstance(error, ApiError):
                _change_failed(partition, at_epoch)
            return
        result = change.result()
        if result.error not in (ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED):
            _change_failed(partition, at_epoch)

    def failed(self, topic_id: bytes, topic_partition: TopicPartition) -> None:
        """Report a replica whose disk failed to the cluster, so that it leaves the ISR and another broker leads."""
        partition = self._partitions.find(topic_partition)
        if partition is not None:
            self._fetchers.unfollow(partition)
        wanted = [(topic_id, topic_partition.partition)]
        change = self._metadata.change(lambda image: replica_failed(image, self._node_id, wanted))
        asyncio.ensure_future(change).add_done_callback(partial(_report_failure, topic_partition))

    def _check(self) -> None:
        self.start()
        for partition in self._partitions:
            if partition.leading is not None:
                partition.leading.check_in_sync()

    def _lease_regained(self) -> None:
        for partition in self._partitions:
            partition.move_high_watermark()


def _change_failed(partition: Partition, at_epoch: int) -> None:
    if partition.leading is not None:
        partition.leading.isr_change_failed(at_epoch)


def _report_failure(topic_partition: TopicPartition, change: asyncio.Future[object]) -> None:
    error = None if change.cancelled() else change.exception()
    if isinstance(error, ApiError | StorageFault):
        logger.warning("the failure of %s could not be reported to the cluster: %s", topic_partition, error)
