"""SyncGroup, Heartbeat and LeaveGroup: the requests of members that have joined.

A request identifies its member by id, instance id if it has one, and generation; the error names the one that is wrong.
The leader's assignment passes through unparsed. It is stored before any member gets it: the replies and the record are
in the same effects, and only the record's replay makes the group Stable.
"""

from __future__ import annotations

from typing import Any

from flowstone.coordinator.groups.classic.group import Group, GroupState
from flowstone.coordinator.groups.classic.rebalancing import (
    answer_sync,
    complete_join_if_ready,
    find,
    forget_if_unused,
    rebalance,
    remove_member,
    remove_pending,
)
from flowstone.coordinator.groups.config import GROUP_BYTES_MAX, REASON_MAX_CHARS
from flowstone.coordinator.groups.messages import (
    UNKNOWN_MEMBER_ID,
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveRequest,
    LeaveResponse,
    LeavingMember,
    LeftMember,
    SyncRequest,
    SyncResponse,
)
from flowstone.coordinator.groups.state import Turn
from flowstone.coordinator.groups.timers import TimerKind
from flowstone.errors import ApiError, ErrorCode


def sync(turn: Turn, token: Any, request: SyncRequest) -> None:
    try:
        group = _find(turn, request)
        _check_protocol(group, request)
    except ApiError as error:
        turn.reply(token, SyncResponse(error.code))
        return
    if group.state is GroupState.PREPARING_REBALANCE:
        turn.reply(token, SyncResponse(ErrorCode.REBALANCE_IN_PROGRESS))
        return
    member_id = request.member_id
    turn.keep_session(group, member_id)
    group.pending_syncs.discard(member_id)
    if not group.pending_syncs:
        turn.cancel(TimerKind.SYNC, group)
    if group.state is GroupState.STABLE:
        turn.reply(token, _synced(group, group.members[member_id].assignment))
        return
    # Only one sync of a member is parked: a second one, after the client gave up on the first, replaces it.
    answer_sync(turn, group, member_id, SyncResponse(ErrorCode.REBALANCE_IN_PROGRESS))
    group.syncs[member_id] = token
    if member_id == group.leader:
        _assign(turn, group, dict(request.assignments))


def _assign(turn: Turn, group: Group, assignments: dict[str, bytes]) -> None:
    stored = group.stored(turn.now_ms, assignments)
    growth_bytes = sum(len(each.assignment) - len(group.members[each.member_id].assignment) for each in stored.members)
    if stored.size_bytes > GROUP_BYTES_MAX or not turn.shard.account.may_grow(group.group_id, growth_bytes):
        # Kafka's answer to a group that does not fit a record. A failed append would reload the whole shard.
        for member_id in list(group.syncs):
            answer_sync(turn, group, member_id, SyncResponse(ErrorCode.UNKNOWN_SERVER_ERROR))
        rebalance(turn, group, f"its metadata and assignments take {stored.size_bytes} bytes, too many to store")
        return
    turn.append(stored)
    for member_id in list(group.syncs):
        turn.keep_session(group, member_id)
        answer_sync(turn, group, member_id, _synced(group, assignments.get(member_id, b"")))


def _synced(group: Group, assignment: bytes) -> SyncResponse:
    return SyncResponse(ErrorCode.NONE, group.protocol_type, group.protocol, assignment)


def _check_protocol(group: Group, request: SyncRequest) -> None:
    if request.protocol_type not in (None, group.protocol_type) or request.protocol_name not in (None, group.protocol):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def heartbeat(turn: Turn, token: Any, request: HeartbeatRequest) -> None:
    try:
        group = _find(turn, request)
    except ApiError as error:
        turn.reply(token, HeartbeatResponse(error.code))
        return
    turn.keep_session(group, request.member_id)
    is_rebalancing = group.state is GroupState.PREPARING_REBALANCE
    turn.reply(token, HeartbeatResponse(ErrorCode.REBALANCE_IN_PROGRESS if is_rebalancing else ErrorCode.NONE))


def _find(turn: Turn, request: SyncRequest | HeartbeatRequest) -> Group:
    if not request.group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID)
    group = find(turn, request.group_id)
    if group is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    error_code = group.check_member(request.member_id, request.group_instance_id)
    if error_code is not ErrorCode.NONE:
        raise ApiError(error_code)
    if request.generation_id != group.generation:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)
    return group


def leave(turn: Turn, token: Any, request: LeaveRequest) -> None:
    if not request.group_id:
        turn.reply(token, LeaveResponse(ErrorCode.INVALID_GROUP_ID))
        return
    # A missing group is handled like an empty one: it has no such members.
    group = find(turn, request.group_id) or Group(request.group_id)
    count_before = len(group.members)
    left = []
    reasons = []
    for leaving in request.members:
        error_code = _remove(turn, group, leaving)
        left.append(LeftMember(leaving.member_id, leaving.group_instance_id, error_code))
        if error_code is ErrorCode.NONE:
            reasons.append(_left(leaving))
    turn.reply(token, LeaveResponse(members=tuple(left)))
    if len(group.members) < count_before:
        rebalance(turn, group, "; ".join(reasons))
    elif reasons:
        complete_join_if_ready(turn, group)  # the join phase may have waited for a member id that is now dropped
        forget_if_unused(turn, group)


def _remove(turn: Turn, group: Group, leaving: LeavingMember) -> ErrorCode:
    member_id = leaving.member_id
    if member_id == UNKNOWN_MEMBER_ID and leaving.group_instance_id is not None:
        member_id = group.static_members.get(leaving.group_instance_id, member_id)
    if member_id in group.pending_joins:
        remove_pending(turn, group, member_id)
        return ErrorCode.NONE
    error_code = group.check_member(member_id, leaving.group_instance_id)
    if error_code is ErrorCode.NONE:
        remove_member(turn, group, member_id)
    return error_code


def _left(leaving: LeavingMember) -> str:
    who = leaving.member_id or f"with instance id {leaving.group_instance_id}"
    said = f": {leaving.reason[:REASON_MAX_CHARS]}" if leaving.reason else ""
    return f"Member {who} left{said}"
