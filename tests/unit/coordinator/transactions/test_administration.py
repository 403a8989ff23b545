"""What operators are told of transactions: one of them in full, and which ones a list has."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.coordinator.transactions.config import TransactionConfig
from flowstone.coordinator.transactions.messages import (
    AddPartitionsRequest,
    DescribedTransaction,
    EndTransactionRequest,
    InitProducerIdRequest,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    SendMarkers,
)
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from tests.unit.coordinator.transactions.harness import START_MS, Coordinator

PLACES = tuple(TopicPartition("t", index) for index in range(2))


class Shard:
    """A coordinator with an empty transaction, one under way since second 1, and one that is being committed."""

    def __init__(self) -> None:
        self.replies: list[Any] = []
        self.tasks: list[SendMarkers] = []
        self.coordinator = Coordinator(
            TransactionConfig(), lambda _, reply: self.replies.append(reply), self.tasks.append
        )
        self.ids = {name: self._init(name) for name in ("empty", "ongoing", "deciding")}
        self.coordinator.now_ms = START_MS + 1000
        self._add("ongoing")
        self.coordinator.now_ms = START_MS + 2000
        self._add("deciding")
        self.ask("end_transaction", EndTransactionRequest("deciding", self.ids["deciding"], 0, True))
        self.coordinator.now_ms = START_MS + 5000

    def ask(self, method: str, request: Any) -> Any:
        machine = self.coordinator
        machine.take(getattr(machine.shard, method)(machine.now_ms, None, request))
        return self.replies[-1]

    def _init(self, name: str) -> int:
        producer_id: int = self.ask("init_producer_id", InitProducerIdRequest(name, 60_000)).producer_id
        return producer_id

    def _add(self, name: str) -> None:
        request = AddPartitionsRequest(name, self.ids[name], 0, frozenset(PLACES))
        assert self.ask("add_partitions", request).error_code is ErrorCode.NONE

    def listed(self, **filters: Any) -> list[str]:
        response = self.ask("list_transactions", ListTransactionsRequest(**filters))
        assert response.error_code is ErrorCode.NONE
        return sorted(each.transactional_id for each in response.transactions)


@pytest.fixture
def shard() -> Shard:
    return Shard()


def test_a_transaction_is_described_in_full(shard: Shard) -> None:
    assert shard.ask("describe_transaction", "ongoing") == DescribedTransaction(
        "ongoing",
        state="Ongoing",
        timeout_ms=60_000,
        start_ms=START_MS + 1000,
        producer_id=shard.ids["ongoing"],
        producer_epoch=0,
        partitions=PLACES,
    )
    empty = shard.ask("describe_transaction", "empty")
    assert (empty.state, empty.start_ms, empty.partitions) == ("Empty", -1, ())


def test_of_a_transaction_that_is_decided_the_partitions_without_a_marker_are_described(shard: Shard) -> None:
    (task,) = shard.tasks
    assert shard.ask("describe_transaction", "deciding").partitions == PLACES
    machine = shard.coordinator
    machine.take(machine.shard.markers_written(machine.now_ms, task, PLACES[:1]))
    described = shard.ask("describe_transaction", "deciding")
    assert (described.state, described.partitions) == ("PrepareCommit", PLACES[1:])
    machine.take(machine.shard.markers_written(machine.now_ms, task, PLACES[1:]))
    described = shard.ask("describe_transaction", "deciding")
    assert (described.state, described.partitions) == ("CompleteCommit", ())


@pytest.mark.parametrize(
    ("name", "code"), [("nowhere", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND), ("", ErrorCode.INVALID_REQUEST)]
)
def test_an_id_that_does_not_exist_cannot_be_described(shard: Shard, name: str, code: ErrorCode) -> None:
    assert shard.ask("describe_transaction", name) == DescribedTransaction(name, code)


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({}, ["deciding", "empty", "ongoing"]),
        ({"states": ("Ongoing", "PrepareCommit")}, ["deciding", "ongoing"]),
        ({"states": ("Empty",)}, ["empty"]),
        ({"states": ("Nonsense",)}, []),
        ({"states": ("Dead",)}, []),
        ({"pattern": "e.*|o.*"}, ["empty", "ongoing"]),
        ({"pattern": ""}, ["deciding", "empty", "ongoing"]),
        ({"duration_ms": -1}, ["deciding", "empty", "ongoing"]),
        ({"duration_ms": 0}, ["deciding", "empty", "ongoing"]),
        ({"duration_ms": 2999}, ["deciding", "empty", "ongoing"]),
        ({"duration_ms": 3000}, ["empty", "ongoing"]),
        ({"duration_ms": 3999}, ["empty", "ongoing"]),
        ({"duration_ms": 4000}, ["empty"]),
        ({"duration_ms": 4000, "states": ("Ongoing",)}, []),
    ],
)
def test_a_list_has_the_transactions_that_pass_every_filter(
    shard: Shard, filters: dict[str, Any], names: list[str]
) -> None:
    assert shard.listed(**filters) == names


def test_a_list_can_be_limited_to_producers(shard: Shard) -> None:
    assert shard.listed(producer_ids=(shard.ids["empty"], shard.ids["ongoing"], 999)) == ["empty", "ongoing"]
    assert shard.listed(producer_ids=(999,)) == []


def test_a_list_names_each_transaction_with_its_producer_and_state_and_the_states_it_does_not_know(
    shard: Shard,
) -> None:
    request = ListTransactionsRequest(states=("Ongoing", "Dead", "Nonsense", "PrepareEpochFence", "Rubbish"))
    assert shard.ask("list_transactions", request) == ListTransactionsResponse(
        ErrorCode.NONE,
        ("Nonsense", "Rubbish"),
        (ListedTransaction("ongoing", shard.ids["ongoing"], "Ongoing"),),
    )


def test_a_pattern_that_cannot_be_compiled_is_refused(shard: Shard) -> None:
    response = shard.ask("list_transactions", ListTransactionsRequest(pattern="("))
    assert response == ListTransactionsResponse(ErrorCode.INVALID_REGULAR_EXPRESSION)
