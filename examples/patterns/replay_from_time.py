"""Replay from a time: the log keeps records that were read, so a group can be moved back to any time.

The topic contains readings of three hours, and a group has read them all. The last hour was processed with a bug: the
group is moved back to the start of that hour and reads exactly that hour again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from examples.patterns import stage

PARTITIONS = 2
HOUR_MS = 3_600_000
READINGS_PER_HOUR = 6


@dataclass(frozen=True)
class Result:
    at_first: list[str]
    again: list[str]


def produce_readings(bootstrap: str, topic: str, now_ms: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for hour in (3, 2, 1):
        for number in range(READINGS_PER_HOUR):
            at_ms = now_ms - hour * HOUR_MS + number * HOUR_MS // READINGS_PER_HOUR
            value = f"{hour} h ago, reading {number}"
            producer.produce(topic, value, partition=number % PARTITIONS, timestamp=at_ms)
    producer.flush(stage.TIMEOUT_S)


def read(consumer: Consumer, topic: str, count: int) -> list[str]:
    consumer.subscribe([topic])
    messages = stage.take(consumer, count)
    consumer.commit(asynchronous=False)
    return sorted(message.value().decode() for message in messages)


def set_back(consumer: Consumer, topic: str, to_ms: int) -> None:
    """Commit, for each partition, the offset of its first record at or after a time. The group must be empty."""
    wanted = [TopicPartition(topic, partition, to_ms) for partition in range(PARTITIONS)]
    found = consumer.offsets_for_times(wanted, timeout=stage.TIMEOUT_S)
    for each in found:
        if each.offset == OFFSET_END:  # no record is that late in this partition: continue at its end
            _first, each.offset = consumer.get_watermark_offsets(each, timeout=stage.TIMEOUT_S)
    consumer.commit(offsets=found, asynchronous=False)


def run(bootstrap: str) -> Result:
    topic = stage.new_topic(bootstrap, "readings", partitions=PARTITIONS)
    now_ms = int(time.time() * 1000)
    produce_readings(bootstrap, topic, now_ms)
    group = {
        "bootstrap.servers": bootstrap,
        "group.id": f"readers-of-{topic}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **stage.QUICK,
    }
    with Consumer(group) as consumer:
        at_first = read(consumer, topic, 3 * READINGS_PER_HOUR)
    print(f"read {len(at_first)} records, to the end")

    with Consumer(group) as operator:  # not subscribed: it is no member, and only moves the offsets
        set_back(operator, topic, now_ms - HOUR_MS)
    with Consumer(group) as consumer:
        again = read(consumer, topic, READINGS_PER_HOUR)
    print(f"set back by an hour, read {len(again)} again: from {again[0]!r} to {again[-1]!r}")
    return Result(at_first, again)


if __name__ == "__main__":
    stage.main(run)
