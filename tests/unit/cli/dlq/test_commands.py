"""`flowstone dlq`, on letters that a share group has left."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import flowstone
from flowstone.cli.common.errors import CommandError
from flowstone.cli.dlq.queue import DeadLetterQueue
from flowstone.cli.dlq.settling import Settling
from tests.unit.cli.conftest import Call, Run

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
    """Writes records to partition 1; the group rejects all that is there, and the letters are waited for."""

    def reject(*values: str, copied: bool = True) -> None:
        call(
            *("share", "alter", f"group-{topic}", "--set"),
            f"errors.deadletterqueue.copy.record.enable={str(copied).lower()}",
        )
        if values:
            producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "log_level": 0})
            for value in values:
                producer.produce(topic, value, f"k-{value}", 1, headers=[("h", "x")])
            assert producer.flush(10) == 0
        before = len(open_letters(call, topic))
        rejected = 0
        with flowstone.Queue(topic, group=f"group-{topic}", bootstrap=broker.bootstrap) as queue:
            while (task := queue.get(20 if not rejected else 0.5)) is not None:
                task.reject("no")
                rejected += 1
        until = time.monotonic() + 10
        while len(open_letters(call, topic)) < before + rejected:
            assert time.monotonic() < until
            time.sleep(0.02)

    return reject


def open_letters(call: Call, topic: str, *options: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in call("dlq", "show", f"dlq.{topic}", "--json", *options).splitlines()]


def written(call: Call, topic: str, offset: int) -> list[dict[str, Any]]:
    """The records of partition 1 from an offset on."""
    lines = call("consume", topic, "--partition", "1", "--offset", offset, "--json").splitlines()
    return [json.loads(line) for line in lines]


def headers_of(record: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in record["headers"]}


def committed(broker: flowstone.Broker, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"flowstone.dlq.dlq.{topic}"})
    [found] = consumer.committed([TopicPartition(f"dlq.{topic}", 0)], timeout=10)
    consumer.close()
    return int(found.offset)


def test_letters_are_counted_by_group_and_source_and_shown_with_their_history(
    call: Call, topic: str, reject: Reject
) -> None:
    reject("a", "b")
    listed = [json.loads(line) for line in call("dlq", "list", "--json").splitlines()]
    assert {"topic": f"dlq.{topic}", "group": f"group-{topic}", "source": topic, "open": 2} in listed
    assert call("dlq", "list", f"dlq.{topic}").splitlines()[1].split() == [f"dlq.{topic}", f"group-{topic}", topic, "2"]
    first, _second = open_letters(call, topic)
    assert (first["origin"], first["group"], first["delivery_count"]) == (f"{topic}/1@0", f"group-{topic}", 1)
    assert (first["key"], first["value"], first["headers"], first["open"]) == ("k-a", "a", [["h", "x"]], True)
    assert first["cause"]
    shown = call("dlq", "show", f"dlq.{topic}/0@1").splitlines()
    assert shown[0] == f"letter dlq.{topic}/0@1"
    assert shown[-1].split() == ["value", "b"]
    assert "only the first 1 letter" in call("dlq", "show", f"dlq.{topic}", "--max", "1")


def test_a_retry_writes_each_letter_back_once_with_its_history(
    call: Call, broker: flowstone.Broker, topic: str, reject: Reject
) -> None:
    reject("a", "b")
    assert call("dlq", "retry", f"dlq.{topic}") == "retried 2 letters\n"
    assert call("dlq", "retry", f"dlq.{topic}") == "retried 0 letters\n"
    assert committed(broker, topic) == 2
    back = written(call, topic, 2)
    assert [(each["partition"], each["key"], each["value"]) for each in back] == [(1, "k-a", "a"), (1, "k-b", "b")]
    headers = headers_of(back[1])
    assert headers.pop("flowstone.retried-cause")
    assert headers == {
        "h": "x",
        "flowstone.retried-from": f"dlq.{topic}/0@1",
        "flowstone.retried-origin": f"{topic}/1@1",
        "flowstone.retried-group": f"group-{topic}",
        "flowstone.retried-count": "1",
    }
    reject()
    assert [each["letter"] for each in open_letters(call, topic)] == [f"dlq.{topic}/0@2", f"dlq.{topic}/0@3"]
    assert json.loads(call("dlq", "retry", f"dlq.{topic}", "--json")) == {"retried": 2, "open": 0, "problems": []}
    last = written(call, topic, 5)[-1]  # a transaction's end marker has an offset, too
    assert [each["value"] for each in last["headers"] if each["name"] == "flowstone.retried-from"] == [
        f"dlq.{topic}/0@1",
        f"dlq.{topic}/0@3",
    ]
    assert headers_of(last)["flowstone.retried-count"] == "2"


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
    assert [each["value"] for each in written(call, topic, 3)] == ["b", "a", "c"]
    assert committed(broker, topic) == 3


def test_a_letter_of_headers_alone_is_retried_from_the_source_if_it_is_there(
    call: Call, run: Run, broker: flowstone.Broker, topic: str, reject: Reject
) -> None:
    reject("a", "b", "c", copied=False)
    assert "only headers were kept" in call("dlq", "show", f"dlq.{topic}/0@1")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.delete_records([TopicPartition(topic, 1, 1)])[TopicPartition(topic, 1)].result()
    result = run("dlq", "retry", f"dlq.{topic}", "--bootstrap", broker.bootstrap)
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1] == "retried 2 letters"
    assert f"{topic}/1@0 is no longer there" in result.stdout
    assert result.stderr.startswith("flowstone: 1 letter cannot be retried and stays open: ")
    back = written(call, topic, 3)
    assert [(each["key"], each["value"]) for each in back] == [("k-b", "b"), ("k-c", "c")]
    assert headers_of(back[0])["h"] == "x"
    assert [each["letter"] for each in open_letters(call, topic)] == [f"dlq.{topic}/0@0"]
    assert call("dlq", "drop", f"dlq.{topic}", "--yes") == "dropped 1 letter\n"
    assert committed(broker, topic) == 3


def test_dropped_letters_are_not_retried(call: Call, refused: Call, topic: str, reject: Reject) -> None:
    reject("a", "b")
    assert "2 letters of" in refused("dlq", "drop", f"dlq.{topic}")
    assert json.loads(call("dlq", "drop", f"dlq.{topic}", "--yes", "--json")) == {"dropped": 2}
    assert call("dlq", "retry", f"dlq.{topic}") == "retried 0 letters\n"
    assert call("dlq", "list", f"dlq.{topic}") == ""
    assert [each["value"] for each in written(call, topic, 0)] == ["a", "b"]


def test_what_is_no_letter_stays_open_with_a_reason(call: Call, refused: Call, broker: flowstone.Broker) -> None:
    name = f"dlq.others-{next(_numbers)}"
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
    assert [each["value"] for each in written(call, topic, 0)] == ["old"]


def test_a_retry_that_is_overtaken_writes_nothing(
    call: Call, broker: flowstone.Broker, topic: str, reject: Reject
) -> None:
    reject("a", "b")
    with (
        DeadLetterQueue(broker.bootstrap, f"dlq.{topic}") as queue,
        Settling(queue, is_retry=True, even_old=False) as overtaken,
    ):
        assert call("dlq", "retry", f"dlq.{topic}/0@1") == "retried 1 letter\n"
        with pytest.raises(CommandError, match="stay open"):
            overtaken.settle(lambda _letter: True)
    assert call("dlq", "retry", f"dlq.{topic}") == "retried 1 letter\n"
    assert [each["value"] for each in written(call, topic, 2)] == ["b", "a"]
