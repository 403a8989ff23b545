"""SyncGroup, versions 0 to 5: return a member's assignment, once the leader has sent it.

Since version 5 the request names the protocol.
"""

from __future__ import annotations

from flowstone.broker.coordinators.group_answers import answer
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.coordinator.groups.messages import SyncRequest, SyncResponse
from flowstone.errors import ErrorCode
from flowstone.promise import Promise
from flowstone.wire.messages import SyncGroupRequest, SyncGroupResponse

# Assignments in one request, one for each member of the group.
ASSIGNMENTS_MAX = 10_000
_PROTOCOL_SINCE_VERSION = 5


def handle(
    services: Services, context: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse | Promise[SyncGroupResponse]:
    if context.api_version >= _PROTOCOL_SINCE_VERSION and None in (request.protocol_type, request.protocol_name):
        return _refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if len(request.assignments) > ASSIGNMENTS_MAX:
        return _refuse(ErrorCode.INVALID_REQUEST)
    sync = SyncRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        generation_id=request.generation_id,
        group_instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments=tuple((each.member_id, bytes(each.assignment)) for each in request.assignments),
    )
    token = services.groups.request(
        request.group_id, lambda shard, now_ms, token: shard.sync(now_ms, token, sync), may_wait=True
    )
    return answer(token, _respond, _refuse)


def _respond(response: SyncResponse) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=response.error_code,
        protocol_type=response.protocol_type,
        protocol_name=response.protocol_name,
        assignment=response.assignment,
    )


def _refuse(code: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=code)
