"""OffsetDelete, version 0: forgets committed offsets of partitions that the group does not subscribe to."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from flowstone.broker.coordinators.group_answers import Answer
from flowstone.broker.loop.time_slices import yield_to_loop
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.topics.topic_slices import is_large, join_topics, split_topics
from flowstone.coordinator.groups.messages import DeleteOffsetsRequest, DeleteOffsetsResponse
from flowstone.errors import ErrorCode
from flowstone.promise import Promise
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


def handle(
    services: Services, context: RequestContext, request: OffsetDeleteRequest
) -> Promise[OffsetDeleteResponse] | Coroutine[Any, Any, OffsetDeleteResponse]:
    if is_large(request.topics, "partitions"):
        return _delete_in_parts(services, request)
    return _delete(services, request.group_id, request.topics)


async def _delete_in_parts(services: Services, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    topics: list[OffsetDeleteResponseTopic] = []
    for part, is_continued in split_topics(request.topics, "partitions"):
        response = await _delete(services, request.group_id, part)
        if response.error_code:
            return response
        join_topics(topics, response.topics, is_continued)
        await yield_to_loop()
    return OffsetDeleteResponse(topics=topics)


def _delete(
    services: Services, group_id: str, topics: Sequence[OffsetDeleteRequestTopic]
) -> Promise[OffsetDeleteResponse]:
    image = services.metadata.image
    asked = [TopicPartition(topic.name, each.partition_index) for topic in topics for each in topic.partitions]
    delete = DeleteOffsetsRequest(group_id, tuple(each for each in asked if image.partition(each) is not None))
    return services.groups.request(
        group_id,
        lambda shard, now_ms, token: shard.delete_offsets(now_ms, token, delete),
        Answer(partial(_respond, topics), lambda code: OffsetDeleteResponse(error_code=code)),
    )


def _respond(topics: Sequence[OffsetDeleteRequestTopic], response: DeleteOffsetsResponse) -> OffsetDeleteResponse:
    if response.error_code:
        return OffsetDeleteResponse(error_code=response.error_code)
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=each.partition_index,
                        error_code=response.errors.get(
                            TopicPartition(topic.name, each.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                        ),
                    )
                    for each in topic.partitions
                ],
            )
            for topic in topics
        ]
    )
