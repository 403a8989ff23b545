"""The end of a transaction: EndTxn of both protocols, aborts by the coordinator, and the markers.

V1 (EndTxn 0 to 4) keeps the epoch, so that an EndTxn that is late may end the next transaction: nothing tells them
apart. V2 (EndTxn 5) raises the epoch when a transaction is decided, and answers with the epoch to go on with:

| EndTxn 5 with      | Empty        | Ongoing  | Prepare*                   | Complete*                       |
|--------------------|--------------|----------|----------------------------|---------------------------------|
| the current epoch  | abort: bump  | decide   | CONCURRENT_TRANSACTIONS    | abort: bump                     |
|                    | commit: ITS  |          |                            | commit: ITS                     |
| the one before     | fenced       | fenced   | same outcome: CONCURRENT_  | same outcome: NONE and the      |
|                    |              |          | TRANSACTIONS; else ITS     | current pair; else ITS          |
| any other          | fenced       | fenced   | CONCURRENT_TRANSACTIONS    | fenced                          |

(ITS is INVALID_TXN_STATE; "bump" raises the epoch; "fenced" is PRODUCER_FENCED, or INVALID_PRODUCER_ID_MAPPING with
another producer id.) The one before counts only where V2 wrote the record: V1 leaves the epoch of a fenced producer
just below the current one. In Prepare* nobody is told to be fenced: after a roll-over the producer comes with the next
producer id.

Epochs end at 32766: such a transaction is decided with 32767, which nobody is told, and a next producer id, which is
the producer's from Complete* on, at epoch 0. An abort without partitions needs no markers and is complete at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowstone.coordinator.transactions import transitions
from flowstone.coordinator.transactions.config import MARKERS_RETRY_MS
from flowstone.coordinator.transactions.messages import (
    V2,
    EndTransactionRequest,
    EndTransactionResponse,
    SendMarkers,
)
from flowstone.coordinator.transactions.records import (
    NO_PRODUCER_ID,
    TransactionState,
    TransactionStored,
)
from flowstone.coordinator.transactions.state import Marking, Turn
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition

_FEATURE_THAT_RAISES_EPOCHS = 2


def end_transaction(turn: Turn, token: Any, request: EndTransactionRequest) -> None:
    before = turn.shard.transactions.get(request.transactional_id)
    if not request.transactional_id:
        response = EndTransactionResponse(ErrorCode.INVALID_REQUEST)
    elif before is None:
        response = EndTransactionResponse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    elif request.client_version >= V2:
        response = _end_v2(turn, request, before)
    else:
        response = EndTransactionResponse(_end_v1(turn, request, before))
    turn.reply(token, response)


def _end_v1(turn: Turn, request: EndTransactionRequest, before: TransactionStored) -> ErrorCode:
    code = before.check_producer(request.producer_id, request.producer_epoch)
    if code is not ErrorCode.NONE:
        return code
    if before.state is TransactionState.ONGOING:
        _decide(turn, transitions.prepared_v1(before, is_commit=request.is_commit, now_ms=turn.now_ms))
        return ErrorCode.NONE
    if before.state is TransactionState.EMPTY or before.state.is_commit != request.is_commit:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.CONCURRENT_TRANSACTIONS if before.state.is_prepared else ErrorCode.NONE


def _end_v2(turn: Turn, request: EndTransactionRequest, before: TransactionStored) -> EndTransactionResponse:
    if _is_repeated(request, before):
        if before.state.is_commit != request.is_commit:
            return EndTransactionResponse(ErrorCode.INVALID_TXN_STATE)
        if before.state.is_prepared:
            return EndTransactionResponse(ErrorCode.CONCURRENT_TRANSACTIONS)
        return EndTransactionResponse(ErrorCode.NONE, before.producer_id, before.producer_epoch)
    if before.state.is_prepared:
        return EndTransactionResponse(ErrorCode.CONCURRENT_TRANSACTIONS)
    code = before.check_producer(request.producer_id, request.producer_epoch)
    if code is not ErrorCode.NONE:
        return EndTransactionResponse(code)
    if request.is_commit and before.state is not TransactionState.ONGOING:
        return EndTransactionResponse(ErrorCode.INVALID_TXN_STATE)
    decided = _end_with_next_epoch(turn, before, is_commit=request.is_commit)
    if isinstance(decided, ErrorCode):
        return EndTransactionResponse(decided)
    return EndTransactionResponse(ErrorCode.NONE, *transitions.producer_to_go_on(decided))


def _is_repeated(request: EndTransactionRequest, stored: TransactionStored) -> bool:
    """Return whether an EndTxn 5 repeats the one that decided the stored transaction, because its response was lost."""
    if stored.client_version < V2 or not (stored.state.is_prepared or stored.state.is_complete):
        return False
    if request.producer_id == stored.producer_id:
        return request.producer_epoch == stored.producer_epoch - 1
    return stored.state.is_complete and stored.has_rolled_over_from(request.producer_id, request.producer_epoch)


def fence(turn: Turn, before: TransactionStored, *, last_epoch: int) -> ErrorCode:
    """Abort an ongoing transaction whose producer was replaced or timed out, and raise the epoch to fence the producer.

    The finalized `transaction.version` decides how. `last_epoch` is the epoch of the producer if it requested this
    itself. Under V2 a producer can always find out that its transaction was aborted, and continue.
    """
    if turn.shard.transaction_version() < _FEATURE_THAT_RAISES_EPOCHS:
        _decide(turn, transitions.fenced_v1(before, last_epoch=last_epoch, now_ms=turn.now_ms))
        return ErrorCode.NONE
    decided = _end_with_next_epoch(turn, before, is_commit=False)
    return decided if isinstance(decided, ErrorCode) else ErrorCode.NONE


def _end_with_next_epoch(turn: Turn, before: TransactionStored, *, is_commit: bool) -> TransactionStored | ErrorCode:
    next_producer_id = turn.shard.next_producer_id() if before.is_epoch_exhausted else NO_PRODUCER_ID
    if next_producer_id is None:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    prepared = transitions.prepared_v2(
        before, is_commit=is_commit, next_producer_id=next_producer_id, now_ms=turn.now_ms
    )
    return _decide(turn, prepared)


def _decide(turn: Turn, prepared: TransactionStored) -> TransactionStored:
    if not prepared.partitions:
        complete = transitions.completed(prepared, turn.now_ms)
        turn.append(complete)
        return complete
    turn.append(prepared)
    turn.send_markers(prepared)
    if prepared.state.is_commit:
        turn.shard.counts.committed += 1
    else:
        turn.shard.counts.aborted += 1
    return prepared


def resume(turn: Turn, prepared: TransactionStored) -> None:
    """Complete a transaction that was decided before the shard was loaded: send its markers again."""
    if prepared.partitions:
        turn.send_markers(prepared)
    else:
        turn.append(transitions.completed(prepared, turn.now_ms))


def markers_written(turn: Turn, task: SendMarkers, partitions: Iterable[TopicPartition]) -> None:
    """Record partitions that need no marker any more. The transaction is complete when none is left."""
    marking = _marking_of(turn, task)
    if marking is None:
        return
    marking.unmarked.difference_update(partitions)
    if not marking.unmarked:
        turn.append(transitions.completed(turn.shard.transactions[task.transactional_id], turn.now_ms))


def markers_refused(turn: Turn, task: SendMarkers) -> None:
    if _marking_of(turn, task) is not None:
        turn.shard.refused[task.transactional_id] = turn.now_ms + MARKERS_RETRY_MS


def send_refused_again(turn: Turn) -> None:
    due = [each for each, due_ms in turn.shard.refused.items() if due_ms <= turn.now_ms]
    for transactional_id in due:
        del turn.shard.refused[transactional_id]
        turn.effects.tasks.append(turn.shard.markings[transactional_id].task)


def _marking_of(turn: Turn, task: SendMarkers) -> Marking | None:
    """Return the markers that `task` writes, or None if it belongs to an earlier transaction or an earlier shard."""
    marking = turn.shard.markings.get(task.transactional_id)
    return marking if marking is not None and marking.task is task else None
