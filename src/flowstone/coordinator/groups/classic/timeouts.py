"""Expired timers of a group: sessions, the join phase, and missing syncs.

All timers of a group that are due in one call are handled together: first every overdue member is removed, then the
consequence for the group is decided once. So a group never writes two records in one call.
"""

from __future__ import annotations

from collections.abc import Collection

from flowstone.coordinator.groups.classic.group import Group, GroupState
from flowstone.coordinator.groups.classic.rebalancing import (
    complete_join_if_ready,
    end_of_join_phase,
    forget_if_unused,
    rebalance,
    remove_member,
    remove_pending,
)
from flowstone.coordinator.groups.state import Turn
from flowstone.coordinator.groups.timers import Timer, TimerKind, Timers


def resume(turn: Turn, group: Group) -> None:
    """Begin the sessions of all members of a group that was just loaded: they could send no heartbeats before."""
    for member_id in group.members:
        turn.keep_session(group, member_id)
    if len(group.members) > turn.shard.config.group_max_size:
        rebalance(turn, group, f"The group has more members than group.max.size, {turn.shard.config.group_max_size}")


def forget(timers: Timers, group: Group) -> None:
    """Cancel the timers of a group that is removed: those of member ids that were handed out."""
    for member_id in group.pending_joins:
        timers.cancel(Timer(TimerKind.SESSION, group.group_id, member_id))


def expire(turn: Turn, group: Group, due: Collection[Timer]) -> None:
    """Remove the members whose timers are due, and decide once what follows for the group."""
    reasons = [
        f"Member {timer.member_id} sent no heartbeat in its session timeout"
        for timer in due
        if timer.kind is TimerKind.SESSION and _end_session(turn, group, timer.member_id)
    ]
    kinds = {timer.kind for timer in due}
    if TimerKind.SYNC in kinds:
        for member_id in list(group.pending_syncs):
            remove_member(turn, group, member_id)
            reasons.append(f"Member {member_id} sent no SyncGroup request in the rebalance timeout")
    if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        if reasons:
            rebalance(turn, group, "; ".join(reasons))
    elif group.state is GroupState.PREPARING_REBALANCE:
        if TimerKind.JOIN in kinds:
            end_of_join_phase(turn, group)
        else:
            complete_join_if_ready(turn, group)
    else:
        forget_if_unused(turn, group)


def _end_session(turn: Turn, group: Group, member_id: str) -> bool:
    """Return whether a member was removed. One whose join or sync is parked here stays: it waits for the group."""
    if member_id in group.pending_joins:
        remove_pending(turn, group, member_id)
        return False
    assert member_id in group.members, "a session ends with its member"
    waits = member_id in group.joins or member_id in group.syncs
    if waits and not group.members[member_id].is_new:
        return False
    remove_member(turn, group, member_id)
    return True
