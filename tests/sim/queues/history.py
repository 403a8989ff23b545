"""What the workers of share groups know, held to the invariants of share groups as they learn it.

I1 and I3 (order by key), I2 (first deliveries in order), I5 (delivery counts), I6 (back-off), I8 (nothing is lost, and
every letter is written once), and that a record is not delivered again after a worker heard that it is accepted or
given up. What a worker never heard counts for whatever the brokers may have done: an unanswered request may have
delivered records, or acknowledged them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from flowstone.types import TopicPartition
from tests.sim.history import ClusterHistory

# Time passes between the clock's reading and the request.
ROUNDING_S = 0.01


class Group(NamedTuple):
    """A share group with the settings that its records are held to."""

    name: str
    is_keyed: bool
    delivery_count_limit: int
    backoff_s: float
    is_committed: bool = False  # share.isolation.level=read_committed


class Delivered(NamedTuple):
    """What a worker is told of a record."""

    key: bytes | None
    count: int
    is_doomed: bool = False  # of a transaction that is aborted


class Letter(NamedTuple):
    """The record that a dead letter is of."""

    group: str
    partition: TopicPartition
    offset: int


class StoredTasks(NamedTuple):
    """What a partition's log has in the end."""

    offsets: frozenset[int]  # of records
    aborted: frozenset[int]


@dataclass
class Record:
    """What is known of one record in one group."""

    key: bytes | None
    count: int = 0  # the highest delivery count that a worker has seen
    asked: set[str] = field(default_factory=set)
    finished_s: float | None = None  # when a worker heard that it is durably accepted, or given up
    not_before_s: float = 0.0
    delivered_s: float = 0.0  # when a worker first had it


