"""OffsetDelete, version 0: forgets committed offsets of partitions that the group does not subscribe to."""

from __future__ import annotations

from flowstone.broker.context import RequestContext, Services
from flowstone.broker.group_answers import Answer
from flowstone.coordinator.groups.messages import DeleteOffsetsRequest, DeleteOffsetsResponse
from flowstone.errors import ErrorCode
from flowstone.promise import Promise
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


def handle(services: Services, context: RequestContext, request: OffsetDeleteRequest) -> Promise[OffsetDeleteResponse]:
    image = services.metadata.image
    asked = [TopicPartition(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions]
    known = tuple(partition for partition in asked if image.partition(partition) is not None)

    def respond(response: DeleteOffsetsResponse) -> OffsetDeleteResponse:
        if response.error_code:
            return OffsetDeleteResponse(error_code=response.error_code)
        topics = []
        for topic in request.topics:
            partitions = []
            for each in topic.partitions:
                error = response.errors.get(
                    TopicPartition(topic.name, each.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                )
                partitions.append(OffsetDeleteResponsePartition(partition_index=each.partition_index, error_code=error))
            topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
        return OffsetDeleteResponse(topics=topics)

    delete = DeleteOffsetsRequest(request.group_id, known)
    return services.groups.request(
        request.group_id,
        lambda shard, now_ms, token: shard.delete_offsets(now_ms, token, delete),
        Answer(respond, lambda code: OffsetDeleteResponse(error_code=code)),
    )
