"""What a case of the ecosystem suite is given: a broker that can be killed, and a folder.

A case exercises one product of other people against one broker, Flowstone or Apache Kafka, and never knows which. Each
check compares contents, and each case kills something on the way. How a product is installed is in `installs`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen, TimeoutExpired

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from scripts.client_suites.suite import CheckFailed, environment

from bench.servers import Server

DELIVERY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
READ_TIMEOUT_S = 150.0  # a killed producer's open transaction ends after a minute
POLL_S = 0.1


@dataclass
class Case:
    """One product's run against one broker."""

    server: Server
    folder: Path
    checks: list[str] = field(default_factory=list)
    _started: list[Popen[bytes]] = field(default_factory=list)

    @property
    def bootstrap(self) -> str:
        return self.server.address

    def check(self, sentence: str, found: object, wanted: object) -> None:
        """Note a check that passed. Raises CheckFailed if what was found is not what is wanted."""
        if found != wanted:
            raise CheckFailed(f"{sentence}: found {str(found)[:300]}, wanted {str(wanted)[:300]}")
        self.checks.append(sentence)

    def restart_broker(self) -> None:
        """Kill the broker with SIGKILL and start it again on its data and address."""
        self.server.kill()
        self.server.launch()
        self.server.wait_until_ready()

    def create_topic(self, name: str, partitions: int = 1, **settings: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        topic = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in settings.items()})
        for created in admin.create_topics([topic]).values():
            created.result(DELIVERY_TIMEOUT_S)

    def produce(self, topic: str, records: Iterable[tuple[str | None, str]]) -> None:
        """Append records of a key and a value. Raises CheckFailed if one is not acknowledged."""
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "partitioner": "murmur2_random"}
        )
        failed: list[KafkaError] = []
        for key, value in records:
            producer.produce(topic, value, key, on_delivery=lambda error, _: failed.append(error) if error else None)
            producer.poll(0)
        if producer.flush(DELIVERY_TIMEOUT_S) or failed:
            raise CheckFailed(f"records for {topic} were not acknowledged: {failed[:1]}")

    def read(
        self,
        topic: str,
        is_enough: Callable[[list[tuple[str | None, str]]], bool],
        *,
        committed: bool = False,
        group: str | None = None,
    ) -> list[tuple[str | None, str]]:
        """Return keys and values from the start, or where a group is, once they are enough or it takes too long."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group or f"reader-{time.monotonic_ns()}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )
        consumer.subscribe([topic])
        found: list[tuple[str | None, str]] = []
        deadline = time.monotonic() + READ_TIMEOUT_S
        try:
            while not is_enough(found) and time.monotonic() < deadline:
                with suppress(KafkaException):  # the topic may not exist yet
                    for message in consumer.consume(1000, POLL_S):
                        if message.error() is None:
                            key, value = message.key(), message.value()
                            found.append((key.decode() if key else None, value.decode() if value else ""))
        finally:
            consumer.close()
        return found

    def read_values(self, topic: str, count: int, *, committed: bool = False) -> Counter[str]:
        """Return how often each value is in the topic, as soon as there are `count` different ones."""
        records = self.read(topic, lambda found: len({value for _, value in found}) >= count, committed=committed)
        return Counter(value for _, value in records)

    def end_offset(self, topic: str, partition: int = 0) -> int:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "ends"})
        try:
            end: int = consumer.get_watermark_offsets(TopicPartition(topic, partition), READ_TIMEOUT_S)[1]
        finally:
            consumer.close()
        return end

    def commit(self, group: str, topic: str, offsets: list[int]) -> None:
        """Commit an offset for each partition, as soon as the group has a coordinator."""
        wanted = [TopicPartition(topic, partition, offset) for partition, offset in enumerate(offsets)]
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})

        def is_done() -> bool:
            with suppress(KafkaException):
                consumer.commit(offsets=wanted, asynchronous=False)
                return True
            return False

        try:
            self.wait_until(f"offsets of {group} are committed", is_done, DELIVERY_TIMEOUT_S)
        finally:
            consumer.close()

    def committed(self, group: str, topic: str, partitions: int) -> int:
        """Return the sum of a group's committed offsets of a topic."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        try:
            found = consumer.committed([TopicPartition(topic, each) for each in range(partitions)], READ_TIMEOUT_S)
        finally:
            consumer.close()
        return sum(max(each.offset, 0) for each in found)

    def start(self, command: list[str], name: str, **variables: str) -> Popen[bytes]:
        """Start a process of the product, which is stopped with the case; its output is in the folder under `name`."""
        with (self.folder / f"{name}.out").open("ab") as output:
            process = Popen(
                command,
                stdin=DEVNULL,
                stdout=output,
                stderr=STDOUT,
                cwd=self.folder,
                env={**environment(), **variables},
            )
        self._started.append(process)
        return process

    def supervise(self, command: list[str], name: str, **variables: str) -> Callable[[], None]:
        """Start a process; return a function that starts it again if it has ended, as a supervisor does."""
        running = [self.start(command, name, **variables)]

        def look() -> None:
            if running[-1].poll() is not None:
                running.append(self.start(command, name, **variables))

        return look

    def output(self, name: str) -> str:
        path = self.folder / f"{name}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_until(self, what: str, is_done: Callable[[], bool], timeout_s: float = READ_TIMEOUT_S) -> None:
        """Wait until something holds. Raises CheckFailed that says what did not."""
        deadline = time.monotonic() + timeout_s
        while not is_done():
            if time.monotonic() > deadline:
                raise CheckFailed(f"not within {timeout_s:.0f} s: {what}")
            time.sleep(POLL_S)

    def stop_all(self) -> None:
        for process in self._started:
            process.terminate()
        for process in self._started:
            try:
                process.wait(STOP_TIMEOUT_S)
            except TimeoutExpired:
                process.kill()
                process.wait()


@dataclass(frozen=True)
class Product:
    """A product with its version, one sentence on what is exercised, and the case.

    `name` is that of the command line, `title` what its authors call it.
    """

    name: str
    title: str
    version: str
    exercised: str
    run: Callable[[Case], None]
