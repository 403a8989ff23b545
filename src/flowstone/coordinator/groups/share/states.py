"""The state of a group's share partitions at the share coordinator: which partitions have it, and which need it.

A partition is assigned to members only once its state is initialized. The first heartbeat that finds partitions without
state notes them as initializing and has the broker ask the share coordinator (`InitializeStates`); its success is noted
by a further record. While it fails, heartbeats try again, `ATTEMPT_INTERVAL_MS` apart, with the state epoch of the
first attempt: a late attempt must not reset the state that an earlier one has created, and that members use already.
A topic whose state was about to be deleted when its broker stopped gets new state too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flowstone.coordinator.groups.share.group import ShareGroup, TopicStates
from flowstone.coordinator.groups.share.messages import InitializeStates
from flowstone.coordinator.groups.share_records import ShareStatesStored, TopicPartitions, TopicState
from flowstone.coordinator.groups.state import Turn

ATTEMPT_INTERVAL_MS = 5_000
"""An attempt to initialize state that has no result counts as failed after this time."""

RETRY_MS = 500
"""The pause after an attempt that failed."""

PARTITIONS_PER_ATTEMPT_MAX = 1_000
"""Partitions whose state one task initializes; a heartbeat after it continues with the others."""


def initialize_missing(turn: Turn, group: ShareGroup, state_epoch: int, topics: Iterable[str]) -> bool:
    """Request the initialization of the missing state of these topics; return whether any is missing."""
    missing = _missing(turn, group, topics)
    if not missing:
        group.first_attempt_ms = None
        return False
    if group.first_attempt_ms is None:
        group.first_attempt_ms, group.attempt_epoch = turn.now_ms, state_epoch
    if turn.now_ms < group.next_attempt_ms:
        return True
    group.next_attempt_ms = turn.now_ms + ATTEMPT_INTERVAL_MS
    names = {topic_id: name for topic_id, (name, _) in missing.items()}
    wanted = _limited({topic_id: tuple(sorted(indexes)) for topic_id, (_, indexes) in missing.items()})
    new = {
        topic_id: frozenset(indexes) - group.initializing.get(topic_id, ("", frozenset()))[1]
        for topic_id, indexes in wanted.items()
    }
    if any(new.values()):
        added = {topic_id: (names[topic_id], indexes) for topic_id, indexes in new.items() if indexes}
        turn.append(begun(group, added))
    turn.effects.tasks.append(InitializeStates(group.group_id, group.attempt_epoch, wanted))
    return True


def initialized(turn: Turn, group: ShareGroup, partitions: TopicPartitions) -> None:
    """Record that the state of these partitions exists now."""
    group.next_attempt_ms = 0
    done: TopicStates = {}
    rest: TopicStates = {}
    for topic_id, (name, indexes) in group.initializing.items():
        now_done = indexes & frozenset(partitions.get(topic_id, ()))
        if now_done:
            done[topic_id] = (name, now_done)
        if indexes - now_done:
            rest[topic_id] = (name, indexes - now_done)
    if done:
        turn.append(stored_states(group, rest, _united(group.initialized, done)))


def failed(group: ShareGroup, retry_ms: int) -> None:
    """Let the next heartbeat after `retry_ms` initialize the state again."""
    group.next_attempt_ms = retry_ms


def forget_topics(turn: Turn, group: ShareGroup, topic_ids: frozenset[bytes]) -> None:
    """Remove topics that were deleted: the share coordinator removes their state by itself."""
    maps: tuple[Mapping[bytes, object], ...] = (group.initializing, group.initialized, group.deleting)
    if not any(topic_ids & states.keys() for states in maps):
        return
    turn.append(
        stored_states(
            group,
            {each: state for each, state in group.initializing.items() if each not in topic_ids},
            {each: state for each, state in group.initialized.items() if each not in topic_ids},
            {each: name for each, name in group.deleting.items() if each not in topic_ids},
        )
    )


def begun(group: ShareGroup, topics: TopicStates) -> ShareStatesStored:
    """Return the record by which the initialization of these partitions begins."""
    left = {each: name for each, name in group.deleting.items() if each not in topics}
    return stored_states(group, _united(group.initializing, topics), group.initialized, left)


def deleting(group: ShareGroup, topics: Mapping[bytes, str]) -> ShareStatesStored:
    """Return the record by which the deletion of these topics' state begins."""
    initializing = {each: state for each, state in group.initializing.items() if each not in topics}
    rest = {each: state for each, state in group.initialized.items() if each not in topics}
    return stored_states(group, initializing, rest, {**group.deleting, **topics})


def deleted(group: ShareGroup, topic_ids: frozenset[bytes]) -> ShareStatesStored:
    """Return the record by which the deletion of these topics' state ends."""
    left = {each: name for each, name in group.deleting.items() if each not in topic_ids}
    return stored_states(group, group.initializing, group.initialized, left)


def stored_states(
    group: ShareGroup, initializing: TopicStates, initialized: TopicStates, deleting: Mapping[bytes, str] | None = None
) -> ShareStatesStored:
    deleting = group.deleting if deleting is None else deleting
    return ShareStatesStored(
        group.group_id, _stored(initializing), _stored(initialized), tuple(sorted(deleting.items()))
    )


def _missing(turn: Turn, group: ShareGroup, topics: Iterable[str]) -> TopicStates:
    """Return the partitions of these topics that have no state."""
    missing: TopicStates = {}
    for name in topics:
        topic = turn.shard.topics.find(name)
        if topic is None:
            continue
        _, known = group.initialized.get(topic.topic_id, ("", frozenset()))
        if len(known) < topic.partition_count:
            missing[topic.topic_id] = (name, frozenset(range(topic.partition_count)) - known)
    return missing


def _limited(partitions: TopicPartitions) -> TopicPartitions:
    left, limited = PARTITIONS_PER_ATTEMPT_MAX, {}
    for topic_id in sorted(partitions):
        if left > 0:
            limited[topic_id] = partitions[topic_id][:left]
            left -= len(limited[topic_id])
    return limited


def _united(first: TopicStates, second: TopicStates) -> TopicStates:
    united = dict(first)
    for topic_id, (name, indexes) in second.items():
        _, known = united.get(topic_id, ("", frozenset[int]()))
        united[topic_id] = (name, known | indexes)
    return united


def _stored(states: TopicStates) -> tuple[TopicState, ...]:
    return tuple(TopicState(topic_id, name, tuple(sorted(indexes))) for topic_id, (name, indexes) in states.items())
