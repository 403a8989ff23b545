"""ShareFetch, versions 1 and 2: acknowledges records of a share group's member, and delivers more to it.

Records leave as slices of log files, by reference: whole batches, of which the client uses the acquired offsets. The
response waits until the acknowledgements are durable. A fetch that finds nothing waits, at most `max_wait_ms`. Neither
assignment nor membership is checked, as in Kafka; the session decides (`broker.sharing.share_sessions`).

Acquire mode 0 delivers whole batches, so that `max_records` may be exceeded by a part of one; mode 1 does not exceed
it. Version 2 may renew locks: such a request fetches nothing, and its wait and its limits must be 0.

Deviations: `min_bytes` counts as 1, since waiting for more would delay records that others could handle. Records of
several members that fetch from the same partition are divided among them, also within a batch. Markers and the
records of aborted transactions are archived by the broker and never acquired.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any

from flowstone.broker.handlers.share.share_requests import (
    acknowledge,
    check_member,
    check_partition_count,
    check_renewal,
    endpoints_of,
    finish,
    leader_of,
)
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.sharing.share_fetching import Result, ShareFetching, Wanted
from flowstone.broker.sharing.share_sessions import CLOSING_EPOCH, OPENING_EPOCH, MemberKey, Place, ShareSession
from flowstone.errors import ApiError, ErrorCode
from flowstone.promise import Promise
from flowstone.wire.messages import (
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchResponseAcquiredRecords,
    ShareFetchResponseLeader,
    ShareFetchResponseNodeEndpoint,
    ShareFetchResponsePartition,
    ShareFetchResponseTopic,
)

STRICT_MODE = 1


Answer = ShareFetchResponse | Promise[ShareFetchResponse]


def handle(
    services: Services, context: RequestContext, request: ShareFetchRequest
) -> Answer | Coroutine[Any, Any, Answer]:
    try:
        key = check_member(request.group_id, request.member_id)
        count = check_partition_count(request.topics)
        check_partition_count(request.forgotten_topics_data)
        _check(request)
        session = _session(services, context, request, key)
    except ApiError as error:
        return ShareFetchResponse(error_code=error.code, error_message=error.message, responses=[], node_endpoints=[])
    is_closing = request.share_session_epoch == CLOSING_EPOCH
    wanted = Wanted(
        request.max_wait_ms,
        request.max_bytes,
        0 if request.is_renew_ack or is_closing else request.max_records,
        request.share_acquire_mode == STRICT_MODE,
        services.unsent.response_slices_max,
    )
    fetching = ShareFetching(
        services.waiting,
        services.sharing,
        session,
        key.member_id,
        wanted,
        lambda results: _respond(services, context, key, results),
    )
    applying = _apply(services, key, request, fetching)
    return finish(services, key, request.share_session_epoch, count, applying, fetching)


def _apply(
    services: Services, key: MemberKey, request: ShareFetchRequest, fetching: ShareFetching
) -> Generator[None, None, None]:
    """Apply the request's acknowledgements, and yield between partitions."""
    for topic in request.topics:
        for each in topic.partitions:
            if each.acknowledgement_batches:
                place = Place(topic.topic_id, each.partition_index)
                _acknowledge(services, key, place, each.acknowledgement_batches, fetching, renews=request.is_renew_ack)
                yield


def _check(request: ShareFetchRequest) -> None:
    if request.is_renew_ack:
        check_renewal(request.max_wait_ms, request.min_bytes, request.max_bytes, request.max_records)
    if request.share_session_epoch == OPENING_EPOCH and any(
        each.acknowledgement_batches for topic in request.topics for each in topic.partitions
    ):
        message = "A request that opens a share session has no acknowledgements."
        raise ApiError(ErrorCode.INVALID_REQUEST, message)


def _session(
    services: Services, context: RequestContext, request: ShareFetchRequest, key: MemberKey
) -> ShareSession | None:
    """Return the request's session with its partitions as the request changes them; None if it closes it."""
    sessions, epoch = services.sharing.sessions, request.share_session_epoch
    if epoch == CLOSING_EPOCH:
        sessions.check(key)
        return None
    if epoch == OPENING_EPOCH:
        session = sessions.open(key, context.session, services.config.group_share_max_share_sessions)
    else:
        session = sessions.use(key, epoch, context.session)
    session.add(Place(topic.topic_id, each.partition_index) for topic in request.topics for each in topic.partitions)
    for topic in request.forgotten_topics_data:
        for index in topic.partitions:
            place = Place(topic.topic_id, index)
            session.places.pop(place, None)
            services.sharing.forget(key, place)
    return session


def _acknowledge(
    services: Services, key: MemberKey, place: Place, batches: Any, fetching: ShareFetching, *, renews: bool
) -> None:
    try:
        fetching.acknowledge(place, acknowledge(services.sharing, key, place, batches, renews=renews))
    except ApiError as error:
        fetching.result_of(place).acknowledge_error = error


def _respond(
    services: Services, context: RequestContext, key: MemberKey, results: dict[Place, Result]
) -> ShareFetchResponse:
    topics: dict[bytes, list[ShareFetchResponsePartition]] = {}
    leaders: list[int] = []
    for place, result in results.items():
        topics.setdefault(place.topic_id, []).append(_partition(services, place, result, leaders))
    settings = services.groups.settings.of(key.group_id)
    return ShareFetchResponse(
        acquisition_lock_timeout_ms=settings.share_record_lock_duration_ms,
        responses=[ShareFetchResponseTopic(topic_id=each, partitions=found) for each, found in topics.items()],
        node_endpoints=[
            ShareFetchResponseNodeEndpoint(node_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
            for each in endpoints_of(services, context, leaders)
        ],
    )


def _partition(services: Services, place: Place, result: Result, leaders: list[int]) -> ShareFetchResponsePartition:
    error, acknowledge_error, fetched = result.error, result.acknowledge_error, result.fetched
    leader = leader_of(services, place, (error, acknowledge_error), leaders)
    partition = ShareFetchResponsePartition(
        partition_index=place.partition,
        current_leader=ShareFetchResponseLeader(leader_id=leader[0], leader_epoch=leader[1]),
        records=b"",
        acquired_records=[],
    )
    if error is not None:
        partition.error_code, partition.error_message = error.code, error.message
    if acknowledge_error is not None:
        partition.acknowledge_error_code = acknowledge_error.code
        partition.acknowledge_error_message = acknowledge_error.message
    if fetched is not None:
        partition.records = fetched.records
        partition.acquired_records = [
            ShareFetchResponseAcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)
            for first, last, count in fetched.acquired
        ]
        name = services.partitions.topic_name(place.topic_id)
        if name is not None:
            services.metrics.topic(name).fetched_bytes += len(fetched.records)
    return partition
