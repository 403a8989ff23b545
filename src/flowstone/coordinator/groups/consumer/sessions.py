"""The timers of consumer groups' members: sessions, and the time in which partitions must be given up.

The session of a member runs anew with every heartbeat. The rebalance timeout runs while a member must give up
partitions: it has to confirm that, and heartbeats alone do not help. Both end with the removal of the member.
"""

from __future__ import annotations

from flowstone.coordinator.groups.consumer.group import ConsumerGroup, ConsumerMember
from flowstone.coordinator.groups.consumer_records import MemberState
from flowstone.coordinator.groups.state import Turn
from flowstone.coordinator.groups.timers import TimerKind

# The timer of a member that must give up partitions, or that uses the classic protocol and must join again.
REVOCATION = TimerKind.JOIN


def keep_session(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> None:
    """Restart the session timeout of a member."""
    group.consumer_session_timeout_ms = turn.shard.settings(group.group_id).consumer_session_timeout_ms
    turn.keep_session(group, member.member_id)


def watch_revocation(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> None:
    """Start the rebalance timeout if the member must give up partitions, else stop it."""
    if member.state is MemberState.UNREVOKED:
        turn.schedule(member.stored.rebalance_timeout_ms, REVOCATION, group, member.member_id)
    elif member.stored.classic is None:
        turn.cancel(REVOCATION, group, member.member_id)


def resume(turn: Turn, group: ConsumerGroup) -> None:
    """Begin the timers of a group that was just loaded: its members could send no heartbeats before."""
    group.state_timestamp_ms = turn.now_ms
    for member in group.members_by_id.values():
        keep_session(turn, group, member)
        watch_revocation(turn, group, member)
