"""The committed offsets of a shard: hard state, changed by replayed records only.

A group's offsets are keyed by a plain pair of topic and partition, which is a part of the record and equal to the
`TopicPartition` of the same names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from flowstone.coordinator.groups.config import OFFSET_OVERHEAD_BYTES, TEXT_CHARACTER_BYTES
from flowstone.coordinator.groups.records import OffsetCommitted, OffsetRemoved
from flowstone.types import TopicPartition

_NONE: Mapping[tuple[str, int], OffsetCommitted] = MappingProxyType({})


class OffsetStore:
    def __init__(self) -> None:
        self._by_group: dict[str, dict[tuple[str, int], OffsetCommitted]] = {}
        # The characters of metadata by group, for the few groups that have any.
        self._metadata_lengths: dict[str, int] = {}

    def of_group(self, group_id: str) -> Mapping[tuple[str, int], OffsetCommitted]:
        return self._by_group.get(group_id, _NONE)

    def group_ids_with(self, partition: TopicPartition) -> Iterator[str]:
        return (group_id for group_id, offsets in self._by_group.items() if partition in offsets)

    def counts(self) -> Iterator[tuple[str, int]]:
        """Yield each group with the number of its offsets."""
        return ((group_id, len(offsets)) for group_id, offsets in self._by_group.items())

    def size_bytes(self, group_id: str) -> int:
        """Return an estimate of the memory of a group's offsets in bytes."""
        count = len(self._by_group.get(group_id, _NONE))
        return OFFSET_OVERHEAD_BYTES * count + TEXT_CHARACTER_BYTES * self._metadata_lengths.get(group_id, 0)

    def has_metadata(self, group_id: str) -> bool:
        """Return whether any offset of the group has metadata."""
        return group_id in self._metadata_lengths

    def metadata_grown(self, group_id: str, length: int) -> None:
        """Record that the metadata of a group's offsets has grown by so many characters (negative: shrunk)."""
        grown = self._metadata_lengths.get(group_id, 0) + length
        if grown:
            self._metadata_lengths[group_id] = grown
        else:
            self._metadata_lengths.pop(group_id, None)

    def found_in(self, partitions: Mapping[TopicPartition, object]) -> list[tuple[str, str, int]]:
        """Return the group, topic and partition of every offset in these partitions; iterates over the shorter list."""
        found: list[tuple[str, str, int]] = []
        for group_id, offsets in self._by_group.items():
            if len(offsets) < len(partitions):
                found += [(group_id, *each) for each in offsets if each in partitions]
            else:
                found += [(group_id, *each) for each in partitions if each in offsets]
        return found

    def to_change(self, group_id: str) -> dict[tuple[str, int], OffsetCommitted]:
        """Return the stored offsets of a group, for adding to them at once; an empty entry must not be left behind."""
        return self._by_group.setdefault(group_id, {})

    def remove(self, record: OffsetRemoved) -> None:
        offsets = self._by_group.get(record.group_id)
        if offsets is None:
            return
        removed = offsets.pop((record.topic, record.partition), None)
        if removed is not None and removed.metadata:
            self.metadata_grown(record.group_id, -len(removed.metadata))
        if not offsets:
            del self._by_group[record.group_id]
