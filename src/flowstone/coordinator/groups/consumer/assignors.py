"""The assignors of consumer groups: which member shall read which partition.

- `range`: for each topic, the members in a fixed order get contiguous ranges of its partitions. Topics with the same
  subscribers and numbers of partitions are split in the same way, so that they can be joined.
- `uniform`: members with the same subscription have numbers of partitions that differ by one at most; within that, a
  member keeps what it has. Members with different subscriptions are balanced as well as their topics permit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from flowstone.coordinator.groups.consumer_records import Partition

UNIFORM, RANGE = "uniform", "range"
# Passes over all partitions in which a member with few takes one from a member with many.
BALANCING_PASSES_MAX = 8


class Subscriber(NamedTuple):
    """A member as the assignors see it."""

    member_id: str
    instance_id: str | None
    topic_ids: frozenset[bytes]
    previous: frozenset[Partition]  # its former target


Assignment = dict[str, set[Partition]]
Assignor = Callable[[Sequence[Subscriber], Mapping[bytes, int]], Assignment]


def _by_topic(members: Sequence[Subscriber]) -> dict[bytes, list[Subscriber]]:
    """Return the subscribers of each topic: those with an instance id first, then by id."""
    ordered = sorted(members, key=lambda each: (each.instance_id is None, each.instance_id or each.member_id))
    found: dict[bytes, list[Subscriber]] = {}
    for member in ordered:
        for topic_id in member.topic_ids:
            found.setdefault(topic_id, []).append(member)
    return found


def assign_ranges(members: Sequence[Subscriber], partition_counts: Mapping[bytes, int]) -> Assignment:
    """Return the partitions of each member by the assignor `range`."""
    assignment: Assignment = {member.member_id: set() for member in members}
    for topic_id, subscribers in _by_topic(members).items():
        share, larger_shares = divmod(partition_counts.get(topic_id, 0), len(subscribers))
        first = 0
        for number, member in enumerate(subscribers):
            end = first + share + (number < larger_shares)
            assignment[member.member_id].update((topic_id, index) for index in range(first, end))
            first = end
    return assignment


def assign_uniformly(members: Sequence[Subscriber], partition_counts: Mapping[bytes, int]) -> Assignment:
    """Return the partitions of each member by the assignor `uniform`."""
    if len({member.topic_ids for member in members}) <= 1:
        return _assign_same(members, partition_counts)
    return _Mixed(members, partition_counts).assigned()


def _assign_same(members: Sequence[Subscriber], partition_counts: Mapping[bytes, int]) -> Assignment:
    """Assign to members that all have the same subscription."""
    assignment: Assignment = {member.member_id: set() for member in members}
    topic_ids = sorted(members[0].topic_ids) if members else []
    unassigned = dict.fromkeys(
        (topic_id, index) for topic_id in topic_ids for index in range(partition_counts.get(topic_id, 0))
    )
    if not unassigned:
        return assignment
    share, larger_shares = divmod(len(unassigned), len(members))
    kept = {member.member_id: [each for each in sorted(member.previous) if each in unassigned] for member in members}
    # Members that have the most keep the larger shares, so that the fewest partitions move.
    ordered = sorted(members, key=lambda each: (-len(kept[each.member_id]), each.member_id))
    quotas = {member.member_id: share + (number < larger_shares) for number, member in enumerate(ordered)}
    for member in ordered:
        own = assignment[member.member_id]
        for partition in kept[member.member_id]:
            if len(own) < quotas[member.member_id] and partition in unassigned:
                own.add(partition)
                del unassigned[partition]
    rest = iter(list(unassigned))
    for member in ordered:
        own = assignment[member.member_id]
        for _ in range(quotas[member.member_id] - len(own)):
            own.add(next(rest))
    return assignment


class _Mixed:
    """Assigns to members with different subscriptions.

    Members with the same subscription are one class, of which the members with the fewest and with the most partitions
    are known, so that a choice costs the number of classes and not of members.
    """

    def __init__(self, members: Sequence[Subscriber], partition_counts: Mapping[bytes, int]) -> None:
        self._assignment: Assignment = {member.member_id: set() for member in members}
        self._members = {member.member_id: member for member in members}
        classes: dict[frozenset[bytes], list[str]] = {}
        for member in sorted(members):
            classes.setdefault(member.topic_ids, []).append(member.member_id)
        # Of each class, entries of load and member; an entry whose load is no longer the member's is stale.
        self._heaps = {topic_ids: [(0, each) for each in ids] for topic_ids, ids in classes.items()}
        self._heaps_of_topic: dict[bytes, list[frozenset[bytes]]] = {}
        for topic_ids in classes:
            for topic_id in topic_ids:
                self._heaps_of_topic.setdefault(topic_id, []).append(topic_ids)
        self._partitions = [
            (topic_id, index)
            for topic_id in sorted(self._heaps_of_topic, key=lambda each: (self._subscriber_count(each), each))
            for index in range(partition_counts.get(topic_id, 0))
        ]
        self._owners: dict[Partition, str] = {}

    def assigned(self) -> Assignment:
        existing = set(self._partitions)
        for member_id, member in sorted(self._members.items()):
            for partition in sorted(member.previous):
                if partition in existing and partition not in self._owners and partition[0] in member.topic_ids:
                    self._give(partition, member_id)
        for partition in self._partitions:
            if partition not in self._owners:
                self._give(partition, self._least_loaded(partition[0]))
        for _ in range(BALANCING_PASSES_MAX):
            if not self._balance():
                break
        return self._assignment

    def _balance(self) -> bool:
        """Move partitions from members with more to members with at least two fewer; return whether any was moved."""
        has_moved = False
        for partition in self._partitions:
            owner, other = self._owners[partition], self._least_loaded(partition[0])
            if len(self._assignment[owner]) > len(self._assignment[other]) + 1:
                self._assignment[owner].remove(partition)
                self._note_load(owner)
                self._give(partition, other)
                has_moved = True
        return has_moved

    def _subscriber_count(self, topic_id: bytes) -> int:
        return sum(len(self._heaps[topic_ids]) for topic_ids in self._heaps_of_topic[topic_id])

    def _give(self, partition: Partition, member_id: str) -> None:
        self._owners[partition] = member_id
        self._assignment[member_id].add(partition)
        self._note_load(member_id)

    def _note_load(self, member_id: str) -> None:
        heap = self._heaps[self._members[member_id].topic_ids]
        heapq.heappush(heap, (len(self._assignment[member_id]), member_id))

    def _least_loaded(self, topic_id: bytes) -> str:
        return min(self._first(self._heaps[topic_ids]) for topic_ids in self._heaps_of_topic[topic_id])[1]

    def _first(self, heap: list[tuple[int, str]]) -> tuple[int, str]:
        while heap[0][0] != len(self._assignment[heap[0][1]]):
            heapq.heappop(heap)
        return heap[0]


ASSIGNORS: Mapping[str, Assignor] = {UNIFORM: assign_uniformly, RANGE: assign_ranges}
