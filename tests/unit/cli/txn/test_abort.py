"""`flowstone txn abort`: what it ends, and what it refuses to end."""

from __future__ import annotations

import json
from collections.abc import Callable

import flowstone
from tests.support.running_app import RunningApp
from tests.unit.cli.conftest import Call
from tests.unit.cli.terminal import Terminal
from tests.unit.cli.txn.conftest import TIMEOUT_S, Begin, Plant

OpenTerminal = Callable[..., Terminal]
PRODUCER, OTHER = 91_001, 91_002


def committed(broker: flowstone.Broker, topic: str) -> list[str]:
    """What a read_committed reader sees up to the last stable offset."""
    table = flowstone.read(topic, columns=["value"], read_committed=True, bootstrap=broker.bootstrap)
    return [bytes(value).decode() for value in table["value"].to_pylist()]


def test_readers_go_on_after_a_hanging_transaction_is_aborted(
    call: Call, plant: Plant, broker: flowstone.Broker, topic: str
) -> None:
    plant(PRODUCER, b"hanging").write_plain(b"plain")
    assert committed(broker, topic) == []
    told = call("txn", "abort", f"{topic}/0@0", "--yes")
    assert told == f"aborted the transaction of producer {PRODUCER} that begins at {topic}/0@0\n"
    assert committed(broker, topic) == ["plain"]


def test_a_producer_id_alone_names_its_transactions_everywhere(call: Call, plant: Plant, topic: str) -> None:
    plant(OTHER)
    (told,) = json.loads(call("txn", "abort", "--producer-id", OTHER, "--yes", "--json"))["aborted"]
    assert (told["topic"], told["partition"], told["producer_id"]) == (topic, 0, OTHER)
    assert json.loads(call("txn", "producers", f"{topic}/0", "--json"))["transaction_start_offset"] is None


def test_a_place_and_a_producer_together_name_one_transaction(
    call: Call, refused: Call, plant: Plant, topic: str
) -> None:
    plant(PRODUCER).write(OTHER, b"x")
    told = refused("txn", "abort", f"{topic}/0", "--producer-id", 5, "--yes")
    assert (
        f"producer 5 has no open transaction in {topic}/0: open there are {topic}/0@0 (producer {PRODUCER}), " in told
    )
    call("txn", "abort", f"{topic}/0", "--producer-id", OTHER, "--yes")
    left = [json.loads(each) for each in call("txn", "producers", f"{topic}/0", "--json").splitlines()]
    assert [each["producer_id"] for each in left if each["transaction_start_offset"] is not None] == [PRODUCER]


def test_what_does_not_begin_there_is_told_with_what_does(refused: Call, plant: Plant, topic: str) -> None:
    assert refused("txn", "abort", f"{topic}/0@0", "--yes") == (
        f"flowstone: there is no open transaction in {topic}/0 that begins at offset 0: no producer has one there\n"
    )
    plant(PRODUCER)
    assert f"open there are {topic}/0@0 (producer {PRODUCER})" in refused("txn", "abort", f"{topic}/0@1", "--yes")
    assert "name the transaction" in refused("txn", "abort", f"{topic}/0", "--yes")


def test_without_a_terminal_nothing_is_aborted_unless_yes_is_given(
    refused: Call, call: Call, plant: Plant, topic: str
) -> None:
    plant(PRODUCER)
    assert refused("txn", "abort", f"{topic}/0@0").endswith("; use --yes to confirm\n")
    assert json.loads(call("txn", "producers", f"{topic}/0", "--json"))["transaction_start_offset"] == 0


def test_on_a_terminal_the_answer_decides(terminal: OpenTerminal, plant: Plant, topic: str) -> None:
    plant(PRODUCER)
    for answer, status in (("n", 1), ("y", 0)):
        screen = terminal("txn", "abort", f"{topic}/0@0")
        screen.wait_for("Go on? [y/N]")
        screen.type(f"{answer}\n")
        assert screen.end() == status
    assert "aborted the transaction" in screen.text


def test_a_transaction_that_its_coordinator_has_open_is_only_aborted_by_force(
    refused: Call, call: Call, begin: Begin, topic: str, app: RunningApp
) -> None:
    begin("alive", 0)
    told = refused("txn", "abort", f"{topic}/0@0", "--yes")
    assert "the transaction of alive does not hang: its coordinator, broker 1, has it open (Ongoing)" in told
    assert "--force aborts it" in told
    assert "aborted the transaction" in call("txn", "abort", f"{topic}/0@0", "--force", "--yes")
    undecided = app.call(lambda: app.app.services.partitions.get(topic, 0).log.producers.open_transactions())
    assert undecided == []


def test_a_producer_that_goes_on_after_a_forced_abort_can_still_abort(call: Call, begin: Begin, topic: str) -> None:
    producer = begin("goes-on", 0)
    call("txn", "abort", f"{topic}/0@0", "--force", "--yes")
    producer.abort_transaction(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"after", partition=0)
    producer.commit_transaction(TIMEOUT_S)
