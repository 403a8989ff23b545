"""What the clients of a simulated cluster know, held to RELIABILITY's promises as they learn it.

The checker of the fault suites holds whole logs to it (S1 to S3, S8) at the end. Here is what can be said at once: an
offset is greater than every one acknowledged before its record was sent, consumers meet no hole, and nobody hears an
error that would mean a loss.
"""

from __future__ import annotations

from collections.abc import Callable

from flowstone.types import TopicPartition
from tests.faults.checker import ACKS_ALL, Anomaly, History, Origin
from tests.faults.group_history import GroupHistory

NOTHING = -1
OFFSETS_PARTITION = TopicPartition("__consumer_offsets", 0)
TRANSACTIONS_PARTITION = TopicPartition("__transaction_state", 0)


class ClusterHistory(History):
    def __init__(self) -> None:
        super().__init__()
        self.anomalies: list[Anomaly] = []
        self.groups = GroupHistory()
        self.acks_one_count = self.seen_count = 0
        # Called with the end of what was acknowledged.
        self.on_acknowledged: Callable[[TopicPartition, int], None] = lambda partition, next_offset: None
        # Called with the partition that has the record: a coordinator's, if a commit was.
        self.traps: list[Callable[[TopicPartition], None]] = []
        # Called when a transaction's commit is about to be asked for, with whether the client dies then.
        self.commit_traps: list[Callable[[bool], None]] = []
        self._highest: dict[TopicPartition, int] = {}

    def highest_acknowledged(self, partition: TopicPartition) -> int:
        """To be asked before a record is first sent."""
        return self._highest.get(partition, NOTHING)

    def acknowledge_batch(
        self, partition: TopicPartition, base_offset: int, origins: list[Origin], acks: int, above: int
    ) -> None:
        """`above` is what was the highest when they were sent. With acks=1 nothing is promised beyond the leader."""
        if acks != ACKS_ALL:
            self.acks_one_count += len(origins)
            return
        if base_offset <= above:
            detail = f"{origins[0]} was sent after {above} had been acknowledged"
            self.note("real-time order", partition, base_offset, detail)
        for index, origin in enumerate(origins):
            self.acknowledge(partition, base_offset + index, origin, acks)
        last_offset = base_offset + len(origins) - 1
        self._highest[partition] = max(last_offset, self._highest.get(partition, NOTHING))
        self.on_acknowledged(partition, last_offset + 1)
        self.spring_traps(partition)

    def acknowledge_commit(self, partition: TopicPartition, offset: int) -> None:
        self.groups.acknowledge_commit(partition, offset)
        self.spring_traps(OFFSETS_PARTITION)

    def spring_traps(self, partition: TopicPartition) -> None:
        for trap in [*self.traps]:
            trap(partition)

    def spring_commit_traps(self, *, is_last: bool) -> None:
        for trap in [*self.commit_traps]:
            trap(is_last)

    def note(self, kind: str, partition: TopicPartition, offset: int, detail: str) -> None:
        self.anomalies.append(Anomaly(kind, partition, offset, detail))
