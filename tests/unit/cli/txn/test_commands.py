"""`flowstone txn list`, `describe` and `producers`, at a broker with open and ended transactions of stock producers."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.unit.cli.conftest import Call
from tests.unit.cli.txn.conftest import TIMEOUT_S, Begin


def documents(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def columns(output: str) -> list[list[str]]:
    """The words of each row below the head of a table."""
    return [line.split() for line in output.splitlines()[1:] if line]


def test_all_transactional_ids_are_listed_with_the_age_of_open_transactions(call: Call, begin: Begin) -> None:
    begin("list-open", 0)
    begin("list-ended", 0).commit_transaction(TIMEOUT_S)
    told = {each["transactional_id"]: each for each in documents(call("txn", "list", "--json"))}
    assert told["list-open"]["state"] == "Ongoing"
    assert told["list-open"]["timeout_ms"] == 60_000
    assert 0 <= told["list-open"]["open_seconds"] < TIMEOUT_S
    assert told["list-ended"]["state"] in ("PrepareCommit", "CompleteCommit")
    rows = {row[0]: row for row in columns(call("txn", "list"))}
    assert rows["list-open"][1:4] == ["1", str(told["list-open"]["producer_id"]), "Ongoing"]


def test_filters_leave_transactional_ids_out(call: Call, begin: Begin) -> None:
    begin("filter-open", 0)
    begin("filter-ended", 0).abort_transaction(TIMEOUT_S)

    def names(*filters: object) -> set[str]:
        found = {each["transactional_id"] for each in documents(call("txn", "list", *filters, "--json"))}
        return {name for name in found if name.startswith("filter-")}

    assert names() == {"filter-open", "filter-ended"}
    assert names("--state", "Ongoing") == {"filter-open"}
    assert names("--pattern", "filter-e.*") == {"filter-ended"}
    assert names("--open-for", 0) == {"filter-open"}
    assert names("--open-for", 3600) == set()
    (described,) = documents(call("txn", "describe", "filter-open", "--json"))
    assert names("--producer-id", described["producer_id"]) == {"filter-open"}


def test_a_filter_that_cannot_be_one_is_told(refused: Call) -> None:
    assert "--state Onging: the broker knows no such state" in refused("txn", "list", "--state", "Onging")
    assert "--pattern (a: that is not a regular expression" in refused("txn", "list", "--pattern", "(a")


def test_a_description_says_where_the_transaction_begins_and_when_it_is_aborted(
    call: Call, begin: Begin, topic: str
) -> None:
    begin("described", 1, 0)
    (told,) = documents(call("txn", "describe", "described", "--json"))
    assert told["partitions"] == [
        {"topic": topic, "partition": 0, "first_offset": 0},
        {"topic": topic, "partition": 1, "first_offset": 0},
    ]
    assert (told["state"], told["coordinator"], told["timeout_ms"]) == ("Ongoing", 1, 60_000)
    assert 0 < told["seconds_left"] <= 60
    text = call("txn", "describe", "described")
    assert text.startswith("transactional id described: Ongoing\n")
    assert f"producer {told['producer_id']}, epoch {told['producer_epoch']}, coordinator broker 1" in text
    assert "in 2 partitions" in text
    assert "if the producer does not end it (timeout 60.0 s)" in text


def test_an_ended_transaction_has_no_age_and_no_partitions(call: Call, begin: Begin) -> None:
    begin("over", 0).abort_transaction(TIMEOUT_S)
    while True:  # until the markers are written
        (told,) = documents(call("txn", "describe", "over", "--json"))
        if told["state"] != "PrepareAbort":
            break
    assert told["state"] == "CompleteAbort"
    assert (told["open_seconds"], told["seconds_left"], told["partitions"]) == (None, None, [])


def test_an_unknown_transactional_id_is_told(refused: Call) -> None:
    assert refused("txn", "describe", "nobody") == (
        "flowstone: there is no transactional id nobody: see `flowstone txn list`\n"
    )


def test_the_producers_of_a_partition_are_told_with_their_transactional_ids(
    call: Call, begin: Begin, topic: str
) -> None:
    begin("writes", 0)
    begin("wrote", 0).commit_transaction(TIMEOUT_S)

    def producers() -> dict[str, dict[str, Any]]:
        found = documents(call("txn", "producers", f"{topic}/0", "--json"))
        return {each["transactional_id"]: each for each in found}

    told, ends = producers(), time.monotonic() + TIMEOUT_S
    while told["wrote"]["transaction_start_offset"] is not None and time.monotonic() < ends:
        told = producers()  # a commit is answered before its end markers are written
    assert told["writes"]["transaction_start_offset"] == 0
    assert told["wrote"]["transaction_start_offset"] is None
    assert told["wrote"]["coordinator_epoch"] >= 0
    assert told["writes"]["last_timestamp_ms"] > 0
    assert f"{topic}/0@0" in call("txn", "producers", f"{topic}/0")
    assert call("txn", "producers", f"{topic}/1") == ""


def test_a_partition_that_is_not_there_is_told(refused: Call, topic: str) -> None:
    assert f"{topic} has no partition 9: its partitions are 0 to 1" in refused("txn", "producers", f"{topic}/9")
    assert "there is no topic nothing" in refused("txn", "producers", "nothing/0")
    assert "expected TOPIC/PARTITION, such as orders/0" in refused("txn", "producers", topic)
