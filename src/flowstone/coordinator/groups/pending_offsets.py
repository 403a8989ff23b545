"""Offsets of a shard that were committed in transactions still open: hard state, changed by replayed records only.

They count once their producer's marker says commit, and are forgotten if it says abort. What was written of the same
partition of the same group after them wins, as in Kafka: a plain commit, a tombstone, or the offset of a transaction
that wrote later and was committed earlier.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowstone.coordinator.groups.records import GroupRecord, OffsetCommitted, OffsetRemoved

# A group, a topic and a partition.
_Place = tuple[str, str, int]


class PendingOffsets:
    def __init__(self) -> None:
        # By producer id and place: the offset, and its number in the order in which the shard's were written.
        self._by_producer: dict[int, dict[_Place, tuple[int, OffsetCommitted]]] = {}
        self._written_count = 0

    def add(self, producer_id: int, records: Iterable[OffsetCommitted]) -> None:
        """Hold offsets that the producer has written in its open transaction."""
        pending = self._by_producer.setdefault(producer_id, {})
        for record in records:
            self._written_count += 1
            pending[record[:3]] = self._written_count, record

    def drop_older(self, records: Iterable[GroupRecord]) -> None:
        """Forget the offsets of places that records outside of any transaction have written or removed since."""
        if not self._by_producer:
            return
        for record in records:
            if isinstance(record, OffsetCommitted | OffsetRemoved):
                self._drop_before(record[:3], self._written_count + 1)

    def end(self, producer_id: int, *, is_commit: bool) -> list[OffsetCommitted]:
        """Forget what the producer has written; return it if it was committed, to be applied."""
        ended = self._by_producer.pop(producer_id, {})
        if not is_commit:
            return []
        for place, (number, _) in ended.items():
            self._drop_before(place, number)
        return [record for _, record in ended.values()]

    def _drop_before(self, place: _Place, number: int) -> None:
        for producer_id, pending in tuple(self._by_producer.items()):
            if place in pending and pending[place][0] < number:
                del pending[place]
                if not pending:
                    del self._by_producer[producer_id]
