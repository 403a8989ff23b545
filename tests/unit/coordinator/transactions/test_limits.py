"""What keeps one producer, or one large shard, from taking everything."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.coordinator.transactions import config as limits
from flowstone.coordinator.transactions.config import SLICE_PAUSE_MS, TRANSACTIONS_PER_SLICE, TransactionConfig
from flowstone.coordinator.transactions.messages import (
    AddPartitionsRequest,
    EndTransactionRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    SendMarkers,
)
from flowstone.coordinator.transactions.record_format import encode
from flowstone.coordinator.transactions.records import TransactionState, TransactionStored
from flowstone.errors import ErrorCode
from flowstone.memory_budget import MemoryBudget
from flowstone.types import TopicPartition
from tests.unit.coordinator.transactions.harness import Coordinator

KIB = 1 << 10


class Producers:
    """A coordinator asked by producers, whose markers are written at once."""

    def __init__(self, config: TransactionConfig | None = None) -> None:
        self.replies: list[Any] = []
        self.tasks: list[SendMarkers] = []
        self.coordinator = Coordinator(
            config or TransactionConfig(), lambda _, response: self.replies.append(response), self.tasks.append
        )

    def ask(self, method: str, request: Any) -> Any:
        shard, now_ms = self.coordinator.shard, self.coordinator.now_ms
        self.coordinator.take(getattr(shard, method)(now_ms, None, request))
        return self.replies[-1]

    def init(self, transactional_id: str = "x") -> Any:
        return self.ask("init_producer_id", InitProducerIdRequest(transactional_id, 60_000))

    def add(self, first: int, count: int, epoch: int = 0) -> ErrorCode:
        partitions = frozenset(TopicPartition("t", number) for number in range(first, first + count))
        code = self.ask("add_partitions", AddPartitionsRequest("x", 1, epoch, partitions)).error_code
        assert isinstance(code, ErrorCode)
        return code

    def end(self) -> None:
        assert self.ask("end_transaction", EndTransactionRequest("x", 1, 0, True)).error_code is ErrorCode.NONE
        task = self.tasks.pop()
        self.coordinator.take(self.coordinator.shard.markers_written(self.coordinator.now_ms, task, task.partitions))


def test_a_transaction_takes_partitions_up_to_a_limit() -> None:
    producers = Producers()
    producers.init()
    assert producers.add(0, limits.PARTITIONS_PER_TRANSACTION_MAX) is ErrorCode.NONE
    assert producers.add(limits.PARTITIONS_PER_TRANSACTION_MAX, 1) is ErrorCode.POLICY_VIOLATION
    assert producers.add(0, 10) is ErrorCode.NONE
    producers.end()
    assert producers.add(limits.PARTITIONS_PER_TRANSACTION_MAX, 1) is ErrorCode.NONE


def test_the_largest_record_keeps_its_limit() -> None:
    names = (f"{number:0249d}" for number in range(limits.PARTITIONS_PER_TRANSACTION_MAX))
    partitions = frozenset(TopicPartition(name, 0) for name in names)
    record = TransactionStored("x" * 32_767, 1, 0, 1, TransactionState.ONGOING, 1, partitions, 1, 1, 1, 1, 2)
    key, value = encode(record)
    assert value is not None
    assert 0.8 * limits.RECORD_BYTES_MAX < len(key) + len(value) < limits.RECORD_BYTES_MAX


def test_transactional_ids_and_partitions_are_refused_beyond_the_memory_limit() -> None:
    producers = Producers()
    producers.coordinator.budget = MemoryBudget(64 * KIB)
    producers.coordinator.reload()
    assert producers.init().error_code is ErrorCode.NONE
    codes = [producers.init(f"id-{number}").error_code for number in range(100)]
    assert codes[10] is ErrorCode.NONE
    assert codes[-1] is ErrorCode.POLICY_VIOLATION
    assert producers.init().error_code is ErrorCode.NONE  # whoever is there goes on
    assert producers.add(0, 20, epoch=1) is ErrorCode.POLICY_VIOLATION
    assert producers.coordinator.budget.used_bytes <= 64 * KIB


def test_memory_is_given_back_when_transactions_end_ids_expire_and_shards_close() -> None:
    producers = Producers()
    budget = producers.coordinator.budget
    producers.init()
    idle_bytes = budget.used_bytes
    producers.add(0, 1000)
    assert budget.used_bytes > idle_bytes + 100 * KIB
    producers.coordinator.reload()
    assert budget.used_bytes > idle_bytes + 100 * KIB
    producers.end()
    assert budget.used_bytes == idle_bytes > 0
    producers.coordinator.advance(8 * 24 * 3_600_000)
    assert budget.used_bytes == 0
    producers.init()
    producers.coordinator.shard.close()
    assert budget.used_bytes == 0


def test_timeouts_and_expiry_go_in_slices() -> None:
    config = TransactionConfig(transactional_id_expiration_ms=1, remove_expired_interval_ms=20_000)
    producers = Producers(config)
    count = TRANSACTIONS_PER_SLICE + 1
    for number in range(count):
        now_ms = producers.coordinator.now_ms
        partitions = frozenset({TopicPartition("t", 0)})
        record = TransactionStored(f"id-{number}", number, 0, 1, TransactionState.ONGOING, now_ms, partitions, now_ms)
        producers.coordinator.log.append(encode(record))
    producers.coordinator.reload()
    producers.coordinator.advance(10_000)
    assert len(producers.tasks) == TRANSACTIONS_PER_SLICE
    producers.coordinator.advance(SLICE_PAUSE_MS)
    assert len(producers.tasks) == count
    for task in producers.tasks:
        producers.coordinator.take(producers.coordinator.shard.markers_written(now_ms, task, task.partitions))
    producers.coordinator.advance(10_000 - SLICE_PAUSE_MS)
    assert len(producers.ask("list_transactions", ListTransactionsRequest()).transactions) == 1
    producers.coordinator.advance(SLICE_PAUSE_MS)
    assert producers.ask("list_transactions", ListTransactionsRequest()).transactions == ()
    assert producers.coordinator.shard.next_deadline() is None


def test_a_large_shard_is_listed_in_slices_and_completely() -> None:
    producers = Producers()
    for number in range(2 * TRANSACTIONS_PER_SLICE + 1):
        producers.init(f"id-{number}")
    producers.replies.clear()
    coordinator = producers.coordinator
    for token in ("first", "second"):
        coordinator.take(coordinator.shard.list_transactions(coordinator.now_ms, token, ListTransactionsRequest()))
    assert producers.replies == []
    coordinator.advance(10 * SLICE_PAUSE_MS)
    assert [len(reply.transactions) for reply in producers.replies] == [2 * TRANSACTIONS_PER_SLICE + 1] * 2


def test_a_long_listing_pauses_after_every_slice() -> None:
    producers = Producers()
    for number in range(3 * TRANSACTIONS_PER_SLICE):
        producers.init(f"id-{number}")
    producers.replies.clear()
    coordinator = producers.coordinator
    coordinator.take(coordinator.shard.list_transactions(coordinator.now_ms, "token", ListTransactionsRequest()))
    coordinator.advance(2 * SLICE_PAUSE_MS - 1)
    assert producers.replies == []
    coordinator.advance(1)
    assert len(producers.replies[0].transactions) == 3 * TRANSACTIONS_PER_SLICE


def test_a_pattern_that_is_hard_to_follow_shortens_the_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowstone.coordinator.transactions.administration.PATTERN_WORK_PER_SLICE", 1)
    producers = Producers()
    for number in range(10):
        producers.init(f"id-{number}")
    producers.replies.clear()
    coordinator = producers.coordinator
    request = ListTransactionsRequest(pattern="id-[5-9]")
    coordinator.take(coordinator.shard.list_transactions(coordinator.now_ms, "token", request))
    assert producers.replies == []
    coordinator.advance(20 * SLICE_PAUSE_MS)
    listed = sorted(each.transactional_id for each in producers.replies[0].transactions)
    assert listed == [f"id-{number}" for number in range(5, 10)]


def test_listings_wait_for_a_long_one_up_to_a_limit() -> None:
    producers = Producers()
    for number in range(TRANSACTIONS_PER_SLICE + 1):
        producers.init(f"id-{number}")
    producers.replies.clear()
    coordinator = producers.coordinator
    for token in range(limits.LISTINGS_WAITING_MAX + 2):
        coordinator.take(coordinator.shard.list_transactions(coordinator.now_ms, token, ListTransactionsRequest()))
    assert [reply.error_code for reply in producers.replies] == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    coordinator.advance(3 * limits.LISTINGS_WAITING_MAX * SLICE_PAUSE_MS)
    assert len(producers.replies) == limits.LISTINGS_WAITING_MAX + 2
    assert producers.replies[-1].error_code is ErrorCode.NONE


def test_markers_carry_the_epoch_of_their_coordinator() -> None:
    producers = Producers()
    producers.coordinator.coordinator_epoch = 7
    producers.coordinator.reload()
    producers.init()
    producers.add(0, 1)
    producers.ask("end_transaction", EndTransactionRequest("x", 1, 0, True))
    producers.coordinator.coordinator_epoch = 8
    producers.coordinator.reload()
    assert [task.coordinator_epoch for task in producers.tasks] == [7, 8]
