"""The removal of members: those that leave, and those whose session or time to give up partitions has ended.

What they had is free at once. The group's epoch is raised once, however many members are removed together.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from flowstone.coordinator.groups.config import REBALANCE_REASON_MAX_CHARS
from flowstone.coordinator.groups.consumer.conversion import downgrade_if_classic
from flowstone.coordinator.groups.consumer.group import ConsumerGroup, ConsumerMember
from flowstone.coordinator.groups.consumer.target import topics_hash
from flowstone.coordinator.groups.consumer.writing import bump, write, write_all
from flowstone.coordinator.groups.consumer_records import ConsumerKey, ConsumerRecordRemoved, MemberState
from flowstone.coordinator.groups.state import Turn
from flowstone.coordinator.groups.timers import Timer, TimerKind


def remove_members(turn: Turn, group: ConsumerGroup, members: Sequence[ConsumerMember], reason: str) -> None:
    """Remove the members, and raise the group's epoch once; a group of classic members only becomes a classic one."""
    for member in members:
        write(turn, *tombstones(group, member.member_id))
    if downgrade_if_classic(turn, group) is not None:
        return
    drop_unused_regexes(turn, group)
    bump(turn, group, reason[:REBALANCE_REASON_MAX_CHARS], topics_hash(turn, group))
    group.checked_version = turn.shard.topics.version
    if not group.members_by_id:
        group.state_timestamp_ms = turn.now_ms
        turn.check_empty_groups_later()


def tombstones(group: ConsumerGroup, member_id: str) -> tuple[ConsumerRecordRemoved, ...]:
    """Return the records that remove a member."""
    keys = (ConsumerKey.MEMBER_CURRENT, ConsumerKey.MEMBER_TARGET, ConsumerKey.MEMBER)
    return tuple(ConsumerRecordRemoved(group.group_id, key, member_id) for key in keys)


def drop_unused_regexes(turn: Turn, group: ConsumerGroup) -> bool:
    """Remove the resolved regular expressions to which no member subscribes any more; return whether there were any."""
    unused = [regex for regex in group.regexes if regex not in group.regex_subscribers]
    write_all(turn, [ConsumerRecordRemoved(group.group_id, ConsumerKey.REGEX, regex) for regex in unused])
    return bool(unused)


def overdue(group: ConsumerGroup, due: Collection[Timer]) -> tuple[list[ConsumerMember], str]:
    """Return the members to remove because of timers that are due, and the reason."""
    members: dict[str, ConsumerMember] = {}
    reasons = []
    for timer in due:
        member = group.members_by_id.get(timer.member_id)
        if member is None or timer.member_id in members:
            continue
        if timer.kind is TimerKind.SESSION:
            members[timer.member_id] = member
            reasons.append(f"Member {timer.member_id} sent no heartbeat in its session timeout")
        elif timer.kind is TimerKind.SYNC:
            members[timer.member_id] = member
            reasons.append(f"Member {timer.member_id} sent no SyncGroup request in the rebalance timeout")
        elif member.stored.classic is not None:
            members[timer.member_id] = member
            reasons.append(f"Member {timer.member_id} did not join again in the rebalance timeout")
        elif member.state is MemberState.UNREVOKED:
            members[timer.member_id] = member
            reasons.append(f"Member {timer.member_id} did not give up its partitions in the rebalance timeout")
    return list(members.values()), "; ".join(reasons)
