"""Descriptions of topics in responses: who leads which partition, as seen from the client's listener."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from flowstone.cluster.decisions.acl_operations import ALL_TOPIC_OPERATIONS, NOT_ASKED
from flowstone.cluster.decisions.topic_names import check_topic_name, is_internal
from flowstone.cluster.image.cluster_image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.messages import MetadataResponsePartition, MetadataResponseTopic

_LISTENER_ERROR_SINCE_VERSION = 6

Partition = TypeVar("Partition")


class Form(NamedTuple):
    """The properties of a request that, besides the cluster's state, determine a description."""

    api_version: int
    listener_name: str
    tells_operations: bool


def describe(image: ClusterImage, topic: TopicImage, form: Form) -> MetadataResponseTopic:
    """Return a topic's entry in a Metadata response."""
    tells_listener = form.api_version >= _LISTENER_ERROR_SINCE_VERSION
    indexes = range(len(topic.partitions))
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=describe_partitions(
            image, topic, indexes, MetadataResponsePartition, form.listener_name, tells_listener=tells_listener
        ),
        topic_authorized_operations=ALL_TOPIC_OPERATIONS if form.tells_operations else NOT_ASKED,
    )


def describe_partitions(
    image: ClusterImage,
    topic: TopicImage,
    indexes: Iterable[int],
    make: Callable[..., Partition],
    listener_name: str,
    *,
    tells_listener: bool = True,
) -> list[Partition]:
    """Return the entries of some of a topic's partitions; `make` is the response's class for a partition."""
    described = []
    for index in indexes:
        partition = topic.partitions[index]
        leader, error = _leader_as_seen(image, partition, listener_name, tells_listener=tells_listener)
        described.append(
            make(
                error_code=error,
                partition_index=index,
                leader_id=leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=partition.replicas,
                isr_nodes=partition.isr,
                offline_replicas=_offline_replicas(image, partition),
            )
        )
    return described


def error_for_missing(name: str) -> ErrorCode:
    """Return the error code for a topic that does not exist: an unknown topic, or an invalid name."""
    try:
        check_topic_name(name)
    except ApiError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _leader_as_seen(
    image: ClusterImage, partition: PartitionImage, listener_name: str, *, tells_listener: bool
) -> tuple[int, ErrorCode]:
    """Return the leader that clients of a listener can reach, or -1 with the reason."""
    broker = image.brokers.get(partition.leader)
    if broker is None or broker.is_fenced:
        return NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE
    if listener_name in broker.listeners:
        return partition.leader, ErrorCode.NONE
    return NO_LEADER, ErrorCode.LISTENER_NOT_FOUND if tells_listener else ErrorCode.LEADER_NOT_AVAILABLE


def _offline_replicas(image: ClusterImage, partition: PartitionImage) -> list[int]:
    """Return the replicas on brokers that are unregistered or fenced."""
    brokers = image.brokers
    return [node_id for node_id in partition.replicas if node_id not in brokers or brokers[node_id].is_fenced]
