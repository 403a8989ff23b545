"""Members of a consumer group that use the classic protocol, and requests of that protocol to consumer groups."""

from __future__ import annotations

from typing import Any

from flowstone.coordinator.groups.consumer.group import ConsumerGroup, ConsumerMember
from flowstone.coordinator.groups.consumer.removal import remove_members
from flowstone.coordinator.groups.messages import (
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
from flowstone.errors import ErrorCode


def join(turn: Turn, token: Any, group: ConsumerGroup, request: JoinRequest) -> None:
    turn.reply(token, JoinResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))


def sync(turn: Turn, token: Any, group: ConsumerGroup, request: SyncRequest) -> None:
    turn.reply(token, SyncResponse(ErrorCode.UNKNOWN_MEMBER_ID))


def heartbeat(turn: Turn, token: Any, group: ConsumerGroup, request: HeartbeatRequest) -> None:
    turn.reply(token, HeartbeatResponse(ErrorCode.UNKNOWN_MEMBER_ID))


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
