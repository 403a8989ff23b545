"""Values that brokers report about transactions, and their JSON documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flowstone.types import TopicPartition

NO_OFFSET = NO_TIME = NO_EPOCH = -1
NO_TIMEOUT_MS = 2**31 - 1  # of a two-phase commit: its coordinator never aborts it
ONGOING = "Ongoing"
OPEN_STATES = frozenset({ONGOING, "PrepareCommit", "PrepareAbort"})


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A transactional id, as the broker that coordinates it lists it."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES


@dataclass(frozen=True, slots=True)
class DescribedTransaction:
    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int | None  # None: no transaction is open
    partitions: tuple[TopicPartition, ...]

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES

    def open_s(self, now_ms: int) -> float | None:
        """Return how long the transaction has been open, or None if none is open."""
        if not self.is_open or self.start_ms is None:
            return None
        return max(now_ms - self.start_ms, 0) / 1000

    def left_s(self, now_ms: int) -> float | None:
        """Return the time until the coordinator aborts the transaction, or None if it will not."""
        if self.state != ONGOING or self.start_ms is None or self.timeout_ms == NO_TIMEOUT_MS:
            return None
        return max(self.start_ms + self.timeout_ms - now_ms, 0) / 1000


@dataclass(frozen=True, slots=True)
class PartitionProducer:
    """A producer that a partition remembers."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int  # NO_EPOCH: no transaction of it has ended in the partition
    last_sequence: int
    last_timestamp_ms: int
    start_offset: int | None  # of its open transaction

    def idle_s(self, now_ms: int) -> float | None:
        """Return the time since the producer's last batch, or None if it is not known."""
        return max(now_ms - self.last_timestamp_ms, 0) / 1000 if self.last_timestamp_ms != NO_TIME else None


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A producer's open transaction in one partition."""

    partition: TopicPartition
    producer: PartitionProducer
    start_offset: int


def listed_document(listed: ListedTransaction, described: DescribedTransaction | None, now_ms: int) -> dict[str, Any]:
    return {
        "transactional_id": listed.transactional_id,
        "coordinator": listed.coordinator,
        "producer_id": listed.producer_id,
        "state": listed.state,
        "open_seconds": described.open_s(now_ms) if described is not None else None,
        "timeout_ms": described.timeout_ms if described is not None else None,
    }


def described_document(
    described: DescribedTransaction, starts: dict[TopicPartition, int], now_ms: int
) -> dict[str, Any]:
    return {
        "transactional_id": described.transactional_id,
        "coordinator": described.coordinator,
        "producer_id": described.producer_id,
        "producer_epoch": described.producer_epoch,
        "state": described.state,
        "timeout_ms": described.timeout_ms,
        "start_ms": described.start_ms,
        "open_seconds": described.open_s(now_ms),
        "seconds_left": described.left_s(now_ms),
        "partitions": [
            {"topic": each.topic, "partition": each.partition, "first_offset": starts.get(each)}
            for each in described.partitions
        ],
    }


def producer_document(producer: PartitionProducer, transactional_id: str | None) -> dict[str, Any]:
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "coordinator_epoch": producer.coordinator_epoch,
        "last_sequence": producer.last_sequence,
        "last_timestamp_ms": producer.last_timestamp_ms,
        "transaction_start_offset": producer.start_offset,
        "transactional_id": transactional_id,
    }


def open_document(found: OpenTransaction, transactional_id: str | None, now_ms: int) -> dict[str, Any]:
    return {
        "topic": found.partition.topic,
        "partition": found.partition.partition,
        "start_offset": found.start_offset,
        "producer_id": found.producer.producer_id,
        "producer_epoch": found.producer.producer_epoch,
        "coordinator_epoch": found.producer.coordinator_epoch,
        "last_timestamp_ms": found.producer.last_timestamp_ms,
        "idle_seconds": found.producer.idle_s(now_ms),
        "transactional_id": transactional_id,
    }
