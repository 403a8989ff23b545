"""The state that all parts of a shard share: its transactions and their markers; and the context of one call.

A `Turn` is one call into the shard: its time, and the effects that it collects. At most one record is written per
transactional id in a call, because its effect is visible only after it was replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from flowstone.coordinator.effects import Effects
from flowstone.coordinator.transactions.config import (
    PARTITION_BYTES,
    TEXT_CHARACTER_BYTES,
    TRANSACTIONAL_ID_OVERHEAD_BYTES,
    TransactionConfig,
)
from flowstone.coordinator.transactions.counts import OpenTransactions, TransactionCounts
from flowstone.coordinator.transactions.messages import SendMarkers
from flowstone.coordinator.transactions.records import TransactionRecord, TransactionState, TransactionStored
from flowstone.memory_budget import MemoryAccount
from flowstone.types import TopicPartition

# Decided transactions among which the oldest is searched for.
OLDEST_SEARCHED_MAX = 1000

TransactionEffects = Effects[TransactionRecord]


@dataclass(slots=True)
class Marking:
    """The unwritten markers of a prepared transaction. Soft state: after a reload all of them are sent again."""

    task: SendMarkers
    unmarked: set[TopicPartition]


@dataclass(slots=True)
class ShardState:
    config: TransactionConfig
    coordinator_epoch: int
    next_producer_id: Callable[[], int | None]
    transaction_version: Callable[[], int]
    account: MemoryAccount
    counts: TransactionCounts = field(default_factory=TransactionCounts)
    transactions: dict[str, TransactionStored] = field(default_factory=dict)
    ongoing: dict[str, None] = field(default_factory=dict)  # the ids of those that can time out, oldest first
    markings: dict[str, Marking] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)  # when refused markers are sent again, by transactional id

    def store(self, record: TransactionStored) -> None:
        transactional_id = record.transactional_id
        self.transactions[transactional_id] = record
        if record.state is TransactionState.ONGOING:
            self.ongoing[transactional_id] = None
        else:
            self.ongoing.pop(transactional_id, None)
        if not record.state.is_prepared:
            self._forget_markers(transactional_id)
        self.account.set_size(transactional_id, size_bytes(transactional_id, len(record.partitions)))

    def open_transactions(self) -> OpenTransactions:
        """Return how many transactions are not complete, and when the oldest of them began.

        Decided transactions are ordered by their decision, so only the first of them count for the oldest.
        """
        first = [*islice(self.ongoing, 1), *islice(self.markings, OLDEST_SEARCHED_MAX)]
        starts = [self.transactions[each].start_ms for each in first if each in self.transactions]
        return OpenTransactions(len(self.ongoing), len(self.markings), min(starts, default=None))

    def remove(self, transactional_id: str) -> None:
        self.transactions.pop(transactional_id, None)
        self.ongoing.pop(transactional_id, None)
        self._forget_markers(transactional_id)
        self.account.set_size(transactional_id, 0)

    def _forget_markers(self, transactional_id: str) -> None:
        self.markings.pop(transactional_id, None)
        self.refused.pop(transactional_id, None)


def size_bytes(transactional_id: str, partition_count: int) -> int:
    """Return an upper bound of a transactional id's memory in bytes."""
    id_bytes = TRANSACTIONAL_ID_OVERHEAD_BYTES + TEXT_CHARACTER_BYTES * len(transactional_id)
    return id_bytes + PARTITION_BYTES * partition_count


@dataclass(slots=True)
class Turn:
    shard: ShardState
    now_ms: int
    effects: TransactionEffects = field(default_factory=Effects)

    @property
    def config(self) -> TransactionConfig:
        return self.shard.config

    def reply(self, token: Any, response: Any) -> None:
        self.effects.replies.append((token, response))

    def append(self, record: TransactionRecord) -> None:
        self.effects.records.append(record)

    def send_markers(self, prepared: TransactionStored) -> None:
        task = SendMarkers(
            prepared.transactional_id,
            prepared.producer_id,
            prepared.producer_epoch,
            self.shard.coordinator_epoch,
            prepared.state.is_commit,
            prepared.client_version,
            tuple(sorted(prepared.partitions)),
        )
        self.shard.markings[prepared.transactional_id] = Marking(task, set(prepared.partitions))
        self.effects.tasks.append(task)
