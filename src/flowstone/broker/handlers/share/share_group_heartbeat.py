"""ShareGroupHeartbeat, version 1: join a share group, stay in it and learn the assigned partitions, or leave it."""

from __future__ import annotations

from flowstone.broker.coordinators.group_answers import Answer
from flowstone.broker.handlers.share.share_feature import check_share_groups
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.coordinator.groups.share import messages
from flowstone.errors import ErrorCode
from flowstone.promise import Promise
from flowstone.wire.messages import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupHeartbeatResponseAssignment,
    ShareGroupHeartbeatResponseTopicPartitions,
)

# Topics of one member. Each costs memory and time with every change of the group's topics.
SUBSCRIBED_TOPICS_MAX = 10_000


def handle(
    services: Services, context: RequestContext, request: ShareGroupHeartbeatRequest
) -> Promise[ShareGroupHeartbeatResponse] | ShareGroupHeartbeatResponse:
    check_share_groups(services)
    topics = request.subscribed_topic_names
    if topics is not None and len(topics) > SUBSCRIBED_TOPICS_MAX:
        message = f"SubscribedTopicNames has {len(topics)} names, more than {SUBSCRIBED_TOPICS_MAX}."
        return ShareGroupHeartbeatResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=message)
    heartbeat = messages.ShareHeartbeatRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        rack_id=request.rack_id,
        subscribed_topics=None if topics is None else tuple(topics),
        client_id=context.session.client_id or "",
        client_host=f"/{context.session.host}",  # as Java prints an address without a name
    )
    return services.groups.request(
        request.group_id,
        lambda shard, now_ms, token: shard.share_heartbeat(now_ms, token, heartbeat),
        Answer(_respond, _refuse),
    )


def _respond(response: messages.ShareHeartbeatResponse) -> ShareGroupHeartbeatResponse:
    assignment = None
    if response.assignment is not None:
        assignment = ShareGroupHeartbeatResponseAssignment(
            topic_partitions=[
                ShareGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in response.assignment.items()
            ]
        )
    return ShareGroupHeartbeatResponse(
        error_code=response.error_code,
        error_message=response.error_message,
        member_id=response.member_id,
        member_epoch=response.member_epoch,
        heartbeat_interval_ms=response.heartbeat_interval_ms,
        assignment=assignment,
    )


def _refuse(code: ErrorCode) -> ShareGroupHeartbeatResponse:
    return ShareGroupHeartbeatResponse(error_code=code)
