"""Queues, partitions and single letters by their names."""

from __future__ import annotations

from confluent_kafka import Producer

import flowstone
from tests.unit.cli.conftest import Call
from tests.unit.cli.dlq.conftest import Reject, committed, open_letters, values


def test_one_letter_is_retried_and_the_others_stay_open(
    call: Call, refused: Call, broker: flowstone.Broker, topic: str, reject: Reject
) -> None:
    reject("a", "b", "c")
    assert call("dlq", "retry", f"dlq.{topic}/0@1") == "retried 1 letter\n"
    assert "no open letter" in refused("dlq", "retry", f"dlq.{topic}/0@1")
    assert "no open letter" in refused("dlq", "retry", f"dlq.{topic}/0@9")
    assert "no letter" in refused("dlq", "show", f"dlq.{topic}/0@9")
    assert [each["value"] for each in open_letters(call, topic)] == ["a", "c"]
    assert [each["open"] for each in open_letters(call, topic, "--all")] == [True, False, True]
    assert call("dlq", "retry", f"dlq.{topic}", "--group", "other") == "retried 0 letters\n"
    assert call("dlq", "retry", f"dlq.{topic}/0", "--group", f"group-{topic}") == "retried 2 letters\n"
    assert values(broker, topic, 3) == [b"b", b"a", b"c"]
    assert committed(broker, topic) == 3


def test_what_is_no_letter_stays_open_with_a_reason(call: Call, refused: Call, broker: flowstone.Broker) -> None:
    name = "dlq.others"
    call("topic", "create", name)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "log_level": 0})
    origin = {"__dlq.errors.partition": "0", "__dlq.errors.offset": "5"}
    for headers in (
        {},
        {"__dlq.errors.topic": "gone", **origin},
        {"__dlq.errors.topic": "__consumer_offsets", **origin},
    ):
        producer.produce(name, "v", headers=headers)
    assert producer.flush(10) == 0
    told = refused("dlq", "retry", name)
    assert "3 letters cannot be retried and stay open: its headers do not say where it comes from" in told
    assert [each.split()[1:] for each in call("dlq", "list", name).splitlines()[1:]] == [
        ["-", "-", "1"],
        ["-", "__consumer_offsets", "1"],
        ["-", "gone", "1"],
    ]
    assert "there is no topic" in refused("dlq", "list", "nowhere")
    assert "expected TOPIC/PARTITION" in refused("dlq", "show", f"{name}/x")
    assert "has no partition 7" in refused("dlq", "show", f"{name}/7")
