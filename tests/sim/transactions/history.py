"""What the clients of a simulation know of its transactions, and what readers may therefore see.

A record may be seen at read_committed only once somebody has asked for its transaction's commit, and then all of the
transaction is seen, each record once, or nothing (T1, T2, T5). A commit that was never answered may be either. What an
instance of a producer has left open is never seen once a newer instance has its producer id, and nothing that the old
one sends from then on may be taken (T4).

A transaction may consume offsets of a group. Those that are committed follow each other without a gap, and end where
the group is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from flowstone.types import TopicPartition
from tests.faults.checker import Origin, origin_of
from tests.sim.history import TRANSACTIONS_PARTITION, ClusterHistory

Records = Sequence[tuple[int, bytes]]
NO_GROUP_PARTITION = TopicPartition("", 0)


class Fate(Enum):
    OPEN = "nobody has asked for its commit"
    COMMITTING = "its commit was asked for"
    COMMITTED = "its commit was acknowledged"
    NOT_COMMITTED = "its commit was refused"

    @property
    def may_be_seen(self) -> bool:
        return self in (Fate.COMMITTING, Fate.COMMITTED)


class Consumed(NamedTuple):
    """The offsets of a group that a transaction takes: from `start` to before `end`."""

    group_id: str
    start: int
    end: int


class Instance(NamedTuple):
    """One life of a producer: an instance with a higher number replaces those before."""

    producer: str
    number: int


@dataclass
class Transaction:
    label: str
    instance: Instance
    fate: Fate = Fate.OPEN
    # Where each record was sent, and its offset once that is known.
    sent: dict[Origin, TopicPartition] = field(default_factory=dict)
    offsets: dict[Origin, int] = field(default_factory=dict)
    keys: dict[Origin, bytes] = field(default_factory=dict)
    consumed: Consumed | None = None

    def refused(self) -> None:
        """The commit was refused, and no other attempt can have succeeded."""
        self.fate = Fate.NOT_COMMITTED


class TransactionHistory:
    def __init__(self, cluster: ClusterHistory, compacted: Collection[TopicPartition] = ()) -> None:
        """Of the `compacted` partitions the last record of each key stays, for certain."""
        self._cluster, self.note = cluster, cluster.note
        self._compacted = compacted
        self._transactions: dict[str, Transaction] = {}
        self._newest: dict[str, int] = {}  # the newest instance that has a producer id
        self._seen: dict[TopicPartition, dict[int, Origin]] = {}
        self._places: dict[Origin, tuple[TopicPartition, int]] = {}
        self.committed_by: Counter[str] = Counter()
        self.seen_count = 0

    # What producers note

    def begin(self, instance: Instance) -> Transaction:
        label = f"{instance.producer}.{instance.number}.{len(self._transactions)}"
        transaction = self._transactions[label] = Transaction(label, instance)
        return transaction

    def send(self, transaction: Transaction, partition: TopicPartition, key: bytes) -> Origin:
        """Return the next value's origin; to be asked for before it is sent."""
        origin = Origin(transaction.label, len(transaction.sent))
        transaction.sent[origin], transaction.keys[origin] = partition, key
        return origin

    def written(self, transaction: Transaction, origins: Sequence[Origin], base_offset: int) -> None:
        """These records were acknowledged, from this offset on."""
        transaction.offsets.update({origin: base_offset + index for index, origin in enumerate(origins)})
        partition = transaction.sent[origins[0]]
        self._cluster.on_acknowledged(partition, base_offset + len(origins))
        self._cluster.spring_traps(partition)

    def commit_asked(self, transaction: Transaction, *, is_last: bool) -> None:
        """The transaction's commit will be asked for, for the first time; if it is the last, the instance dies."""
        transaction.fate = Fate.COMMITTING
        self._cluster.spring_commit_traps(is_last=is_last)

    def initialized(self, instance: Instance) -> None:
        """The instance has heard its producer id and epoch: all before it are fenced from now on."""
        self._newest[instance.producer] = max(instance.number, self._newest.get(instance.producer, 0))

    def is_fenced(self, instance: Instance) -> bool:
        return self._newest.get(instance.producer, 0) > instance.number

    def taken_from_fenced(self, instance: Instance, what: str) -> None:
        """Something was accepted that the instance sent when it was fenced."""
        detail = f"{what} of instance {instance.number}, and {self._newest[instance.producer]} has taken over"
        self.note("zombie", TopicPartition(instance.producer, 0), instance.number, detail)

    def committed(self, transaction: Transaction) -> None:
        transaction.fate = Fate.COMMITTED
        self.committed_by[transaction.instance.producer] += 1
        self._cluster.spring_traps(TRANSACTIONS_PARTITION)

    @property
    def committed_count(self) -> int:
        return self.committed_by.total()

    # What readers note

    def see(self, partition: TopicPartition, offset: int, value: bytes, reader: str) -> None:
        """A reader of committed data was given this record."""
        self.seen_count += 1
        origin = origin_of(value)
        transaction = self._transactions.get(origin.producer) if origin is not None else None
        if origin is None or transaction is None or transaction.sent.get(origin) != partition:
            self.note("phantom", partition, offset, f"{reader} sees {origin}, which was never sent there")
            return
        if not transaction.fate.may_be_seen:
            is_open = transaction.fate is Fate.OPEN and not self.is_fenced(transaction.instance)
            kind = "precommitted read" if is_open else "aborted read"
            self.note(kind, partition, offset, f"{reader} sees {origin}, and {transaction.fate.value}")
        before = self._seen.setdefault(partition, {}).setdefault(offset, origin)
        if before != origin:
            self.note("two values at one offset", partition, offset, f"seen as {before} and as {origin}")
        place = self._places.setdefault(origin, (partition, offset))
        if place != (partition, offset):
            self.note("duplicate", partition, offset, f"{origin} was seen at {place[1]}")

    # Offsets of groups

    def promised(self, group_id: str) -> int:
        """Return where the group is at least, from now on."""
        return max((each.end for each in self._consumed(group_id, Fate.COMMITTED)), default=0)

    def _consumed(self, group_id: str, *fates: Fate) -> list[Consumed]:
        return [
            each.consumed
            for each in self._transactions.values()
            if each.consumed is not None and each.consumed.group_id == group_id and each.fate in fates
        ]

    def see_position(self, group_id: str, offset: int, label: str, promised: int) -> None:
        """A committed offset of the group was found, with the transaction that has written it."""
        found = self._transactions.get(label)
        where = NO_GROUP_PARTITION._replace(topic=group_id)
        if offset > 0 and (found is None or found.consumed is None or found.consumed.end != offset):
            self.note("phantom commit", where, offset, f"{label!r} has not consumed up to there")
        elif found is not None and not found.fate.may_be_seen:
            self.note("pending offset", where, offset, f"is visible, and of {label} {found.fate.value}")
        elif offset < promised:
            self.note("commit regression", where, offset, f"{promised} was committed")

    # The end

    def check(self, logs: Mapping[TopicPartition, Records], positions: Mapping[str, int]) -> None:
        """Hold all that can be read at read_committed, when clients are at rest, to what is known."""
        found: dict[str, dict[Origin, int]] = {}
        for partition, records in logs.items():
            self.check_log(partition, records, "the last reader")
            for offset, value in records:
                origin = origin_of(value)
                if origin is not None:
                    found.setdefault(origin.producer, {})[origin] = offset
        for transaction in self._transactions.values():
            self._check_whole(transaction, found.get(transaction.label, {}))
        for group_id, position in positions.items():
            self._check_consumed(group_id, position, found)

    def check_log(self, partition: TopicPartition, records: Records, reader: str) -> None:
        """Hold everything committed of one replica to what was acknowledged, and to what was seen before."""
        for offset, value in records:
            self.see(partition, offset, value, reader)
        offsets = {offset for offset, _ in records}
        if partition in self._compacted:
            self._check_compacted(partition, records, reader)
            return
        for offset in sorted(self._seen.get(partition, {}).keys() - offsets):
            self.note("taken back", partition, offset, f"{self._seen[partition][offset]} was seen, not by {reader}")

    def _check_compacted(self, partition: TopicPartition, records: Records, reader: str) -> None:
        newest: dict[bytes, int] = {}
        for offset, value in records:
            origin = origin_of(value)
            if origin is not None and origin.producer in self._transactions:
                newest[self._transactions[origin.producer].keys[origin]] = offset
        for transaction in self._transactions.values():
            for origin, offset in transaction.offsets.items() if transaction.fate is Fate.COMMITTED else ():
                if transaction.sent[origin] == partition and newest.get(transaction.keys[origin], -1) < offset:
                    self.note("lost write", partition, offset, f"{reader} finds neither {origin} nor a later one")

    def _check_whole(self, transaction: Transaction, found: Mapping[Origin, int]) -> None:
        if transaction.fate is Fate.COMMITTED or found:
            for origin, partition in transaction.sent.items():
                offset = transaction.offsets.get(origin, -1)
                if origin not in found and partition not in self._compacted:
                    kind = "torn transaction" if found else "lost write"
                    self.note(kind, partition, offset, f"{origin} is not there, and {transaction.fate.value}")
                elif offset >= 0 and found.get(origin, offset) != offset:
                    self.note("altered write", partition, found[origin], f"{origin} was acknowledged at {offset}")

    def _check_consumed(self, group_id: str, position: int, found: Mapping[str, object]) -> None:
        where, due = NO_GROUP_PARTITION._replace(topic=group_id), 0
        visible = [self._transactions[label] for label in found if label in self._transactions]
        consumed = [each.consumed for each in visible if each.consumed is not None]
        for each in sorted(each for each in consumed if each.group_id == group_id):
            if each.start != due:
                kind = "consumed twice" if each.start < due else "skipped record"
                self.note(kind, where, each.start, f"{due} was due")
            due = each.end
        if position != due:
            self.note("torn transaction", where, position, f"is committed, and what was written goes to {due}")
