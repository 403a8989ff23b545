"""Membership of consumer groups: the group and the member that a heartbeat names, who may join, and how members leave.

A dynamic member is known by its id. A static member is known by its instance id as well: the one that holds it keeps it
until it has left, and its successor, with another member id, takes over what it had.
"""

from __future__ import annotations

from typing import Any

from flowstone.coordinator.groups.classic.group import Group
from flowstone.coordinator.groups.classic.timeouts import forget
from flowstone.coordinator.groups.consumer.conversion import upgraded
from flowstone.coordinator.groups.consumer.group import ConsumerGroup, ConsumerMember
from flowstone.coordinator.groups.consumer.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
)
from flowstone.coordinator.groups.consumer.removal import remove_members, tombstones
from flowstone.coordinator.groups.consumer.sessions import watch_revocation
from flowstone.coordinator.groups.consumer.writing import write
from flowstone.coordinator.groups.consumer_records import (
    ConsumerMemberCurrentStored,
    ConsumerMemberTargetStored,
    MemberState,
)
from flowstone.coordinator.groups.state import Turn
from flowstone.errors import ApiError, ErrorCode


def check_names(request: ConsumerHeartbeatRequest) -> None:
    """Raise ApiError unless the ids of the request and its epoch are well-formed."""
    if not request.group_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
    if not request.member_id and (request.makes_member_id or request.member_epoch != JOIN_EPOCH):
        raise ApiError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
    if request.instance_id == "":
        raise ApiError(ErrorCode.INVALID_REQUEST, "InstanceId can't be empty.")
    if request.rack_id == "":
        raise ApiError(ErrorCode.INVALID_REQUEST, "RackId can't be empty.")
    if request.member_epoch < STATIC_LEAVE_EPOCH:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"MemberEpoch is {request.member_epoch}, which is less than -2.")
    if request.member_epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")


def find_or_make(turn: Turn, request: ConsumerHeartbeatRequest) -> ConsumerGroup:
    """Return the request's group; a member that joins may find none, and gets one that is not stored yet.

    Raises ApiError if there is none otherwise, or if a group of another kind has the name.
    """
    group_id = request.group_id
    group = turn.shard.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        return group
    if request.member_epoch == JOIN_EPOCH:
        if group is None or (isinstance(group, Group) and group.is_unused):
            return ConsumerGroup(group_id, state_timestamp_ms=turn.now_ms)
        if isinstance(group, Group):
            return upgraded(turn, group)
    if group is None:
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")


def begin(turn: Turn, group: ConsumerGroup) -> None:
    """Make a group that is not stored yet one of the shard's, in place of an empty classic one that had its name."""
    former = turn.shard.groups.get(group.group_id)
    if former is group:
        return
    if isinstance(former, Group):
        turn.effects.records.extend(former.removal() if former.generation else ())
        forget(turn.shard.timers, former)
    turn.shard.groups[group.group_id] = group


def find_member(turn: Turn, group: ConsumerGroup, request: ConsumerHeartbeatRequest) -> ConsumerMember | None:
    """Return the member that sends the request, or None if it is new and may join. Raises ApiError if it may not."""
    is_join = request.member_epoch == JOIN_EPOCH
    member = group.members_by_id.get(request.member_id)
    if request.instance_id is not None:
        holder = group.static_member(request.instance_id)
        if holder is None and not is_join:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {request.instance_id} is unknown.")
        if holder is not None and holder is not member:
            member = _take_over(turn, group, request, holder)
    if member is None:
        if not is_join:
            message = f"Member {request.member_id} is not a member of group {group.group_id}."
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, message)
        check_size(turn, group)
    elif not is_join:
        _check_epoch(member, request)
    return member


