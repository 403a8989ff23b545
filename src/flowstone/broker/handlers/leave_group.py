"""LeaveGroup, versions 0 to 5: one member up to version 2, whose error is the response's; many from version 3 on."""

from __future__ import annotations

from flowstone.broker.context import RequestContext, Services
from flowstone.broker.group_answers import Answer
from flowstone.coordinator.groups.messages import LeaveRequest, LeaveResponse, LeavingMember
from flowstone.errors import ErrorCode
from flowstone.promise import Promise
from flowstone.wire.messages import LeaveGroupRequest, LeaveGroupResponse, LeaveGroupResponseMember

_MANY_MEMBERS_SINCE_VERSION = 3


def handle(services: Services, context: RequestContext, request: LeaveGroupRequest) -> Promise[LeaveGroupResponse]:
    version = context.api_version
    if version >= _MANY_MEMBERS_SINCE_VERSION:
        members = tuple(LeavingMember(each.member_id, each.group_instance_id, each.reason) for each in request.members)
    else:
        members = (LeavingMember(request.member_id),)
    leave = LeaveRequest(request.group_id, members)
    return services.groups.request(
        request.group_id,
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
