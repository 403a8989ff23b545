"""TransactionShard: all transactional ids of one `__transaction_state` partition.

Pure and synchronous. Every request method takes the time, an opaque token and a request, and returns `Effects`: the
records to append, the replies and the tasks that are due. Every token is answered exactly once, unless the shard is
discarded before. Every request but a long ListTransactions is answered by the call itself.

The runtime's duties are those for every coordinator (`coordinator.runtime`): replay each record right after the call
that returned it, release replies and tasks once everything the shard had seen is committed, and discard the shard if an
append fails. A task is a `SendMarkers`; the sender of the markers reports with `markers_written` and `markers_refused`.

Kafka keeps a pending state per transactional id while the append of a transition is in progress, and answers
CONCURRENT_TRANSACTIONS during that time. Here no pending state is needed:

- Empty, Ongoing, Prepare* and PrepareEpochFence: the next request already sees the state that is being appended. Its
  own response waits until that is committed. If the commit fails, both clients are told to look up the coordinator
  again, and the next shard decides by what is in the log.
- Dead: a tombstone is replayed like any other record. A request that arrives meanwhile finds no transactional id, and
  its record follows the tombstone in the log.
- Complete*: Kafka sets it as soon as markers are being sent. Here Prepare* has that meaning. Until the markers are
  written the producer may use the id and epoch of its next transaction, and the shard must not refuse them as
  unknown: additions and EndTxn 5 check for Prepare* before anything else.

Markers are sent once Prepare* is committed, and Complete* is appended once they are written. A shard that loads
Prepare* sends all of them again; leaders accept a marker twice. A report about markers counts only for the task that it
names, so that a late one cannot complete a later transaction of the same epoch.

Hard state changes in `replay` only: the last record of each transactional id. Soft state is in memory only and is lost
with the shard: which markers are written, the progress of scans, listings in progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flowstone.coordinator.transactions import additions, administration, endings
from flowstone.coordinator.transactions.administration import Listings
from flowstone.coordinator.transactions.config import TransactionConfig
from flowstone.coordinator.transactions.counts import OpenTransactions, TransactionCounts
from flowstone.coordinator.transactions.initialization import init_producer_id
from flowstone.coordinator.transactions.messages import (
    AddPartitionsRequest,
    EndTransactionRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    SendMarkers,
)
from flowstone.coordinator.transactions.records import TransactionRecord, TransactionRemoved
from flowstone.coordinator.transactions.scans import Scan, abort_if_timed_out, remove_if_expired
from flowstone.coordinator.transactions.state import ShardState, TransactionEffects, Turn
from flowstone.memory_budget import MemoryAccount, MemoryBudget
from flowstone.types import TopicPartition


class TransactionShard:
    def __init__(
        self,
        config: TransactionConfig,
        coordinator_epoch: int,
        next_producer_id: Callable[[], int | None],
        transaction_version: Callable[[], int],
        budget: MemoryBudget,
        counts: TransactionCounts | None = None,
    ) -> None:
        """Create an empty shard; `budget` limits the memory, and `counts` counts the ends, of all shards of the broker.

        `coordinator_epoch` is the leader epoch of the shard's partition: leaders fence the markers of older epochs.
        `next_producer_id` returns an unused producer id, or None if none is available now. `transaction_version`
        returns the finalized level of the feature.
        """
        self._state = ShardState(
            config, coordinator_epoch, next_producer_id, transaction_version, MemoryAccount(budget)
        )
        if counts is not None:
            self._state.counts = counts
        self._timeouts = Scan(abort_if_timed_out, config.abort_timed_out_interval_ms)
        self._expiry = Scan(remove_if_expired, config.remove_expired_interval_ms)
        self._listings = Listings()

    def replay(self, records: Iterable[TransactionRecord], producer: object = None) -> None:
        """Apply stored records in order: those just appended, or some that were read while loading.

        Nothing is written to this topic in a transaction, so `producer` has no meaning here.
        """
        for record in records:
            if isinstance(record, TransactionRemoved):
                self._state.remove(record.transactional_id)
            else:
                self._state.store(record)

    def replay_marker(self, producer: object, marker: object) -> None:
        """Ignore an end marker, because nothing is written to this topic in a transaction."""

    def loaded(self, now_ms: int) -> TransactionEffects:
        """Complete decided transactions after the log was replayed: they may have waited for a coordinator for long."""
        turn = Turn(self._state, now_ms)
        for stored in self._state.transactions.values():
            if stored.state.is_prepared:
                endings.resume(turn, stored)
        self._timeouts.start(now_ms)
        self._expiry.start(now_ms)
        return turn.effects

    def open_transactions(self) -> OpenTransactions:
        """Return how many transactions are not complete, and when the oldest of them began."""
        return self._state.open_transactions()

    def init_producer_id(self, now_ms: int, token: Any, request: InitProducerIdRequest) -> TransactionEffects:
        return self._run(init_producer_id, now_ms, token, request)

    def add_partitions(self, now_ms: int, token: Any, request: AddPartitionsRequest) -> TransactionEffects:
        return self._run(additions.add_partitions, now_ms, token, request)

    def verify_partitions(self, now_ms: int, token: Any, request: AddPartitionsRequest) -> TransactionEffects:
        return self._run(additions.verify_partitions, now_ms, token, request)

    def has_partition(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partition: TopicPartition
    ) -> bool:
        """Return whether the partition is in the ongoing transaction of this producer id and epoch."""
        stored = self._state.transactions.get(transactional_id)
        return stored is not None and additions.has_partition(stored, producer_id, producer_epoch, partition)

    def end_transaction(self, now_ms: int, token: Any, request: EndTransactionRequest) -> TransactionEffects:
        return self._run(endings.end_transaction, now_ms, token, request)

    def describe_transaction(self, now_ms: int, token: Any, transactional_id: str) -> TransactionEffects:
        return self._run(administration.describe, now_ms, token, transactional_id)

    def list_transactions(self, now_ms: int, token: Any, request: ListTransactionsRequest) -> TransactionEffects:
        return self._run(self._listings.add, now_ms, token, request)

    def markers_written(
        self, now_ms: int, task: SendMarkers, partitions: Iterable[TopicPartition]
    ) -> TransactionEffects:
        """Record partitions of a task that need no marker any more: it is committed, or the partition was deleted."""
        turn = Turn(self._state, now_ms)
        endings.markers_written(turn, task, partitions)
        return turn.effects

    def markers_refused(self, now_ms: int, task: SendMarkers) -> TransactionEffects:
        """Handle a task whose producer or coordinator epoch a leader has fenced: no more of its markers are sent.

        Most likely another coordinator has taken over. If not, the task is returned again after `MARKERS_RETRY_MS`.
        """
        turn = Turn(self._state, now_ms)
        endings.markers_refused(turn, task)
        return turn.effects

    def tick(self, now_ms: int) -> TransactionEffects:
        """Handle everything that is due: timeouts, unused transactional ids, refused markers, long listings."""
        turn = Turn(self._state, now_ms)
        self._timeouts.run(turn, self._state.ongoing)
        self._expiry.run(turn, self._state.transactions)
        endings.send_refused_again(turn)
        self._listings.run(turn)
        return turn.effects

    def next_deadline(self) -> int | None:
        deadlines = (
            self._timeouts.deadline(self._state.ongoing),
            self._expiry.deadline(self._state.transactions),
            min(self._state.refused.values(), default=None),
            self._listings.deadline(),
        )
        return min((each for each in deadlines if each is not None), default=None)

    def close(self) -> None:
        """Release the memory of all transactional ids: the shard is discarded, or another broker hosts it now."""
        self._state.account.close()

    def _run(
        self, handle: Callable[[Turn, Any, Any], None], now_ms: int, token: Any, request: Any
    ) -> TransactionEffects:
        turn = Turn(self._state, now_ms)
        handle(turn, token, request)
        return turn.effects
