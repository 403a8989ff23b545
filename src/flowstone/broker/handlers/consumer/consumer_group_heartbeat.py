"""ConsumerGroupHeartbeat, versions 0 and 1: the one request of a consumer group's members (KIP-848).

Since version 1 clients make their member ids themselves; version 0 gets one from the coordinator, and has no regular
expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from uuid import uuid4

from flowstone.broker.coordinators.group_answers import Answer
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.permissions import TOPIC_DESCRIBE
from flowstone.cluster.image.features import GROUP_VERSION
from flowstone.coordinator.groups.consumer.messages import (
    JOIN_EPOCH,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
)
from flowstone.coordinator.groups.consumer_records import Partition
from flowstone.errors import ApiError, ErrorCode
from flowstone.promise import Promise
from flowstone.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)

_CLIENT_MAKES_MEMBER_ID_SINCE_VERSION = 1
# A topic's name has 249 characters at most; a subscription of more topics than this would take hours to write.
SUBSCRIBED_TOPICS_MAX = 10_000
# Partitions that a member may say it owns: all that a cluster may have by default (max.partitions).
OWNED_PARTITIONS_MAX = 100_000


def handle(
    services: Services, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> Promise[ConsumerGroupHeartbeatResponse]:
    if services.metadata.image.feature_level(GROUP_VERSION) < 1:
        message = "group.version is 0: raise it with `flowstone cluster features upgrade`"
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, message)
    if len(request.subscribed_topic_names or ()) > SUBSCRIBED_TOPICS_MAX:
        message = f"more than {SUBSCRIBED_TOPICS_MAX} topics; subscribe to a regular expression"
        raise ApiError(ErrorCode.INVALID_REQUEST, message)
    owned = request.topic_partitions
    if sum(len(topic.partitions) for topic in owned or ()) > OWNED_PARTITIONS_MAX:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"more than {OWNED_PARTITIONS_MAX} partitions in TopicPartitions")
    makes_member_id = context.api_version >= _CLIENT_MAKES_MEMBER_ID_SINCE_VERSION
    member_id = request.member_id
    if not member_id and not makes_member_id and request.member_epoch == JOIN_EPOCH:
        member_id = str(uuid4())
    names = request.subscribed_topic_names
    heartbeat = ConsumerHeartbeatRequest(
        request.group_id,
        member_id,
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms,
        None if names is None else tuple(names),
        request.subscribed_topic_regex,
        request.server_assignor,
        _owned(owned),
        context.session.client_id or "",
        f"/{context.session.host}",
        makes_member_id,
        _may_see(services, context),
    )
    return services.groups.request(
        request.group_id,
        lambda shard, now_ms, token: shard.consumer_heartbeat(now_ms, token, heartbeat),
        Answer(_respond, lambda code: ConsumerGroupHeartbeatResponse(error_code=code)),
    )


def _may_see(services: Services, context: RequestContext) -> Callable[[str], bool] | None:
    access, session = services.access, context.session
    return None if access is None else lambda topic: access.may(session, TOPIC_DESCRIBE, topic)


def _owned(topics: Sequence[ConsumerGroupHeartbeatRequestTopicPartitions] | None) -> frozenset[Partition] | None:
    if topics is None:
        return None
    owned: set[Partition] = set()
    for topic in topics:
        owned.update(zip(repeat(bytes(topic.topic_id)), topic.partitions, strict=False))
    return frozenset(owned)


def _respond(response: ConsumerHeartbeatResponse) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=response.error_code,
        error_message=response.message,
        member_id=response.member_id,
        member_epoch=response.member_epoch,
        heartbeat_interval_ms=response.heartbeat_interval_ms,
        assignment=None if response.assigned is None else _assignment(response.assigned),
    )


def _assignment(partitions: Iterable[Partition]) -> ConsumerGroupHeartbeatResponseAssignment:
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        by_topic.setdefault(topic_id, []).append(index)
    return ConsumerGroupHeartbeatResponseAssignment(
        topic_partitions=[
            ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=indexes)
            for topic_id, indexes in by_topic.items()
        ]
    )
