"""A topic with a dead letter queue, and letters that a share group has left there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import flowstone
from flowstone.embedded.host import Record
from tests.unit.cli.conftest import Call

_numbers = count()

Reject = Callable[..., None]


@pytest.fixture
def topic(call: Call) -> str:
    """A topic of two partitions, with a dead letter queue that a group of its own names."""
    name = f"jobs-{next(_numbers)}"
    call("topic", "create", name, "--partitions", "2")
    call("topic", "create", f"dlq.{name}", "--config", "errors.deadletterqueue.group.enable=true")
    call("share", "alter", f"group-{name}", "--set", f"errors.deadletterqueue.topic.name=dlq.{name}")
    call("share", "alter", f"group-{name}", "--set", "errors.deadletterqueue.copy.record.enable=true")
    return name


@pytest.fixture
def reject(broker: flowstone.Broker, call: Call, topic: str) -> Reject:
    """Writes records to partition 1; the group rejects them, or as many others, and the letters are waited for."""

    def reject(*values: str, others: int = 0, copied: bool = True) -> None:
        if not copied:
            call("share", "alter", f"group-{topic}", "--unset", "errors.deadletterqueue.copy.record.enable")
        if values:
            producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "log_level": 0})
            for value in values:
                producer.produce(topic, value, f"k-{value}", 1, headers=[("h", "x")])
            assert producer.flush(10) == 0
        expected = len(open_letters(call, topic)) + len(values) + others
        with flowstone.Queue(topic, group=f"group-{topic}", bootstrap=broker.bootstrap) as queue:
            for _ in range(len(values) + others):
                task = queue.get(20)
                assert task is not None
                task.reject("no")
        until = time.monotonic() + 10
        while len(open_letters(call, topic)) < expected:
            assert time.monotonic() < until
            time.sleep(0.02)

    return reject


def open_letters(call: Call, topic: str, *options: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in call("dlq", "show", f"dlq.{topic}", "--json", *options).splitlines()]


def written(broker: flowstone.Broker, topic: str, offset: int) -> list[Record]:
    """The records of partition 1 from an offset on, as a reader sees them that waits for transactions."""
    found = broker.records(topic, read_committed=True)
    return [each for each in found if each.partition == 1 and each.offset >= offset]


def values(broker: flowstone.Broker, topic: str, offset: int) -> list[bytes | None]:
    return [each.value for each in written(broker, topic, offset)]


def committed(broker: flowstone.Broker, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"flowstone.dlq.dlq.{topic}"})
    [found] = consumer.committed([TopicPartition(f"dlq.{topic}", 0)], timeout=10)
    consumer.close()
    return int(found.offset)
