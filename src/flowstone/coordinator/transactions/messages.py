"""Requests, responses and tasks of a TransactionShard, independent of API versions; handlers convert them.

Error codes in responses are those of the newest version of each API: see `error_for_version`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from flowstone.coordinator.transactions.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition

V1, V2 = 0, 2
"""The protocol of a request: V2 raises the producer epoch with every transaction (KIP-890). The version of the request
says which it is, not the finalized feature: EndTxn 5 is V2, and so is what a broker adds for Produce 12 and
TxnOffsetCommit 5."""

# Api keys, and the first version whose clients know PRODUCER_FENCED; older ones are told INVALID_PRODUCER_EPOCH.
_PRODUCER_FENCED_SINCE = {22: 4, 24: 2, 25: 2, 26: 2}


def error_for_version(api_key: int, api_version: int, code: ErrorCode) -> ErrorCode:
    """Return the error code to send to a client that uses this version of the API."""
    if code is ErrorCode.PRODUCER_FENCED and api_version < _PRODUCER_FENCED_SINCE[api_key]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


class InitProducerIdRequest(NamedTuple):
    """A request for a producer id. The client sends its current producer id and epoch since version 3 of
    InitProducerId.
    """

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class InitProducerIdResponse(NamedTuple):
    error_code: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class AddPartitionsRequest(NamedTuple):
    """A request to add or verify partitions: one transaction of AddPartitionsToTxn, or one AddOffsetsToTxn."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    client_version: int = V1


class AddPartitionsResponse(NamedTuple):
    """The result of adding partitions: one error code for all of them.

    POLICY_VIOLATION means that a limit of Flowstone's is reached, and clients abort the transaction. For an implicit
    addition the handler answers TRANSACTION_ABORTABLE instead.
    """

    error_code: ErrorCode = ErrorCode.NONE


class VerifyPartitionsResponse(NamedTuple):
    """The result of verifying partitions: TRANSACTION_ABORTABLE for each that is not in the transaction."""

    errors: Mapping[TopicPartition, ErrorCode]


class EndTransactionRequest(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    client_version: int = V1


class EndTransactionResponse(NamedTuple):
    """The result of EndTxn. Under V2 it has the producer id and epoch of the producer's next transaction."""

    error_code: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class DescribedTransaction(NamedTuple):
    """The state of a transactional id. A transaction that is being ended lists only the partitions without a marker."""

    transactional_id: str
    error_code: ErrorCode = ErrorCode.NONE
    state: str = ""
    timeout_ms: int = 0
    start_ms: int = NO_TIMESTAMP
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    partitions: tuple[TopicPartition, ...] = ()


class ListTransactionsRequest(NamedTuple):
    """The filters of ListTransactions. Empty ones match all transactions, as does a negative duration."""

    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    duration_ms: int = -1
    pattern: str | None = None


class ListedTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str


class ListTransactionsResponse(NamedTuple):
    error_code: ErrorCode = ErrorCode.NONE
    unknown_states: tuple[str, ...] = ()
    transactions: tuple[ListedTransaction, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class SendMarkers:
    """A task: have the leaders of these partitions write the markers of a decided transaction.

    Tasks are compared by identity: two transactions of V1 may be equal in every field. The sender passes the task to
    `markers_written` each time some markers are written, or to `markers_refused`.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int
    partitions: tuple[TopicPartition, ...]
