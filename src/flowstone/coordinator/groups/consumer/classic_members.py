"""Members of a consumer group that use the classic protocol, and requests of that protocol to consumer groups.

Their JoinGroup is a heartbeat with a subscription and the partitions that they own: it is answered at once, in the
member's epoch as its generation, and nobody is the leader. SyncGroup returns what the coordinator has assigned.
Heartbeats tell them to join again when there is something to give up or to get. For both they have the rebalance
timeout.
"""

from __future__ import annotations

from typing import Any

from flowstone.coordinator.groups.classic.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    owned_partitions,
    subscribed_topics,
)
from flowstone.coordinator.groups.classic.rebalancing import complete_join_if_ready, park_join
from flowstone.coordinator.groups.consumer.conversion import classic_assignment, downgrade_if_classic
from flowstone.coordinator.groups.consumer.group import ConsumerGroup, ConsumerMember
from flowstone.coordinator.groups.consumer.heartbeat import check_memory, move, store
from flowstone.coordinator.groups.consumer.membership import check_size, replace_member
from flowstone.coordinator.groups.consumer.removal import remove_members
from flowstone.coordinator.groups.consumer.sessions import keep_session
from flowstone.coordinator.groups.consumer.target import assign_if_due, follow_metadata, topics_hash
from flowstone.coordinator.groups.consumer.writing import bump
from flowstone.coordinator.groups.consumer_records import (
    ClassicMember,
    ConsumerMemberStored,
    MemberState,
    Partition,
)
from flowstone.coordinator.groups.messages import (
    UNKNOWN_MEMBER_ID,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeaveResponse,
    LeavingMember,
    LeftMember,
    SyncRequest,
    SyncResponse,
)
from flowstone.coordinator.groups.state import Turn
from flowstone.coordinator.groups.timers import Timer, TimerKind
from flowstone.errors import ApiError, ErrorCode


def join(turn: Turn, token: Any, group: ConsumerGroup, request: JoinRequest) -> None:
    try:
        response = _join(turn, token, group, request)
    except ApiError as error:
        response = JoinResponse(error.code, request.member_id)
    if response is not None:
        turn.reply(token, response)
    turn.shard.measure(group.group_id)


def _join(turn: Turn, token: Any, group: ConsumerGroup, request: JoinRequest) -> JoinResponse | None:
    """Return the response, or None if the join waits: the group has become a classic one."""
    config = turn.shard.config
    if not config.session_timeout_min_ms <= request.session_timeout_ms <= config.session_timeout_max_ms:
        raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)
    _check_protocols(group, request)
    if request.member_id == UNKNOWN_MEMBER_ID and request.group_instance_id is None and request.member_id_required:
        return JoinResponse(ErrorCode.MEMBER_ID_REQUIRED, turn.shard.new_member_id(request.client_id))
    former, member_id = _find_joining(turn, group, request)
    stored = _stored(group, request, member_id)
    check_memory(turn, group, former, stored)
    if former is not None and former.member_id != member_id:
        former = replace_member(turn, group, former, member_id)
    reason = store(turn, group, former, stored)
    member = group.members_by_id[member_id]
    converted = downgrade_if_classic(turn, group)
    if converted is not None:
        park_join(turn, converted, member_id, token)
        complete_join_if_ready(turn, converted)
        return None
    if reason:
        group.checked_version = turn.shard.topics.version
        bump(turn, group, reason, topics_hash(turn, group))
    else:
        follow_metadata(turn, group)
    assign_if_due(turn, group, member)
    turn.cancel(TimerKind.JOIN, group, member_id)
    move(turn, group, member, _owned(turn, request))
    keep_session(turn, group, member)
    turn.schedule(stored.rebalance_timeout_ms, TimerKind.SYNC, group, member_id)
    return JoinResponse(
        member_id=member_id,
        generation_id=member.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=_protocol_of(group, member),
    )


def _check_protocols(group: ConsumerGroup, request: JoinRequest) -> None:
    """Raise ApiError unless all classic members share a protocol, and the subscriptions are a consumer's."""
    shared = _shared_protocols(group, without=request.member_id)
    names = {name for name, _ in request.protocols}
    is_shared = shared is None or not shared.isdisjoint(names)
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not names or not is_shared:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if any(subscribed_topics(metadata) is None for _, metadata in request.protocols):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _shared_protocols(group: ConsumerGroup, without: str = "") -> set[str] | None:
    """Return the protocols that all classic members support; None if there is no such member."""
    shared: set[str] | None = None
    if group.classic_count:
        for member in group.members_by_id.values():
            if member.stored.classic is not None and member.member_id != without:
                names = {name for name, _ in member.stored.classic.protocols}
                shared = names if shared is None else shared & names
    return shared


def _protocol_of(group: ConsumerGroup, member: ConsumerMember) -> str:
    shared, classic = _shared_protocols(group), member.stored.classic
    assert shared is not None
    assert classic is not None
    return next((name for name, _ in classic.protocols if name in shared), classic.protocols[0][0])


