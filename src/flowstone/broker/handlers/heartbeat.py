"""Heartbeat, versions 0 to 4: keep a member's session alive; the response says whether its group rebalances."""

from __future__ import annotations

from flowstone.broker.coordinators.group_answers import Answer
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.coordinator.groups import messages
from flowstone.errors import ErrorCode
from flowstone.promise import Promise
from flowstone.wire.messages import HeartbeatRequest, HeartbeatResponse


def handle(services: Services, context: RequestContext, request: HeartbeatRequest) -> Promise[HeartbeatResponse]:
    heartbeat = messages.HeartbeatRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        generation_id=request.generation_id,
        group_instance_id=request.group_instance_id,
    )
    return services.groups.request(
        request.group_id,
        lambda shard, now_ms, token: shard.heartbeat(now_ms, token, heartbeat),
        Answer(lambda response: _respond(response.error_code), _respond),
    )


def _respond(code: ErrorCode) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=code)
