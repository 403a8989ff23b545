"""CreateTopics, versions 2 to 7: create topics; version 5 adds counts and settings to the response, version 7 the id.

A topic exists as soon as the metadata log has it.
"""

from __future__ import annotations

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.long_responses import encode_if_long
from flowstone.broker.topics.mutation_quota import EXCEEDED, split_by_quota
from flowstone.broker.topics.topic_creation import create_in_parts
from flowstone.cluster.decisions.configs import describe_topic
from flowstone.cluster.decisions.partition_plans import NewTopic
from flowstone.cluster.decisions.topic_changes import TopicResult
from flowstone.errors import ErrorCode
from flowstone.types import ZERO_UUID
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    CreateTopicsResponse,
    CreateTopicsResponseConfig,
    CreateTopicsResponseTopic,
)

_QUOTA_ERROR_SINCE_VERSION = 6


async def handle(services: Services, context: RequestContext, request: CreateTopicsRequest) -> Message:
    slices = TimeSlices(services.clock.monotonic)
    wanted = [_new_topic(topic) async for topic in slices.over(request.topics)]
    refused: list[NewTopic] = []
    if not request.validate_only:
        since = _QUOTA_ERROR_SINCE_VERSION
        wanted, refused = await split_by_quota(services, context, wanted, _count, strict_since_version=since)
    results = await create_in_parts(
        services, wanted, timeout_ms=request.timeout_ms, validate_only=request.validate_only
    )
    results += (TopicResult(each.name, ZERO_UUID, ErrorCode.THROTTLING_QUOTA_EXCEEDED, EXCEEDED) for each in refused)
    topics = [_answer(services, result) async for result in slices.over(results)]
    elements = len(topics) + sum(len(topic.configs or ()) for topic in topics)
    return await encode_if_long(services, context, CreateTopicsResponse(topics=topics), elements, slices)


def _count(topic: NewTopic) -> int:
    """Return the number of partitions; a default is counted as one."""
    return max(topic.num_partitions, len(topic.assignments), 1)


def _new_topic(topic: CreateTopicsRequestTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[(each.partition_index, each.broker_ids) for each in topic.assignments],
        configs=[(each.name, each.value) for each in topic.configs],
    )


def _answer(services: Services, result: TopicResult) -> CreateTopicsResponseTopic:
    answer = CreateTopicsResponseTopic(
        name=result.name or "", error_code=result.error, error_message=result.message, configs=[]
    )
    if result.topic is None:
        return answer
    answer.topic_id = result.topic_id
    answer.num_partitions = len(result.topic.partitions)
    answer.replication_factor = len(result.topic.partitions[0].replicas)
    entries = describe_topic(services.metadata.image, result.topic, services.topic_defaults, services.config.node_id)
    answer.configs = [
        CreateTopicsResponseConfig(name=entry.setting.name, value=entry.value, config_source=entry.source)
        for entry in sorted(entries, key=lambda entry: entry.setting.name)
    ]
    return answer
