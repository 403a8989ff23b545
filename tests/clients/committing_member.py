"""A group member in a process of its own, to be killed: it reads, says what it read, and then commits it.

    python -m tests.clients.committing_member LIBRARY BOOTSTRAP GROUP TOPIC

Every line of its output is one poll, as JSON: the partitions it has, and the (partition, offset) of what it read. A
record is told before it is committed, so whatever is committed has been told. A commit that fails because the group
goes on without this member is no error: somebody else reads the same records again.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress

import confluent_kafka as ck
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AiokafkaRange
from aiokafka.errors import KafkaError as AiokafkaError
from kafka import KafkaConsumer
from kafka.coordinator.assignors.range import RangePartitionAssignor as KafkaPythonRange
from kafka.errors import KafkaError as KafkaPythonError

from tests.clients.group_members import kafka_python_poll_ms, learn_partitions
from tests.support.security.secured_suites import install_clients, is_installed

POLL_S = 0.05
POLL_MS = int(POLL_S * 1000)
HEARTBEAT_MS = 100
SESSION_MS = 1000


def tell(assignment: Iterable[int], read: Iterable[tuple[int, int]]) -> None:
    print(json.dumps({"assignment": sorted(assignment), "read": list(read)}), flush=True)


def run_confluent(bootstrap: str, group_id: str, topic: str) -> None:
    consumer = ck.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group_id,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "partition.assignment.strategy": "range",
            "fetch.wait.max.ms": POLL_MS,
        }
    )
    consumer.subscribe([topic])
    while True:
        messages = [message for message in consumer.consume(500, POLL_S) if message.error() is None]
        tell(
            (each.partition for each in consumer.assignment()),
            ((message.partition(), message.offset()) for message in messages),
        )
        if messages:
            with suppress(ck.KafkaException):
                consumer.commit(asynchronous=False)


def run_kafka_python(bootstrap: str, group_id: str, topic: str) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group_id,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=[KafkaPythonRange],
        fetch_max_wait_ms=POLL_MS,
    )
    consumer.subscribe([topic])
    learn_partitions(consumer, topic)
    while True:
        polled = consumer.poll(kafka_python_poll_ms(consumer))
        read = [(record.partition, record.offset) for records in polled.values() for record in records]
        tell((each.partition for each in consumer.assignment()), read)
        if read:
            with suppress(KafkaPythonError):
                consumer.commit()


def run_aiokafka(bootstrap: str, group_id: str, topic: str) -> None:
    asyncio.run(_serve_aiokafka(bootstrap, group_id, topic))


async def _serve_aiokafka(bootstrap: str, group_id: str, topic: str) -> None:
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group_id,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=[AiokafkaRange],
        fetch_max_wait_ms=POLL_MS,
    )
    await consumer.start()
    while True:
        polled = await consumer.getmany(timeout_ms=POLL_MS)
        read = [(record.partition, record.offset) for records in polled.values() for record in records]
        tell((each.partition for each in consumer.assignment()), read)
        if read:
            with suppress(AiokafkaError):
                await consumer.commit()


LIBRARIES: dict[str, Callable[[str, str, str], None]] = {
    "confluent-kafka": run_confluent,
    "kafka-python": run_kafka_python,
    "aiokafka": run_aiokafka,
}


if __name__ == "__main__":
    if is_installed():
        install_clients()
    library, *where = sys.argv[1:]
    LIBRARIES[library](*where)
