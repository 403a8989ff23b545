"""ShareGroupHeartbeat: joining, staying in and leaving a share group.

A member chooses its own id. Its heartbeats carry the member epoch of the last response: the present one or, if that
response was lost, the previous one; anything else is fenced. Epoch 0 joins, also again, and -1 leaves. There is no
barrier between members: a member has what its target assignment says from the heartbeat on that finds it.

While a member waits for its first partitions (state is being initialized, or the next assignment is due soon) it is
asked to send its next heartbeat early (`EARLY_HEARTBEAT_MS`); Kafka lets it wait for a whole heartbeat interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowstone.config import GroupSettings
from flowstone.coordinator.groups.config import GROUP_OVERHEAD_BYTES, TEXT_CHARACTER_BYTES
from flowstone.coordinator.groups.share import states
from flowstone.coordinator.groups.share.group import (
    NO_PARTITIONS,
    ShareGroup,
    ShareMember,
    stored_member_bytes,
)
from flowstone.coordinator.groups.share.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    ShareHeartbeatRequest,
    ShareHeartbeatResponse,
)
from flowstone.coordinator.groups.share.removal import remove_members
from flowstone.coordinator.groups.share.target import known_topics_hash, topics_hash, update_target
from flowstone.coordinator.groups.share_records import (
    ShareGroupStored,
    ShareMemberCurrentStored,
    ShareMemberStored,
    TopicPartitions,
)
from flowstone.coordinator.groups.state import Turn
from flowstone.errors import ApiError, ErrorCode

MEMBER_ID_LENGTH_MAX = 36

EARLY_HEARTBEAT_MS = 250
"""The heartbeat interval of a member that waits for its first partitions."""

EARLY_HEARTBEATS_FOR_MS = 10_000
"""How long members are asked for early heartbeats while state cannot be initialized."""


def heartbeat(turn: Turn, token: Any, request: ShareHeartbeatRequest) -> None:
    try:
        _check(request)
        response = _leave(turn, request) if request.member_epoch == LEAVE_EPOCH else _stay(turn, request)
    except ApiError as error:
        response = ShareHeartbeatResponse(error.code, error.message or None)
    turn.reply(token, response)


def _check(request: ShareHeartbeatRequest) -> None:
    if not request.group_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
    if not request.member_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
    if len(request.member_id) > MEMBER_ID_LENGTH_MAX:
        message = f"MemberId can't be longer than {MEMBER_ID_LENGTH_MAX} characters."
        raise ApiError(ErrorCode.INVALID_REQUEST, message)
    if request.member_epoch < LEAVE_EPOCH:
        raise ApiError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
    if request.rack_id == "":
        raise ApiError(ErrorCode.INVALID_REQUEST, "RackId can't be empty.")
    if request.member_epoch == JOIN_EPOCH and not request.subscribed_topics:
        raise ApiError(ErrorCode.INVALID_REQUEST, "SubscribedTopicNames must be set in first request.")


def _leave(turn: Turn, request: ShareHeartbeatRequest) -> ShareHeartbeatResponse:
    group = find(turn, request.group_id)
    _member(group, request.member_id)
    remove_members(turn, group, [request.member_id])
    return ShareHeartbeatResponse(member_id=request.member_id, member_epoch=LEAVE_EPOCH)


def find(turn: Turn, group_id: str) -> ShareGroup:
    """Return the share group of that id. Raises ApiError if there is none."""
    group = turn.shard.groups.get(group_id)
    if group is None:
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    if not isinstance(group, ShareGroup):
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
    return group


def _member(group: ShareGroup, member_id: str) -> ShareMember:
    member = group.members_by_id.get(member_id)
    if member is None:
        message = f"Member {member_id} is not a member of group {group.group_id}."
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, message)
    return member


def _stay(turn: Turn, request: ShareHeartbeatRequest) -> ShareHeartbeatResponse:
    group, member = _known(turn, request)
    stored = _stored(request, member)
    settings = turn.shard.settings(group.group_id)
    _check_size(turn, group, member, stored)
    # A new group is known from here on: the next member to join must find that its state is being initialized.
    turn.shard.groups.setdefault(group.group_id, group)
    if member is None or member.stored != stored:
        turn.append(stored)
    topic_counts = group.topic_counts_with(member, stored.subscribed_topics)
    epoch = _group_epoch(turn, group, topic_counts)
    target, target_epoch = _target(turn, group, epoch, stored, settings)
    is_initializing = states.initialize_missing(turn, group, epoch, topic_counts)
    assigned = NO_PARTITIONS if member is None else member.assigned
    member_epoch = JOIN_EPOCH if member is None else member.epoch
    if member is None or member_epoch != target_epoch or assigned != target:
        turn.append(ShareMemberCurrentStored(group.group_id, stored.member_id, target_epoch, member_epoch, target))
    group.session_ms = settings.share_session_timeout_ms
    turn.keep_session(group, stored.member_id)
    # A request with the previous epoch follows a response that was lost, maybe with an assignment.
    is_full = request.member_epoch != member_epoch or request.subscribed_topics is not None
    waits = not target and (target_epoch < epoch or (is_initializing and _is_early(turn, group)))
    return ShareHeartbeatResponse(
        member_id=stored.member_id,
        member_epoch=target_epoch,
        heartbeat_interval_ms=EARLY_HEARTBEAT_MS if waits else settings.share_heartbeat_interval_ms,
        assignment=target if is_full or assigned != target else None,
    )


def _known(turn: Turn, request: ShareHeartbeatRequest) -> tuple[ShareGroup, ShareMember | None]:
    """Return the group, a new one if this is its first join, and the member unless it is new."""
    if request.member_epoch == JOIN_EPOCH:
        if request.group_id not in turn.shard.groups:
            return ShareGroup(request.group_id), None
        group = find(turn, request.group_id)
        return group, group.members_by_id.get(request.member_id)
    group = find(turn, request.group_id)
    member = _member(group, request.member_id)
    if request.member_epoch not in (member.epoch, member.previous_epoch):
        side = "greater" if request.member_epoch > member.epoch else "smaller"
        message = (
            f"The share group member has a {side} member epoch ({request.member_epoch}) than the one known by the "
            f"group coordinator ({member.epoch}). The member must abandon all its partitions and rejoin."
        )
        raise ApiError(ErrorCode.FENCED_MEMBER_EPOCH, message)
    return group, member


def _stored(request: ShareHeartbeatRequest, member: ShareMember | None) -> ShareMemberStored:
    """Return the member's properties after the request; null fields leave them unchanged."""
    before = member.stored if member is not None else None
    rack_id, topics = request.rack_id, request.subscribed_topics
    if before is not None:
        rack_id = before.rack_id if rack_id is None else rack_id
        topics = before.subscribed_topics if topics is None else topics
    topics = tuple(sorted(set(topics or ())))
    return ShareMemberStored(
        request.group_id, request.member_id, rack_id, request.client_id, request.client_host, topics
    )


