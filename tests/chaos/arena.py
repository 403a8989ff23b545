"""A cluster, its clients and what they know: faults come in from outside, and at the end everything is held together.

After each fault `recover` waits until every partition acknowledges what was sent since, which is recovery, and until
every replica is in sync again. `finish` lets the clients hear of everything, stops the brokers cleanly, and checks what
lies on their disks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException

from flowstone.types import TopicPartition
from flowstone.wire.record_batch import CorruptBatch
from tests.faults.checker import ACKS_ALL, Anomaly, ObservedLog, origin_of
from tests.faults.group_history import NOT_COMMITTED, GroupHistory
from tests.faults.traffic import SteadyConsumer

from .bank import Bank
from .cluster import ChaosCluster
from .history import ClusterHistory, Journal
from .queues.work import QueueWork
from .replicas import compare, observe, offsets_of_later_epochs, read_copy
from .tellers import Staff
from .traffic import GroupMember, PacedProducer, committed_offsets

SAFE_TOPIC, LEADERLY_TOPIC = "safe", "leaderly"  # written with acks=all, with acks=1
PARTITIONS = 4
MEMBERS = 2
PROGRESS_S_MAX = 30.0
IN_SYNC_S_MAX = 60.0
CATCH_UP_S_MAX = 30.0
POLL_S = 0.01

Logs = dict[TopicPartition, ObservedLog]


class Arena:
    def __init__(
        self, cluster: ChaosCluster, directory: Path, records_per_second: float, staff: Staff | None = None
    ) -> None:
        self.cluster = cluster
        self.anomalies: list[Anomaly] = []
        self.acknowledged_count = 0
        self.lost_count = 0  # of what acks=1 acknowledged
        self.sent_again_count = 0  # by librdkafka, under a new producer epoch
        self._stack = ExitStack()
        with self._stack:
            self.journal = self._stack.enter_context(Journal(directory / "history.jsonl"))
            self.safe, self.leaderly, self.group = (
                ClusterHistory(self.journal),
                ClusterHistory(self.journal),
                GroupHistory(),
            )
            self.partitions = cluster.create_topic(SAFE_TOPIC, PARTITIONS)
            self.leaderly_partitions = cluster.create_topic(LEADERLY_TOPIC, 1)
            self._start_clients(records_per_second)
            self.bank = Bank(cluster, self.journal, directory / "tellers.log", staff or Staff())
            self._stack.callback(self.bank.close)
            self.queues = QueueWork(cluster)
            self._stack.callback(self.queues.close)
            self._stack = self._stack.pop_all()
        self.recover(time.monotonic(), "the start")

    def _start_clients(self, records_per_second: float) -> None:
        bootstrap = self.cluster.bootstrap
        self.producers = [
            PacedProducer(bootstrap, self.safe, self.partitions, ACKS_ALL, records_per_second * 0.5, in_flight_max=1),
            PacedProducer(bootstrap, self.safe, self.partitions, ACKS_ALL, records_per_second * 0.3),
            PacedProducer(bootstrap, self.leaderly, self.leaderly_partitions, 1, records_per_second * 0.2),
        ]
        self.consumers = [
            SteadyConsumer(bootstrap, self.safe, self.partitions),
            SteadyConsumer(bootstrap, self.leaderly, self.leaderly_partitions),
        ]
        self.members = [GroupMember(bootstrap, self.group, self.journal, self.partitions) for _ in range(MEMBERS)]
        clients: list[PacedProducer | SteadyConsumer | GroupMember] = [*self.producers, *self.consumers, *self.members]
        for client in clients:
            self._stack.callback(client.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    # While it goes on

    def wait_progress(self, since_s: float, timeout_s: float = PROGRESS_S_MAX) -> bool:
        """Until every partition has acknowledged a record that was sent since then."""
        while any(self.safe.answered_s.get(partition, 0.0) < since_s for partition in self.partitions):
            if time.monotonic() - since_s > timeout_s:
                return False
            time.sleep(POLL_S)
        return True

    def recover(self, healed_s: float, after: str) -> tuple[float, float, float]:
        """Seconds from then until all partitions make progress, all replicas are in sync, and transactions commit."""
        self.bank.let_be()
        is_going = self.wait_progress(healed_s)
        recovery_s = time.monotonic() - healed_s
        if not is_going:
            stuck = [each for each in self.partitions if self.safe.answered_s.get(each, 0.0) < healed_s]
            told = ", ".join(f"{each}: {replicas}" for each, replicas in self.cluster.describe().items())
            self.anomalies += [Anomaly("no progress", each, -1, f"{after}; {told}") for each in stuck]
        if not self.cluster.wait_in_sync(IN_SYNC_S_MAX):
            told = ", ".join(f"{each}: {replicas}" for each, replicas in self.cluster.describe().items())
            self.anomalies.append(Anomaly("never in sync", self.partitions[0], -1, f"{after}; {told}"))
        in_sync_s = time.monotonic() - healed_s
        self._check_commits()
        self.queues.check_going(healed_s, after)
        return recovery_s, in_sync_s, self.bank.check_going(healed_s, after)

    def _check_commits(self) -> None:
        """An acknowledged commit stays (G3)."""
        promised = self.group.acknowledged()
        try:
            committed = committed_offsets(self.cluster.bootstrap, self.partitions)
        except KafkaException as error:
            self.anomalies.append(Anomaly("no coordinator", self.partitions[0], -1, str(error)))
            return
        for partition, offset in promised.items():
            if committed.get(partition, NOT_COMMITTED) < offset:
                detail = f"{offset} was acknowledged, {committed.get(partition)} is there"
                self.anomalies.append(Anomaly("commit regression", partition, offset, detail))

    # At the end

    def finish(self) -> list[Anomaly]:
        """Everything that is wrong, the brokers having stopped."""
        self.bank.finish()
        self.queues.finish()
        for producer in self.producers:
            producer.rest()
            if producer.unanswered:
                told = f"{producer.unanswered} records of {producer.name} have no outcome"
                self.anomalies.append(Anomaly("no progress", self.partitions[0], -1, told))
        safe, leaderly = self.safe, self.leaderly
        self.acknowledged_count = len(safe.acknowledged) + safe.unplaced_count + len(leaderly.acknowledged)
        self._wait_read()
        for consumer in self.consumers:
            consumer.close()
        for member in self.members:
            member.close()
        self.cluster.wait_in_sync(IN_SYNC_S_MAX)
        self.cluster.stop()
        self._check_clients()
        self._check_disks()
        return self.all_anomalies

    @property
    def all_anomalies(self) -> list[Anomaly]:
        """Those found so far."""
        return self.anomalies + self.group.anomalies + self.bank.anomalies + self.queues.anomalies

    def _wait_read(self) -> None:
        """Until the consumer has seen, and the group committed, everything that was acknowledged."""
        ends: Counter[TopicPartition] = Counter()
        for each in self.safe.acknowledged:
            ends[each.partition] = max(ends[each.partition], each.offset + 1)
        deadline = time.monotonic() + CATCH_UP_S_MAX
        while (left := self._unread(ends)) and time.monotonic() < deadline:
            time.sleep(0.1)
        if left:
            self.anomalies.append(Anomaly("unread", self.partitions[0], -1, left))
        self.group.check_committed(
            committed_offsets(self.cluster.bootstrap, self.partitions), self.group.acknowledged()
        )

    def _unread(self, ends: Counter[TopicPartition]) -> str:
        seen: Counter[TopicPartition] = Counter()
        for partition, offset, _ in list(self.safe.seen):
            seen[partition] = max(seen[partition], offset + 1)
        committed = self.group.acknowledged()
        behind = [each for each in ends if seen[each] < ends[each] or committed.get(each, 0) < ends[each]]
        return "; ".join(
            f"{each} ends at {ends[each]}, seen to {seen[each]}, committed {committed.get(each)}" for each in behind
        )

    def _check_clients(self) -> None:
        errors: Counter[str] = Counter()
        for client in self.producers[:-1]:
            errors += client.errors
        for consumer in self.consumers:
            errors.update(error.name() for error in consumer.errors)
        self.anomalies += [
            Anomaly("client error", self.partitions[0], -1, f"{name}, {count} times") for name, count in errors.items()
        ]
        self.anomalies += [Anomaly("broker", self.partitions[0], -1, line) for line in self.cluster.faults()]

    def _check_disks(self) -> None:
        logs, later = {}, {}
        for partition in (*self.partitions, *self.leaderly_partitions):
            if (copy := self._compare_copies(partition)) is not None:
                logs[partition], later[partition] = observe(copy), offsets_of_later_epochs(copy)
        for partition in self.bank.partitions:
            if (copy := self._compare_copies(partition)) is not None:
                self.bank.check_disk(partition, copy)
        copies = {partition: self._compare_copies(partition) for partition in self.queues.all_partitions}
        self.queues.check_disks({partition: copy for partition, copy in copies.items() if copy is not None})
        for anomaly in self.safe.check_cluster(_of(logs, self.partitions)):
            if self._is_librdkafkas(anomaly, logs[anomaly.partition], later[anomaly.partition]):
                self.sent_again_count += 1
            else:
                self.anomalies.append(anomaly)
        anomalies, self.lost_count = self.leaderly.check_leaderly(_of(logs, self.leaderly_partitions))
        self.anomalies += anomalies

    def _compare_copies(self, partition: TopicPartition) -> list[bytes] | None:
        """The batches of a partition, the copies of which are found to be the same; None if one cannot be read."""
        try:
            copies = {node.node_id: read_copy(node.data, partition) for node in self.cluster.nodes.values()}
        except CorruptBatch as damage:
            self.anomalies.append(Anomaly("bad checksum", partition, -1, str(damage)))
            return None
        self.anomalies += compare(partition, copies)
        return copies[1]

    def _is_librdkafkas(self, anomaly: Anomaly, log: ObservedLog, later: set[int]) -> bool:
        """Whether a pipelining producer wrote twice under two epochs (see `PacedProducer`)."""
        if anomaly.kind != "duplicate" or anomaly.offset not in later:
            return False
        origin = origin_of(log.records[anomaly.offset][1])
        return any(origin is not None and origin.producer == each.name and each.is_pipelined for each in self.producers)


def _of(logs: Mapping[TopicPartition, ObservedLog], wanted: Iterable[TopicPartition]) -> Logs:
    return {partition: logs[partition] for partition in wanted if partition in logs}
