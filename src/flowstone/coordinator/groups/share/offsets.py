"""Operators' changes of share groups: reset offsets, delete offsets, delete groups.

Each takes two calls, because the state itself is at the share coordinator: the first checks the group, which must be
empty, and notes what begins; the broker then asks the share coordinator; the second call notes what has succeeded. If
the broker stops in between, the same request continues what was begun, or the next member that joins does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flowstone.coordinator.groups.share import states
from flowstone.coordinator.groups.share.group import ShareGroup
from flowstone.coordinator.groups.share.heartbeat import find
from flowstone.coordinator.groups.share_records import ShareGroupStored, TopicPartitions
from flowstone.coordinator.groups.state import Turn
from flowstone.errors import ApiError, ErrorCode

CHANGE_TIMEOUT_MS = 60_000
"""While operators change a group's state, its members initialize none, for this time at most."""


class Begun(NamedTuple):
    """An accepted change: its partitions, and the state epoch with which states are initialized."""

    state_epoch: int
    partitions: TopicPartitions


def describe(turn: Turn, token: Any, group_id: str) -> None:
    """Reply with the partitions that have state; none for a group that does not exist."""
    if group_id not in turn.shard.groups:
        turn.reply(token, Begun(0, {}))
        return
    group = _find(turn, token, group_id, must_be_empty=False)
    if group is not None:
        turn.reply(token, Begun(group.epoch, _partitions(group.initialized)))


def begin_reset(turn: Turn, token: Any, group_id: str, topics: Mapping[str, tuple[int, ...]]) -> None:
    """Begin to set the start offsets of partitions that exist. A group that does not exist is created."""
    group = ShareGroup(group_id) if group_id not in turn.shard.groups else _find(turn, token, group_id)
    if group is None:
        return
    wanted: dict[bytes, tuple[int, ...]] = {}
    for name, indexes in topics.items():
        topic = turn.shard.topics.find(name)
        if topic is not None:
            wanted[topic.topic_id] = indexes
    names = {topic.topic_id: topic.name for name in topics if (topic := turn.shard.topics.find(name)) is not None}
    epoch = group.epoch + 1
    turn.append(ShareGroupStored(group_id, epoch, group.metadata_hash))
    turn.append(states.begun(group, {each: (names[each], frozenset(indexes)) for each, indexes in wanted.items()}))
    _hold(turn, group)
    turn.reply(token, Begun(epoch, wanted))


def begin_deletion(turn: Turn, token: Any, group_id: str, topic_ids: frozenset[bytes] | None) -> None:
    """Begin to delete the state of these topics, or of all of them for None."""
    group = _find(turn, token, group_id)
    if group is None:
        return
    known = {**group.initialized, **group.initializing}
    united = {
        each: (name, indexes | group.initialized.get(each, ("", frozenset()))[1])
        for each, (name, indexes) in known.items()
        if topic_ids is None or each in topic_ids
    }
    partitions = dict(_partitions(united))
    for topic_id, name in group.deleting.items():  # a deletion that was begun before
        if topic_ids is None or topic_id in topic_ids:
            partitions[topic_id] = tuple(range(turn.shard.topics.partition_count(name)))
    if united:
        turn.append(states.deleting(group, {topic_id: name for topic_id, (name, _) in united.items()}))
        _hold(turn, group)
    turn.reply(token, Begun(group.epoch, partitions))


def end_reset(turn: Turn, token: Any, group_id: str, partitions: TopicPartitions) -> None:
    """Record that the state of these partitions exists."""
    group = turn.shard.groups.get(group_id)
    if isinstance(group, ShareGroup):
        states.initialized(turn, group, partitions)
    turn.reply(token, None)


def end_deletion(turn: Turn, token: Any, group_id: str, topic_ids: frozenset[bytes]) -> None:
    """Record that the state of these topics was deleted."""
    group = turn.shard.groups.get(group_id)
    if isinstance(group, ShareGroup):
        group.next_attempt_ms = 0
        if topic_ids & group.deleting.keys():
            turn.append(states.deleted(group, topic_ids))
    turn.reply(token, None)


def _find(turn: Turn, token: Any, group_id: str, *, must_be_empty: bool = True) -> ShareGroup | None:
    """Return the group, or None after replying why it cannot be changed."""
    try:
        group = find(turn, group_id)
        if must_be_empty and not group.is_empty:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
    except ApiError as error:
        turn.reply(token, error)
        return None
    return group


def _hold(turn: Turn, group: ShareGroup) -> None:
    """Keep members from initializing the state that is being changed: they would overwrite it."""
    group.next_attempt_ms = turn.now_ms + CHANGE_TIMEOUT_MS
    turn.shard.groups[group.group_id] = group  # a new one has its records only after this call


def _partitions(topics: Mapping[bytes, tuple[str, frozenset[int]]]) -> TopicPartitions:
    return {topic_id: tuple(sorted(indexes)) for topic_id, (_, indexes) in topics.items()}
