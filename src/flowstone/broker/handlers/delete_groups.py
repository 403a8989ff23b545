"""DeleteGroups, versions 0 to 2: delete groups without members, with their offsets."""

from __future__ import annotations

from typing import Any

from flowstone.broker.coordinators.group_answers import outcome_of, settle
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.coordinator.groups import messages
from flowstone.coordinator.runtime import Token
from flowstone.errors import ErrorCode
from flowstone.wire.messages import DeleteGroupsRequest, DeleteGroupsResponse, DeleteGroupsResponseResult


async def handle(services: Services, context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    slices = TimeSlices(services.clock.monotonic)
    asked = [(each, _delete(services, each)) async for each in slices.over(dict.fromkeys(request.groups_names))]
    results = [
        DeleteGroupsResponseResult(group_id=group_id, error_code=_error(group_id, await outcome_of(token)))
        async for group_id, token in slices.over(asked)
    ]
    return DeleteGroupsResponse(results=results)


def _delete(services: Services, group_id: str) -> Token:
    return services.groups.request(
        group_id, lambda shard, now_ms, token: shard.delete_groups(now_ms, token, [group_id])
    )


def _error(group_id: str, outcome: Any) -> ErrorCode:
    def deleted(response: messages.DeleteGroupsResponse) -> ErrorCode:
        return response.errors[group_id]

    return settle(outcome, deleted, lambda code: code)
