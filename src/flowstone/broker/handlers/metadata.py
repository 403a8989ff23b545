"""Metadata, versions 0 to 13: brokers, topics, and who leads which partition.

Every topic is asked for by an empty array in version 0 and by null since; since version 1 an empty array means none.
Topics are named, or since version 12 asked for by id; if any id is given, only ids count, as in Kafka.

An unknown topic is created if both the request and the broker allow it. Kafka answers such a request with
LEADER_NOT_AVAILABLE and lets the client ask again; here the topic is ready when the answer leaves, so it is in it.
Internal topics are not created this way: their coordinators do that.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowstone.broker.context import RequestContext, Services
from flowstone.cluster.acl_operations import ALL_CLUSTER_OPERATIONS, ALL_TOPIC_OPERATIONS, NOT_ASKED
from flowstone.cluster.configs import broker_config
from flowstone.cluster.controller import controller_id
from flowstone.cluster.ids import random_id
from flowstone.cluster.image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from flowstone.cluster.partition_plans import NewTopic
from flowstone.cluster.topic_changes import create_topics
from flowstone.cluster.topic_names import check_topic_name, is_internal
from flowstone.errors import ApiError, ErrorCode
from flowstone.types import ZERO_UUID
from flowstone.wire.messages import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

_IDS_SINCE_VERSION = 12
_LISTENER_ERROR_SINCE_VERSION = 6


async def handle(services: Services, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    if request.topics is None or (context.api_version == 0 and not request.topics):
        image = services.metadata.image
        topics = [_found(image, context, topic) for topic in image.topics.values()]
    elif context.api_version < _IDS_SINCE_VERSION and any(map(_needs_ids, request.topics)):
        return _refused(request.topics, ErrorCode.INVALID_REQUEST)
    elif topic_ids := dict.fromkeys(each.topic_id for each in request.topics if each.topic_id != ZERO_UUID):
        topics = [_by_id(services.metadata.image, context, topic_id) for topic_id in topic_ids]
    else:
        topics = await _by_name(services, context, request)
    if request.include_topic_authorized_operations:
        for topic in topics:
            topic.topic_authorized_operations = ALL_TOPIC_OPERATIONS
    image = services.metadata.image
    return MetadataResponse(
        brokers=_brokers(image, context.listener_name),
        cluster_id=image.cluster_id,
        controller_id=controller_id(image),
        topics=topics,
        cluster_authorized_operations=(
            ALL_CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def leader_as_seen(
    image: ClusterImage, partition: PartitionImage, listener_name: str, *, tells_listener: bool
) -> tuple[int, ErrorCode]:
    """The leader that clients of a listener can reach; without one, -1 and why."""
    if image.endpoint(partition.leader, listener_name) is not None:
        return partition.leader, ErrorCode.NONE
    if tells_listener and partition.leader in image.brokers:
        return NO_LEADER, ErrorCode.LISTENER_NOT_FOUND
    return NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE


def offline_replicas(image: ClusterImage, partition: PartitionImage) -> list[int]:
    return [node_id for node_id in partition.replicas if node_id not in image.brokers]


def error_for_missing(name: str) -> ErrorCode:
    """What a client hears of a topic that is not there: no such topic, or no such name."""
    try:
        check_topic_name(name)
    except ApiError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _needs_ids(topic: MetadataRequestTopic) -> bool:
    return topic.name is None or topic.topic_id != ZERO_UUID


def _refused(topics: Iterable[MetadataRequestTopic], error: ErrorCode) -> MetadataResponse:
    refused = [
        MetadataResponseTopic(error_code=error, name=topic.name or "", topic_id=topic.topic_id) for topic in topics
    ]
    return MetadataResponse(topics=refused)


def _by_id(image: ClusterImage, context: RequestContext, topic_id: bytes) -> MetadataResponseTopic:
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
    return _found(image, context, topic)


async def _by_name(
    services: Services, context: RequestContext, request: MetadataRequest
) -> list[MetadataResponseTopic]:
    names = list(dict.fromkeys(topic.name or "" for topic in request.topics or ()))
    missing = [name for name in names if name not in services.metadata.image.topics and not is_internal(name)]
    errors: dict[str, ErrorCode] = {}
    if missing and request.allow_auto_topic_creation and services.config.auto_create_topics_enable:
        errors = await _create(services, missing)
    image = services.metadata.image
    topics = []
    for name in names:
        topic = image.topics.get(name)
        if topic is not None:
            topics.append(_found(image, context, topic))
        else:
            error = errors.get(name, error_for_missing(name))
            topics.append(MetadataResponseTopic(error_code=error, name=name, is_internal=is_internal(name)))
    return topics


async def _create(services: Services, names: list[str]) -> dict[str, ErrorCode]:
    """Creates topics with the broker's defaults; what went wrong, by name. Somebody else having been first is fine."""
    results = await services.metadata.change(
        lambda image: create_topics(
            image, [NewTopic(name) for name in names], broker_config(image, services.config), random_id
        )
    )
    return {result.name: result.error for result in results if result.name is not None and result.error}


def _found(image: ClusterImage, context: RequestContext, topic: TopicImage) -> MetadataResponseTopic:
    tells_listener = context.api_version >= _LISTENER_ERROR_SINCE_VERSION
    partitions = []
    for index, partition in enumerate(topic.partitions):
        leader, error = leader_as_seen(image, partition, context.listener_name, tells_listener=tells_listener)
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
        name=topic.name, topic_id=topic.topic_id, is_internal=is_internal(topic.name), partitions=partitions
    )


def _brokers(image: ClusterImage, listener_name: str) -> list[MetadataResponseBroker]:
    return [
        MetadataResponseBroker(node_id=broker.node_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
        for broker in image.brokers.values()
        if (endpoint := broker.listeners.get(listener_name)) is not None
    ]
