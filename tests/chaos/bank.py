"""A bank: tellers carry out orders in transactions, read_committed readers see all accounts, whose sum never changes.

`check_going` is for the time after a fault, `finish` for the end, and `check_disk` for the copies of stopped brokers,
of which it works out without any broker what a reader must see.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from flowstone.types import TopicPartition
from tests.faults.checker import Anomaly

from .cluster import ChaosCluster
from .history import Journal
from .replicas import committed_records
from .teller import CLIENT, TRANSACTION_TIMEOUT_MS
from .tellers import FIXED_GROUP, MEMBERS_GROUP, Staff, Tellers, Till
from .transfers import Claims, View

ACCOUNTS_TOPIC, ORDERS_TOPIC, ERRANDS_TOPIC = "accounts", "orders", "errands"
ACCOUNT_PARTITIONS = 4
ORDERS_PER_PARTITION_S = 8.0
FEED_S = 0.5
QUEUED_MAX = 5_000
START_ATTEMPTS = 60
OPEN_S_MAX = TRANSACTION_TIMEOUT_MS / 1000 + 10.0
CALL_TIMEOUT_S = 30.0
POLL_S, SAMPLE_S = 0.1, 0.5


class Stuck(NamedTuple):
    offset: int
    healthy_s: float  # for which this was the last stable offset, with records behind it, of a cluster that was whole


class CommittedReader:
    """A read_committed consumer of all accounts, which starts a new session where it was whenever it is told to."""

    def __init__(self, name: str, bootstrap: str, partitions: Sequence[TopicPartition]) -> None:
        self.view = View(name)
        self._settings = {
            **CLIENT,
            "bootstrap.servers": bootstrap,
            "group.id": "auditors",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "fetch.wait.max.ms": 100,
        }
        self._next = dict.fromkeys(partitions, 0)
        self._ended, self._restart = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def restart(self) -> None:
        self._restart.set()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(CALL_TIMEOUT_S)

    def position(self, partition: TopicPartition) -> int:
        return self._next[partition]

    def _run(self) -> None:
        while not self._ended.is_set():
            self._restart.clear()
            consumer = Consumer(self._settings)
            consumer.assign([ClientPartition(*partition, offset) for partition, offset in self._next.items()])
            while not (self._ended.is_set() or self._restart.is_set()):
                for message in consumer.consume(500, POLL_S):
                    if message.error() is None:
                        where = TopicPartition(message.topic() or "", message.partition() or 0)
                        self.view.take(where, message.offset() or 0, message.value() or b"", time.monotonic())
                        self._next[where] = (message.offset() or 0) + 1
            consumer.close()


class Feeder:
    """Writes orders to every input partition at a steady pace; what an order says does not matter, only its place."""

    def __init__(self, bootstrap: str, partitions: Sequence[TopicPartition]) -> None:
        self._partitions = partitions
        self._producer = Producer(
            {**CLIENT, "bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": 600_000}
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(CALL_TIMEOUT_S)

    def _run(self) -> None:
        while not self._ended.wait(FEED_S):
            for partition in self._partitions if len(self._producer) < QUEUED_MAX else ():
                for _ in range(round(ORDERS_PER_PARTITION_S * FEED_S)):
                    self._producer.produce(partition.topic, b"order", partition=partition.partition)
            self._producer.poll(0)
        self._producer.purge()


class Bank:
    def __init__(self, cluster: ChaosCluster, journal: Journal, log: Path, staff: Staff) -> None:
        """`log` gets what the tellers' processes say on their standard error."""
        self._cluster = cluster
        self.claims = Claims()
        self.anomalies: list[Anomaly] = []
        self.final: View | None = None
        self._is_whole = threading.Event()
        self._stuck: dict[TopicPartition, Stuck] = {}
        self._stack = ExitStack()
        with self._stack:
            self.accounts = cluster.create_topic(ACCOUNTS_TOPIC, ACCOUNT_PARTITIONS)
            inputs = {
                FIXED_GROUP: (ORDERS_TOPIC, staff.fixed * staff.tellers),
                MEMBERS_GROUP: (ERRANDS_TOPIC, staff.members * staff.tellers),
            }
            self._inputs = {
                group: cluster.create_topic(topic, count) for group, (topic, count) in inputs.items() if count
            }
            orders = [each for partitions in self._inputs.values() for each in partitions]
            self.partitions = [*self.accounts, *orders]
            for group, partitions in self._inputs.items():
                self._commit_start(group, partitions)
            self._feeder = Feeder(cluster.bootstrap, orders)
            self._stack.callback(self._feeder.close)
            till = Till(cluster.bootstrap, ACCOUNTS_TOPIC, ACCOUNT_PARTITIONS, log)
            self.tellers = Tellers(till, staff.desks(ORDERS_TOPIC, ERRANDS_TOPIC), self.claims, journal)
            self._stack.callback(self.tellers.close)
            self._readers = [
                CommittedReader(name, cluster.bootstrap, self.accounts)
                for name in ("steady reader", "restarted reader")
            ]
            for reader in self._readers:
                self._stack.callback(reader.close)
            self._sampled = threading.Event()
            self._sampler = threading.Thread(target=self._sample, name="stable offsets", daemon=True)
            self._sampler.start()
            self._stack.callback(self._sampled.set)
            self._stack = self._stack.pop_all()

    def _commit_start(self, group: str, partitions: Sequence[TopicPartition]) -> None:
        """Give a group offsets, so that from then on to have none is wrong."""
        consumer = self._consumer_of(group)
        try:
            places = [ClientPartition(*each, 0) for each in partitions]
            for attempt in range(START_ATTEMPTS):
                try:
                    consumer.commit(offsets=places, asynchronous=False)
                    break
                except KafkaException:  # its coordinator is being made
                    if attempt == START_ATTEMPTS - 1:
                        raise
                    time.sleep(SAMPLE_S)
        finally:
            consumer.close()

    def _consumer_of(self, group: str) -> Consumer:
        settings = {**CLIENT, "bootstrap.servers": self._cluster.bootstrap, "group.id": group}
        return Consumer({**settings, "isolation.level": "read_committed", "enable.auto.commit": False})

    def close(self) -> None:
        self._stack.close()

    # While it goes on

    def strike(self) -> None:
        """Take note that the cluster is being broken."""
        self._is_whole.clear()

    def let_be(self) -> None:
        """Take note that the cluster is whole again: the tellers are let be until `check_going` is done."""
        self.tellers.let_be()

    def check_going(self, healed_s: float, after: str) -> float:
        """Seconds from then until every group has committed a transaction; readers must see whole ones, of sum 0."""
        self._is_whole.set()
        last_commit_s = self.tellers.last_commit_s
        for group, inputs in self._inputs.items():
            if not _wait(lambda each=group: last_commit_s.get(each, 0.0) > healed_s, OPEN_S_MAX):  # type: ignore[misc]
                self._complain("no progress", inputs[0], f"{after}; {group} commits no transaction")
        progress_s = time.monotonic() - healed_s
        self.tellers.go_on()
        for reader in self._readers:
            self._check_sum(reader.view, healed_s, after)
        self._readers[1].restart()
        return progress_s

    def _check_sum(self, view: View, healed_s: float, after: str) -> None:
        """All that a reader saw by then becomes whole, and the accounts' sum is what it always was."""
        if not _wait(lambda: not view.incomplete(healed_s), OPEN_S_MAX):
            torn = sorted(view.incomplete(healed_s))
            self._complain("torn transaction", self.accounts[0], f"{after}; {view.name} waits for {torn}")
        elif (total := view.total_of_whole()) != 0:
            self._complain("changed sum", self.accounts[0], f"{after}; {view.name} has {total}")

    def wait_transactions(self, count: int, timeout_s: float) -> None:
        """Until so many transactions have been acknowledged, or it takes too long."""
        deadline_s = time.monotonic() + timeout_s
        while len(self.claims.committed) < count and time.monotonic() < deadline_s:
            time.sleep(POLL_S)

    def figures(self) -> dict[str, object]:
        """Return what a report says of transactions."""
        tellers = self.tellers
        return {
            "committed": len(self.claims.committed),
            "aborted": len(self.claims.aborted),
            "aborted_after_asking_to_commit": tellers.asked_before_abort,
            "visible": len(self.final.whole) if self.final is not None else None,
            "tellers_killed": tellers.kills,
            "zombies": tellers.zombies,
            "producers_started_over": dict(tellers.errors),
        }

    def _complain(self, kind: str, partition: TopicPartition, detail: str) -> None:
        self.anomalies.append(Anomaly(kind, partition, -1, detail))

    def _sample(self) -> None:
        """Watch the last stable offsets: no transaction may hold one for longer than its timeout and ten seconds."""
        last_s = time.monotonic()
        while not self._sampled.wait(SAMPLE_S):
            now_s, was_whole = time.monotonic(), self._is_whole.is_set()
            for partition, (stable, end) in self._ends().items():
                before = self._stuck.get(partition)
                if stable >= end or before is None or before.offset != stable:
                    self._stuck[partition] = Stuck(stable, 0.0)
                    continue
                healthy_s = before.healthy_s + (now_s - last_s if was_whole else 0.0)
                self._stuck[partition] = Stuck(stable, healthy_s)
                if healthy_s > OPEN_S_MAX:
                    self._complain("hanging transaction", partition, f"since offset {stable}, of {end}")
                    return
            last_s = now_s

    def _ends(self) -> dict[TopicPartition, tuple[int, int]]:
        """The last stable offset and the end of each partition; of those that a leader has told just now."""
        asked = {ClientPartition(*partition): OffsetSpec.latest() for partition in self.accounts}
        levels = (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        try:
            told = [
                {place: future.result().offset for place, future in answers.items()}
                for answers in [self._cluster.admin.list_offsets(asked, isolation_level=level) for level in levels]
            ]
        except KafkaException:
            return {}
        stable, ends = told
        return {TopicPartition(each.topic, each.partition): (stable[each], ends[each]) for each in ends}

    # At the end

    def finish(self) -> None:
        """Let the tellers end, and see that all there is can be read and is right."""
        self.tellers.rest()
        self._feeder.close()
        self.anomalies += [Anomaly("teller failed", self.accounts[0], -1, each) for each in self.tellers.failures]
        ends: dict[TopicPartition, tuple[int, int]] = {}

        def are_ended() -> bool:
            ends.update(self._ends())
            return len(ends) == len(self.accounts) and all(stable >= end for stable, end in ends.values())

        if not _wait(are_ended, OPEN_S_MAX):
            told = ", ".join(f"{each}: {stable} of {end}" for each, (stable, end) in ends.items())
            self._complain("hanging transaction", self.accounts[0], f"last stable offsets: {told}")
        self._sampled.set()
        self._sampler.join(CALL_TIMEOUT_S)
        self.final = self._read_all("final reader")
        committed = self._committed_offsets()
        self.anomalies += self.final.check(self.claims, committed)
        for reader in self._readers:
            reader.close()
            self.anomalies += reader.view.anomalies + reader.view.check_against(self.final)

    def _read_all(self, name: str) -> View:
        """What a new reader sees of everything up to the last stable offsets."""
        reader = CommittedReader(name, self._cluster.bootstrap, self.accounts)
        try:
            last_s, seen = time.monotonic(), -1
            while time.monotonic() - last_s < 5.0:  # without anything new
                count = sum(map(len, reader.view.seen.values()))
                if count != seen:
                    last_s, seen = time.monotonic(), count
                time.sleep(POLL_S)
        finally:
            reader.close()
        return reader.view

    def _committed_offsets(self) -> dict[TopicPartition, int]:
        found = {}
        for group, partitions in self._inputs.items():
            consumer = self._consumer_of(group)
            try:
                for place in consumer.committed([ClientPartition(*each) for each in partitions], CALL_TIMEOUT_S):
                    found[TopicPartition(place.topic, place.partition)] = place.offset
            finally:
                consumer.close()
        return found

    def check_disk(self, partition: TopicPartition, batches: Sequence[bytes]) -> None:
        """Hold what the final reader saw to the batches of a stopped broker; no reader passes over orders."""
        if partition in self.accounts:
            assert self.final is not None
            self.anomalies += self.final.check_stored(partition, *committed_records(batches))


def _wait(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True
