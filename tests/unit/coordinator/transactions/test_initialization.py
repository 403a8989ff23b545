"""InitProducerId and EndTxn at their limits: timeouts, epochs, and responses that were lost."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.coordinator.transactions.config import TransactionConfig
from flowstone.coordinator.transactions.messages import (
    V1,
    V2,
    AddPartitionsRequest,
    EndTransactionRequest,
    InitProducerIdRequest,
)
from flowstone.coordinator.transactions.record_format import encode
from flowstone.coordinator.transactions.records import LAST_CLIENT_EPOCH, TransactionState, TransactionStored
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from tests.unit.coordinator.transactions.harness import START_MS, Coordinator

CONFIG = TransactionConfig()
PLACE = TopicPartition("t", 0)


class Shard:
    def __init__(self) -> None:
        self.replies: list[Any] = []
        self.tasks: list[Any] = []
        self.coordinator = Coordinator(CONFIG, lambda _, reply: self.replies.append(reply), self.tasks.append)

    def ask(self, method: str, request: Any) -> Any:
        machine = self.coordinator
        machine.take(getattr(machine.shard, method)(machine.now_ms, None, request))
        return self.replies[-1]

    def init(self, *producer: int, timeout_ms: int = 60_000, name: str = "x") -> tuple[ErrorCode, int, int]:
        response = self.ask("init_producer_id", InitProducerIdRequest(name, timeout_ms, *producer))
        return response.error_code, response.producer_id, response.producer_epoch

    def add(self, epoch: int, producer_id: int = 1) -> ErrorCode:
        code = self.ask("add_partitions", AddPartitionsRequest("x", producer_id, epoch, frozenset({PLACE}))).error_code
        assert isinstance(code, ErrorCode)
        return code

    def end(
        self, epoch: int, *, is_commit: bool = True, version: int = V1, name: str = "x", producer_id: int = 1
    ) -> Any:
        request = EndTransactionRequest(name, producer_id, epoch, is_commit, version)
        return self.ask("end_transaction", request)

    def write_markers(self) -> None:
        task = self.tasks.pop()
        machine = self.coordinator
        machine.take(machine.shard.markers_written(machine.now_ms, task, task.partitions))

    @property
    def stored(self) -> TransactionStored:
        return self.all_stored["x"]

    @property
    def all_stored(self) -> dict[str, TransactionStored]:
        records = self.coordinator.stored()
        return {each.transactional_id: each for each in records if isinstance(each, TransactionStored)}

    def replay(self, **changed: Any) -> None:
        record = self.stored._replace(**changed)
        self.coordinator.log.append(encode(record))
        self.coordinator.shard.replay([record])


@pytest.fixture
def shard() -> Shard:
    return Shard()


@pytest.mark.parametrize(
    ("timeout_ms", "code"),
    [
        (-1, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (0, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (1, ErrorCode.NONE),
        (CONFIG.transaction_max_timeout_ms, ErrorCode.NONE),
        (CONFIG.transaction_max_timeout_ms + 1, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_a_timeout_is_positive_and_at_most_the_brokers(shard: Shard, timeout_ms: int, code: ErrorCode) -> None:
    assert shard.init(timeout_ms=timeout_ms)[0] is code
    assert ("x" in shard.all_stored) is (code is ErrorCode.NONE)


@pytest.mark.parametrize(("producer", "name"), [((), ""), ((1, -1), "x"), ((-1, 0), "x")])
def test_an_id_and_an_epoch_come_together(shard: Shard, producer: tuple[int, ...], name: str) -> None:
    assert shard.init(*producer, name=name)[0] is ErrorCode.INVALID_REQUEST


def test_every_initialization_raises_the_epoch_and_stores_the_timeout(shard: Shard) -> None:
    assert shard.init() == (ErrorCode.NONE, 1, 0)
    assert shard.init(timeout_ms=5) == (ErrorCode.NONE, 1, 1)
    assert (shard.stored.timeout_ms, shard.stored.last_update_ms) == (5, START_MS)
    assert shard.init(1, 1) == (ErrorCode.NONE, 1, 2)
    assert shard.init(1, 1) == (ErrorCode.NONE, 1, 2)  # the response was lost
    assert shard.init(1, 0)[0] is ErrorCode.PRODUCER_FENCED
    assert shard.init(1, 3)[0] is ErrorCode.PRODUCER_FENCED
    assert shard.init(2, 2)[0] is ErrorCode.PRODUCER_FENCED


def test_an_exhausted_producer_id_is_replaced(shard: Shard) -> None:
    shard.init()
    shard.replay(producer_epoch=LAST_CLIENT_EPOCH - 1)
    assert shard.init() == (ErrorCode.NONE, 1, LAST_CLIENT_EPOCH)
    assert shard.init(1, LAST_CLIENT_EPOCH) == (ErrorCode.NONE, 2, 0)
    assert shard.init(1, LAST_CLIENT_EPOCH) == (ErrorCode.NONE, 2, 0)  # the response was lost
    shard.coordinator.has_producer_ids = False
    shard.replay(producer_epoch=LAST_CLIENT_EPOCH)
    assert shard.init()[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert shard.init(name="y")[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_an_open_transaction_is_aborted_by_its_own_producer_or_a_new_one(shard: Shard) -> None:
    shard.init()
    assert shard.add(0) is ErrorCode.NONE
    assert shard.init(1, 1)[0] is ErrorCode.PRODUCER_FENCED
    assert shard.stored.state is TransactionState.ONGOING
    assert shard.init()[0] is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.stored.state is TransactionState.PREPARE_ABORT
    assert shard.init()[0] is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.write_markers()
    assert shard.init()[0] is ErrorCode.NONE


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_decision_is_repeated_until_it_is_complete_and_never_reversed(shard: Shard, is_commit: bool) -> None:
    shard.init()
    assert shard.end(0, is_commit=is_commit).error_code is ErrorCode.INVALID_TXN_STATE
    shard.add(0)
    assert shard.end(1, is_commit=is_commit).error_code is ErrorCode.PRODUCER_FENCED
    assert shard.end(0, is_commit=is_commit, producer_id=7).error_code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert shard.end(0, is_commit=is_commit).error_code is ErrorCode.NONE
    assert shard.end(0, is_commit=is_commit).error_code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.end(0, is_commit=not is_commit).error_code is ErrorCode.INVALID_TXN_STATE
    shard.write_markers()
    assert shard.end(0, is_commit=is_commit).error_code is ErrorCode.NONE
    assert shard.end(0, is_commit=not is_commit).error_code is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("is_commit", [True, False])
def test_the_second_protocol_answers_with_the_epoch_to_go_on_with(shard: Shard, is_commit: bool) -> None:
    shard.init()
    shard.add(0)
    ended = shard.end(0, is_commit=is_commit, version=V2)
    assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (ErrorCode.NONE, 1, 1)
    assert shard.end(0, is_commit=is_commit, version=V2).error_code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.end(1, is_commit=is_commit, version=V2).error_code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.end(0, is_commit=not is_commit, version=V2).error_code is ErrorCode.INVALID_TXN_STATE
    shard.write_markers()
    again = shard.end(0, is_commit=is_commit, version=V2)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (ErrorCode.NONE, 1, 1)
    assert shard.end(0, is_commit=not is_commit, version=V2).error_code is ErrorCode.INVALID_TXN_STATE
    assert shard.end(1, is_commit=True, version=V2).error_code is ErrorCode.INVALID_TXN_STATE
    emptied = shard.end(1, is_commit=False, version=V2)  # aborts nothing, and is complete at once
    assert (emptied.error_code, emptied.producer_epoch) == (ErrorCode.NONE, 2)
    assert shard.tasks == []


def test_an_unknown_transactional_id_ends_nothing(shard: Shard) -> None:
    assert shard.end(0, name="").error_code is ErrorCode.INVALID_REQUEST
    assert shard.end(0, name="y").error_code is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_markers_of_an_earlier_transaction_complete_nothing(shard: Shard) -> None:
    shard.init()
    shard.add(0)
    shard.end(0)
    first = shard.tasks[-1]
    shard.write_markers()
    shard.add(0)
    shard.end(0)
    machine = shard.coordinator
    machine.take(machine.shard.markers_written(machine.now_ms, first, first.partitions))
    assert shard.stored.state is TransactionState.PREPARE_COMMIT
    shard.write_markers()
    assert shard.stored.state is TransactionState.COMPLETE_COMMIT


def test_a_transaction_times_out_in_the_millisecond_of_its_timeout(shard: Shard) -> None:
    shard.init(timeout_ms=60_000)
    shard.add(0)
    interval_ms = CONFIG.abort_timed_out_interval_ms
    shard.replay(start_ms=shard.coordinator.now_ms + interval_ms - 60_000 + 1)
    shard.coordinator.advance(interval_ms)
    assert shard.stored.state is TransactionState.ONGOING
    shard.replay(start_ms=shard.coordinator.now_ms + interval_ms - 60_000)
    shard.coordinator.advance(interval_ms)
    assert shard.stored.state is TransactionState.PREPARE_ABORT