class QueueHistory:
    def __init__(self, history: ClusterHistory, compacted: str = "") -> None:
        """`compacted` is the topic whose older records of a key may vanish, so that their order is not checked."""
        self._history, self._compacted = history, compacted
        self._deleted_to: dict[TopicPartition, int] = {}
        self.records: dict[tuple[str, TopicPartition], dict[int, Record]] = defaultdict(dict)
        self._by_key: dict[tuple[str, TopicPartition, bytes], list[int]] = defaultdict(list)
        self._unheard: Counter[tuple[str, TopicPartition]] = Counter()
        self.finished_count = 0

    def delete(self, partition: TopicPartition, offset: int) -> None:
        """Note that all records before an offset are about to be deleted, which finishes them."""
        self._deleted_to[partition] = max(self._deleted_to.get(partition, 0), offset)

    def _may_be_deleted(self, partition: TopicPartition, offset: int) -> bool:
        return partition.topic == self._compacted or offset < self._deleted_to.get(partition, 0)

    def unanswered(self, group: Group, partition: TopicPartition) -> None:
        """Note a fetch whose response never came."""
        self._unheard[group.name, partition] += 1

    def deliver(
        self,
        group: Group,
        partition: TopicPartition,
        offset: int,
        delivered: Delivered,
        asked_s: float,
        now_s: float,
    ) -> None:
        """Note that a worker has a record, by a fetch that it sent at `asked_s`."""
        key, count, is_doomed = delivered
        if is_doomed and group.is_committed:
            self._note("aborted", group, partition, offset, "a record of an aborted transaction was delivered")
        records = self.records[group.name, partition]
        record = records.get(offset)
        if record is None:
            record = records[offset] = Record(key, delivered_s=now_s)
            if group.is_keyed and key is not None:
                self._first(group, partition, offset, key)
        if record.finished_s is not None and record.finished_s < asked_s:
            self._note("finished and delivered", group, partition, offset, f"finished at {record.finished_s:.3f}")
        if count > group.delivery_count_limit:
            self._note("I5 delivery count", group, partition, offset, f"{count} deliveries")
        if now_s + ROUNDING_S < record.not_before_s:
            self._note("I6 back-off", group, partition, offset, f"{now_s:.3f} is before {record.not_before_s:.3f}")
        record.count = max(record.count, count)
        record.not_before_s = 0.0
        if group.is_keyed and key is not None:
            self._check_lower(group, partition, offset, key)
            self._check_higher(group, partition, offset, key, asked_s)

    def _first(self, group: Group, partition: TopicPartition, offset: int, key: bytes) -> None:
        before = self._by_key[group.name, partition, key]
        is_late = bool(before) and before[-1] > offset and not self._may_be_deleted(partition, offset)
        if is_late and not self._unheard[group.name, partition]:
            self._note("I2 first delivery", group, partition, offset, f"{before[-1]} of the key {key!r} came before")
        before.append(offset)
        before.sort()

    def _check_lower(self, group: Group, partition: TopicPartition, offset: int, key: bytes) -> None:
        records = self.records[group.name, partition]
        for lower in self._by_key[group.name, partition, key]:
            if lower >= offset:
                break
            if self._may_be_deleted(partition, lower):
                continue
            if not self._may_be_finished(group, partition, records[lower]):
                self._note("I3 key order", group, partition, offset, f"{lower} of the key {key!r} is unfinished")

    def _check_higher(self, group: Group, partition: TopicPartition, offset: int, key: bytes, asked_s: float) -> None:
        """A record that is delivered again was unfinished: no later one of its key may have been delivered."""
        if self._may_be_deleted(partition, offset):
            return
        records = self.records[group.name, partition]
        for higher in self._by_key[group.name, partition, key]:
            if higher > offset and records[higher].delivered_s < asked_s:
                self._note("I3 key order", group, partition, offset, f"{higher} of the key {key!r} came before")

    def _may_be_finished(self, group: Group, partition: TopicPartition, record: Record) -> bool:
        if record.asked & {"accept", "reject"}:
            return True
        return record.count + self._unheard[group.name, partition] >= group.delivery_count_limit

    def ask(self, group: Group, partition: TopicPartition, offset: int, kind: str) -> None:
        """Note that a worker is about to acknowledge a record."""
        self.records[group.name, partition][offset].asked.add(kind)

    def acknowledged(
        self,
        group: Group,
        partition: TopicPartition,
        offset: int,
        kind: str,
        count: int,
        times_s: tuple[float, float],
        *,
        is_timed: bool,
    ) -> None:
        """Note that an acknowledgement is durable, of the delivery with this count; `times_s`: sent and answered."""
        sent_s, now_s = times_s
        record = self.records[group.name, partition][offset]
        # At the limit a release gives the record up.
        is_last = count >= group.delivery_count_limit
        if record.finished_s is None and (kind in ("accept", "reject") or is_last):
            record.finished_s = now_s
            self.finished_count += 1
        if kind == "release" and is_timed and group.backoff_s and not is_last:
            record.not_before_s = sent_s + group.backoff_s * 2 ** (count - 1)

    def check(
        self, groups: Sequence[Group], stored: Mapping[TopicPartition, StoredTasks], letters: Sequence[Letter]
    ) -> None:
        """Hold the end of everything to it: all records in the logs are finished, and each letter is there once."""
        counted = Counter(letters)
        for letter, count in counted.items():
            if count > 1:
                group = next(each for each in groups if each.name == letter.group)
                self._note("I8 letter", group, letter.partition, letter.offset, f"{count} letters")
        for group in groups:
            for partition, (offsets, aborted) in stored.items():
                records = self.records[group.name, partition]
                for offset in sorted(offsets - aborted if group.is_committed else offsets):
                    if offset < self._deleted_to.get(partition, 0):  # a new leader may not know that
                        continue
                    is_accepted = offset in records and "accept" in records[offset].asked
                    if not is_accepted and not counted[Letter(group.name, partition, offset)]:
                        told = records.get(offset, "was never delivered")
                        self._note("I8 lost", group, partition, offset, f"neither accepted nor a letter: {told}")

    def _note(self, kind: str, group: Group, partition: TopicPartition, offset: int, detail: str) -> None:
        self._history.note(kind, partition, offset, f"{group.name}: {detail}")
