"""The epochs of a share group and its target assignment.

Any change of members, subscriptions, or of the partitions that may be assigned raises the group epoch. The target
assignment follows in the heartbeat that finds it behind, `share.assignment.interval.ms` after the one before at the
earliest, so that members that join one after the other share one. A member's epoch follows with its own heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from flowstone.coordinator.groups.share.assignor import Partition, assign
from flowstone.coordinator.groups.share.group import ShareGroup
from flowstone.coordinator.groups.share_records import ShareMemberTargetStored, ShareTargetStored, TopicPartitions
from flowstone.coordinator.groups.state import Turn

_HASH_BYTES = 8


def topics_hash(turn: Turn, group: ShareGroup, topics: Iterable[str]) -> int:
    """Return a hash of what may be assigned of these topics: their ids and their initialized partitions."""
    digest = blake2b(digest_size=_HASH_BYTES)
    for name in sorted(topics):
        topic = turn.shard.topics.find(name)
        if topic is not None:
            initialized = sorted(group.initialized.get(topic.topic_id, ("", ()))[1])
            digest.update(f"{name}:{topic.topic_id.hex()}:{topic.partition_count}:{initialized}\n".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)


def known_topics_hash(turn: Turn, group: ShareGroup) -> int:
    """Return the hash of the topics that the members subscribe to now, kept until any of its inputs changes."""
    key = (turn.shard.topics.version, group.subscriptions_revision, group.states_revision)
    if group.hash_key != key:
        group.hash_key, group.hash_value = key, topics_hash(turn, group, group.topic_counts)
    return group.hash_value


def update_target(
    turn: Turn, group: ShareGroup, epoch: int, subscriptions: Mapping[str, Iterable[str]]
) -> Mapping[str, TopicPartitions]:
    """Append the records of a new target assignment; return the partitions of each member."""
    topics = {name: turn.shard.topics.find(name) for names in subscriptions.values() for name in names}
    ids = {name: topic.topic_id for name, topic in topics.items() if topic is not None}
    counts = {topic.topic_id: topic.partition_count for topic in topics.values() if topic is not None}
    assignable = {
        topic_id: sorted(index for index in group.initialized.get(topic_id, ("", ()))[1] if index < count)
        for topic_id, count in counts.items()
    }
    before = {member_id: member.target for member_id, member in group.members_by_id.items()}
    assignment = assign(
        {
            member_id: frozenset(ids[name] for name in names if name in ids)
            for member_id, names in subscriptions.items()
        },
        assignable,
        {member_id: _flat(partitions) for member_id, partitions in before.items()},
    )
    target = {member_id: _by_topic(partitions) for member_id, partitions in assignment.items()}
    for member_id, partitions in target.items():
        if partitions != before.get(member_id):
            turn.append(ShareMemberTargetStored(group.group_id, member_id, partitions))
    turn.append(ShareTargetStored(group.group_id, epoch, turn.now_ms))
    return target


def _flat(partitions: TopicPartitions) -> list[Partition]:
    return [(topic_id, index) for topic_id, indexes in partitions.items() for index in indexes]


def _by_topic(partitions: Iterable[Partition]) -> TopicPartitions:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        topics.setdefault(topic_id, []).append(index)
    return {topic_id: tuple(indexes) for topic_id, indexes in topics.items()}
