"""DescribeTopicPartitions, version 0: list partitions of topics in name order, a page at a time.

The cursor names the first partition of the next page. An empty list of topics requests all of them.
"""

from __future__ import annotations

from functools import partial

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.permissions import TOPIC_DESCRIBE
from flowstone.broker.topics.topic_descriptions import describe_partitions, error_for_missing
from flowstone.cluster.decisions.acl_operations import ALL_TOPIC_OPERATIONS, TOPIC_OPERATIONS, ResourceType
from flowstone.cluster.decisions.topic_names import is_internal
from flowstone.cluster.image.cluster_image import ClusterImage, TopicImage
from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    DescribeTopicPartitionsCursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

# Kafka's max.request.partition.size.limit.
RESPONSE_PARTITIONS_MAX = 2000

# Eligible leader replicas (KIP-966) are not tracked.
_PARTITION = partial(DescribeTopicPartitionsResponsePartition, eligible_leader_replicas=[], last_known_elr=[])


async def handle(
    services: Services, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    slices = TimeSlices(services.clock.monotonic)
    image, cursor = services.metadata.image, request.cursor
    if cursor is not None and not _is_valid(cursor, request):
        return _refused(request, ErrorCode.INVALID_REQUEST)
    asked = {topic.name for topic in request.topics} or image.topics
    first_name, first_partition = (cursor.topic_name, cursor.partition_index) if cursor is not None else ("", 0)
    left = max(min(request.response_partition_limit, RESPONSE_PARTITIONS_MAX), 1)
    topics = []
    next_cursor = None
    await slices.yield_if_due()
    following = [name for name in asked if name >= first_name]
    if services.access is not None and not request.topics:
        access, session = services.access, context.session
        following = [name async for name in slices.over(following) if access.may(session, TOPIC_DESCRIBE, name)]
    await slices.yield_if_due()
    following.sort()
    async for name in slices.over(following):
        topic = image.topics.get(name)
        if services.access is not None and not services.access.check(context.session, TOPIC_DESCRIBE, name):
            denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            topics.append(DescribeTopicPartitionsResponseTopic(error_code=denied, name=name))
            continue
        if topic is None:
            missing = _refused_topic(name, error_for_missing(name))
            missing.topic_authorized_operations = _operations(services, context, name)
            topics.append(missing)
            continue
        start = first_partition if name == first_name else 0
        if not left:
            next_cursor = DescribeTopicPartitionsCursor(topic_name=name, partition_index=start)
            break
        stop = min(len(topic.partitions), start + left)
        topics.append(_found(services, context, image, topic, range(start, stop)))
        left -= max(stop - start, 0)
        if stop < len(topic.partitions):
            next_cursor = DescribeTopicPartitionsCursor(topic_name=name, partition_index=stop)
            break
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=next_cursor)


def _is_valid(cursor: DescribeTopicPartitionsCursor, request: DescribeTopicPartitionsRequest) -> bool:
    names = {topic.name for topic in request.topics}
    return cursor.partition_index >= 0 and (not names or cursor.topic_name in names)


def _refused(request: DescribeTopicPartitionsRequest, error: ErrorCode) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=[_refused_topic(topic.name, error) for topic in request.topics], next_cursor=None
    )


def _refused_topic(name: str, error: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=error, name=name, is_internal=is_internal(name))


def _found(
    services: Services, context: RequestContext, image: ClusterImage, topic: TopicImage, indexes: range
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=describe_partitions(image, topic, indexes, _PARTITION, context.session.listener_name),
        topic_authorized_operations=_operations(services, context, topic.name),
    )


def _operations(services: Services, context: RequestContext, name: str) -> int:
    if services.access is None:
        return ALL_TOPIC_OPERATIONS
    return services.access.operations(context.session, ResourceType.TOPIC, name, TOPIC_OPERATIONS)
