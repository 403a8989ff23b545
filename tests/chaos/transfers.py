"""Transfers between accounts, as the records that transactions write, and what may be read of them. Pure.

A transaction handles some orders, which are records of an input partition. For each order it writes two legs, a debit
and a credit, and its offsets commit says which orders are handled. Every leg names its transaction, its place in it and
its order, so that readers need nothing else to tell whole transactions from torn ones.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flowstone.types import TopicPartition
from tests.faults.checker import Anomaly

ACCOUNTS = 100
AMOUNT_MAX = 1000
_SEPARATOR = "|"


class Leg(NamedTuple):
    """One record of a transaction: `number` of `count`, for one order, on one account."""

    transaction: str
    number: int
    count: int
    order: TopicPartition
    order_offset: int
    account: int
    amount: int

    def encode(self) -> bytes:
        return _SEPARATOR.join(map(str, (*self[:3], *self.order, *self[4:]))).encode()

    @classmethod
    def decode(cls, value: bytes) -> Leg | None:
        """Return the leg, or None for bytes that are none."""
        fields = value.decode(errors="replace").split(_SEPARATOR)
        try:
            transaction, number, count, topic, partition, offset, account, amount = fields
            order = TopicPartition(topic, int(partition))
            return cls(transaction, int(number), int(count), order, int(offset), int(account), int(amount))
        except ValueError:
            return None


def transfer(transaction: str, orders: Sequence[tuple[TopicPartition, int]]) -> list[Leg]:
    """Return the legs of a transaction: two for each order, which follow from the order alone and sum up to zero."""
    legs = []
    for order, offset in orders:
        chance = random.Random(f"{order}@{offset}")
        payer, payee = chance.sample(range(ACCOUNTS), 2)
        amount = chance.randint(1, AMOUNT_MAX)
        for account, change in ((payer, -amount), (payee, amount)):
            leg = Leg(transaction, len(legs), 2 * len(orders), order, offset, account, change)
            legs.append(leg)
    return legs


class Claims:
    """What producers were told of their transactions. One that is in neither set has an unknown outcome."""

    def __init__(self) -> None:
        self.committed: set[str] = set()
        self.aborted: set[str] = set()


class View:
    """What one reader has seen. It knows at once of what cannot be right, and `incomplete` of what is not yet right."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.anomalies: list[Anomaly] = []
        self.balances: dict[int, int] = {}
        self.seen: dict[TopicPartition, dict[int, Leg]] = {}
        self.orders: dict[TopicPartition, dict[int, str]] = {}  # by input partition and offset, the transaction
        self.whole: set[str] = set()
        self._parts: dict[str, dict[int, Leg]] = {}  # of transactions that are not whole
        self._first_seen_s: dict[str, float] = {}
        self._next: dict[TopicPartition, int] = {}
        self._lock = threading.Lock()  # a reader's thread takes, others look

    def take(self, partition: TopicPartition, offset: int, value: bytes, now_s: float) -> None:
        """Note a record that was read; a reader passes each partition in order, and each record once."""
        with self._lock:
            self._take(partition, offset, value, now_s)

    def _take(self, partition: TopicPartition, offset: int, value: bytes, now_s: float) -> None:
        if offset < self._next.get(partition, 0):
            self._complain("read twice", partition, offset, f"{self._next[partition]} was due")
            return
        self._next[partition] = offset + 1
        leg = Leg.decode(value)
        if leg is None:
            self._complain("phantom", partition, offset, f"{value[:80]!r} is no leg")
            return
        self.seen.setdefault(partition, {})[offset] = leg
        self.balances[leg.account] = self.balances.get(leg.account, 0) + leg.amount
        if leg.transaction in self.whole or leg.number in self._parts.get(leg.transaction, {}):
            self._complain("duplicate", partition, offset, f"{leg} once more")
            return
        parts = self._parts.setdefault(leg.transaction, {})
        handled = self.orders.setdefault(leg.order, {}).setdefault(leg.order_offset, leg.transaction)
        if handled != leg.transaction:
            self._complain("order handled twice", partition, offset, f"{leg}, before by {handled}")
        parts[leg.number] = leg
        self._first_seen_s.setdefault(leg.transaction, now_s)
        if len(parts) == leg.count:
            self.whole.add(leg.transaction)
            del self._parts[leg.transaction], self._first_seen_s[leg.transaction]

    def _complain(self, kind: str, partition: TopicPartition, offset: int, detail: str) -> None:
        self.anomalies.append(Anomaly(kind, partition, offset, f"{self.name}: {detail}"))

    def incomplete(self, before_s: float) -> dict[str, dict[int, Leg]]:
        """Return the parts of transactions of which something was seen before then, and something is missing."""
        with self._lock:
            return {
                transaction: dict(parts)
                for transaction, parts in self._parts.items()
                if self._first_seen_s[transaction] < before_s
            }

    def total_of_whole(self) -> int:
        """Return the sum over all accounts, without transactions that are not yet whole; it never changes from zero."""
        with self._lock:
            parts = (leg.amount for parts in self._parts.values() for leg in parts.values())
            return sum(self.balances.values()) - sum(parts)

    def check(self, claims: Claims, committed_offsets: Mapping[TopicPartition, int]) -> list[Anomaly]:
        """Return everything that is wrong with a view of all there is, given the groups' committed offsets."""
        nowhere = TopicPartition(self.name, 0)
        anomalies = list(self.anomalies)
        for transaction, parts in self.incomplete(float("inf")).items():
            detail = f"{transaction} has only {sorted(parts)} of {next(iter(parts.values())).count} parts"
            anomalies.append(Anomaly("torn transaction", nowhere, -1, detail))
        visible = self.whole | self.incomplete(float("inf")).keys()
        lost, wrong = sorted(claims.committed - visible), sorted(claims.aborted & visible)
        anomalies += [Anomaly("lost transaction", nowhere, -1, f"{each} was committed") for each in lost]
        anomalies += [Anomaly("aborted read", nowhere, -1, f"{each} was aborted") for each in wrong]
        if (total := sum(self.balances.values())) != 0:
            anomalies.append(Anomaly("changed sum", nowhere, -1, f"all accounts together have {total}"))
        return anomalies + self._check_orders(committed_offsets)

    def _check_orders(self, committed_offsets: Mapping[TopicPartition, int]) -> list[Anomaly]:
        """A group's offset stands behind the last handled order, and every order before it is handled (T2)."""
        anomalies = []
        for order in sorted(committed_offsets.keys() | self.orders.keys()):
            handled, end = self.orders.get(order, {}), max(committed_offsets.get(order, 0), 0)
            missing = [offset for offset in range(end) if offset not in handled]
            if missing:
                detail = f"{len(missing)} orders before the committed offset {end} are not handled"
                anomalies.append(Anomaly("order lost", order, missing[0], f"{self.name}: {detail}"))
            beyond = [offset for offset in handled if offset >= end]
            if beyond:
                detail = f"{len(beyond)} orders are handled, the committed offset is {end}"
                anomalies.append(Anomaly("offsets not committed", order, min(beyond), f"{self.name}: {detail}"))
        return anomalies

    def check_against(self, final: View) -> list[Anomaly]:
        """Return what this reader saw while it went on and a final reader does not: it was open, aborted or is gone."""
        return [
            Anomaly("taken back", partition, offset, f"{self.name} saw {leg}, then {final.at(partition, offset)}")
            for partition, legs in self.seen.items()
            for offset, leg in legs.items()
            if final.at(partition, offset) != leg
        ]

    def check_stored(
        self, partition: TopicPartition, committed: Mapping[int, bytes], left_open: Sequence[int]
    ) -> list[Anomaly]:
        """Return where this view differs from the committed records of a stored log, and what is open in it."""
        seen = {offset: leg.encode() for offset, leg in self.seen.get(partition, {}).items()}
        anomalies = [
            Anomaly("hanging transaction", partition, offset, "open in the stored log") for offset in left_open
        ]
        for offset in sorted(offset for offset, _ in committed.items() ^ seen.items()):
            detail = f"{committed.get(offset)!r} is stored and committed, {seen.get(offset)!r} was read"
            anomalies.append(Anomaly("wrong isolation", partition, offset, detail))
        return anomalies

    def at(self, partition: TopicPartition, offset: int) -> Leg | None:
        return self.seen.get(partition, {}).get(offset)
