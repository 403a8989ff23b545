"""InitProducerId with a transactional id: the client becomes its producer, with a new epoch or a new producer id.

| state            | the client gives no id and epoch    | it gives the id and the epoch it has                     |
|------------------|-------------------------------------|----------------------------------------------------------|
| unknown          | a new id, epoch 0                   | a new id, epoch 0                                        |
| Prepare*         | CONCURRENT_TRANSACTIONS             | CONCURRENT_TRANSACTIONS                                  |
| Ongoing          | abort, raise the epoch, and answer  | current epoch: the same; any other: PRODUCER_FENCED      |
|                  | CONCURRENT_TRANSACTIONS             |                                                          |
| Empty, Complete* | the epoch plus one                  | current epoch: plus one; last epoch: the lost answer     |
|                  |                                     | again; any other: PRODUCER_FENCED                        |

Where the epoch to raise is exhausted, the producer gets a new id at epoch 0. The epoch before it is then known by the
previous id.

One row differs from Kafka: Kafka aborts an ongoing transaction for a client with any epoch, and only tells a fenced
client so when it asks again.
"""

from __future__ import annotations

from typing import Any

from flowstone.coordinator.transactions import transitions
from flowstone.coordinator.transactions.endings import fence
from flowstone.coordinator.transactions.messages import InitProducerIdRequest, InitProducerIdResponse
from flowstone.coordinator.transactions.records import (
    LAST_CLIENT_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionState,
    TransactionStored,
)
from flowstone.coordinator.transactions.state import Turn, size_bytes
from flowstone.errors import ErrorCode


def init_producer_id(turn: Turn, token: Any, request: InitProducerIdRequest) -> None:
    outcome = _initialize(turn, request)
    if isinstance(outcome, ErrorCode):
        turn.reply(token, InitProducerIdResponse(outcome))
        return
    turn.append(outcome)
    turn.reply(token, InitProducerIdResponse(ErrorCode.NONE, outcome.producer_id, outcome.producer_epoch))


def _initialize(turn: Turn, request: InitProducerIdRequest) -> ErrorCode | TransactionStored:
    has_id, has_epoch = request.producer_id != NO_PRODUCER_ID, request.producer_epoch != NO_PRODUCER_EPOCH
    if not request.transactional_id or has_id != has_epoch:
        return ErrorCode.INVALID_REQUEST
    if not 0 < request.timeout_ms <= turn.config.transaction_max_timeout_ms:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    before = turn.shard.transactions.get(request.transactional_id)
    return _create(turn, request) if before is None else _renew(turn, request, before)


def _create(turn: Turn, request: InitProducerIdRequest) -> ErrorCode | TransactionStored:
    transactional_id = request.transactional_id
    if not turn.shard.account.may_grow(transactional_id, size_bytes(transactional_id, 0)):
        return ErrorCode.POLICY_VIOLATION
    producer_id = turn.shard.next_producer_id()
    if producer_id is None:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return transitions.created(transactional_id, producer_id, request.timeout_ms, turn.now_ms)


def _renew(turn: Turn, request: InitProducerIdRequest, before: TransactionStored) -> ErrorCode | TransactionStored:
    if before.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    gives_epoch = request.producer_epoch != NO_PRODUCER_EPOCH
    is_current = (request.producer_id, request.producer_epoch) == (before.producer_id, before.producer_epoch)
    if before.state is TransactionState.ONGOING:
        if gives_epoch and not is_current:
            return ErrorCode.PRODUCER_FENCED
        code = fence(turn, before, last_epoch=request.producer_epoch)
        return ErrorCode.CONCURRENT_TRANSACTIONS if code is ErrorCode.NONE else code
    if gives_epoch and not is_current:
        if not _is_last(request, before):
            return ErrorCode.PRODUCER_FENCED
        if before.producer_epoch <= LAST_CLIENT_EPOCH:
            return transitions.initialized_again(before, request.timeout_ms, turn.now_ms)
    last_epoch = request.producer_epoch
    if not before.is_epoch_exhausted:
        return transitions.epoch_raised(before, request.timeout_ms, turn.now_ms, last_epoch=last_epoch)
    producer_id = turn.shard.next_producer_id()
    if producer_id is None:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return transitions.producer_id_replaced(before, producer_id, request.timeout_ms, turn.now_ms, last_epoch=last_epoch)


def _is_last(request: InitProducerIdRequest, before: TransactionStored) -> bool:
    """Return whether the client has the id and epoch before the current ones: it never got the response with the
    current ones.
    """
    if request.producer_epoch != before.last_producer_epoch:
        return False
    if request.producer_id == before.producer_id:
        return request.producer_epoch < before.producer_epoch
    return before.has_rolled_over_from(request.producer_id, request.producer_epoch)
