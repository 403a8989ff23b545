"""Members of share groups in a chaos run, each in a thread with a connection of its own to a partition's leader.

A member fetches, decides about each record, and acknowledges with the next fetch. What it is told goes into the history
of the simulation's checker (`tests.sim.queues.history`): an answer that never came may have delivered records, or
acknowledged them. `QueueMembers` has one group without an order and one that is ordered by key.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire import messages as m
from flowstone.wire.record_batch import decode_records
from tests.faults.checker import Anomaly
from tests.sim.queues.history import Delivered, Group, QueueHistory, Record
from tests.support.sharing.share_client import Sharer
from tests.support.wire_client import Client, whole_batches

TIMEOUT_S = 4.0  # what a member waits for a broker that is silent
PAUSE_S = 0.05
FETCH_WAIT_MS, RECORDS_MAX = 250, 20
TYPES = {"accept": 1, "release": 2, "reject": 3}
DECISIONS, WEIGHTS = (*TYPES, "keep"), (85, 9, 4, 2)
END_TIMEOUT_S = 30.0
TROUBLE = (OSError, AssertionError)  # of a connection; a response that does not belong to its request


class ChaosHistory(QueueHistory):
    """The simulation's history, for a run that is so long that fetches remain unanswered again and again.

    Only deliveries since the last one that a member heard of can have given a record up: its count has those before.
    """

    def __init__(self) -> None:
        super().__init__(self)  # type: ignore[arg-type]  # of its history it only uses `note`
        self.anomalies: list[Anomaly] = []
        self.lock = threading.Lock()
        self._unheard_before: dict[int, int] = {}

    def note(self, kind: str, partition: TopicPartition, offset: int, detail: str) -> None:
        self.anomalies.append(Anomaly(kind, partition, offset, detail))

    def deliver(
        self, group: Group, partition: TopicPartition, offset: int, delivered: Delivered, asked_s: float, now_s: float
    ) -> None:
        super().deliver(group, partition, offset, delivered, asked_s, now_s)
        record = self.records[group.name, partition][offset]
        self._unheard_before[id(record)] = self._unheard[group.name, partition]

    def _may_be_finished(self, group: Group, partition: TopicPartition, record: Record) -> bool:
        if record.asked & {"accept", "reject"}:
            return True
        unheard = self._unheard[group.name, partition] - self._unheard_before.get(id(record), 0)
        return record.count + unheard >= group.delivery_count_limit


class Decided(NamedTuple):
    offset: int
    kind: str
    count: int


class Member:
    """One member of a group, which handles one partition."""

    def __init__(
        self,
        name: str,
        group: Group,
        partition: TopicPartition,
        connect: Callable[[TopicPartition], tuple[Client, bytes]],
        history: ChaosHistory,
    ) -> None:
        self.name, self.group, self.partition = name, group, partition
        self._connect, self._history = connect, history
        self._chance = random.Random(name)
        self._client: Client | None = None
        self._sharer: Sharer | None = None
        self._decided: list[Decided] = []
        self.quiet_since_s = time.monotonic()  # since when fetches were answered and brought nothing
        self.answered_s = 0.0
        self.is_finishing = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(END_TIMEOUT_S)
        assert not self._thread.is_alive(), f"{self.name} is stuck"

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._turn()
            except TROUBLE:
                self._leave()
                self._ended.wait(PAUSE_S * self._chance.uniform(1, 4))
        self._leave()

    def _leave(self) -> None:
        """Forget the session: what was decided about its records is lost, as are its locks."""
        self._decided = []
        self.quiet_since_s = time.monotonic()
        client, self._client, self._sharer = self._client, None, None
        if client is not None:
            client.close()

    def _turn(self) -> None:
        if self._sharer is None:
            self._client, topic_id = self._connect(self.partition)
            self._sharer = Sharer(self._client, topic_id, self.name, self.group.name)
        decided, self._decided = sorted(self._decided), []
        with self._history.lock:
            for offset, kind, _ in decided:
                self._history.ask(self.group, self.partition, offset, kind)
        asked_s = time.monotonic()
        acknowledgements = [(offset, offset, TYPES[kind]) for offset, kind, _ in decided]
        try:
            answer = self._sharer.fetch(
                *acknowledgements,
                partition=self.partition.partition,
                wait_ms=FETCH_WAIT_MS,
                max_records=RECORDS_MAX,
                share_acquire_mode=1,
            )
        except TROUBLE:
            with self._history.lock:
                self._history.unanswered(self.group, self.partition)
            raise
        now_s = time.monotonic()
        if answer.error_code:
            raise OSError(ErrorCode(answer.error_code).name)
        for found in (each for topic in answer.responses for each in topic.partitions):
            with self._history.lock:
                self._take(found, decided, asked_s, now_s)
            if found.error_code or found.acknowledge_error_code:
                raise OSError(ErrorCode(found.error_code or found.acknowledge_error_code).name)
        self.answered_s = asked_s

    def _take(self, found: Any, decided: list[Decided], asked_s: float, now_s: float) -> None:
        if not found.acknowledge_error_code and not found.error_code:
            for offset, kind, count in decided:
                times_s = asked_s, now_s
                self._history.acknowledged(self.group, self.partition, offset, kind, count, times_s, is_timed=False)
        keys = {
            record.offset: record.key
            for batch in whole_batches(bytes(found.records or b""))
            for record in decode_records(batch)
        }
        for each in found.acquired_records:
            for offset in range(each.first_offset, each.last_offset + 1):
                delivered = Delivered(keys[offset], each.delivery_count)
                self._history.deliver(self.group, self.partition, offset, delivered, asked_s, now_s)
                kind = "accept" if self.is_finishing else self._chance.choices(DECISIONS, WEIGHTS)[0]
                if kind != "keep":
                    self._decided.append(Decided(offset, kind, each.delivery_count))
                self.quiet_since_s = now_s


def leader_of(addresses: list[tuple[str, int]], partition: TopicPartition) -> tuple[Client, bytes]:
    """Return a connection to the partition's leader, as some broker knows it, and the topic's id.

    Raises OSError if no broker knows one that can be reached.
    """
    for address in addresses:
        try:
            with Client(address, TIMEOUT_S) as client:
                answer = client.ask(12, m.MetadataRequest(topics=[m.MetadataRequestTopic(name=partition.topic)]))
        except TROUBLE:
            continue
        brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
        topic = answer.topics[0]
        for found in topic.partitions:
            if found.partition_index == partition.partition and found.leader_id in brokers:
                return Client(brokers[found.leader_id], TIMEOUT_S), bytes(topic.topic_id)
    raise OSError(f"{partition} has no leader that can be reached")
