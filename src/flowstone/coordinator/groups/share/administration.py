"""ShareGroupDescribe, and what operators do to the offsets of share groups."""

from __future__ import annotations

from typing import Any

from flowstone.coordinator.groups.messages import DEAD
from flowstone.coordinator.groups.share.group import ShareMember
from flowstone.coordinator.groups.share.heartbeat import find
from flowstone.coordinator.groups.share.messages import DescribedShareGroup, DescribedShareMember
from flowstone.coordinator.groups.state import Turn
from flowstone.errors import ApiError


def describe(turn: Turn, token: Any, group_id: str) -> None:
    try:
        group = find(turn, group_id)
    except ApiError as error:
        turn.reply(token, DescribedShareGroup(group_id, error.code, DEAD))
        return
    members = tuple(_described(turn, member) for member in group.members_by_id.values())
    turn.reply(
        token,
        DescribedShareGroup(
            group_id,
            state=group.state_name,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            members=members,
        ),
    )


def _described(turn: Turn, member: ShareMember) -> DescribedShareMember:
    stored = member.stored
    names = {topic_id: turn.shard.topics.name_of(topic_id) for topic_id in member.assigned}
    return DescribedShareMember(
        stored.member_id,
        stored.rack_id,
        member.epoch,
        stored.client_id,
        stored.client_host,
        stored.subscribed_topics,
        tuple(
            (topic_id, name, partitions)
            for topic_id, partitions in member.assigned.items()
            if (name := names[topic_id]) is not None  # the topic was deleted
        ),
    )
