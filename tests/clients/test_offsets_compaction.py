"""The topic of committed offsets is compacted like any other: it stays small, and a restart finds every last commit."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from flowstone.embedded import Broker

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": str(1 << 20),
    "log.cleaner.backoff.ms": "20",
    "log.segment.delete.delay.ms": "0",
}
COMMITS, NOTE = 1000, "n" * 4000
COMPACTED_TIMEOUT_S = 30


def test_commits_are_compacted_and_the_last_ones_are_kept(tmp_path: Path) -> None:
    committed = TopicPartition("orders", 0, COMMITS)
    with Broker(data=str(tmp_path), settings=SETTINGS) as broker:
        broker.create_topic("orders")
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "billing"})
        for offset in range(1, COMMITS + 1):
            consumer.commit(offsets=[TopicPartition("orders", 0, offset, NOTE)], asynchronous=False)
        consumer.close()
        deadline = time.monotonic() + COMPACTED_TIMEOUT_S
        while stored_bytes(tmp_path) > COMMITS * len(NOTE) // 2:
            assert time.monotonic() < deadline, "it was not compacted"
            time.sleep(0.05)
    with Broker(data=str(tmp_path), settings=SETTINGS) as broker:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "billing"})
        assert consumer.committed([TopicPartition("orders", 0)], timeout=20)[0].offset == committed.offset
        consumer.close()


def stored_bytes(data: Path) -> int:
    return sum(path.stat().st_size for path in data.glob("__consumer_offsets-0/*.log"))
