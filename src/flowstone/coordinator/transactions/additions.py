"""AddPartitionsToTxn and AddOffsetsToTxn: add partitions to a transaction, or verify that they are in it.

A group's offsets are written to a partition of `__consumer_offsets`, which is added like any other.

The check for a prepared transaction comes first. After a roll-over the producer goes on with the next producer id,
which only the completed transaction has; the other checks would fence it.
"""

from __future__ import annotations

from typing import Any

from flowstone.coordinator.transactions import transitions
from flowstone.coordinator.transactions.config import PARTITION_BYTES, PARTITIONS_PER_TRANSACTION_MAX
from flowstone.coordinator.transactions.messages import (
    AddPartitionsRequest,
    AddPartitionsResponse,
    VerifyPartitionsResponse,
)
from flowstone.coordinator.transactions.records import TransactionState, TransactionStored
from flowstone.coordinator.transactions.state import Turn
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition


def add_partitions(turn: Turn, token: Any, request: AddPartitionsRequest) -> None:
    turn.reply(token, AddPartitionsResponse(_add(turn, request)))


def _add(turn: Turn, request: AddPartitionsRequest) -> ErrorCode:
    before = turn.shard.transactions.get(request.transactional_id)
    if before is not None and before.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    code = _check_producer(turn, request)
    if before is None or code is not ErrorCode.NONE:
        return code
    added_count = len(request.partitions - before.partitions)
    if not added_count:
        return ErrorCode.NONE
    if len(before.partitions) + added_count > PARTITIONS_PER_TRANSACTION_MAX:
        return ErrorCode.POLICY_VIOLATION
    if not turn.shard.account.may_grow(request.transactional_id, PARTITION_BYTES * added_count):
        return ErrorCode.POLICY_VIOLATION
    turn.append(transitions.partitions_added(before, request.partitions, request.client_version, turn.now_ms))
    return ErrorCode.NONE


def verify_partitions(turn: Turn, token: Any, request: AddPartitionsRequest) -> None:
    """Reply for each partition whether it is in the ongoing transaction of this producer id and epoch."""
    code = _check_producer(turn, request)
    if code is not ErrorCode.NONE:
        turn.reply(token, VerifyPartitionsResponse(dict.fromkeys(request.partitions, code)))
        return
    stored = turn.shard.transactions[request.transactional_id]
    if stored.state.is_prepared:
        codes = dict.fromkeys(request.partitions, ErrorCode.CONCURRENT_TRANSACTIONS)
    else:
        is_ongoing = stored.state is TransactionState.ONGOING
        codes = {
            each: ErrorCode.NONE if is_ongoing and each in stored.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for each in request.partitions
        }
    turn.reply(token, VerifyPartitionsResponse(codes))


def has_partition(stored: TransactionStored, producer_id: int, producer_epoch: int, partition: TopicPartition) -> bool:
    """Return whether `verify_partitions` would find the partition."""
    return (
        stored.state is TransactionState.ONGOING
        and partition in stored.partitions
        and stored.check_producer(producer_id, producer_epoch) is ErrorCode.NONE
    )


def _check_producer(turn: Turn, request: AddPartitionsRequest) -> ErrorCode:
    if not request.transactional_id:
        return ErrorCode.INVALID_REQUEST
    stored = turn.shard.transactions.get(request.transactional_id)
    if stored is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return stored.check_producer(request.producer_id, request.producer_epoch)
