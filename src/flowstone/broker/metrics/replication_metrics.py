"""The replication metrics of a broker: partitions led and followed, the lease, changes of leaders and ISRs.

As in Kafka, a partition is reported by its leader, and a partition without one by the controller, so that each counts
once in the sum over all brokers. A replica that is being added does not count as missing. A single broker has the same
families.

Changes are counted from the records of the metadata log, from the time at which the broker opens its pages, which is
when it begins to serve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

from flowstone.broker.loop.time_slices import yield_to_loop
from flowstone.broker.metrics.exposition import Exposition
from flowstone.broker.requests.context import Services
from flowstone.cluster.decisions.registration import controller_id
from flowstone.cluster.image.cluster_image import NO_LEADER, ClusterImage
from flowstone.cluster.image.records import MetadataRecord, PartitionChanged
from flowstone.replication.partition import Partition
from flowstone.replication.replica_fetchers import Counts

# Partitions examined in one time slice.
SLICE_PARTITIONS = 200


class ReplicationMetrics:
    def __init__(self, services: Services) -> None:
        self._services, self._node_id = services, services.config.node_id
        self.isr_shrinks = self.isr_expands = self.leader_elections = 0
        services.metadata.on_change(self._count)

    def _count(self, before: ClusterImage, after: ClusterImage, records: Sequence[MetadataRecord]) -> None:
        for record in records:
            if not isinstance(record, PartitionChanged) or record.state.leader != self._node_id:
                continue
            topic = before.topics_by_id.get(record.topic_id)
            if topic is None or record.partition >= len(topic.partitions):
                continue
            state, was = record.state, topic.partitions[record.partition]
            self.leader_elections += was.leader != self._node_id
            self.isr_shrinks += len(state.isr) < len(was.isr)
            self.isr_expands += len(state.isr) > len(was.isr)

    async def write(self, page: Exposition) -> None:
        image = self._services.metadata.image
        led = under_replicated = under_min_isr = lag = 0
        left = iter(list(self._services.partitions))  # a copy: partitions may be closed between two slices
        while slice_ := list(islice(left, SLICE_PARTITIONS)):
            for partition in slice_:
                if partition.following is not None:
                    lag = max(lag, partition.following.lag)
                if partition.is_leader:
                    led += 1
                    under_replicated += _is_under_replicated(image, partition)
                if partition.leading is not None:
                    under_min_isr += partition.leading.is_under_min_isr
            await yield_to_loop()
        page.gauge("flowstone_leader_partitions", "Partitions that this broker leads.", led)
        page.gauge(
            "flowstone_under_replicated_partitions", "Partitions led with a replica not in sync.", under_replicated
        )
        page.gauge(
            "flowstone_under_min_isr_partitions",
            "Partitions led with fewer in-sync replicas than min.insync.replicas.",
            under_min_isr,
        )
        page.gauge("flowstone_replica_lag_max_records", "Largest lag of a partition that this broker follows.", lag)
        await self._write_controller(page, image)
        self._write_changes(page)
        self._write_following(page)

    async def _write_controller(self, page: Exposition, image: ClusterImage) -> None:
        is_controller, leaderless = controller_id(image) == self._node_id, 0
        page.gauge("flowstone_controller", "1 while this broker is the controller.", int(is_controller))
        states = (state for topic in image.topics.values() for state in topic.partitions if is_controller)
        while slice_ := list(islice(states, SLICE_PARTITIONS)):
            leaderless += sum(state.leader == NO_LEADER for state in slice_)
            await yield_to_loop()
        page.gauge("flowstone_offline_partitions", "Partitions without a leader, on the controller.", leaderless)

    def _write_changes(self, page: Exposition) -> None:
        page.counter("flowstone_isr_shrinks_total", "In-sync replicas removed from partitions led.", self.isr_shrinks)
        page.counter("flowstone_isr_expands_total", "In-sync replicas added to partitions led.", self.isr_expands)
        page.counter(
            "flowstone_leader_elections_total", "Partitions this broker became leader of.", self.leader_elections
        )

    def _write_following(self, page: Exposition) -> None:
        cluster = self._services.cluster
        counts = Counts() if cluster is None else cluster.fetchers.counts
        page.counter("flowstone_replica_fetched_bytes_total", "Bytes fetched from leaders.", counts.fetched_bytes)
        page.counter(
            "flowstone_replica_fetch_errors_total", "Connections to leaders that failed.", counts.disconnections
        )
        page.counter(
            "flowstone_replica_truncations_total", "Logs truncated at a divergence from the leader.", counts.truncations
        )
        lease_s = math.inf if cluster is None else max(0.0, cluster.lease.left_s)
        page.gauge("flowstone_lease_seconds_left", "Time until the lease to lead expires.", lease_s)


def _is_under_replicated(image: ClusterImage, partition: Partition) -> bool:
    state = image.partition(partition.topic_partition)
    return state is not None and len(state.isr) < len(state.replicas) - len(state.adding)
