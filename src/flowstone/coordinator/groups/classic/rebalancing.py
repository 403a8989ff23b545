"""A rebalance from its beginning to the answered joins, and the removal of members.

`rebalance` begins one, or checks whether the one under way can end. The join phase ends when all members have joined,
or after the longest rebalance timeout of the members, `REBALANCE_PHASE_MIN_MS` at least; the first rebalance of an
empty group instead waits for the initial delay, prolonged as long as members keep arriving. Members that did not join
are removed, unless they are static: those stay until their session ends. Then all members wait for the leader's
assignment (`membership.sync`).

A waiting member is answered before it is replaced or removed: no token is lost.
"""

from __future__ import annotations

from flowstone.coordinator.groups.classic.group import Group, GroupState
from flowstone.coordinator.groups.config import (
    NOBODY_JOINED_RETRY_MIN_MS,
    REASON_MAX_CHARS,
    REBALANCE_PHASE_MIN_MS,
    REBALANCE_REASON_MAX_CHARS,
)
from flowstone.coordinator.groups.messages import JoinedMember, JoinResponse, SyncResponse
from flowstone.coordinator.groups.state import Turn
from flowstone.coordinator.groups.timers import TimerKind
from flowstone.errors import ErrorCode


def find(turn: Turn, group_id: str) -> Group | None:
    """Return the classic group of that id, or None if there is none."""
    group = turn.shard.groups.get(group_id)
    return group if isinstance(group, Group) else None


def rebalance(turn: Turn, group: Group, reason: str, clients_reason: str | None = None) -> None:
    """Begin a rebalance after a change of membership, or end the one in progress if all members have joined.

    A group enters PreparingRebalance: members learn of it from their heartbeats and join again.
    """
    if group.state is GroupState.PREPARING_REBALANCE:
        complete_join_if_ready(turn, group)
        return
    for member_id in list(group.syncs):
        answer_sync(turn, group, member_id, SyncResponse(ErrorCode.REBALANCE_IN_PROGRESS))
        turn.keep_session(group, member_id)
    group.pending_syncs.clear()
    turn.cancel(TimerKind.SYNC, group)
    is_initial = group.state is GroupState.EMPTY
    group.state, group.state_timestamp_ms = GroupState.PREPARING_REBALANCE, turn.now_ms
    group.rebalance_count += 1
    if clients_reason:
        reason = f"{reason}: {clients_reason[:REASON_MAX_CHARS]}"
    group.rebalance_reason, group.rebalance_timestamp_ms = reason[:REBALANCE_REASON_MAX_CHARS], turn.now_ms

    delay_ms = turn.shard.config.initial_rebalance_delay_ms
    if is_initial and delay_ms > 0:
        group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        group.joined_during_delay = False
        turn.schedule(delay_ms, TimerKind.JOIN, group)
    elif group.all_joined:
        complete_join(turn, group)
    else:
        turn.schedule(max(group.rebalance_timeout_ms, REBALANCE_PHASE_MIN_MS), TimerKind.JOIN, group)


def complete_join_if_ready(turn: Turn, group: Group) -> None:
    if group.state is GroupState.PREPARING_REBALANCE and group.initial_delay_left_ms is None and group.all_joined:
        complete_join(turn, group)


def end_of_join_phase(turn: Turn, group: Group) -> None:
    """End the join phase at its deadline, or prolong the initial delay if a member arrived during its last part."""
    assert group.state is GroupState.PREPARING_REBALANCE
    if group.initial_delay_left_ms and group.joined_during_delay:
        delay_ms = min(turn.shard.config.initial_rebalance_delay_ms, group.initial_delay_left_ms)
        group.initial_delay_left_ms -= delay_ms
        group.joined_during_delay = False
        turn.schedule(delay_ms, TimerKind.JOIN, group)
    else:
        complete_join(turn, group)


def complete_join(turn: Turn, group: Group) -> None:
    """Begin the next generation with the members that have joined, or store that the group is empty."""
    turn.cancel(TimerKind.JOIN, group)
    group.initial_delay_left_ms = None
    for member in list(group.members.values()):
        if member.member_id not in group.joins and member.group_instance_id is None:
            remove_member(turn, group, member.member_id)
    if not group.members:
        group.generation += 1
        group.protocol = None
        turn.append(group.stored(turn.now_ms, {}))
        turn.check_empty_groups_later()
        return
    if not group.elect_joined_leader():
        # Only static members that did not come: their sessions decide.
        turn.schedule(max(group.rebalance_timeout_ms, NOBODY_JOINED_RETRY_MIN_MS), TimerKind.JOIN, group)
        return
    group.generation += 1
    group.protocol = group.select_protocol()
    group.state, group.state_timestamp_ms = GroupState.COMPLETING_REBALANCE, turn.now_ms
    group.pending_syncs = set(group.members)
    turn.schedule(max(group.rebalance_timeout_ms, REBALANCE_PHASE_MIN_MS), TimerKind.SYNC, group)
    for member_id, member in group.members.items():
        if member_id in group.joins:
            member.is_new = False
            turn.schedule(member.session_timeout_ms, TimerKind.SESSION, group, member_id)
            turn.reply(group.joins.pop(member_id), joined(group, member_id))


def joined(group: Group, member_id: str) -> JoinResponse:
    """Return a member's response with the current generation; the leader's lists all members' metadata."""
    assert group.protocol is not None
    members: tuple[JoinedMember, ...] = ()
    if member_id == group.leader:
        protocol = group.protocol
        members = tuple(
            JoinedMember(each.member_id, each.group_instance_id, each.protocols[protocol])
            for each in group.members.values()
        )
    return JoinResponse(
        member_id=member_id,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        members=members,
    )


def park_join(turn: Turn, group: Group, member_id: str, token: object) -> None:
    """Park a member's join. A second join, after the client gave up on the first, replaces it."""
    if member_id in group.joins:
        turn.reply(group.joins[member_id], JoinResponse(ErrorCode.REBALANCE_IN_PROGRESS, member_id))
    group.joins[member_id] = token


def answer_join(turn: Turn, group: Group, member_id: str, response: JoinResponse) -> None:
    """Answer the member's parked join, if it has one."""
    if member_id in group.joins:
        turn.reply(group.joins.pop(member_id), response)


def answer_sync(turn: Turn, group: Group, member_id: str, response: SyncResponse) -> None:
    """Answer the member's parked sync, if it has one."""
    if member_id in group.syncs:
        turn.reply(group.syncs.pop(member_id), response)


def remove_member(turn: Turn, group: Group, member_id: str) -> None:
    """Remove a member. The caller decides what follows for the group, after all removals."""
    answer_join(turn, group, member_id, JoinResponse(ErrorCode.UNKNOWN_MEMBER_ID))
    answer_sync(turn, group, member_id, SyncResponse(ErrorCode.UNKNOWN_MEMBER_ID))
    turn.cancel(TimerKind.SESSION, group, member_id)
    group.remove(member_id)


def remove_pending(turn: Turn, group: Group, member_id: str) -> None:
    turn.cancel(TimerKind.SESSION, group, member_id)
    group.drop_pending(member_id)


def forget_if_unused(turn: Turn, group: Group) -> None:
    """Remove a group that never finished a generation and has no offsets: it has no records on disk."""
    if group.is_unused and group.generation == 0 and not turn.shard.offsets.of_group(group.group_id):
        turn.shard.groups.pop(group.group_id, None)
