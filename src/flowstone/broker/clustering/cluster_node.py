"""The parts of a broker that is a member of a cluster: membership, the controller role, and replicas.

Owns the order of joining and stopping. Joining: the broker is registered before it accepts clients, and follows leaders
only after that. Stopping: other brokers take over its partitions first; then it ends its membership and stops
following.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowstone.broker.clustering.controller_role import Controlling
from flowstone.broker.clustering.full_disks import FullDisks
from flowstone.broker.clustering.membership import Membership
from flowstone.broker.clustering.remote_offsets import RemoteOffsets
from flowstone.broker.clustering.replica_roles import Replicas
from flowstone.cluster.image.cluster_image import BrokerImage
from flowstone.cluster.logs.consensus import Consensus
from flowstone.cluster.metadata import Metadata
from flowstone.config import BrokerConfig
from flowstone.log.manager import LogManager
from flowstone.ports.clock import Clock
from flowstone.ports.network import Network
from flowstone.replication.lease import Lease
from flowstone.replication.replica_fetch_session import Limits
from flowstone.replication.replica_fetchers import ReplicaFetchers
from flowstone.replication.served_partitions import Partitions
from flowstone.replication.services import ReplicaServices


class Clustering:
    def __init__(
        self,
        config: BrokerConfig,
        topic_defaults: Mapping[str, str],
        listener_name: str,
        consensus: Consensus,
        metadata: Metadata,
        logs: LogManager,
        partitions: Partitions,
        clock: Clock,
        network: Network,
    ) -> None:
        """Create the parts of a member; `listener_name` names the listener on which brokers reach each other."""
        self.lease = Lease(clock.monotonic)
        self._is_clean, self._is_empty = logs.was_clean, logs.is_new
        self._membership = Membership(consensus, metadata, self.lease, clock, logs.identity.directory_id)
        self.controlling = Controlling(config, topic_defaults, consensus, metadata, clock)
        self.fetchers = ReplicaFetchers(
            config.node_id,
            lambda: self._membership.epoch,
            Limits(
                max_wait_ms=config.replica_fetch_wait_max_ms,
                response_max_bytes=config.replica_fetch_response_max_bytes,
                partition_max_bytes=config.replica_fetch_max_bytes,
            ),
            config.follower_replication_throttled_rate,
            clock,
            network,
        )
        self.remote_offsets = RemoteOffsets(listener_name, metadata, clock, network)
        self.replicas = Replicas(config, listener_name, metadata, partitions, self.fetchers, self.lease, clock)
        self.full_disks = FullDisks(
            config.node_id, metadata, logs, partitions, self.replicas, self.remote_offsets, clock
        )
        self.replicas.is_full = self.full_disks.is_full
        self.services = ReplicaServices(
            lease=self.lease,
            monotonic=clock.monotonic,
            logs=logs,
            lag_time_max_s=config.replica_lag_time_max_ms / 1000,
            on_isr_change=self.replicas.propose,
            call_later=clock.call_later,
            is_eligible=self.replicas.is_eligible,
            on_full=self.full_disks.append_failed,
        )

    async def join(self, broker: BrokerImage) -> None:
        """Register the broker as a member of the cluster. Raises StartupError if it cannot be one."""
        await self._membership.join(broker, is_clean=self._is_clean, is_empty=self._is_empty)
        self.controlling.start()
        self.replicas.start()

    async def leave(self) -> None:
        self.controlling.close()
        self.full_disks.close()
        await self._membership.hand_over()
        self.replicas.close()

    def abort(self) -> None:
        self.controlling.close()
        self.full_disks.close()
        self.replicas.close()
        self._membership.abort()