def _take_over(
    turn: Turn, group: ConsumerGroup, request: ConsumerHeartbeatRequest, holder: ConsumerMember
) -> ConsumerMember:
    """Replace the holder of the instance id by the member that joins. Raises ApiError if it may not be replaced."""
    if request.member_epoch != JOIN_EPOCH:
        message = f"Instance id {request.instance_id} belongs to member {holder.member_id}."
        raise ApiError(ErrorCode.FENCED_INSTANCE_ID, message)
    if not holder.is_away and holder.stored.classic is None:
        message = (
            f"Static member {request.member_id} with instance id {request.instance_id} cannot join the group because "
            f"the instance id is owned by member {holder.member_id}, which has not left."
        )
        raise ApiError(ErrorCode.UNRELEASED_INSTANCE_ID, message)
    if request.member_id in group.members_by_id:
        message = f"Member {request.member_id} exists already with another instance id."
        raise ApiError(ErrorCode.INVALID_REQUEST, message)
    return replace_member(turn, group, holder, request.member_id)


def replace_member(turn: Turn, group: ConsumerGroup, former: ConsumerMember, member_id: str) -> ConsumerMember:
    """Give a static member's partitions and target to its successor, whose epoch begins at 0."""
    group_id, stored, assigned = group.group_id, former.stored, former.assigned
    target = group.target_of(former.member_id)
    write(turn, *tombstones(group, former.member_id))
    write(
        turn,
        stored._replace(member_id=member_id),
        ConsumerMemberTargetStored(group_id, member_id, target),
        ConsumerMemberCurrentStored(group_id, member_id, 0, 0, MemberState.STABLE, dict.fromkeys(assigned, 0), {}),
    )
    return group.members_by_id[member_id]


def check_size(turn: Turn, group: ConsumerGroup) -> None:
    size_max = turn.shard.config.consumer_group_max_size
    if len(group.members_by_id) >= size_max:
        message = f"The consumer group has reached its maximum capacity of {size_max} members."
        raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)


def _check_epoch(member: ConsumerMember, request: ConsumerHeartbeatRequest) -> None:
    epoch = request.member_epoch
    if epoch == member.epoch:
        return
    if epoch > member.epoch:
        message = (
            f"The consumer group member has a greater member epoch ({epoch}) than the one known by the group "
            f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin."
        )
        raise ApiError(ErrorCode.FENCED_MEMBER_EPOCH, message)
    # The answer that told the member its epoch may have been lost.
    has_missed_answer = (
        epoch == member.previous_epoch and request.owned is not None and request.owned <= member.assigned.keys()
    )
    if not has_missed_answer:
        message = (
            f"The consumer group member has a smaller member epoch ({epoch}) than the one known by the group "
            f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin."
        )
        raise ApiError(ErrorCode.FENCED_MEMBER_EPOCH, message)


def leave(turn: Turn, token: Any, request: ConsumerHeartbeatRequest) -> None:
    """Handle the last heartbeat of a member, static or not."""
    try:
        check_names(request)
        response = _leave(turn, request)
    except ApiError as error:
        response = ConsumerHeartbeatResponse(error.code, error.message)
    turn.reply(token, response)


def _leave(turn: Turn, request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatResponse:
    group = find_or_make(turn, request)
    member = group.members_by_id.get(request.member_id)
    if request.instance_id is not None:
        holder = group.static_member(request.instance_id)
        if holder is not None and holder.member_id != request.member_id:
            message = f"Instance id {request.instance_id} belongs to member {holder.member_id}."
            raise ApiError(ErrorCode.FENCED_INSTANCE_ID, message)
        member = holder
    if member is None:
        message = f"Member {request.member_id} is not a member of group {group.group_id}."
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, message)
    if request.member_epoch == LEAVE_EPOCH:
        remove_members(turn, group, [member], f"Member {member.member_id} left")
    else:
        _leave_for_now(turn, group, member)
    turn.shard.measure(group.group_id)
    return ConsumerHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)


def _leave_for_now(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> None:
    """Keep a static member and its partitions until its session ends; its successor may take over at once."""
    left = ConsumerMemberCurrentStored(
        group.group_id,
        member.member_id,
        STATIC_LEAVE_EPOCH,
        member.previous_epoch,
        MemberState.STABLE,
        member.assigned,
        {},
    )
    write(turn, left)
    watch_revocation(turn, group, member)
