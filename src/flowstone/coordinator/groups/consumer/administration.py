"""ConsumerGroupDescribe: a group with its members' current and target partitions, and why a rebalance is incomplete."""

from __future__ import annotations

from typing import Any

from flowstone.coordinator.groups.consumer.group import ConsumerGroup, ConsumerMember
from flowstone.coordinator.groups.consumer.messages import ConsumerGroupDescribed, ConsumerMemberDescribed
from flowstone.coordinator.groups.consumer.target import assignor_of, wait_ms
from flowstone.coordinator.groups.consumer_records import MemberState, Partition
from flowstone.coordinator.groups.messages import DEAD
from flowstone.coordinator.groups.state import Turn
from flowstone.errors import ErrorCode

_STATES = {
    MemberState.STABLE: "stable",
    MemberState.UNREVOKED: "revoking",
    MemberState.UNRELEASED: "waiting",
    MemberState.UNKNOWN: "unknown",
}


def describe(turn: Turn, token: Any, group_id: str) -> None:
    group = turn.shard.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        told = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a consumer group."
        turn.reply(token, ConsumerGroupDescribed(group_id, ErrorCode.GROUP_ID_NOT_FOUND, told, DEAD))
        return
    members = tuple(_described(group, member) for member in group.members_by_id.values())
    topic_ids = {topic_id for each in members for topic_id, _ in (*each.assigned, *each.target, *each.revoking)}
    names = {topic_id: turn.shard.topics.name_of(topic_id) for topic_id in topic_ids}
    turn.reply(
        token,
        ConsumerGroupDescribed(
            group_id,
            state=group.state_name,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor=assignor_of(turn, group),
            members=members,
            names={topic_id: name for topic_id, name in names.items() if name is not None},
            unsettled=unsettled(turn, group),
            topics=tuple(sorted(group.subscribed_topics())),
            rebalance_count=group.rebalance_count,
            rebalance_reason=group.rebalance_reason,
            rebalance_timestamp_ms=group.rebalance_timestamp_ms,
        ),
    )


def _described(group: ConsumerGroup, member: ConsumerMember) -> ConsumerMemberDescribed:
    stored = member.stored
    return ConsumerMemberDescribed(
        stored.member_id,
        stored.instance_id,
        stored.rack_id,
        member.epoch,
        stored.client_id,
        stored.client_host,
        stored.subscribed_topics,
        stored.regex,
        frozenset(member.assigned),
        group.target_of(stored.member_id),
        stored.classic is not None,
        "away" if member.is_away else _STATES[member.state],
        frozenset(member.revoking),
    )


def unsettled(turn: Turn, group: ConsumerGroup) -> str:
    """Return one sentence that says why the group has not settled, or "" if it has."""
    if not group.members_by_id:
        return ""
    if group.epoch > group.assignment_epoch:
        left_ms = wait_ms(turn, group)
        when = f"in {left_ms / 1000:.1f} s at the earliest, with" if left_ms else "with"
        return (
            f"Partitions are assigned anew {when} the next heartbeat: {group.rebalance_reason or 'the group changed'}."
        )
    if group.is_resolving:
        return f"The topics that match {', '.join(sorted(group.regex_subscribers))} are being determined."
    members = group.members_by_id.values()
    if (revoking := next((each for each in members if each.state is MemberState.UNREVOKED), None)) is not None:
        given_up = _told(turn, sorted(revoking.revoking))
        return f"Member {revoking.member_id} must give up {given_up} and has not confirmed that yet."
    if (waiting := next((each for each in members if each.state is MemberState.UNRELEASED), None)) is not None:
        return _waiting(turn, group, waiting)
    behind = [each for each in members if group.is_unsettled(each)]
    if behind:
        away = " (it has left and may come back)" if behind[0].is_away else ""
        return (
            f"Member {behind[0].member_id}{away} and {len(behind) - 1} more have not sent a heartbeat since the last "
            "assignment."
            if len(behind) > 1
            else f"Member {behind[0].member_id}{away} has not sent a heartbeat since the last assignment."
        )
    return ""


def _waiting(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> str:
    missing = sorted(each for each in group.target_of(member.member_id) if each not in member.assigned)
    held = [each for each in missing if group.owners.get(each, member.member_id) != member.member_id]
    if not held:
        return f"Member {member.member_id} gets {_told(turn, missing)} with its next heartbeat."
    owner = group.owners[held[0]]
    return f"Member {member.member_id} waits for {_told(turn, held)}, which member {owner} has not given up yet."


def _told(turn: Turn, partitions: list[Partition]) -> str:
    topic_id, index = partitions[0]
    first = f"{turn.shard.topics.name_of(topic_id) or 'a deleted topic'}-{index}"
    return first if len(partitions) == 1 else f"{first} and {len(partitions) - 1} more partitions"
