"""ConsumerGroupHeartbeat: members join, report changes, confirm revoked partitions, get assignments, and leave.

Every heartbeat may be lost, and so may its answer. A member that repeats one is told the same again: it may still be in
its previous epoch if it owns nothing but what it was assigned. A member that joins again under its own id keeps what it
has. The answer contains partitions only if the member cannot know them.
"""

from __future__ import annotations

from typing import Any

from flowstone.coordinator.groups.consumer.group import ConsumerGroup, ConsumerMember, stored_member_bytes
from flowstone.coordinator.groups.consumer.membership import begin, check_names, find_member, find_or_make, leave
from flowstone.coordinator.groups.consumer.messages import (
    JOIN_EPOCH,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
)
from flowstone.coordinator.groups.consumer.reconciliation import Position, reconcile
from flowstone.coordinator.groups.consumer.regexes import compile_regex, resolve_if_due
from flowstone.coordinator.groups.consumer.removal import drop_unused_regexes
from flowstone.coordinator.groups.consumer.sessions import keep_session, watch_revocation
from flowstone.coordinator.groups.consumer.target import (
    TopicIds,
    assign_if_due,
    follow_metadata,
    has_unsubscribed,
    topics_hash,
)
from flowstone.coordinator.groups.consumer.writing import bump, write
from flowstone.coordinator.groups.consumer_records import (
    ConsumerMemberCurrentStored,
    ConsumerMemberStored,
    MemberState,
    Partition,
)
from flowstone.coordinator.groups.state import Turn
from flowstone.errors import ApiError, ErrorCode

UNSETTLED_HEARTBEAT_MS = 500
"""How soon a member that has not reached its target sends its next heartbeat, at least; later in large groups."""

UNSETTLED_HEARTBEAT_PER_MEMBER_MS = 2
"""What each member of a group adds to that, so that the heartbeats of a large group stay few."""


def heartbeat(turn: Turn, token: Any, request: ConsumerHeartbeatRequest) -> None:
    """Handle a heartbeat."""
    if request.member_epoch < JOIN_EPOCH:
        leave(turn, token, request)
        return
    try:
        group = turn.shard.groups.get(request.group_id)
        response = _settled(turn, group, request) if isinstance(group, ConsumerGroup) else None
        if response is None:
            check_names(request)
            check(turn, request)
            response = _changed(turn, find_or_make(turn, request), request)
    except ApiError as error:
        response = ConsumerHeartbeatResponse(error.code, error.message)
    turn.reply(token, response)


