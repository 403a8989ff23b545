"""Members of a consumer group, one class per library, all with one face: each polls in a thread, as a program would.

A member notes what it is assigned and what it reads. Offsets are committed only when a test says so. Run as a program
this module is one member in a process of its own, for tests that kill it:

    python -m tests.clients.group_members LIBRARY BOOTSTRAP GROUP TOPIC
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import confluent_kafka as ck
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AiokafkaRange
from kafka import KafkaConsumer
from kafka.coordinator.assignors.range import RangePartitionAssignor as KafkaPythonRange
from kafka.errors import KafkaConnectionError

from tests.support.security.secured_suites import install_clients, is_installed

POLL_S = 0.05
POLL_MS = int(POLL_S * 1000)
HEARTBEAT_MS = 100
SESSION_MS = 2000
WAIT_S = 20
# How long kafka-python may poll while it has no partitions; see `kafka_python_poll_ms`.
JOIN_POLL_MS = 2000
# aiokafka 0.14 does not ask who leads when its question for the first offset went to another broker than the leader: it
# goes on asking that one until its metadata is too old.
AIOKAFKA_METADATA_MS = 1000


class Member:
    """Begins to poll at once, until `leave` or `vanish`."""

    library: ClassVar[str]

    def __init__(
        self,
        bootstrap: str,
        group_id: str,
        topic: str,
        *,
        instance_id: str | None = None,
        session_ms: int = SESSION_MS,
        assignor: str = "range",
    ) -> None:
        self._bootstrap, self._group_id, self._topic = bootstrap, group_id, topic
        self._instance_id, self._session_ms, self._assignor = instance_id, session_ms, assignor
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._commits_at_end = False
        self.assignment: frozenset[int] = frozenset()
        self.assignments: list[frozenset[int]] = []
        self.read: list[tuple[int, int]] = []
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_until(self, condition: Callable[[Member], bool]) -> None:
        with self._changed:
            done = self._changed.wait_for(lambda: self.failure is not None or condition(self), WAIT_S)
        if self.failure is not None:
            raise self.failure
        assert done, f"{self.library} has {sorted(self.assignment)} and read {len(self.read)} records"

    def wait_assigned(self, count: int) -> None:
        self.wait_until(lambda member: len(member.assignment) == count)

    def leave(self, *, commit: bool = False) -> None:
        """Ends the member's polling and its membership; a static member's place stays its own for its session."""
        self._commits_at_end = commit
        self._ending.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            with self._changed:
                self.failure = error
                self._changed.notify_all()

    def _serve(self) -> None:
        raise NotImplementedError

    def _note(self, assignment: Iterable[int], read: Iterable[tuple[int, int]]) -> None:
        with self._changed:
            now = frozenset(assignment)
            if now != self.assignment:
                self.assignment = now
                self.assignments.append(now)
            self.read += read
            self._changed.notify_all()


class ConfluentMember(Member):
    library = "confluent-kafka"

    def _serve(self) -> None:
        static = {} if self._instance_id is None else {"group.instance.id": self._instance_id}
        consumer = ck.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self._group_id,
                "session.timeout.ms": self._session_ms,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "partition.assignment.strategy": self._assignor,
                "fetch.wait.max.ms": POLL_MS,
                **static,
            }
        )
        consumer.subscribe([self._topic])
        while not self._ending.is_set():
            messages = consumer.consume(500, POLL_S)
            read = [(message.partition(), message.offset()) for message in messages if message.error() is None]
            self._note((each.partition for each in consumer.assignment()), read)
        if self._commits_at_end:
            consumer.commit(asynchronous=False)
        consumer.close()


def learn_partitions(consumer: KafkaConsumer, topic: str) -> None:
    """Keeps kafka-python 3.0.12 from a join that it forgets, on a busy machine one in ten or so.

    It joins before it knows the topic's partitions, shares out none, and joins again when it learns of them. If `poll`
    runs out of time during that second join, the next one finds nothing to do: sharing out has already made its two
    snapshots of the metadata equal, and the flag that says "rejoin" was never set (`ConsumerCoordinator.need_rejoin`).
    The assignment that the broker then sends is thrown away, heartbeats stay off, and the member polls for ever with
    no partitions. With the partitions known before the first `poll` there is no second join.

    Asking for them fails if the broker that it asks has just died, where `poll` asks another one.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            if consumer.partitions_for_topic(topic):
                return
        except KafkaConnectionError:
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline, f"kafka-python learnt of no partition of {topic}"
        time.sleep(POLL_S)


def kafka_python_poll_ms(consumer: KafkaConsumer) -> int:
    """Return how long the next `poll` of kafka-python may take: longer than a join while it has no partitions.

    kafka-python 3.0.12 joins in a thread of its own. If `poll` runs out of time, the next one waits for the same join,
    unless that has ended meanwhile: then its assignment is thrown away and the member joins again
    (`BaseCoordinator.join_group_async` starts a new join where the last one `is_done`). The leader of a group that
    joins again makes everybody join again. On a busy machine a join takes longer than POLL_MS and the time between two
    polls is long too, so this could repeat itself for as long as a test waits.
    """
    return POLL_MS if consumer.assignment() else JOIN_POLL_MS


class KafkaPythonMember(Member):
    library = "kafka-python"

    def _serve(self) -> None:
        consumer = KafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=self._group_id,
            group_instance_id=self._instance_id,
            session_timeout_ms=self._session_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=[KafkaPythonRange],
            fetch_max_wait_ms=POLL_MS,
        )
        consumer.subscribe([self._topic])
        learn_partitions(consumer, self._topic)
        while not self._ending.is_set():
            polled = consumer.poll(kafka_python_poll_ms(consumer))
            read = [(record.partition, record.offset) for records in polled.values() for record in records]
            self._note((each.partition for each in consumer.assignment()), read)
        if self._commits_at_end:
            consumer.commit()
        consumer.close(autocommit=False)


class AiokafkaMember(Member):
    library = "aiokafka"

    def _serve(self) -> None:
        asyncio.run(self._serve_on_a_loop())

    async def _serve_on_a_loop(self) -> None:
        consumer = AIOKafkaConsumer(
            self._topic,
            bootstrap_servers=self._bootstrap,
            group_id=self._group_id,
            group_instance_id=self._instance_id,
            session_timeout_ms=self._session_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=[AiokafkaRange],
            fetch_max_wait_ms=POLL_MS,
            metadata_max_age_ms=AIOKAFKA_METADATA_MS,
        )
        await consumer.start()
        try:
            while not self._ending.is_set():
                polled: dict[Any, list[Any]] = await consumer.getmany(timeout_ms=POLL_MS)
                read = [(record.partition, record.offset) for records in polled.values() for record in records]
                self._note((each.partition for each in consumer.assignment()), read)
            if self._commits_at_end:
                await consumer.commit()
        finally:
            await consumer.stop()


LIBRARIES: dict[str, type[Member]] = {
    kind.library: kind for kind in (ConfluentMember, KafkaPythonMember, AiokafkaMember)
}


def main() -> None:
    """A member that says when it has an assignment, and goes on until it is killed."""
    library, bootstrap, group_id, topic = sys.argv[1:]
    if is_installed():
        install_clients()
    member = LIBRARIES[library](bootstrap, group_id, topic)
    member.wait_until(lambda member: bool(member.assignment))
    print("assigned", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
