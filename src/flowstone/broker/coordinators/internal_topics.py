"""The internal topics of coordinators, created on the first request that needs them.

Their names are in `cluster.decisions.topic_names`, their settings in the broker's configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowstone.cluster.decisions.partition_plans import DEFAULT_COUNT, NewTopic
from flowstone.cluster.decisions.placement import place_replicas
from flowstone.cluster.decisions.topic_names import (
    CONSUMER_OFFSETS,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
    is_internal,
)
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.config import MIB, BrokerConfig
from flowstone.coordinator.transactions.config import RECORD_BYTES_MAX

# A group is one record: a megabyte would be too little for some hundred members with long subscriptions.
OFFSETS_TOPIC_MESSAGE_BYTES_MAX = 16 * MIB
# A transaction is one record; the rest is for the headers of its batch.
TRANSACTIONS_TOPIC_MESSAGE_BYTES_MAX = RECORD_BYTES_MAX + MIB
# A snapshot has up to 200,000 state batches of 20 bytes, and as many delays of 16 bytes.
SHARE_STATE_TOPIC_MESSAGE_BYTES_MAX = 8 * MIB


@dataclass(frozen=True, slots=True)
class InternalTopic:
    name: str
    partition_count: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...]
    min_in_sync_replicas: int | None = None  # None: the broker's default

    def __post_init__(self) -> None:
        assert is_internal(self.name), f"clients could create and write {self.name}"


def offsets_topic(config: BrokerConfig) -> InternalTopic:
    """Return `__consumer_offsets` with the settings of the broker's configuration."""
    return InternalTopic(
        CONSUMER_OFFSETS,
        config.offsets_topic_num_partitions,
        config.offsets_topic_replication_factor,
        (
            ("cleanup.policy", "compact"),
            ("compression.type", "producer"),
            ("max.message.bytes", str(OFFSETS_TOPIC_MESSAGE_BYTES_MAX)),
            ("segment.bytes", str(config.offsets_topic_segment_bytes)),
        ),
    )


def transactions_topic(config: BrokerConfig) -> InternalTopic:
    """Return `__transaction_state` with the settings of the broker's configuration."""
    return InternalTopic(
        TRANSACTION_STATE,
        config.transaction_state_log_num_partitions,
        config.transaction_state_log_replication_factor,
        (
            ("cleanup.policy", "compact"),
            ("compression.type", "uncompressed"),
            ("max.message.bytes", str(TRANSACTIONS_TOPIC_MESSAGE_BYTES_MAX)),
            ("segment.bytes", str(config.transaction_state_log_segment_bytes)),
            ("unclean.leader.election.enable", "false"),
        ),
        config.transaction_state_log_min_isr,
    )


def share_state_topic(config: BrokerConfig) -> InternalTopic:
    """Return `__share_group_state` with the settings of the broker's configuration; the coordinator prunes it."""
    return InternalTopic(
        SHARE_GROUP_STATE,
        config.share_coordinator_state_topic_num_partitions,
        config.share_coordinator_state_topic_replication_factor,
        (
            ("cleanup.policy", "delete"),
            ("compression.type", "uncompressed"),
            ("max.message.bytes", str(SHARE_STATE_TOPIC_MESSAGE_BYTES_MAX)),
            ("retention.bytes", "-1"),
            ("retention.ms", "-1"),
            ("segment.bytes", str(config.share_coordinator_state_topic_segment_bytes)),
            ("unclean.leader.election.enable", "false"),
        ),
        config.share_coordinator_state_topic_min_isr,
    )


def new_topic(topic: InternalTopic, image: ClusterImage) -> NewTopic:
    """Return the request that creates the topic in this cluster, with at most one replica per broker.

    Brokers that are down are given replicas only if too few others are alive, because they are expected to return.
    """
    count = topic.partition_count
    racks = {broker.node_id: broker.rack for broker in image.brokers.values()}
    factor = min(topic.replication_factor, max(len(racks), 1))
    configs = topic.configs
    if topic.min_in_sync_replicas is not None:
        configs = (*configs, ("min.insync.replicas", str(min(topic.min_in_sync_replicas, factor))))
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    if sum(not broker.is_fenced for broker in image.brokers.values()) < factor <= len(racks):
        placed = place_replicas(sorted(racks), count=count, replication_factor=factor, start=0, racks=racks)
        assignments, count, factor = tuple(enumerate(placed)), DEFAULT_COUNT, DEFAULT_COUNT
    return NewTopic(
        topic.name,
        num_partitions=count,
        replication_factor=factor,
        assignments=assignments,
        configs=configs,
    )
