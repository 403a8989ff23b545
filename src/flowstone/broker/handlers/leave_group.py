"""LeaveGroup, versions 0 to 5: remove members. Up to version 2 a request names one member and the response has its
error.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any

from flowstone.broker.coordinators.group_answers import Answer
from flowstone.broker.loop.time_slices import batched, yield_to_loop
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.coordinator.groups.messages import LeaveRequest, LeaveResponse, LeavingMember
from flowstone.errors import ErrorCode
from flowstone.promise import Promise
from flowstone.wire.messages import (
    LeaveGroupRequest,
    LeaveGroupRequestMember,
    LeaveGroupResponse,
    LeaveGroupResponseMember,
)

_MANY_MEMBERS_SINCE_VERSION = 3
# Members removed in one time slice.
MEMBERS_AT_ONCE = 500


def handle(
    services: Services, context: RequestContext, request: LeaveGroupRequest
) -> Promise[LeaveGroupResponse] | Coroutine[Any, Any, LeaveGroupResponse]:
    version = context.api_version
    if version < _MANY_MEMBERS_SINCE_VERSION:
        return _leave(services, version, request.group_id, (LeavingMember(request.member_id),))
    if len(request.members) > MEMBERS_AT_ONCE:
        return _leave_in_parts(services, version, request)
    return _leave(services, version, request.group_id, map(_leaving, request.members))


async def _leave_in_parts(services: Services, version: int, request: LeaveGroupRequest) -> LeaveGroupResponse:
    error_code = 0
    left: list[LeaveGroupResponseMember] = []
    for members in batched(request.members, MEMBERS_AT_ONCE):
        part = await _leave(services, version, request.group_id, map(_leaving, members))
        error_code = error_code or part.error_code
        left += part.members
        await yield_to_loop()
    return LeaveGroupResponse(error_code=error_code, members=left)


def _leaving(member: LeaveGroupRequestMember) -> LeavingMember:
    return LeavingMember(member.member_id, member.group_instance_id, member.reason)


def _leave(
    services: Services, version: int, group_id: str, members: Iterable[LeavingMember]
) -> Promise[LeaveGroupResponse]:
    leave = LeaveRequest(group_id, tuple(members))
    return services.groups.request(
        group_id,
        lambda shard, now_ms, token: shard.leave(now_ms, token, leave),
        Answer(lambda response: _respond(version, response), _refuse),
    )


def _respond(version: int, response: LeaveResponse) -> LeaveGroupResponse:
    if version < _MANY_MEMBERS_SINCE_VERSION:
        own = response.members[0].error_code if response.members else ErrorCode.NONE
        return _refuse(response.error_code or own)
    return LeaveGroupResponse(
        error_code=response.error_code,
        members=[
            LeaveGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=member.error_code
            )
            for member in response.members
        ],
    )


def _refuse(code: ErrorCode) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=code)
