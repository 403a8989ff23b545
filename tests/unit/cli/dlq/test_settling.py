"""What is settled, by one retry after the other and by two at once."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer

import flowstone
from flowstone.cli.common.errors import CommandError
from flowstone.cli.dlq.queue import DeadLetterQueue
from flowstone.cli.dlq.settling import Settling
from tests.unit.cli.conftest import Call
from tests.unit.cli.dlq.conftest import Reject, values


def test_a_retry_that_is_overtaken_writes_nothing(
    call: Call, broker: flowstone.Broker, topic: str, reject: Reject, capfd: pytest.CaptureFixture[str]
) -> None:
    reject("a", "b")
    with (
        DeadLetterQueue(broker.bootstrap, f"dlq.{topic}") as queue,
        Settling(queue, is_retry=True, even_old=False) as overtaken,
    ):
        assert call("dlq", "retry", f"dlq.{topic}/0@1") == "retried 1 letter\n"
        with pytest.raises(CommandError, match="another retry or drop"):
            overtaken.settle(lambda _letter: True)
    assert capfd.readouterr().err == ""
    assert call("dlq", "retry", f"dlq.{topic}") == "retried 1 letter\n"
    assert values(broker, topic, 2) == [b"b", b"a"]


def test_letters_older_than_brokers_remember_are_only_retried_if_told(
    call: Call, refused: Call, broker: flowstone.Broker, topic: str
) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "log_level": 0})
    headers = {f"__dlq.errors.{name}": value for name, value in (("topic", topic), ("partition", "1"), ("offset", "0"))}
    week_ago_ms = int((time.time() - 7 * 86_400 - 60) * 1000)
    producer.produce(f"dlq.{topic}", "old", headers=headers, timestamp=week_ago_ms)
    assert producer.flush(10) == 0
    assert "--even-old" in refused("dlq", "retry", f"dlq.{topic}")
    assert call("dlq", "retry", f"dlq.{topic}", "--even-old") == "retried 1 letter\n"
    assert call("dlq", "retry", f"dlq.{topic}") == "retried 0 letters\n"
    assert values(broker, topic, 0) == [b"old"]
