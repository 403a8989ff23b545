"""The end of memberships in share groups: members that leave, and those whose session ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from flowstone.coordinator.groups.share.group import ShareGroup
from flowstone.coordinator.groups.share.target import topics_hash
from flowstone.coordinator.groups.share_records import ShareGroupStored, ShareKeyType, ShareRecordRemoved
from flowstone.coordinator.groups.state import Turn
from flowstone.coordinator.groups.timers import Timer, TimerKind

_MEMBER_KEYS = (ShareKeyType.MEMBER_CURRENT, ShareKeyType.MEMBER_TARGET, ShareKeyType.MEMBER)


def remove_members(turn: Turn, group: ShareGroup, member_ids: Collection[str]) -> None:
    """Append what removes these members, and raises the group epoch once."""
    counts = Counter(group.topic_counts)
    for member_id in member_ids:
        for key in _MEMBER_KEYS:
            turn.append(ShareRecordRemoved(group.group_id, key, member_id))
        counts.subtract(set(group.members_by_id[member_id].stored.subscribed_topics))
    turn.append(ShareGroupStored(group.group_id, group.epoch + 1, topics_hash(turn, group, +counts)))
    if len(member_ids) == len(group.members_by_id):
        group.state_timestamp_ms = turn.now_ms
        turn.check_empty_groups_later()


def expire(turn: Turn, group: ShareGroup, due: Collection[Timer]) -> None:
    """Remove the members whose sessions have ended."""
    ended = [timer.member_id for timer in due if timer.kind is TimerKind.SESSION]
    remove_members(turn, group, ended)


def resume(turn: Turn, group: ShareGroup) -> None:
    """Begin the sessions of all members of a group that was just loaded: they could send no heartbeats before."""
    group.session_ms = turn.shard.settings(group.group_id).share_session_timeout_ms
    for member_id in group.members_by_id:
        turn.keep_session(group, member_id)
    group.state_timestamp_ms = turn.now_ms
