"""What clients are told of a topic: who leads which partition, as seen from the listener they came by."""

from __future__ import annotations

from typing import NamedTuple

from flowstone.cluster.decisions.acl_operations import ALL_TOPIC_OPERATIONS, NOT_ASKED
from flowstone.cluster.decisions.topic_names import is_internal
from flowstone.cluster.image.cluster_image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from flowstone.errors import ErrorCode
from flowstone.wire.messages import MetadataResponsePartition, MetadataResponseTopic

_LISTENER_ERROR_SINCE_VERSION = 6


class Form(NamedTuple):
    """Who asks, and how: what besides the cluster decides on a description."""

    api_version: int
    listener_name: str
    tells_operations: bool


def describe(image: ClusterImage, topic: TopicImage, form: Form) -> MetadataResponseTopic:
    tells_listener = form.api_version >= _LISTENER_ERROR_SINCE_VERSION
    partitions = []
    for index, partition in enumerate(topic.partitions):
        leader, error = leader_as_seen(image, partition, form.listener_name, tells_listener=tells_listener)
        partitions.append(
            MetadataResponsePartition(
                error_code=error,
                partition_index=index,
                leader_id=leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=partition.replicas,
                isr_nodes=partition.isr,
                offline_replicas=offline_replicas(image, partition),
            )
        )
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=partitions,
        topic_authorized_operations=ALL_TOPIC_OPERATIONS if form.tells_operations else NOT_ASKED,
    )


def leader_as_seen(
    image: ClusterImage, partition: PartitionImage, listener_name: str, *, tells_listener: bool
) -> tuple[int, ErrorCode]:
    """The leader that clients of a listener can reach; without one, -1 and why."""
    broker = image.brokers.get(partition.leader)
    if broker is None or broker.is_fenced:
        return NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE
    if listener_name in broker.listeners:
        return partition.leader, ErrorCode.NONE
    return NO_LEADER, ErrorCode.LISTENER_NOT_FOUND if tells_listener else ErrorCode.LEADER_NOT_AVAILABLE


def offline_replicas(image: ClusterImage, partition: PartitionImage) -> list[int]:
    """Replicas on brokers that are gone or fenced."""
    brokers = image.brokers
    return [node_id for node_id in partition.replicas if node_id not in brokers or brokers[node_id].is_fenced]
