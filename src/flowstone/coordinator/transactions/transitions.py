"""The next stored transaction for each event: pure functions from record to record, without checks.

Each of them sets the time of the update, and stores the producer id that it replaces as the previous one.
"""

from __future__ import annotations

from flowstone.coordinator.transactions.messages import V1, V2
from flowstone.coordinator.transactions.records import (
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    PRODUCER_EPOCH_MAX,
    TransactionState,
    TransactionStored,
)
from flowstone.types import TopicPartition


def created(transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> TransactionStored:
    return TransactionStored(transactional_id, producer_id, 0, timeout_ms, TransactionState.EMPTY, now_ms)


def epoch_raised(before: TransactionStored, timeout_ms: int, now_ms: int, *, last_epoch: int) -> TransactionStored:
    return _emptied(before, timeout_ms, now_ms)._replace(
        producer_epoch=before.producer_epoch + 1,
        last_producer_epoch=last_epoch,
        previous_producer_id=before.producer_id,
    )


def producer_id_replaced(
    before: TransactionStored, producer_id: int, timeout_ms: int, now_ms: int, *, last_epoch: int
) -> TransactionStored:
    return _emptied(before, timeout_ms, now_ms)._replace(
        producer_id=producer_id,
        producer_epoch=0,
        last_producer_epoch=last_epoch,
        previous_producer_id=before.producer_id,
    )


def initialized_again(before: TransactionStored, timeout_ms: int, now_ms: int) -> TransactionStored:
    """Return the record for an InitProducerId whose response was lost: the same producer id and epoch."""
    return _emptied(before, timeout_ms, now_ms)


def _emptied(before: TransactionStored, timeout_ms: int, now_ms: int) -> TransactionStored:
    return before._replace(
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        last_update_ms=now_ms,
        partitions=frozenset(),
        start_ms=NO_TIMESTAMP,
    )


def partitions_added(
    before: TransactionStored, partitions: frozenset[TopicPartition], client_version: int, now_ms: int
) -> TransactionStored:
    is_ongoing = before.state is TransactionState.ONGOING
    return before._replace(
        state=TransactionState.ONGOING,
        last_update_ms=now_ms,
        partitions=before.partitions | partitions,
        start_ms=before.start_ms if is_ongoing else now_ms,
        previous_producer_id=before.producer_id,
        client_version=client_version,
    )


def prepared_v1(before: TransactionStored, *, is_commit: bool, now_ms: int) -> TransactionStored:
    return _prepared(before, now_ms, is_commit=is_commit)._replace(client_version=V1)


def prepared_v2(before: TransactionStored, *, is_commit: bool, next_producer_id: int, now_ms: int) -> TransactionStored:
    """Return the record of a transaction decided under V2, with the epoch raised by one.

    With a next producer id the epoch may be the very last one, which no client is given.
    """
    return _prepared(before, now_ms, is_commit=is_commit)._replace(
        producer_epoch=min(before.producer_epoch + 1, PRODUCER_EPOCH_MAX),
        last_producer_epoch=before.producer_epoch,
        next_producer_id=next_producer_id,
        client_version=V2,
    )


def fenced_v1(before: TransactionStored, *, last_epoch: int, now_ms: int) -> TransactionStored:
    """Return the record of an aborted transaction with the epoch raised, so that its producer is fenced."""
    return prepared_v1(before, is_commit=False, now_ms=now_ms)._replace(
        producer_epoch=min(before.producer_epoch + 1, PRODUCER_EPOCH_MAX), last_producer_epoch=last_epoch
    )


def _prepared(before: TransactionStored, now_ms: int, *, is_commit: bool) -> TransactionStored:
    return before._replace(
        state=TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
        last_update_ms=now_ms,
        start_ms=before.start_ms if before.state is TransactionState.ONGOING else now_ms,
        previous_producer_id=before.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )


def completed(prepared: TransactionStored, now_ms: int) -> TransactionStored:
    producer_id, producer_epoch = producer_to_go_on(prepared)
    return prepared._replace(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        state=TransactionState.COMPLETE_COMMIT if prepared.state.is_commit else TransactionState.COMPLETE_ABORT,
        last_update_ms=now_ms,
        partitions=frozenset(),
        previous_producer_id=prepared.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )


def producer_to_go_on(record: TransactionStored) -> tuple[int, int]:
    """Return the producer id and epoch for the producer's next transaction."""
    if record.next_producer_id != NO_PRODUCER_ID:
        return record.next_producer_id, 0
    return record.producer_id, record.producer_epoch
