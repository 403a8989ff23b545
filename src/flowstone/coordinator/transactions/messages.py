"""What goes into a TransactionShard and what comes out, independent of API versions; handlers translate both ways.

The shard always answers in the newest version's terms: see `error_for_version`.
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
    """Return the error code as a client that speaks this version of the API knows it."""
    if code is ErrorCode.PRODUCER_FENCED and api_version < _PRODUCER_FENCED_SINCE[api_key]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


class InitProducerIdRequest(NamedTuple):
    """Producer id and epoch are those the client has, since InitProducerId 3."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class InitProducerIdResponse(NamedTuple):
    error_code: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class AddPartitionsRequest(NamedTuple):
    """One transaction of AddPartitionsToTxn, or the offsets partition of the group of an AddOffsetsToTxn."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    client_version: int = V1


class AddPartitionsResponse(NamedTuple):
    """The code is that of every partition.

    POLICY_VIOLATION is a limit of ours. Clients abort the transaction; for an implicit addition the handler answers
    TRANSACTION_ABORTABLE instead.
    """

    error_code: ErrorCode = ErrorCode.NONE


class VerifyPartitionsResponse(NamedTuple):
    """TRANSACTION_ABORTABLE is the code of a partition that is not in the transaction."""

    errors: Mapping[TopicPartition, ErrorCode]


class EndTransactionRequest(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    client_version: int = V1


class EndTransactionResponse(NamedTuple):
    """Producer id and epoch are those to go on with; only V2 has them."""

    error_code: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class DescribedTransaction(NamedTuple):
    """The partitions of a transaction that is being ended are those without a marker."""

    transactional_id: str
    error_code: ErrorCode = ErrorCode.NONE
    state: str = ""
    timeout_ms: int = 0
    start_ms: int = NO_TIMESTAMP
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    partitions: tuple[TopicPartition, ...] = ()


class ListTransactionsRequest(NamedTuple):
    """Empty filters let everything through; the duration does so below zero."""

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
