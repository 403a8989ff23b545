"""The records that all systems read, written once per broker, and the check that a topic is complete."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from confluent_kafka import Consumer, Producer, TopicPartition

from bench import topics
from bench.connection import Connection
from bench.servers import Server
from bench.topics import RoundFailed

PARTITIONS = 4
DIFFERENT_VALUES = 1_000
TIMEOUT_S = 120
# Large enough to fill batches: what is read must not depend on the speed of writing.
PRODUCER = {"linger.ms": 50, "batch.size": 1_000_000, "batch.num.messages": 100_000, "acks": 1}


def values(size_bytes: int) -> list[bytes]:
    """Return values of random words, which lz4 compresses to half, like JSON."""
    random = Random(size_bytes)
    words = [f"{random.getrandbits(32):08x} " for _ in range(256)]
    return [
        "".join(random.choices(words, k=size_bytes // 9 + 1))[:size_bytes].encode() for _ in range(DIFFERENT_VALUES)
    ]


def fill(server: Server, topic: str, size_bytes: int, count: int, compression: str) -> None:
    """Fill a new topic with records without keys, spread over its partitions.

    Raises RoundFailed if one is not stored.
    """
    with Connection(server.address) as admin:
        topics.create(admin, topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": server.address, "compression.type": compression, **PRODUCER})
    chosen = values(size_bytes)
    for number in range(count):
        while True:
            try:
                producer.produce(topic, chosen[number % len(chosen)], partition=number % PARTITIONS)
                break
            except BufferError:  # its queue is full
                producer.poll(0.1)
    producer.flush(TIMEOUT_S)
    check(server, topic, count)


def check(server: Server, topic: str, count: int) -> None:
    """Raise RoundFailed if the topic does not have that many records."""
    with Consumer({"bootstrap.servers": server.address, "group.id": "bench-check"}) as consumer:
        stored = sum(_end(consumer, TopicPartition(topic, number)) for number in range(PARTITIONS))
    if stored != count:
        raise RoundFailed(f"{topic} on {server.name} has {stored} records, not {count}")


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    bounds: Sequence[int] | None = consumer.get_watermark_offsets(partition, timeout=TIMEOUT_S)
    if bounds is None:
        raise RoundFailed(f"no offsets of {partition} within {TIMEOUT_S} s")
    return bounds[1]