def _settled(turn: Turn, group: ConsumerGroup, request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatResponse | None:
    """Return the response to a heartbeat that brings nothing new in a group that has settled; None for any other."""
    member = group.members_by_id.get(request.member_id)
    is_settled = (
        member is not None
        and request.member_epoch == member.epoch == group.assignment_epoch == group.epoch
        and member.state is MemberState.STABLE
        and request[4:10] == _UNCHANGED
        and request.instance_id in (None, member.stored.instance_id)
        and group.checked_version == turn.shard.topics.version
        and not group.regex_subscribers
        and member.stored.classic is None
    )
    if not is_settled:
        return None
    assert member is not None
    keep_session(turn, group, member)
    interval_ms = turn.shard.settings(group.group_id).consumer_heartbeat_interval_ms
    return ConsumerHeartbeatResponse(
        member_id=request.member_id, member_epoch=member.epoch, heartbeat_interval_ms=interval_ms
    )


_UNCHANGED = ConsumerHeartbeatRequest("", "", 0)[4:10]


def check(turn: Turn, request: ConsumerHeartbeatRequest) -> None:
    """Raise ApiError if the request contradicts itself, or names an unknown assignor or a bad regular expression."""
    if request.rebalance_timeout_ms < -1 or request.rebalance_timeout_ms == 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, "RebalanceTimeoutMs must be positive.")
    if request.member_epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise ApiError(ErrorCode.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request.")
        if request.owned is None or request.owned:
            raise ApiError(ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topics is None and request.regex is None:
            message = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
    known = turn.shard.config.consumer_assignors
    if request.assignor is not None and request.assignor not in known:
        message = f"ServerAssignor {request.assignor} is not supported. Supported assignors: {', '.join(known)}."
        raise ApiError(ErrorCode.UNSUPPORTED_ASSIGNOR, message)
    if request.regex:
        compile_regex(request.regex)


def _changed(turn: Turn, group: ConsumerGroup, request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatResponse:
    former = find_member(turn, group, request)
    stored = _updated(group, former, request)
    check_memory(turn, group, former, stored)
    begin(turn, group)
    reason = store(turn, group, former, stored)
    member = group.members_by_id[stored.member_id]
    if reason:
        group.checked_version = turn.shard.topics.version
        bump(turn, group, reason, topics_hash(turn, group))
    else:
        follow_metadata(turn, group)
    resolve_if_due(turn, group, request.may_see)
    assign_if_due(turn, group, member)
    before = frozenset(member.assigned)
    move(turn, group, member, request.owned)
    keep_session(turn, group, member)
    turn.shard.measure(group.group_id)
    return ConsumerHeartbeatResponse(
        member_id=stored.member_id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=interval_ms(turn, group, member),
        assigned=frozenset(member.assigned) if _is_told(request) or before != member.assigned.keys() else None,
    )


def _is_told(request: ConsumerHeartbeatRequest) -> bool:
    """Return whether the request asks for the assignment: it joins, or has all fields, like one after an error."""
    is_full = (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topics is not None or request.regex is not None)
        and request.owned is not None
    )
    return request.member_epoch == JOIN_EPOCH or is_full


def _updated(
    group: ConsumerGroup, former: ConsumerMember | None, request: ConsumerHeartbeatRequest
) -> ConsumerMemberStored:
    """Return the member's properties after the request, in which an absent field means that nothing has changed."""
    if former is None:
        stored = ConsumerMemberStored(group.group_id, request.member_id, None, None, "", "", (), None, -1, None)
    else:
        stored = former.stored
    topics = stored.subscribed_topics
    if request.subscribed_topics is not None:
        topics = tuple(sorted(set(request.subscribed_topics)))
    return stored._replace(
        member_id=request.member_id,
        instance_id=request.instance_id if request.instance_id is not None else stored.instance_id,
        rack_id=request.rack_id if request.rack_id is not None else stored.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topics=topics,
        regex=stored.regex if request.regex is None else request.regex or None,
        rebalance_timeout_ms=stored.rebalance_timeout_ms
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        assignor=request.assignor if request.assignor is not None else stored.assignor,
        classic=None,
    )


def check_memory(turn: Turn, group: ConsumerGroup, former: ConsumerMember | None, stored: ConsumerMemberStored) -> None:
    """Raise ApiError if all groups together leave too little memory for what the member has added."""
    growth_bytes = stored_member_bytes(stored) - (stored_member_bytes(former.stored) if former is not None else 0)
    if group.group_id not in turn.shard.groups:
        growth_bytes += group.size_bytes
    if growth_bytes > 0 and not turn.shard.account.may_grow(group.group_id, growth_bytes):
        message = "The memory of all groups, group.memory.max.bytes, is used up."
        raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)


def store(turn: Turn, group: ConsumerGroup, former: ConsumerMember | None, stored: ConsumerMemberStored) -> str | None:
    """Store the member's properties if they have changed; return why partitions must be reassigned, or None."""
    before = None if former is None else former.stored
    if before == stored:
        return None
    topics_before = None if former is None else group.topics_of(former)
    write(turn, stored)
    drop_unused_regexes(turn, group)
    after = group.members_by_id[stored.member_id]
    if before is None:
        knows_topics = bool(after.topics) or stored.regex in group.regexes or stored.regex is None
        return f"Member {stored.member_id} joined" if knows_topics else None
    # A regular expression that is new to the group raises the epoch when it has been resolved; one that is dropped, or
    # resolved already, does so now.
    if before.subscribed_topics != stored.subscribed_topics:
        return f"Member {stored.member_id} subscribes to other topics"
    if before.regex != stored.regex and topics_before != group.topics_of(after):
        return f"Member {stored.member_id} subscribes to another regular expression"
    return None


def move(turn: Turn, group: ConsumerGroup, member: ConsumerMember, owned: frozenset[Partition] | None) -> None:
    """Take the next step of the member towards its target, and store it if it changes anything."""
    member_id, owners = member.member_id, group.owners
    target = _goal(turn, group, member)
    before = Position(member.epoch, member.previous_epoch, member.state, member.assigned, member.revoking)
    after = reconcile(
        before,
        target,
        group.assignment_epoch,
        owned,
        lambda partition: owners.get(partition, member_id) == member_id,
    )
    if after != before:
        write(turn, ConsumerMemberCurrentStored(group.group_id, member_id, *after))
        watch_revocation(turn, group, member)


def _goal(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> frozenset[Partition]:
    """Return the partitions that the member shall have: what it has, while some targets of its group are missing.

    It also keeps partitions of topics that it does not subscribe to any more until the next targets are known.
    """
    is_assigning = group.assigning_epoch is not None and has_unsubscribed(turn, group, member)
    if is_assigning or (group.has_partial_targets and group.epoch > group.assignment_epoch):
        return frozenset(member.assigned)
    return TopicIds(turn, group).subscribed(member, group.target_of(member.member_id))


def interval_ms(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> int:
    """Return when the member shall send its next heartbeat: sooner than usual while it waits for something."""
    usual_ms = turn.shard.settings(group.group_id).consumer_heartbeat_interval_ms
    is_waiting = group.epoch > group.assignment_epoch or member.state is MemberState.UNRELEASED or group.is_resolving
    if not is_waiting:
        return usual_ms
    soon_ms = UNSETTLED_HEARTBEAT_MS + UNSETTLED_HEARTBEAT_PER_MEMBER_MS * len(group.members_by_id)
    return min(usual_ms, soon_ms)
