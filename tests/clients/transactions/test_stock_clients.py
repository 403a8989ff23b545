"""Transactions with stock clients: a read_committed consumer sees what was committed, in order, and nothing else.

`flowstone.read` and the Spark source are among the readers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka as ck
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition

import flowstone
from flowstone.embedded import Broker
from pyspark_flowstone.offsets import Offsets
from pyspark_flowstone.options import parse_options
from pyspark_flowstone.planner import StreamPlanner
from pyspark_flowstone.reader import read_range
from tests.clients.kafka_python_driver import KafkaConsumer, KafkaProducer, TopicPartition

TIMEOUT_S = 20
# What each producer writes: its values, and whether it commits them. An answer full of aborted data must be passed.
SCRIPT: list[tuple[list[bytes], bool]] = [
    ([b"c1", b"c2"], True),
    ([b"a" * 1000] * 200, False),
    ([b"c3"], True),
    ([b"a3"], False),
    ([b"c4", b"c5"], True),
]
COMMITTED = [b"c1", b"c2", b"c3", b"c4", b"c5"]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def write_with_confluent(bootstrap: str, topic: str) -> None:
    producer = ck.Producer({"bootstrap.servers": bootstrap, "transactional.id": f"confluent-{topic}", "linger.ms": 0})
    producer.init_transactions(TIMEOUT_S)
    for values, commits in SCRIPT:
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        producer.flush(TIMEOUT_S)
        if commits:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)


def write_with_kafka_python(bootstrap: str, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"kafka-python-{topic}", acks="all")
    try:
        producer.init_transactions()
        for values, commits in SCRIPT:
            producer.begin_transaction()
            for value in values:
                producer.send(topic, value, partition=0)
            producer.flush()
            if commits:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    finally:
        producer.close()


def write_with_aiokafka(bootstrap: str, topic: str) -> None:
    async def write() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"aiokafka-{topic}")
        await producer.start()
        try:
            for values, commits in SCRIPT:
                await producer.begin_transaction()
                for value in values:
                    await (await producer.send(topic, value, partition=0))
                await (producer.commit_transaction() if commits else producer.abort_transaction())
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(write(), 3 * TIMEOUT_S))


def read_with_confluent(bootstrap: str, topic: str) -> list[bytes]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "unused", "isolation.level": "read_committed"}
    consumer = ck.Consumer(settings | {"fetch.message.max.bytes": 5000})
    values: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    try:
        consumer.assign([ck.TopicPartition(topic, 0, 0)])
        while values[-1:] != COMMITTED[-1:] and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                values.append(message.value())
    finally:
        consumer.close()
    return values


def read_with_kafka_python(bootstrap: str, topic: str) -> list[bytes]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", max_partition_fetch_bytes=5000
    )
    values: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    try:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        while values[-1:] != COMMITTED[-1:] and time.monotonic() < deadline:
            for records in consumer.poll(200).values():
                values += [record.value for record in records]
    finally:
        consumer.close()
    return values


def read_with_aiokafka(bootstrap: str, topic: str) -> list[bytes]:
    async def read() -> list[bytes]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level="read_committed", max_partition_fetch_bytes=5000
        )
        await consumer.start()
        values: list[bytes] = []
        try:
            consumer.assign([AioTopicPartition(topic, 0)])
            await consumer.seek_to_beginning()
            while values[-1:] != COMMITTED[-1:]:
                values.append((await consumer.getone()).value)
        finally:
            await consumer.stop()
        return values

    return asyncio.run(asyncio.wait_for(read(), TIMEOUT_S))


def read_with_flowstone(bootstrap: str, topic: str) -> list[bytes]:
    table = flowstone.read(topic, columns=["value"], read_committed=True, bootstrap=bootstrap)
    return [bytes(value) for value in table["value"].to_pylist()]


def read_with_spark_source(bootstrap: str, topic: str) -> list[bytes]:
    """A micro-batch without its JVM: the driver plans the batch, tasks read it."""
    options = parse_options(
        {
            "kafka.bootstrap.servers": bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "kafka.isolation.level": "read_committed",
        }
    )
    planner = StreamPlanner(options)
    try:
        start: Offsets = planner.initial()
        end = planner.next_end(start, is_limited=False)
        batches = [batch for wanted in planner.ranges(start, end) for batch in read_range(options, wanted)]
    finally:
        planner.close()
    return [bytes(value) for batch in batches for value in batch.column("value").to_pylist()]


WRITERS = [write_with_confluent, write_with_kafka_python, write_with_aiokafka]
READERS = [
    read_with_confluent,
    read_with_kafka_python,
    read_with_aiokafka,
    read_with_flowstone,
    read_with_spark_source,
]


@pytest.mark.parametrize("write", WRITERS, ids=lambda each: each.__name__)
def test_read_committed_consumers_see_what_was_committed_and_nothing_else(
    broker: Broker, write: Callable[[str, str], None]
) -> None:
    topic = f"by-{write.__name__}"
    broker.create_topic(topic, partitions=1)
    write(broker.bootstrap, topic)
    found: dict[str, Any] = {read.__name__: read(broker.bootstrap, topic) for read in READERS}
    assert found == {read.__name__: COMMITTED for read in READERS}
