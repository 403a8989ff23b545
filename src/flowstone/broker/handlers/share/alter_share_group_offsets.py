"""AlterShareGroupOffsets, version 0: set the start offsets of an empty share group; create the group if needed.

A negative offset is refused; Kafka stores it.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowstone.broker.coordinators.share.group_states import GroupStates
from flowstone.broker.handlers.share.share_feature import check_share_groups
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.coordinator.share.messages import StateResult
from flowstone.coordinator.share.records import ShareKey
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.messages import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)

_UNKNOWN = StateResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
_NEGATIVE = StateResult(ErrorCode.INVALID_REQUEST, "A start offset cannot be negative.")


async def handle(
    services: Services, context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    check_share_groups(services)
    if not request.group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID, "GroupId can't be empty.")
    image, slices = services.metadata.image, TimeSlices(services.clock.monotonic)
    offsets: dict[str, dict[int, int]] = {}
    async for topic in slices.over(request.topics):
        known = image.topics.get(topic.topic_name)
        async for each in slices.over(topic.partitions):
            exists = known is not None and 0 <= each.partition_index < len(known.partitions)
            if exists and each.start_offset >= 0:
                offsets.setdefault(topic.topic_name, {})[each.partition_index] = each.start_offset
    results = await GroupStates(services.groups, services.share_states).reset(request.group_id, offsets)
    return AlterShareGroupOffsetsResponse(
        responses=[
            await _topic(services, request.group_id, topic, results, slices)
            async for topic in slices.over(request.topics)
        ]
    )


async def _topic(
    services: Services,
    group_id: str,
    topic: AlterShareGroupOffsetsRequestTopic,
    results: Mapping[ShareKey, StateResult],
    slices: TimeSlices,
) -> AlterShareGroupOffsetsResponseTopic:
    known = services.metadata.image.topics.get(topic.topic_name)
    topic_id = bytes(16) if known is None else known.topic_id
    partitions = []
    async for each in slices.over(topic.partitions):
        missing = _NEGATIVE if each.start_offset < 0 else _UNKNOWN
        result = results.get(ShareKey(group_id, topic_id, each.partition_index), missing)
        partitions.append(
            AlterShareGroupOffsetsResponsePartition(
                partition_index=each.partition_index,
                error_code=result.error_code,
                error_message=result.error_message,
            )
        )
    return AlterShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, topic_id=topic_id, partitions=partitions)
