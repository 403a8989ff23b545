"""The assignors of consumer groups: which member shall read which partition.

- `range`: for each topic, the members in a fixed order get contiguous ranges of its partitions. Topics with the same
  subscribers and numbers of partitions are split in the same way, so that they can be joined.
- `uniform`: members with the same subscription have numbers of partitions that differ by one at most; within that, a
  member keeps what it has. Members with different subscriptions are balanced as well as their topics permit.

Assignors are generators: they yield every few hundred items, so that a large assignment can be computed in time slices.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple

from flowstone.coordinator.groups.consumer_records import Partition

UNIFORM, RANGE = "uniform", "range"
# Passes over all partitions in which a member with few takes one from a member with many.
BALANCING_PASSES_MAX = 8
# Items of a few microseconds each between two yields.
STEP_ITEMS = 256
# Classes of subscribers of one topic that are compared one by one; for more of them the topic has a heap.
COMPARED_CLASSES_MAX = 8


class Subscriber(NamedTuple):
    """A member as the assignors see it."""

    member_id: str
    instance_id: str | None
    topic_ids: frozenset[bytes]
    previous: frozenset[Partition]  # its former target


Assignment = dict[str, set[Partition]]
# The steps of an assignor; the value is its result.
Assigning = Generator[None, None, Assignment]
Assignor = Callable[[Sequence[Subscriber], Mapping[bytes, int]], Assigning]


def _by_topic(members: Sequence[Subscriber]) -> Generator[None, None, dict[bytes, list[Subscriber]]]:
    """Return the subscribers of each topic: those with an instance id first, then by id."""
    ordered = sorted(members, key=lambda each: (each.instance_id is None, each.instance_id or each.member_id))
    found: dict[bytes, list[Subscriber]] = {}
    done = 0
    for member in ordered:
        for topic_id in member.topic_ids:
            found.setdefault(topic_id, []).append(member)
        done += len(member.topic_ids) + 1
        if done >= STEP_ITEMS:
            done = 0
            yield
    return found


def assign_ranges(members: Sequence[Subscriber], partition_counts: Mapping[bytes, int]) -> Assigning:
    """Return the partitions of each member by the assignor `range`."""
    assignment: Assignment = {member.member_id: set() for member in members}
    by_topic = yield from _by_topic(members)
    for topic_id, subscribers in by_topic.items():
        share, larger_shares = divmod(partition_counts.get(topic_id, 0), len(subscribers))
        if not share:  # the others get nothing
            subscribers = subscribers[:larger_shares]
        first = 0
        for number, member in enumerate(subscribers):
            end = first + share + (number < larger_shares)
            assignment[member.member_id].update((topic_id, index) for index in range(first, end))
            first = end
            if not number % STEP_ITEMS:
                yield
    return assignment


def assign_uniformly(members: Sequence[Subscriber], partition_counts: Mapping[bytes, int]) -> Assigning:
    """Return the partitions of each member by the assignor `uniform`."""
    if len({member.topic_ids for member in members}) <= 1:
        return (yield from _assign_same(members, partition_counts))
    return (yield from _Mixed(members, partition_counts).assigned())


def _assign_same(members: Sequence[Subscriber], partition_counts: Mapping[bytes, int]) -> Assigning:
    """Assign to members that all have the same subscription."""
    assignment: Assignment = {member.member_id: set() for member in members}
    topic_ids = sorted(members[0].topic_ids) if members else []
    unassigned = dict.fromkeys(
        (topic_id, index) for topic_id in topic_ids for index in range(partition_counts.get(topic_id, 0))
    )
    if not unassigned:
        return assignment
    yield
    share, larger_shares = divmod(len(unassigned), len(members))
    kept = dict[str, list[Partition]]()
    for number, member in enumerate(members):
        kept[member.member_id] = [each for each in sorted(member.previous) if each in unassigned]
        if not number % STEP_ITEMS:
            yield
    # Members that have the most keep the larger shares, so that the fewest partitions move.
    ordered = sorted(members, key=lambda each: (-len(kept[each.member_id]), each.member_id))
    quotas = {member.member_id: share + (number < larger_shares) for number, member in enumerate(ordered)}
    yield
    for number, member in enumerate(ordered):
        own, quota = assignment[member.member_id], quotas[member.member_id]
        for partition in kept[member.member_id]:
            if len(own) < quota and partition in unassigned:
                own.add(partition)
                del unassigned[partition]
        if not number % STEP_ITEMS:
            yield
    rest = iter(list(unassigned))
    for number, member in enumerate(ordered):
        own = assignment[member.member_id]
        for _ in range(quotas[member.member_id] - len(own)):
            own.add(next(rest))
        if not number % STEP_ITEMS:
            yield
    return assignment


class _Class:
    """The members with one subscription: `heap` has entries of load and member.

    An entry whose load is no longer the member's is stale.
    """

    __slots__ = ("heap", "number", "topic_ids")

    def __init__(self, number: int, topic_ids: frozenset[bytes]) -> None:
        self.number, self.topic_ids = number, topic_ids
        self.heap: list[tuple[int, str]] = []


class _Mixed:
    """Assigns to members with different subscriptions.

    Members with the same subscription are one class, of which the members with the fewest partitions are known, so
    that a choice costs the number of classes and not of members. A topic with many classes has a heap of them, by the
    load and member with which they were last found: never more than what they have now.
    """

    def __init__(self, members: Sequence[Subscriber], partition_counts: Mapping[bytes, int]) -> None:
        self._assignment: Assignment = {member.member_id: set() for member in members}
        self._members = sorted(members)
        self._partition_counts = partition_counts
        self._class_of: dict[str, _Class] = {}
        self._classes_of_topic: dict[bytes, list[_Class]] = {}
        self._heaps: dict[bytes, list[tuple[tuple[int, str], int, _Class]]] = {}
        self._partitions: list[Partition] = []
        self._owners: dict[Partition, str] = {}

    def assigned(self) -> Assigning:
        yield from self._classify()
        existing = set(self._partitions)
        yield
        for number, member in enumerate(self._members):
            for partition in sorted(member.previous):
                if partition in existing and partition not in self._owners and partition[0] in member.topic_ids:
                    self._give(partition, member.member_id)
            if not number % STEP_ITEMS:
                yield
        for number, partition in enumerate(self._partitions):
            if partition not in self._owners:
                self._give(partition, self._least_loaded(partition[0]))
            if not number % STEP_ITEMS:
                yield
        for _ in range(BALANCING_PASSES_MAX):
            if not (yield from self._balance()):
                break
        return self._assignment

    def _classify(self) -> Generator[None, None, None]:
        """Find the classes, and the partitions in the order in which they are given: rare subscriptions first."""
        classes: dict[frozenset[bytes], _Class] = {}
        subscriber_counts: dict[bytes, int] = {}
        for number, member in enumerate(self._members):
            found = classes.get(member.topic_ids)
            if found is None:
                found = classes[member.topic_ids] = _Class(len(classes), member.topic_ids)
            found.heap.append((0, member.member_id))
            self._class_of[member.member_id] = found
            if not number % STEP_ITEMS:
                yield
        for found in classes.values():
            for topic_id in found.topic_ids:
                self._classes_of_topic.setdefault(topic_id, []).append(found)
                subscriber_counts[topic_id] = subscriber_counts.get(topic_id, 0) + len(found.heap)
            yield
        for topic_id, subscribed in self._classes_of_topic.items():
            if len(subscribed) > COMPARED_CLASSES_MAX:
                self._heaps[topic_id] = [(each.heap[0], each.number, each) for each in subscribed]
                heapq.heapify(self._heaps[topic_id])
                yield
        for topic_id in sorted(subscriber_counts, key=lambda each: (subscriber_counts[each], each)):
            self._partitions.extend((topic_id, index) for index in range(self._partition_counts.get(topic_id, 0)))

    def _balance(self) -> Generator[None, None, bool]:
        """Move partitions from members with more to members with at least two fewer; return whether any was moved."""
        has_moved = False
        for number, partition in enumerate(self._partitions):
            owner, other = self._owners[partition], self._least_loaded(partition[0])
            if len(self._assignment[owner]) > len(self._assignment[other]) + 1:
                self._take(partition, owner)
                self._give(partition, other)
                has_moved = True
            if not number % STEP_ITEMS:
                yield
        return has_moved

    def _give(self, partition: Partition, member_id: str) -> None:
        own = self._assignment[member_id]
        own.add(partition)
        self._owners[partition] = member_id
        heapq.heappush(self._class_of[member_id].heap, (len(own), member_id))

    def _take(self, partition: Partition, member_id: str) -> None:
        own, found = self._assignment[member_id], self._class_of[member_id]
        own.remove(partition)
        entry = len(own), member_id
        heapq.heappush(found.heap, entry)
        if found.heap[0] == entry:  # the class has less than the heaps of its topics say
            for topic_id in found.topic_ids:
                if topic_id in self._heaps:
                    heapq.heappush(self._heaps[topic_id], (entry, found.number, found))

    def _least_loaded(self, topic_id: bytes) -> str:
        heap = self._heaps.get(topic_id)
        if heap is None:
            return min(self._first(each) for each in self._classes_of_topic[topic_id])[1]
        while True:
            noted, number, found = heap[0]
            first = self._first(found)
            if first == noted:
                return first[1]
            heapq.heapreplace(heap, (first, number, found))

    def _first(self, found: _Class) -> tuple[int, str]:
        heap = found.heap
        while heap[0][0] != len(self._assignment[heap[0][1]]):
            heapq.heappop(heap)
        return heap[0]


ASSIGNORS: Mapping[str, Assignor] = {UNIFORM: assign_uniformly, RANGE: assign_ranges}
