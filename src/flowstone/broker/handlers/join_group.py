"""JoinGroup, versions 0 to 9: add a member to its group. The response waits for the rebalance.

Version 0 has no rebalance timeout: the session timeout is used. Since version 4 a new member first gets an id and joins
again with it; since version 9 a returning leader may be told to keep the assignment.
"""

from __future__ import annotations

from functools import partial

from flowstone.broker.coordinators.group_answers import answer
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.coordinator.groups.messages import JoinRequest, JoinResponse
from flowstone.coordinator.groups.shard import GroupShard
from flowstone.errors import ErrorCode
from flowstone.promise import Promise
from flowstone.wire.messages import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember

# Protocols in one request: clients name one for each of their few assignors.
PROTOCOLS_MAX = 100
_REBALANCE_TIMEOUT_SINCE_VERSION = 1
_MEMBER_ID_REQUIRED_SINCE_VERSION = 4
_NULL_PROTOCOL_SINCE_VERSION = 7
_SKIP_ASSIGNMENT_SINCE_VERSION = 9


def handle(
    services: Services, context: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse | Promise[JoinGroupResponse]:
    version = context.api_version
    if len(request.protocols) > PROTOCOLS_MAX:
        return _respond(version, JoinResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
    join = JoinRequest(
        group_id=request.group_id,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=(
            request.rebalance_timeout_ms if version >= _REBALANCE_TIMEOUT_SINCE_VERSION else request.session_timeout_ms
        ),
        protocol_type=request.protocol_type,
        protocols=tuple((each.name, bytes(each.metadata)) for each in request.protocols),
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        client_id=context.session.client_id or "",
        client_host=f"/{context.session.host}",  # as Java prints an address without a name
        reason=request.reason,
        member_id_required=version >= _MEMBER_ID_REQUIRED_SINCE_VERSION,
        skip_assignment_supported=version >= _SKIP_ASSIGNMENT_SINCE_VERSION,
    )
    token = services.groups.request(request.group_id, partial(GroupShard.join, request=join), may_wait=True)
    member_id = request.member_id  # the closure must not keep the request, which may have megabytes
    return answer(
        token,
        partial(_respond, version),
        lambda code: _respond(version, JoinResponse(code, member_id)),
    )


def _respond(version: int, response: JoinResponse) -> JoinGroupResponse:
    no_protocol = None if version >= _NULL_PROTOCOL_SINCE_VERSION else ""
    return JoinGroupResponse(
        error_code=response.error_code,
        generation_id=response.generation_id,
        protocol_type=response.protocol_type,
        protocol_name=no_protocol if response.protocol_name is None else response.protocol_name,
        leader=response.leader,
        skip_assignment=response.skip_assignment,
        member_id=response.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.group_instance_id, metadata=member.metadata
            )
            for member in response.members
        ],
    )
