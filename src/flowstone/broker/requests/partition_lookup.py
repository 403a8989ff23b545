"""Lookup of partitions and their leaders for handlers, with the errors for clients that asked the wrong broker.

A partition that this broker does not have, or only follows, is NOT_LEADER_OR_FOLLOWER; newer versions of Produce and
Fetch also name the leader (KIP-951), so that a client need not request metadata first. All of it is read from one
image: a leader and its address belong together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from flowstone.cluster.image.cluster_image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from flowstone.errors import ApiError, ErrorCode
from flowstone.replication.partition import Partition

if TYPE_CHECKING:
    from flowstone.broker.requests.context import Services

# The errors of `Partitions` for a missing partition, whether or not another broker has it.
_NOT_HERE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class NodeEndpoint(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None


def find_replica(services: Services, topic: str, index: int) -> Partition:
    """Return the partition if this broker leads or follows it. Raises ApiError if not."""
    try:
        return services.partitions.get(topic, index)
    except ApiError as error:
        raise as_seen_by_the_cluster(error, services.metadata.image.topics.get(topic), index) from None


def find_led(services: Services, topic: str, index: int) -> Partition:
    """Return the partition if this broker leads it. Raises ApiError if not."""
    partition = find_replica(services, topic, index)
    if not partition.is_leader:
        raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return partition


def as_seen_by_the_cluster(error: ApiError, topic: TopicImage | None, index: int) -> ApiError:
    """Return the error for the client: NOT_LEADER_OR_FOLLOWER if another broker has the partition."""
    if error.code in _NOT_HERE and topic is not None and 0 <= index < len(topic.partitions):
        return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return error


def partition_state(image: ClusterImage, topic: str, topic_id: bytes, index: int) -> PartitionImage | None:
    """Return the state of a partition of the topic with this name, or with this id if the name is empty."""
    found = image.topics.get(topic) if topic else image.topics_by_id.get(topic_id)
    return found.partitions[index] if found is not None and 0 <= index < len(found.partitions) else None


def live_brokers(image: ClusterImage) -> Iterator[BrokerImage]:
    return (broker for broker in image.brokers.values() if not broker.is_fenced)


def live_broker(image: ClusterImage, node_id: int) -> BrokerImage | None:
    broker = image.brokers.get(node_id)
    return None if broker is None or broker.is_fenced else broker


def node_endpoints(image: ClusterImage, node_ids: Iterable[int], listener_name: str) -> list[NodeEndpoint]:
    """Return the endpoints of those brokers that are alive and have the listener, each once."""
    endpoints = []
    for node_id in dict.fromkeys(node_ids):
        broker = live_broker(image, node_id)
        endpoint = None if broker is None else broker.listeners.get(listener_name)
        if broker is not None and endpoint is not None:
            endpoints.append(NodeEndpoint(node_id, endpoint.host, endpoint.port, broker.rack))
    return endpoints
