"""Transactions are timed by the clocks of coordinators, which may differ or be set."""

from __future__ import annotations

from typing import Any

from flowstone.coordinator.transactions.config import TransactionConfig
from flowstone.coordinator.transactions.messages import AddPartitionsRequest, InitProducerIdRequest, SendMarkers
from flowstone.coordinator.transactions.records import TransactionState
from flowstone.types import TopicPartition
from tests.unit.coordinator.transactions.harness import Coordinator

TIMEOUT_MS = 60_000
DAY_MS = 24 * 3600 * 1000


def with_open_transaction() -> Coordinator:
    replies: list[Any] = []
    tasks: list[SendMarkers] = []
    coordinator = Coordinator(TransactionConfig(), lambda _, response: replies.append(response), tasks.append)
    init = InitProducerIdRequest("x", TIMEOUT_MS)
    coordinator.take(coordinator.shard.init_producer_id(coordinator.now_ms, None, init))
    add = AddPartitionsRequest("x", 1, 0, frozenset({TopicPartition("t", 0)}))
    coordinator.take(coordinator.shard.add_partitions(coordinator.now_ms, None, add))
    assert state_of(coordinator) is TransactionState.ONGOING
    return coordinator


def state_of(coordinator: Coordinator) -> TransactionState:
    return {record.transactional_id: record for record in coordinator.stored()}["x"].state


def test_a_transaction_that_began_days_ahead_is_aborted_when_a_coordinator_with_the_right_time_takes_over() -> None:
    coordinator = with_open_transaction()
    coordinator.now_ms -= 5 * DAY_MS
    coordinator.reload()
    coordinator.advance(coordinator.config.abort_timed_out_interval_ms)
    assert state_of(coordinator) is TransactionState.PREPARE_ABORT


def test_a_transaction_survives_clocks_that_differ_by_less_than_its_timeout() -> None:
    coordinator = with_open_transaction()
    coordinator.now_ms -= TIMEOUT_MS // 2
    coordinator.reload()
    coordinator.advance(TIMEOUT_MS)
    assert state_of(coordinator) is TransactionState.ONGOING
    coordinator.advance(TIMEOUT_MS)
    assert state_of(coordinator) is TransactionState.PREPARE_ABORT
