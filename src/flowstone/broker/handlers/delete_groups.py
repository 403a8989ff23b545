"""DeleteGroups, versions 0 to 2: delete groups without members, with their offsets or their share state."""

from __future__ import annotations

from typing import Any

from flowstone.broker.coordinators.group_answers import outcome_of, settle
from flowstone.broker.coordinators.share.group_states import GroupStates
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.coordinator.groups import messages
from flowstone.coordinator.runtime import Token
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.messages import DeleteGroupsRequest, DeleteGroupsResponse, DeleteGroupsResponseResult


async def handle(services: Services, context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    slices = TimeSlices(services.clock.monotonic)
    names = list(dict.fromkeys(request.groups_names))
    kept = {each: code async for each in slices.over(names) if (code := await _delete_states(services, each))}
    asked = [(each, _delete(services, each)) async for each in slices.over(names) if each not in kept]
    errors = kept | {each: _error(each, await outcome_of(token)) async for each, token in slices.over(asked)}
    return DeleteGroupsResponse(
        results=[
            DeleteGroupsResponseResult(group_id=each, error_code=errors[each]) async for each in slices.over(names)
        ]
    )


async def _delete_states(services: Services, group_id: str) -> ErrorCode:
    """Delete the share state of a share group; return why the group must stay, or NONE."""
    shard = services.groups.shard_of(group_id)
    if shard is None or shard.machine is None or not shard.machine.is_share_group(group_id):
        return ErrorCode.NONE
    try:
        results = await GroupStates(services.groups, services.share_states).delete(group_id, None)
    except ApiError as error:
        return error.code
    return next((each.error_code for each in results.values() if each.error_code), ErrorCode.NONE)


def _delete(services: Services, group_id: str) -> Token:
    return services.groups.request(
        group_id, lambda shard, now_ms, token: shard.delete_groups(now_ms, token, [group_id])
    )


def _error(group_id: str, outcome: Any) -> ErrorCode:
    def deleted(response: messages.DeleteGroupsResponse) -> ErrorCode:
        return response.errors[group_id]

    return settle(outcome, deleted, lambda code: code)
