"""A client process that produces and consumes with confluent-kafka (librdkafka).

The library is imported only in that process, so its threads are never forked. When both cores are busy, the client's
own cost limits the throughput of both brokers equally: also look at the broker's CPU per GB.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Any

from bench.load import PHASE_TIMEOUT_SECONDS, Figures, Phase, measure
from bench.topics import RoundFailed, Target, fresh_topic

PARTITIONS = 4
DISTINCT_VALUES = 1_000
QUEUE_RECORDS_MAX = 1_000_000
CONSUME_RECORDS_MAX = 10_000
CONSUME_WAIT_SECONDS = 1.0
POLL_WAIT_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """The load of one client process; gigabytes count values before compression."""

    value_bytes: int
    compression: str
    acks: int
    records: int

    @property
    def total_bytes(self) -> int:
        return self.records * self.value_bytes


def run_round(target: Target, load: ClientLoad) -> Figures:
    with fresh_topic(target, PARTITIONS) as topic:
        return measure(target, partial(work, target.address, load, topic), 1, load.total_bytes)


def work(address: str, load: ClientLoad, topic: str, pipe: Pipe[Any, Any], _index: int) -> None:
    try:
        # Hexadecimal text: like most records it compresses, here to about half.
        values = [os.urandom(load.value_bytes // 2).hex().encode() for _ in range(DISTINCT_VALUES)]
        pipe.send(None)
        pipe.recv()
        pipe.send(_produce(address, load, topic, values))
        pipe.recv()
        pipe.send(_consume(address, load, topic))
    except Exception as error:  # report any error to the parent process
        pipe.send(f"{type(error).__name__}: {error}")


def _produce(address: str, load: ClientLoad, topic: str, values: Sequence[bytes]) -> Phase:
    from confluent_kafka import Producer

    refused: list[object] = []
    settings = {
        "bootstrap.servers": address,
        "acks": load.acks,
        "compression.type": load.compression,
        "queue.buffering.max.messages": QUEUE_RECORDS_MAX,
        "delivery.report.only.error": True,
        "on_delivery": lambda error, _record: refused.append(error),
    }
    producer = Producer(settings)
    started = time.monotonic()
    for number in range(load.records):
        value = values[number % DISTINCT_VALUES]
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(POLL_WAIT_SECONDS)
            if time.monotonic() > started + PHASE_TIMEOUT_SECONDS:
                raise RoundFailed("the client's queue stayed full")
    left = producer.flush(PHASE_TIMEOUT_SECONDS)
    ended = time.monotonic()
    if refused or left:
        raise RoundFailed(f"{len(refused)} records were refused and {left} not answered: {refused[:1]}")
    return Phase(started, ended)


def _consume(address: str, load: ClientLoad, topic: str) -> Phase:
    """Read every partition from its beginning, and check that every offset arrives in order."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False})
    started = time.monotonic()
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    expected = [0] * PARTITIONS
    left = load.records
    while left > 0:
        for record in consumer.consume(CONSUME_RECORDS_MAX, CONSUME_WAIT_SECONDS):
            partition, offset = record.partition(), record.offset()
            if record.error() is not None or partition is None or offset is None:
                raise RoundFailed(f"consuming {topic}: {record.error()}")
            if offset != expected[partition]:
                raise RoundFailed(f"{topic}-{partition}: expected offset {expected[partition]}, got {offset}")
            expected[partition] = offset + 1
            left -= 1
        if time.monotonic() > started + PHASE_TIMEOUT_SECONDS:
            raise RoundFailed(f"{left} records were not consumed after {PHASE_TIMEOUT_SECONDS} s")
    ended = time.monotonic()
    consumer.close()
    return Phase(started, ended)
