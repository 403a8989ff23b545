"""The target assignment of a group: when it is computed anew, and from what.

The targets of an epoch are computed with the first heartbeat that finds the group's epoch above theirs, but not sooner
than `consumer.assignment.interval.ms` after the last ones, so that members that arrive one after the other share an
assignment. Until then members keep the former targets and their epoch. The assignor gets the former targets, not what
members have: while they move, that is what they will have.
"""

from __future__ import annotations

import struct
from collections import Counter
from hashlib import blake2b

from flowstone.coordinator.groups.consumer.assignors import ASSIGNORS, Subscriber
from flowstone.coordinator.groups.consumer.group import FIRST_EPOCH, ConsumerGroup, ConsumerMember
from flowstone.coordinator.groups.consumer.writing import bump, write, write_all
from flowstone.coordinator.groups.consumer_records import ConsumerMemberTargetStored, ConsumerTargetStored, Partition
from flowstone.coordinator.groups.state import Turn

_HASH_BYTES = 8
_COUNT = struct.Struct(">i")


def follow_metadata(turn: Turn, group: ConsumerGroup) -> None:
    """Raise the group's epoch if the metadata of its topics has changed since its last assignment."""
    version = turn.shard.topics.version
    if group.checked_version == version:
        return
    group.checked_version = version
    metadata_hash = topics_hash(turn, group)
    if metadata_hash != group.metadata_hash:
        bump(turn, group, "the partitions of its topics have changed", metadata_hash)


def topics_hash(turn: Turn, group: ConsumerGroup) -> int:
    """Return a number that changes with the ids and partition counts of the subscribed topics; 0 if none exists."""
    digest, is_empty = blake2b(digest_size=_HASH_BYTES), True
    for name in sorted(group.subscribed_topics()):
        topic = turn.shard.topics.find(name)
        if topic is not None:
            is_empty = False
            digest.update(topic.topic_id + _COUNT.pack(topic.partition_count) + name.encode() + b"\0")
    return 0 if is_empty else int.from_bytes(digest.digest(), "big", signed=True)


def assign_if_due(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> None:
    """Compute and store the targets of the group's epoch, if they are missing and the last ones are old enough.

    They are computed at once if the member, which sends a heartbeat, has partitions of topics that it does not
    subscribe to any more. It must leave its epoch when it gives them up: others may get them, and a late commit of its
    own must be known as such.
    """
    if group.epoch <= group.assignment_epoch:
        return
    assigned = frozenset(member.assigned)
    if wait_ms(turn, group) <= 0 or TopicIds(turn, group).subscribed(member, assigned) != assigned:
        _assign(turn, group)


def _assign(turn: Turn, group: ConsumerGroup) -> None:
    topic_ids_of = TopicIds(turn, group)
    members = group.members_by_id
    subscribers = [
        Subscriber(each.member_id, each.stored.instance_id, topic_ids_of(each), group.target_of(each.member_id))
        for each in members.values()
    ]
    assignor = ASSIGNORS[assignor_of(turn, group)]
    assignment = assignor(subscribers, topic_ids_of.partition_counts) if subscribers else {}
    group_id = group.group_id
    targets = {member_id: frozenset(partitions) for member_id, partitions in assignment.items()}
    write_all(
        turn,
        [
            ConsumerMemberTargetStored(group_id, member_id, target)
            for member_id, target in targets.items()
            if target != group.targets.get(member_id)
        ],
    )
    write(turn, ConsumerTargetStored(group_id, group.epoch, turn.now_ms))


def wait_ms(turn: Turn, group: ConsumerGroup) -> int:
    """Return how long the next assignment must wait; 0 if it may be computed now."""
    if group.assignment_epoch == FIRST_EPOCH or group.assignment_timestamp_ms <= 0:
        return 0
    interval_ms = turn.shard.settings(group.group_id).consumer_assignment_interval_ms
    return max(0, group.assignment_timestamp_ms + interval_ms - turn.now_ms)


def assignor_of(turn: Turn, group: ConsumerGroup) -> str:
    """Return the assignor that most members ask for, or else the broker's first one."""
    known = turn.shard.config.consumer_assignors
    members = group.members_by_id.values()
    votes = Counter(each.stored.assignor for each in members if each.stored.assignor in known)
    return max(known, key=lambda name: votes[name]) if votes else known[0]


class TopicIds:
    """The ids of the topics to which members subscribe, with the numbers of partitions of all of them."""

    def __init__(self, turn: Turn, group: ConsumerGroup) -> None:
        self._topics, self._group = turn.shard.topics, group
        self._known: dict[tuple[frozenset[str], str | None], frozenset[bytes]] = {}
        self.partition_counts: dict[bytes, int] = {}

    def __call__(self, member: ConsumerMember) -> frozenset[bytes]:
        key = member.topics, member.stored.regex
        found = self._known.get(key)
        if found is None:
            topics = [self._topics.find(name) for name in self._group.topics_of(member)]
            self.partition_counts |= {topic.topic_id: topic.partition_count for topic in topics if topic is not None}
            found = self._known[key] = frozenset(topic.topic_id for topic in topics if topic is not None)
        return found

    def subscribed(self, member: ConsumerMember, partitions: frozenset[Partition]) -> frozenset[Partition]:
        """Return those of the partitions whose topics exist and to which the member subscribes."""
        topic_ids = self(member)
        if all(topic_id in topic_ids for topic_id, _ in partitions):
            return partitions
        return frozenset(each for each in partitions if each[0] in topic_ids)