def _find_joining(turn: Turn, group: ConsumerGroup, request: JoinRequest) -> tuple[ConsumerMember | None, str]:
    """Return the member that joins again or is replaced, if there is one, and the id of the member that joins."""
    member_id, instance_id = request.member_id, request.group_instance_id
    holder = None if instance_id is None else group.static_member(instance_id)
    if holder is not None:
        if member_id not in (UNKNOWN_MEMBER_ID, holder.member_id):
            raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        return holder, member_id or turn.shard.new_member_id(instance_id or "")
    if instance_id is not None and member_id != UNKNOWN_MEMBER_ID and member_id not in group.members_by_id:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    known = group.members_by_id.get(member_id)
    if known is None:
        check_size(turn, group)
    return known, member_id or turn.shard.new_member_id(instance_id or request.client_id)


def _stored(group: ConsumerGroup, request: JoinRequest, member_id: str) -> ConsumerMemberStored:
    return ConsumerMemberStored(
        group.group_id,
        member_id,
        request.group_instance_id,
        None,
        request.client_id,
        request.client_host,
        tuple(sorted(subscribed_topics(request.protocols[0][1]) or ())),
        None,
        request.rebalance_timeout_ms,
        None,
        ClassicMember(request.session_timeout_ms, request.protocols),
    )


def _owned(turn: Turn, request: JoinRequest) -> frozenset[Partition]:
    """Return the partitions that the member says it owns; an eager consumer has given up all of them."""
    named = owned_partitions(request.protocols[0][1])
    topics = {name: turn.shard.topics.find(name) for name in {each.topic for each in named}}
    return frozenset((topic.topic_id, index) for name, index in named if (topic := topics[name]) is not None)


def sync(turn: Turn, token: Any, group: ConsumerGroup, request: SyncRequest) -> None:
    try:
        member = _find(group, request.member_id, request.group_instance_id, request.generation_id)
        protocol = _protocol_of(group, member)
        if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (None, protocol):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        turn.cancel(TimerKind.SYNC, group, member.member_id)
        keep_session(turn, group, member)
    except ApiError as error:
        turn.reply(token, SyncResponse(error.code))
        return
    assignment = classic_assignment(turn, member, member.assigned)
    turn.reply(token, SyncResponse(ErrorCode.NONE, CONSUMER_PROTOCOL_TYPE, protocol, assignment))


def heartbeat(turn: Turn, token: Any, group: ConsumerGroup, request: HeartbeatRequest) -> None:
    try:
        member = _find(group, request.member_id, request.group_instance_id, request.generation_id)
    except ApiError as error:
        turn.reply(token, HeartbeatResponse(error.code))
        return
    keep_session(turn, group, member)
    if not _must_join(group, member):
        turn.reply(token, HeartbeatResponse())
        return
    if turn.shard.timers.deadline(Timer(TimerKind.JOIN, group.group_id, member.member_id)) is None:
        turn.schedule(member.stored.rebalance_timeout_ms, TimerKind.JOIN, group, member.member_id)
    turn.reply(token, HeartbeatResponse(ErrorCode.REBALANCE_IN_PROGRESS))


def _must_join(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Return whether the member must join again: to give up partitions, enter an epoch, or get free partitions."""
    if member.epoch < group.assignment_epoch or member.state is MemberState.UNREVOKED:
        return True
    missing = (each for each in group.target_of(member.member_id) if each not in member.assigned)
    return member.state is MemberState.UNRELEASED and any(each not in group.owners for each in missing)


def _find(group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int) -> ConsumerMember:
    member = group.members_by_id.get(member_id)
    if instance_id is not None:
        holder = group.static_member(instance_id)
        if holder is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if holder is not member:
            raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
    if member is None or member.stored.classic is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    if generation_id != member.epoch:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)
    return member


def leave(turn: Turn, token: Any, group: ConsumerGroup, request: LeaveRequest) -> None:
    """Remove members by id or by instance id, whichever protocol they use: operators do so too."""
    left: list[LeftMember] = []
    members: list[ConsumerMember] = []
    for leaving in request.members:
        member, error_code = _leaving(group, leaving)
        if member is not None and member not in members:
            members.append(member)
        left.append(LeftMember(leaving.member_id, leaving.group_instance_id, error_code))
    if members:
        remove_members(turn, group, members, "; ".join(f"Member {each.member_id} left" for each in members))
    turn.reply(token, LeaveResponse(members=tuple(left)))


def _leaving(group: ConsumerGroup, leaving: LeavingMember) -> tuple[ConsumerMember | None, ErrorCode]:
    if leaving.group_instance_id is None:
        member = group.members_by_id.get(leaving.member_id)
        return member, ErrorCode.NONE if member is not None else ErrorCode.UNKNOWN_MEMBER_ID
    member = group.static_member(leaving.group_instance_id)
    if member is None:
        return None, ErrorCode.UNKNOWN_MEMBER_ID
    if leaving.member_id not in ("", member.member_id):
        return None, ErrorCode.FENCED_INSTANCE_ID
    return member, ErrorCode.NONE
