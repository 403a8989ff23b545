"""`flowstone txn find-hanging`: transactions that no coordinator knows, and none that one knows."""

from __future__ import annotations

import json

from tests.unit.cli.conftest import Call
from tests.unit.cli.txn.conftest import Begin, Plant

PRODUCER = 90_001
AT_ONCE = ("--max-transaction-timeout", 0)


def test_a_transaction_that_no_coordinator_knows_hangs(call: Call, plant: Plant, topic: str) -> None:
    plant(PRODUCER, b"a", b"b", epoch=3)
    (line,) = call("txn", "find-hanging", "--topic", topic, *AT_ONCE, "--json").splitlines()
    told = json.loads(line)
    assert (told["topic"], told["partition"], told["start_offset"]) == (topic, 0, 0)
    assert (told["producer_id"], told["producer_epoch"], told["transactional_id"]) == (PRODUCER, 3, None)
    text = call("txn", "find-hanging", "--topic", topic, "--partition", 0, *AT_ONCE)
    assert f"1 transaction found; `flowstone txn abort {topic}/0@0` ends the first" in text


def test_a_young_transaction_does_not_hang(call: Call, plant: Plant, topic: str) -> None:
    plant(PRODUCER)
    assert call("txn", "find-hanging", "--topic", topic) == ""
    assert call("txn", "find-hanging", "--topic", topic, "--partition", 1, *AT_ONCE) == ""


def test_a_transaction_that_its_coordinator_has_open_does_not_hang(call: Call, begin: Begin, topic: str) -> None:
    begin("at-work", 0)
    assert call("txn", "find-hanging", "--topic", topic, *AT_ONCE) == ""


def test_all_partitions_of_a_broker_are_searched(call: Call, plant: Plant, topic: str) -> None:
    plant(PRODUCER)
    found = [json.loads(line) for line in call("txn", "find-hanging", "--broker", 1, *AT_ONCE, "--json").splitlines()]
    assert topic in {each["topic"] for each in found}
    everywhere = call("txn", "find-hanging", *AT_ONCE, "--json").splitlines()
    assert len(everywhere) == len(found)


def test_a_broker_that_is_not_alive_and_a_partition_without_topic_are_told(refused: Call) -> None:
    assert "broker 7 is not alive: those that are: 1" in refused("txn", "find-hanging", "--broker", 7)
    assert "--partition needs --topic" in refused("txn", "find-hanging", "--partition", 0)
