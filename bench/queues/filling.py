"""Fills a topic of one partition with records for a queue benchmark."""

from __future__ import annotations

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

VALUE = b"v" * 100
FLUSH_SECONDS = 60
KEYS = 10_000


def fill(address: str, topic: str, records: int) -> None:
    """Create the topic and produce records of 100 bytes with 10,000 different keys."""
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])[topic].result()
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "queue.buffering.max.messages": 2_000_000})
    for number in range(records):
        producer.produce(topic, VALUE, key=b"%d" % (number % KEYS))
    if producer.flush(FLUSH_SECONDS):
        raise SystemExit(f"{address}: not all records were produced")
