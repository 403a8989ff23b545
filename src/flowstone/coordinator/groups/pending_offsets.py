"""Offsets of a shard that were committed in open transactions: hard state, changed only by replayed records.

They count once their producer's marker says commit, and are forgotten if it says abort. What was written of the same
partition of the same group after them wins, as in Kafka: a plain commit, a tombstone, or the offset of a transaction
that wrote later and was committed earlier. An offset that cannot win any more is forgotten at once, so that it holds up
neither readers of stable offsets, nor expiry, nor the deletion of its group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from flowstone.coordinator.groups.config import PENDING_OFFSET_OVERHEAD_BYTES, TEXT_CHARACTER_BYTES
from flowstone.coordinator.groups.messages import PendingOffset
from flowstone.coordinator.groups.records import GroupRecord, OffsetCommitted, OffsetRemoved
from flowstone.types import TopicPartition

# A topic and a partition.
_Place = tuple[str, int]


class _Written(NamedTuple):
    """A producer's pending offset for one partition of a group, with its position in the order of all writes."""

    number: int
    record: OffsetCommitted


_NONE: Mapping[_Place, Mapping[int, _Written]] = MappingProxyType({})


def pending_bytes(metadata: str) -> int:
    """Return an estimate of the memory in bytes of a pending offset with this metadata."""
    return PENDING_OFFSET_OVERHEAD_BYTES + TEXT_CHARACTER_BYTES * len(metadata)


class PendingOffsets:
    def __init__(self) -> None:
        # By group, place and producer id, and the places by producer id. No mapping in them is empty. The first one is
        # read by others: a method would cost each plain commit, which only wants to know that nothing is pending.
        self.by_group: dict[str, dict[_Place, dict[int, _Written]]] = {}
        self._by_producer: dict[int, dict[tuple[str, _Place], None]] = {}
        self._size_bytes: dict[str, int] = {}
        self._written_count = 0

    def of_group(self, group_id: str) -> Mapping[_Place, Mapping[int, _Written]]:
        """Return a group's pending offsets by topic and partition."""
        return self.by_group.get(group_id, _NONE)

    def newest_of(self, group_id: str) -> dict[TopicPartition, PendingOffset]:
        """Return the pending offset of each partition of a group that was written last."""
        found = {}
        for place, writers in self.of_group(group_id).items():
            producer_id, written = max(writers.items(), key=lambda item: item[1].number)
            found[TopicPartition(*place)] = PendingOffset(written.record.offset, producer_id)
        return found

    def found_in(self, partitions: Mapping[_Place, object]) -> list[tuple[str, str, int]]:
        """Return the group, topic and partition of every pending offset in these partitions."""
        return [
            (group_id, *place) for group_id, places in self.by_group.items() for place in places if place in partitions
        ]

    def size_bytes(self, group_id: str) -> int:
        """Return an estimate of the memory in bytes of a group's pending offsets."""
        return self._size_bytes.get(group_id, 0)

    def add(self, producer_id: int, records: Iterable[OffsetCommitted]) -> None:
        """Store offsets that the producer has written in its open transaction."""
        for record in records:
            group_id, place = record[0], record[1:3]
            self._forget(group_id, place, producer_id)
            self._written_count += 1
            writers = self.by_group.setdefault(group_id, {}).setdefault(place, {})
            writers[producer_id] = _Written(self._written_count, record)
            self._by_producer.setdefault(producer_id, {})[group_id, place] = None
            self._size_bytes[group_id] = self._size_bytes.get(group_id, 0) + pending_bytes(record.metadata)

    def drop_older(self, records: Iterable[GroupRecord]) -> None:
        """Drop the pending offsets that newer records outside of any transaction have replaced or removed."""
        for record in records:
            if record[0] in self.by_group and isinstance(record, OffsetCommitted | OffsetRemoved):
                self._drop_before(record[0], record[1:3], self._written_count + 1)

    def end(self, producer_id: int, *, is_commit: bool) -> list[OffsetCommitted]:
        """Remove and return the producer's pending offsets; after a commit also remove other producers' older ones."""
        ended = []
        for group_id, place in tuple(self._by_producer.get(producer_id, ())):
            number, record = self.by_group[group_id][place][producer_id]
            self._forget(group_id, place, producer_id)
            if is_commit:
                self._drop_before(group_id, place, number)
            ended.append(record)
        return ended

    def _drop_before(self, group_id: str, place: _Place, number: int) -> None:
        writers = self.of_group(group_id).get(place, {})
        for producer_id in [each for each, written in writers.items() if written.number < number]:
            self._forget(group_id, place, producer_id)

    def _forget(self, group_id: str, place: _Place, producer_id: int) -> None:
        """Remove the producer's pending offset for one partition of a group, if there is one."""
        places = self.by_group.get(group_id, {})
        writers = places.get(place, {})
        written = writers.pop(producer_id, None)
        if written is None:
            return
        self._size_bytes[group_id] -= pending_bytes(written.record.metadata)
        del self._by_producer[producer_id][group_id, place]
        if not self._by_producer[producer_id]:
            del self._by_producer[producer_id]
        if not writers:
            del places[place]
        if not places:
            del self.by_group[group_id], self._size_bytes[group_id]
