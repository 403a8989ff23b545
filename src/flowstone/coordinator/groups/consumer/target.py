"""The target assignment of a group: when it is recomputed, and from which data.

The targets of an epoch are computed with the first heartbeat that finds the group's epoch above theirs, but not sooner
than `consumer.assignment.interval.ms` after the last ones, so that members that arrive one after the other share an
assignment. Until then members keep the former targets and their epoch. The assignor gets the former targets, not what
members have: while they move, that is what they will have.

A large assignment is a task, which computes it in time slices and stores it in parts. Its epoch is stored last: in the
meantime (`ConsumerGroup.has_partial_targets`) some targets are old and some new, so that no member moves.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Generator, Sequence
from hashlib import blake2b
from typing import NamedTuple

from flowstone.coordinator.groups.consumer.assignors import ASSIGNORS, STEP_ITEMS, Subscriber
from flowstone.coordinator.groups.consumer.group import FIRST_EPOCH, ConsumerGroup, ConsumerMember
from flowstone.coordinator.groups.consumer.writing import bump, write, write_all
from flowstone.coordinator.groups.consumer_records import ConsumerMemberTargetStored, ConsumerTargetStored, Partition
from flowstone.coordinator.groups.state import Turn

# The members whose targets are stored in one part, and the partitions after which a part ends.
PART_MEMBERS, PART_PARTITIONS = 250, 5_000
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


class Target(NamedTuple):
    """A member's new target."""

    member_id: str
    partitions: frozenset[Partition]


class ComputeTargets(NamedTuple):
    """A task: run `steps`, and call `targets_computed` through `GroupShard.task_done` with each part of the result."""

    group: ConsumerGroup
    epoch: int
    steps: Generator[None, None, list[Target]]

    @property
    def group_id(self) -> str:
        return self.group.group_id


def assign_if_due(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> None:
    """Compute and store the targets of the group's epoch, if they are missing and the last ones are old enough.

    They are computed at once if the member, which sends a heartbeat, has partitions of topics that it does not
    subscribe to any more. It must leave its epoch when it gives them up: others may get them, and a late commit of its
    own must be known as such.
    """
    if group.epoch <= group.assignment_epoch or group.assigning_epoch is not None:
        return
    if wait_ms(turn, group) > 0 and not has_unsubscribed(turn, group, member):
        return
    steps = _targets(turn, group)
    if _size(turn, group) > turn.shard.config.consumer_assigned_at_once_max:
        group.assigning_epoch = group.epoch
        turn.effects.tasks.append(ComputeTargets(group, group.epoch, steps))
    else:
        _store(turn, group, run_at_once(steps))
        write(turn, ConsumerTargetStored(group.group_id, group.epoch, turn.now_ms))


def has_unsubscribed(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Return whether the member has partitions of topics that it does not subscribe to any more."""
    assigned = frozenset(member.assigned)
    return TopicIds(turn, group).subscribed(member, assigned) != assigned


def targets_computed(
    turn: Turn, group: ConsumerGroup, task: ComputeTargets, part: Sequence[Target] | None, *, is_last: bool = True
) -> None:
    """Store a part of the targets that a task has computed. None: it failed, and another one may begin."""
    epoch = task.epoch
    if group is not task.group or group.assigning_epoch != epoch:
        return  # the group was deleted meanwhile, and made again, or loaded again without some parts
    if part is None or is_last:
        group.assigning_epoch = None
    if part is None:
        return
    present = group.members_by_id
    if any(each.member_id not in present for each in part):
        group.has_lost_targets = True
    _store(turn, group, [each for each in part if each.member_id in present])
    if is_last:
        write(turn, ConsumerTargetStored(group.group_id, epoch, turn.now_ms))
        has_lost, group.has_lost_targets = group.has_lost_targets, False
        if has_lost and group.epoch == epoch:  # a static member came back under another id
            bump(turn, group, "members were replaced while partitions were assigned")


def parts_of(targets: Sequence[Target]) -> Generator[list[Target], None, None]:
    """Yield the targets in parts that can be stored at once."""
    part: list[Target] = []
    partitions = 0
    for each in targets:
        part.append(each)
        partitions += len(each.partitions)
        if len(part) >= PART_MEMBERS or partitions >= PART_PARTITIONS:
            yield part
            part, partitions = [], 0
    yield part


def _size(turn: Turn, group: ConsumerGroup) -> int:
    topics = group.subscribed_topics()
    return len(group.members_by_id) * len(topics) + sum(map(turn.shard.topics.partition_count, topics))


def _targets(turn: Turn, group: ConsumerGroup) -> Generator[None, None, list[Target]]:
    """Return the members' new targets, in steps."""
    topic_ids_of, assignor = TopicIds(turn, group), ASSIGNORS[assignor_of(turn, group)]
    subscribers = []
    for number, each in enumerate([*group.members_by_id.values()]):
        target = group.target_of(each.member_id)
        subscribers.append(Subscriber(each.member_id, each.stored.instance_id, topic_ids_of(each), target))
        if not number % STEP_ITEMS:
            yield
    targets: list[Target] = []
    if not subscribers:
        return targets
    assignment = yield from assignor(subscribers, topic_ids_of.partition_counts)
    for number, (member_id, partitions) in enumerate(assignment.items()):
        targets.append(Target(member_id, frozenset(partitions)))
        if not number % STEP_ITEMS:
            yield
    return targets


def run_at_once(steps: Generator[None, None, list[Target]]) -> list[Target]:
    """Run all steps of a task, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            targets: list[Target] = end.value
            return targets


def _store(turn: Turn, group: ConsumerGroup, targets: Sequence[Target]) -> None:
    changed = [each for each in targets if each.partitions != group.targets.get(each.member_id)]
    write_all(turn, [ConsumerMemberTargetStored(group.group_id, *each) for each in changed])


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
