"""ShareAcknowledge, versions 1 and 2: acknowledges records of a share group's member without fetching more.

The response waits until the acknowledgements are durable. All acknowledgements of a partition are applied, or none.
Epoch -1 closes the share session afterwards. Version 2 may renew locks, and its response has the locks' duration.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any

from flowstone.broker.handlers.share.share_requests import (
    acknowledge,
    check_member,
    check_partition_count,
    endpoints_of,
    finish,
    leader_of,
)
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.sharing.share_fetching import Result, ShareFetching, Wanted
from flowstone.broker.sharing.share_sessions import CLOSING_EPOCH, OPENING_EPOCH, MemberKey, Place
from flowstone.errors import ApiError, ErrorCode
from flowstone.promise import Promise
from flowstone.wire.messages import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeResponseLeader,
    ShareAcknowledgeResponseNodeEndpoint,
    ShareAcknowledgeResponsePartition,
    ShareAcknowledgeResponseTopic,
)

_NOTHING = Wanted(max_wait_ms=0, max_bytes=0, max_records=0, strict=False)


Answer = ShareAcknowledgeResponse | Promise[ShareAcknowledgeResponse]


def handle(
    services: Services, context: RequestContext, request: ShareAcknowledgeRequest
) -> Answer | Coroutine[Any, Any, Answer]:
    sessions, epoch = services.sharing.sessions, request.share_session_epoch
    try:
        key = check_member(request.group_id, request.member_id)
        count = check_partition_count(request.topics)
        if epoch == OPENING_EPOCH:
            raise ApiError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "An acknowledgement does not open a share session.")
        if epoch == CLOSING_EPOCH:
            sessions.check(key)
        else:
            sessions.use(key, epoch, context.session)
    except ApiError as error:
        return ShareAcknowledgeResponse(
            error_code=error.code, error_message=error.message, responses=[], node_endpoints=[]
        )
    answer = ShareFetching(
        services.waiting,
        services.sharing,
        None,
        key.member_id,
        _NOTHING,
        lambda results: _respond(services, context, key, results),
    )
    applying = _apply(services, key, request, answer)
    return finish(services, key, request.share_session_epoch, count, applying, answer)


def _apply(
    services: Services, key: MemberKey, request: ShareAcknowledgeRequest, answer: ShareFetching
) -> Generator[None, None, None]:
    """Apply the acknowledgements, and yield between partitions."""
    for topic in request.topics:
        for each in topic.partitions:
            place = Place(topic.topic_id, each.partition_index)
            try:
                batches, renews = each.acknowledgement_batches, request.is_renew_ack
                answer.acknowledge(place, acknowledge(services.sharing, key, place, batches, renews=renews))
            except ApiError as error:
                answer.result_of(place).error = error
            yield


def _respond(
    services: Services, context: RequestContext, key: MemberKey, results: dict[Place, Result]
) -> ShareAcknowledgeResponse:
    topics: dict[bytes, list[ShareAcknowledgeResponsePartition]] = {}
    leaders: list[int] = []
    for place, result in results.items():
        error = result.error or result.acknowledge_error
        leader_id, leader_epoch = leader_of(services, place, (error,), leaders)
        partition = ShareAcknowledgeResponsePartition(
            partition_index=place.partition,
            current_leader=ShareAcknowledgeResponseLeader(leader_id=leader_id, leader_epoch=leader_epoch),
        )
        if error is not None:
            partition.error_code, partition.error_message = error.code, error.message
        topics.setdefault(place.topic_id, []).append(partition)
    settings = services.groups.settings.of(key.group_id)
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=settings.share_record_lock_duration_ms,
        responses=[ShareAcknowledgeResponseTopic(topic_id=each, partitions=found) for each, found in topics.items()],
        node_endpoints=[
            ShareAcknowledgeResponseNodeEndpoint(node_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
            for each in endpoints_of(services, context, leaders)
        ],
    )
