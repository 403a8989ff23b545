"""DeleteShareGroupOffsets, version 0: delete an empty share group's offsets in topics."""

from __future__ import annotations

from flowstone.broker.coordinators.share.group_states import GroupStates
from flowstone.broker.handlers.share.share_feature import check_share_groups
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.coordinator.share.messages import StateResult
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.messages import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)

_NO_TOPIC = StateResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
_NO_STATE = StateResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no offset information to delete.")


async def handle(
    services: Services, context: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    check_share_groups(services)
    if not request.group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID, "GroupId can't be empty.")
    topics, slices = services.metadata.image.topics, TimeSlices(services.clock.monotonic)
    ids = {
        each.topic_name: topics[each.topic_name].topic_id
        async for each in slices.over(request.topics)
        if each.topic_name in topics
    }
    states = GroupStates(services.groups, services.share_states)
    results = await states.delete(request.group_id, frozenset(ids.values()))
    responses = []
    async for name in slices.over(dict.fromkeys(each.topic_name for each in request.topics)):
        result = results.get(ids[name], _NO_STATE) if name in ids else _NO_TOPIC
        responses.append(
            DeleteShareGroupOffsetsResponseTopic(
                topic_name=name,
                topic_id=ids.get(name, bytes(16)),
                error_code=result.error_code,
                error_message=result.error_message,
            )
        )
    return DeleteShareGroupOffsetsResponse(responses=responses)