def _check_size(turn: Turn, group: ShareGroup, member: ShareMember | None, stored: ShareMemberStored) -> None:
    """Raise ApiError if the group has no place for a new member, or the broker no memory for the request."""
    if member is None and len(group.members_by_id) >= turn.shard.config.share_group_max_size:
        message = f"The share group has reached its maximum capacity of {turn.shard.config.share_group_max_size}."
        raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
    growth_bytes = stored_member_bytes(stored) - (stored_member_bytes(member.stored) if member is not None else 0)
    if group.group_id not in turn.shard.groups:
        growth_bytes += GROUP_OVERHEAD_BYTES + TEXT_CHARACTER_BYTES * len(group.group_id)
    if growth_bytes > 0 and not turn.shard.account.may_grow(group.group_id, growth_bytes):
        message = "The groups of this broker take all of group.memory.max.bytes; delete groups that nobody needs."
        raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)


def _group_epoch(turn: Turn, group: ShareGroup, topic_counts: Mapping[str, int]) -> int:
    """Return the group epoch, raised if anything has changed that assignments depend on."""
    is_same = topic_counts is group.topic_counts  # never for a new member
    metadata_hash = known_topics_hash(turn, group) if is_same else topics_hash(turn, group, topic_counts)
    if is_same and metadata_hash == group.metadata_hash:
        return group.epoch
    turn.append(ShareGroupStored(group.group_id, group.epoch + 1, metadata_hash))
    return group.epoch + 1


def _target(
    turn: Turn, group: ShareGroup, epoch: int, stored: ShareMemberStored, settings: GroupSettings
) -> tuple[TopicPartitions, int]:
    """Return what the member is to have, and the epoch of that assignment."""
    member = group.members_by_id.get(stored.member_id)
    is_due = turn.now_ms - group.assignment_timestamp_ms >= settings.share_assignment_interval_ms
    has_assignment = any(known.target for known in group.members_by_id.values())
    if group.assignment_epoch < epoch and (is_due or not has_assignment):
        subscriptions = {each: known.stored.subscribed_topics for each, known in group.members_by_id.items()}
        subscriptions[stored.member_id] = stored.subscribed_topics
        return update_target(turn, group, epoch, subscriptions)[stored.member_id], epoch
    return (member.target if member is not None else NO_PARTITIONS), group.assignment_epoch


def _is_early(turn: Turn, group: ShareGroup) -> bool:
    since_ms = group.first_attempt_ms
    return since_ms is not None and turn.now_ms - since_ms < EARLY_HEARTBEATS_FOR_MS
