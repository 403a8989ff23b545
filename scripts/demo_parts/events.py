"""The demo's events: writing them to topics, reading them, and checking that none is missing."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from scripts.demo_parts.broker import PARTITIONS, client_config

from flowstone.cli.records.event_streams import Event, generate

ROWS = {"orders": 100_000, "clicks": 60_000, "devices": 40_000}
SPAN_S = 3600
SEED = 6
TIMEOUT_S = 60


class Sum:
    """A count and a checksum of records that do not depend on their order."""

    def __init__(self) -> None:
        self.records = 0
        self.checksum = 0

    def add(self, key: bytes, value: bytes) -> None:
        self.records += 1
        self.checksum = (self.checksum + zlib.crc32(value, zlib.crc32(key))) % 2**64

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sum) and (self.records, self.checksum) == (other.records, other.checksum)

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"{self.records:,} records, checksum {self.checksum:016x}"


class Produced(NamedTuple):
    sent: Sum
    acknowledged: Sum
    size_bytes: int
    took_s: float


def events(topic: str, start_ms: int) -> Iterator[Event]:
    """Yield an hour of events for a topic; the same arguments give the same events."""
    rows = ROWS[topic]
    return generate(topic, rows, start_ms=start_ms, per_second=rows / SPAN_S, seed=SEED)


def produce(address: str, start_ms: int) -> Produced:
    """Write every event of every topic with acks=all."""
    sent, acknowledged = Sum(), Sum()

    def on_delivery(error: object, message: Message) -> None:
        if error is None:
            acknowledged.add(_bytes(message.key()), _bytes(message.value()))

    producer = Producer(
        {
            **client_config(address),
            "acks": "all",
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 10,
            "on_delivery": on_delivery,
        }
    )
    begun, size_bytes = time.perf_counter(), 0
    for topic in ROWS:
        for key, value, timestamp_ms in events(topic, start_ms):
            while True:
                try:
                    producer.produce(topic, value, key, timestamp=timestamp_ms)
                    break
                except BufferError:
                    producer.poll(0.1)
            sent.add(key, value)
            size_bytes += len(value)
            if sent.records % 1000 == 0:
                producer.poll(0)
    producer.flush(TIMEOUT_S)
    return Produced(sent, acknowledged, size_bytes, time.perf_counter() - begun)


@contextmanager
def open_consumer(address: str) -> Iterator[Consumer]:
    consumer = Consumer({**client_config(address), "group.id": "demo", "enable.auto.commit": False})
    try:
        yield consumer
    finally:
        consumer.close()


def end_offsets(consumer: Consumer, topic: str) -> dict[int, int]:
    bounds = {each: consumer.get_watermark_offsets(TopicPartition(topic, each), 10) for each in range(PARTITIONS)}
    return {each: end for each, (_first, end) in bounds.items()}


def read(consumer: Consumer, topic: str, starts: dict[int, int], total: Sum) -> list[int]:
    """Read from the given offsets to the end, add the records to `total`, and return their timestamps."""
    ends = end_offsets(consumer, topic)
    left = {each for each, start in starts.items() if start < ends[each]}
    times = list[int]()
    deadline = time.perf_counter() + TIMEOUT_S
    consumer.assign([TopicPartition(topic, each, starts[each]) for each in left])
    while left and time.perf_counter() < deadline:
        for message in consumer.consume(10_000, 1):
            error, partition, offset = message.error(), message.partition(), message.offset()
            if error is not None:
                raise KafkaException(error)
            assert partition is not None
            assert offset is not None
            total.add(_bytes(message.key()), _bytes(message.value()))
            times.append(message.timestamp()[1])
            if offset == ends[partition] - 1:
                left.discard(partition)
    return times


def read_everything(address: str) -> tuple[Sum, float]:
    total, begun = Sum(), time.perf_counter()
    with open_consumer(address) as consumer:
        for topic in ROWS:
            read(consumer, topic, dict.fromkeys(range(PARTITIONS), 0), total)
    return total, time.perf_counter() - begun


def offsets_at(consumer: Consumer, topic: str, time_ms: int) -> dict[int, int]:
    asked = [TopicPartition(topic, each, time_ms) for each in range(PARTITIONS)]
    return {each.partition: each.offset for each in consumer.offsets_for_times(asked, timeout=10)}


def _bytes(data: str | bytes | None) -> bytes:
    assert isinstance(data, bytes)
    return data
