"""The assignor `simple` of share groups: which members fetch from which partitions.

Several members may share a partition, because the records are handed out one by one. Rules:
- a member gets partitions of topics that it subscribes to only;
- among topics with the same subscribers, each partition gets ceil(members / partitions) members, and the members'
  numbers of partitions differ by one at most, as far as the rule below allows;
- a member keeps what it has, as long as that is not too much (sticky).

Every partition has a member, and every member a partition if there is any.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

Partition = tuple[bytes, int]  # topic id and index
Assignment = dict[str, set[Partition]]  # by member id


def assign(
    subscriptions: Mapping[str, frozenset[bytes]],
    partitions: Mapping[bytes, Sequence[int]],
    previous: Mapping[str, Iterable[Partition]],
) -> Assignment:
    """Return the partitions of each member.

    `subscriptions` has the ids of a member's topics, `partitions` those that may be assigned, and `previous` the
    assignment before.
    """
    assignment: Assignment = {member_id: set() for member_id in subscriptions}
    subscribers: dict[bytes, list[str]] = {}
    for member_id in sorted(subscriptions):
        for topic_id in subscriptions[member_id]:
            subscribers.setdefault(topic_id, []).append(member_id)
    topics_by_members: dict[tuple[str, ...], list[bytes]] = {}
    for topic_id, members in sorted(subscribers.items()):
        if partitions.get(topic_id):
            topics_by_members.setdefault(tuple(members), []).append(topic_id)
    for members_of_unit, topic_ids in topics_by_members.items():
        unit = [(topic_id, index) for topic_id in topic_ids for index in partitions[topic_id]]
        for member_id, owned in _Unit(members_of_unit, unit, previous).assigned().items():
            assignment[member_id] |= owned
    return assignment


class _Unit:
    """The topics that exactly these members subscribe to."""

    def __init__(
        self, members: Sequence[str], partitions: Sequence[Partition], previous: Mapping[str, Iterable[Partition]]
    ) -> None:
        self._members, self._partitions = members, partitions
        self._members_per_partition = -(-len(members) // len(partitions))
        slots = self._members_per_partition * len(partitions)
        self._quota, self._members_above_quota = divmod(slots, len(members))
        self._owned: dict[str, set[Partition]] = {member_id: set() for member_id in members}
        self._sharers: dict[Partition, int] = dict.fromkeys(partitions, 0)
        self._keep(previous)

    def assigned(self) -> dict[str, set[Partition]]:
        self._give_everyone_one()
        self._fill()
        return self._owned

    def _keep(self, previous: Mapping[str, Iterable[Partition]]) -> None:
        above_left = self._members_above_quota
        for member_id in self._members:
            owned = self._owned[member_id]
            for partition in sorted(previous.get(member_id, ())):
                if self._sharers.get(partition, self._members_per_partition) >= self._members_per_partition:
                    continue  # not assignable any more, or shared by enough members
                if len(owned) == self._quota:
                    if not above_left:
                        break
                    above_left -= 1
                elif len(owned) > self._quota:
                    break
                self._take(member_id, partition)

    def _give_everyone_one(self) -> None:
        """Give each member without a partition the one that the fewest members share."""
        free = [(count, partition) for partition, count in self._sharers.items()]
        heapq.heapify(free)
        for member_id in self._members:
            if not self._owned[member_id]:
                count, partition = heapq.heappop(free)
                self._take(member_id, partition)
                heapq.heappush(free, (count + 1, partition))

    def _fill(self) -> None:
        """Give partitions that too few members share to the members that have the fewest."""
        least = [(len(self._owned[member_id]), member_id) for member_id in self._members]
        heapq.heapify(least)
        for partition in sorted(self._partitions, key=self._sharers.__getitem__):
            passed = []
            while self._sharers[partition] < self._members_per_partition and least:
                count, member_id = heapq.heappop(least)
                if partition in self._owned[member_id]:
                    passed.append((count, member_id))
                elif count > self._quota and self._sharers[partition]:
                    passed.append((count, member_id))
                    break  # all others have as many: the partition has members, and those may be too few
                else:
                    self._take(member_id, partition)
                    passed.append((count + 1, member_id))
            for entry in passed:
                heapq.heappush(least, entry)

    def _take(self, member_id: str, partition: Partition) -> None:
        self._owned[member_id].add(partition)
        self._sharers[partition] += 1
