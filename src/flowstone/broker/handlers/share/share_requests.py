"""Checks and answers that ShareFetch and ShareAcknowledge have in common."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterable, Sequence
from typing import Any, Protocol

from flowstone.broker.loop.time_slices import TimeSlices, run_in_slices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.partition_lookup import NodeEndpoint, node_endpoints, partition_state
from flowstone.broker.sharing.acknowledgements import AcknowledgementBatch, Type, parse
from flowstone.broker.sharing.share_fetching import ShareFetching
from flowstone.broker.sharing.share_partitions import SharePartitions
from flowstone.broker.sharing.share_sessions import CLOSING_EPOCH, SESSION_PARTITIONS_MAX, MemberKey, Place
from flowstone.errors import ApiError, ErrorCode
from flowstone.promise import Promise

# Partitions whose acknowledgements are applied before other work may run.
PARTITIONS_AT_ONCE = 100
# Kafka's ids of members are UUIDs in base64.
MEMBER_ID_LENGTH_MAX = 36
_NO_LEADER = -1, -1
_LED_BY_ANOTHER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class HasPartitions(Protocol):
    """A topic of a request."""

    @property
    def partitions(self) -> Sequence[Any]: ...


def check_member(group_id: str | None, member_id: str | None) -> MemberKey:
    """Return the member that sent a request. Raises ApiError if the request does not name one."""
    if not group_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "The request names no group.")
    if not member_id or len(member_id) > MEMBER_ID_LENGTH_MAX:
        message = f"The member id must have 1 to {MEMBER_ID_LENGTH_MAX} characters."
        raise ApiError(ErrorCode.INVALID_REQUEST, message)
    return MemberKey(group_id, member_id)


def check_partition_count(topics: Iterable[HasPartitions]) -> int:
    """Return how many partitions a request names. Raises ApiError if they are more than a session may have."""
    count = sum(len(topic.partitions) for topic in topics)
    if count > SESSION_PARTITIONS_MAX:
        message = f"The request names {count} partitions; a share session has at most {SESSION_PARTITIONS_MAX}."
        raise ApiError(ErrorCode.INVALID_REQUEST, message)
    return count


def check_renewal(*limits: int) -> None:
    """Raise ApiError if a request that renews locks would also fetch."""
    if any(limits):
        message = "A request that renews locks has a wait time, bytes and records of 0."
        raise ApiError(ErrorCode.INVALID_REQUEST, message)


def acknowledge(
    partitions: SharePartitions,
    key: MemberKey,
    place: Place,
    batches: Sequence[AcknowledgementBatch],
    *,
    renews: bool,
) -> Promise[ErrorCode] | None:
    """Apply a member's acknowledgements of one partition; return the promise of the outcome, None if all is done.

    Raises ApiError, and changes nothing, if they are refused.
    """
    acknowledgements = parse(batches)
    if not renews and any(each.type is Type.RENEW for each in acknowledgements):
        raise ApiError(ErrorCode.INVALID_REQUEST, "A request that renews locks must set IsRenewAck.")
    return partitions.get(key.group_id, place).acknowledge(key.member_id, acknowledgements)


def finish(
    services: Services,
    key: MemberKey,
    epoch: int,
    count: int,
    applying: Generator[None, None, None],
    fetching: ShareFetching,
) -> ShareFetching | Coroutine[Any, Any, ShareFetching]:
    """Apply a request's acknowledgements of `count` partitions, close its session if it asks for that, and fetch.

    A request with many partitions is applied in time slices, so that others are answered meanwhile.
    """
    if count > PARTITIONS_AT_ONCE:
        return _finish_later(services, key, epoch, applying, fetching)
    for _ in applying:
        pass
    return _start(services, key, epoch, fetching)


async def _finish_later(
    services: Services, key: MemberKey, epoch: int, applying: Generator[None, None, None], fetching: ShareFetching
) -> ShareFetching:
    await run_in_slices(applying, TimeSlices(services.clock.monotonic))
    return _start(services, key, epoch, fetching)


def _start(services: Services, key: MemberKey, epoch: int, fetching: ShareFetching) -> ShareFetching:
    sessions = services.sharing.sessions
    if epoch == CLOSING_EPOCH and sessions.find(key) is not None:
        sessions.close(key)
    fetching.start()
    return fetching


def leader_of(
    services: Services, place: Place, errors: Iterable[ApiError | None], leaders: list[int]
) -> tuple[int, int]:
    """Return the leader and its epoch if an error says that another broker leads; add it to `leaders`."""
    if not any(error is not None and error.code in _LED_BY_ANOTHER for error in errors):
        return _NO_LEADER
    state = partition_state(services.metadata.image, "", place.topic_id, place.partition)
    if state is None:
        return _NO_LEADER
    leaders.append(state.leader)
    return state.leader, state.leader_epoch


def endpoints_of(services: Services, context: RequestContext, leaders: list[int]) -> list[NodeEndpoint]:
    if not leaders:
        return []
    return node_endpoints(services.metadata.image, leaders, context.session.listener_name)
