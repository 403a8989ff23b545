"""What a shard counts: its open transactions, and how transactions ended."""

from __future__ import annotations

from flowstone.coordinator.transactions.config import TransactionConfig
from flowstone.coordinator.transactions.counts import OpenTransactions, TransactionCounts
from flowstone.coordinator.transactions.messages import AddPartitionsRequest, EndTransactionRequest
from flowstone.coordinator.transactions.records import TransactionState, TransactionStored
from flowstone.coordinator.transactions.shard import TransactionShard
from flowstone.memory_budget import MemoryBudget
from flowstone.types import TopicPartition

WHERE = frozenset({TopicPartition("orders", 0)})
START_MS = 1_000_000
TIMEOUT_MS = 60_000


def shard_with(counts: TransactionCounts, *names: str) -> TransactionShard:
    """A shard whose transactions began one millisecond after the other."""
    shard = TransactionShard(TransactionConfig(), 0, lambda: 99, lambda: 2, MemoryBudget(1 << 30, lambda: None), counts)
    for number, name in enumerate(names):
        start_ms = START_MS + number
        shard.replay(
            [
                TransactionStored(
                    name, number, 0, TIMEOUT_MS, TransactionState.ONGOING, start_ms, WHERE, start_ms, client_version=2
                )
            ]
        )
    shard.loaded(START_MS)
    return shard


def end(shard: TransactionShard, name: str, producer_id: int, *, is_commit: bool) -> None:
    asked = EndTransactionRequest(name, producer_id, 0, is_commit, 2)
    shard.replay(shard.end_transaction(START_MS + 10, object(), asked).records)


def test_open_transactions_are_counted_with_the_start_of_the_oldest() -> None:
    counts = TransactionCounts()
    shard = shard_with(counts, "a", "b", "c")
    assert shard.open_transactions() == OpenTransactions(3, 0, START_MS)
    end(shard, "b", 1, is_commit=True)
    assert shard.open_transactions() == OpenTransactions(2, 1, START_MS)
    end(shard, "a", 0, is_commit=False)
    end(shard, "c", 2, is_commit=False)
    assert shard.open_transactions() == OpenTransactions(0, 3, START_MS)
    assert counts == TransactionCounts(committed=1, aborted=2, timed_out=0)


def test_an_empty_shard_has_no_oldest() -> None:
    assert shard_with(TransactionCounts()).open_transactions() == OpenTransactions(0, 0, None)


def test_a_transaction_aborted_by_time_counts_as_timed_out() -> None:
    counts = TransactionCounts()
    shard = shard_with(counts, "a")
    shard.tick(START_MS + TIMEOUT_MS + TransactionConfig().abort_timed_out_interval_ms)
    assert counts == TransactionCounts(committed=0, aborted=1, timed_out=1)


def test_a_partition_added_to_an_ongoing_transaction_changes_no_count() -> None:
    counts = TransactionCounts()
    shard = shard_with(counts, "a")
    asked = AddPartitionsRequest("a", 0, 0, frozenset({TopicPartition("orders", 1)}), 2)
    shard.replay(shard.add_partitions(START_MS + 5, object(), asked).records)
    assert shard.open_transactions() == OpenTransactions(1, 0, START_MS)
    assert counts == TransactionCounts()
